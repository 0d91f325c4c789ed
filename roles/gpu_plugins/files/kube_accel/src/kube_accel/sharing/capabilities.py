# SPDX-License-Identifier: Apache-2.0
"""What of the driver a container with a share gets: what the interposer limits, and what else was asked for. Pure.

The names are those of NVIDIA's runtime (``NVIDIA_DRIVER_CAPABILITIES``). OpenCL, which is part of ``compute`` there,
has a name of its own, since nothing limits it.
"""

from __future__ import annotations

import posixpath
from collections.abc import Collection, Iterable
from dataclasses import replace
from enum import StrEnum

from kube_accel.sharing.cdi import DriverFiles


class Capability(StrEnum):
    """A group of the driver's interfaces."""

    COMPUTE = "compute"
    UTILITY = "utility"
    OPENCL = "opencl"
    GRAPHICS = "graphics"
    VIDEO = "video"
    DISPLAY = "display"
    NGX = "ngx"


LIMITED = frozenset((Capability.COMPUTE, Capability.UTILITY))
"""CUDA and NVML, which every share has."""
INTERFACES = {
    Capability.OPENCL: "OpenCL",
    Capability.GRAPHICS: "Vulkan, OpenGL and OptiX",
    Capability.VIDEO: "NVENC and NVDEC",
    Capability.DISPLAY: "displays",
    Capability.NGX: "NGX",
}
"""What nothing limits: memory and time on the GPU that these take count for no share."""

_STEMS = {
    Capability.OPENCL: ("libnvidia-opencl",),
    Capability.VIDEO: ("libnvcuvid", "libnvidia-encode", "libnvidia-opticalflow", "libvdpau_nvidia"),
    Capability.NGX: ("libnvidia-ngx",),
    Capability.GRAPHICS: (
        *("libGL", "libEGL", "libOpenGL", "libglx", "libnvoptix", "libnvidia-cbl", "libnvidia-egl", "libnvidia-fbc"),
        *("libnvidia-gl", "libnvidia-gtk", "libnvidia-ifr", "libnvidia-present", "libnvidia-rtcore", "libnvidia-tls"),
        *("libnvidia-vksc", "libnvidia-vulkan", "libnvidia-wayland"),
    ),
}
"""How the names of their libraries begin. All others serve CUDA or several of these."""
_MODESET = "nvidia-modeset"


def parse(names: Iterable[str]) -> frozenset[Capability]:
    """Return the capabilities by these names, and those that every share has. ``all`` is all of them.

    Raises ValueError for other names.
    """
    found = set(LIMITED)
    for name in names:
        if name == "all":
            found |= set(Capability)
        else:
            try:
                found.add(Capability(name))
            except ValueError:
                raise ValueError(f"{name!r} is not one of all, {', '.join(Capability)}") from None
    return frozenset(found)


def needed(path: str) -> Capability:
    """Return the capability that brings this file of the driver."""
    name = posixpath.basename(path)
    if path.startswith("/etc/OpenCL/"):
        return Capability.OPENCL
    if name.startswith("lib"):
        return next((one for one, stems in _STEMS.items() if name.startswith(stems)), Capability.COMPUTE)
    is_data = name.endswith((".json", ".bin", ".so")) and not path.startswith("/lib/firmware/")
    return Capability.GRAPHICS if is_data else Capability.UTILITY


def selected(files: DriverFiles, capabilities: Collection[Capability]) -> DriverFiles:
    """Return the files of the driver that these capabilities bring."""
    return replace(
        files,
        files=tuple(path for path in files.files if needed(path) in capabilities),
        links={link: target for link, target in files.links.items() if needed(target) in capabilities},
        data={path: source for path, source in files.data.items() if needed(path) in capabilities},
    )


def node_wanted(name: str, capabilities: Collection[Capability]) -> bool:
    """Return whether these capabilities bring ``/dev/<name>``, one of the device nodes that all GPUs have in common."""
    return name != _MODESET or not {Capability.GRAPHICS, Capability.DISPLAY}.isdisjoint(capabilities)


def unlimited(capabilities: Collection[Capability]) -> str:
    """Return the interfaces that these capabilities bring and nothing limits, as text; empty for none."""
    return ", ".join(text for one, text in INTERFACES.items() if one in capabilities)
