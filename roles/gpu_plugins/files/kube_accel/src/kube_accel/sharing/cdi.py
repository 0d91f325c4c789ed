# SPDX-License-Identifier: Apache-2.0
"""CDI: a specification by which container runtimes bring GPUs and the driver's files into a container. Pure.

Made for runtimes that know version 0.5.0 of the specification and newer ones (containerd 1.7, CRI-O 1.25).
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from kube_accel.model import Gpu
from kube_accel.sharing.delivery import Delivery
from kube_accel.sharing.whole import CDI_KIND, CONTROL_NODES, Part

VERSION = "0.5.0"
FILE = "kube-accel.io-gpu.json"
"""Its name in the runtime's directory."""

_ASIDE = "/usr/lib/nvidia/current/"
"""Programs of Debian's packages; its libraries are in the same directory below those of a machine's libraries."""
_CAPABILITY = "nvidia-caps/nvidia-cap"

_READ_ONLY = ["ro", "nosuid", "nodev", "rbind", "rprivate"]


@dataclass(frozen=True, slots=True)
class DriverFiles:
    """What of the driver a container needs, by path below the driver's root: ``/usr/lib64/libcuda.so.580.65.06``."""

    files: tuple[str, ...] = ()
    """Libraries, programs and firmware."""
    sockets: tuple[str, ...] = ()
    """Sockets of the driver's daemons."""
    links: Mapping[str, str] = field(default_factory=dict)
    """Links beside the libraries, each with the library it leads to."""
    data: Mapping[str, str] = field(default_factory=dict)
    """The files that name libraries to graphics and OpenCL: by path in a container, where each really is."""


def extra_nodes(delivery: Delivery, listed: Callable[[str], Iterable[str]]) -> tuple[str, ...]:
    """Return the device nodes that the switches bring into every container, below ``/dev``.

    ``listed`` returns the names in a directory below ``/dev``, none where there is no such directory.
    """
    found = [f"nvidia-caps-imex-channels/channel{channel}" for channel in delivery.imex_channels]
    if delivery.gdrcopy:
        found.append("gdrdrv")
    if delivery.gds:
        found += sorted(name for name in listed("") if name.startswith("nvidia-fs"))
    if delivery.mofed:
        kinds = ("uverbs", "rdma_cm")
        found += sorted(f"infiniband/{name}" for name in listed("infiniband") if name.startswith(kinds))
    return tuple(found)


@dataclass(frozen=True, slots=True)
class HostNodes:
    """The device nodes of a host, by names below ``/dev``."""

    exists: Callable[[str], bool]
    capability_major: int | None = None
    """Major number of ``nvidia-caps`` in ``/proc/devices``."""
    graphics: Callable[[Gpu], Iterable[str]] = lambda gpu: ()
    """Returns those of a whole GPU in ``/dev/dri``, which MIG devices do not have."""


def specification(
    parts: Iterable[Part],
    files: DriverFiles,
    driver_root: str,
    host: HostNodes,
    more_nodes: Iterable[str] = (),
    hook: str | None = None,
) -> dict[str, Any] | None:
    """Return the document, in which every GPU or slice of one is a device by its UUID; None when there is none.

    ``driver_root`` is where the driver's files are on the host. ``hook`` is NVIDIA's program on the host that makes
    links and the loader's cache in a container; without it links are mounted like files, and the loader has to look
    into the libraries' directory by itself. By the major number of capabilities the runtime makes the nodes of MIG
    devices, which the host may have none of. Other nodes that do not exist are left out: they would keep a container
    from starting. MIG devices without theirs are left out too.
    """
    devices = _devices(parts, host)
    if not devices:
        return None
    mounts = [_mount(_below(driver_root, path), in_container(path), _READ_ONLY) for path in files.files]
    mounts += [_mount(_below(driver_root, path), path, [*_READ_ONLY, "noexec"]) for path in files.sockets]
    mounts += [
        _mount(_below(driver_root, source), in_container(path), _READ_ONLY) for path, source in files.data.items()
    ]
    # NVIDIA's runtime, where it is the default, would bring them a second time.
    edits: dict[str, Any] = {"env": ["NVIDIA_VISIBLE_DEVICES=void"]}
    if nodes := _nodes((*CONTROL_NODES, *more_nodes), host.exists):
        edits["deviceNodes"] = nodes
    if hook is None:
        mounts += [
            _mount(_below(driver_root, target), in_container(link), _READ_ONLY) for link, target in files.links.items()
        ]
    else:
        edits["hooks"] = _hooks(hook, files)
    if mounts:
        edits["mounts"] = mounts
    return {"cdiVersion": VERSION, "kind": CDI_KIND, "devices": devices, "containerEdits": edits}


def _devices(parts: Iterable[Part], host: HostNodes) -> list[dict[str, Any]]:
    found = {}
    for part in parts:
        capabilities = [name for name in part.device_nodes if name.startswith(_CAPABILITY)]
        if any(map(host.exists, part.device_nodes)) and (
            host.capability_major is not None or all(map(host.exists, capabilities))
        ):
            nodes = (*part.device_nodes, *(host.graphics(part.gpu) if part.uuid == part.gpu.uuid else ()))
            edits = {"deviceNodes": _nodes(nodes, host.exists, host.capability_major)}
            found[part.uuid] = {"name": part.uuid, "containerEdits": edits}
    return list(found.values())


def _nodes(
    names: Iterable[str], node_exists: Callable[[str], bool], capability_major: int | None = None
) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for name in dict.fromkeys(names):
        if capability_major is not None and name.startswith(_CAPABILITY):
            number = int(name.removeprefix(_CAPABILITY))
            found.append({"path": f"/dev/{name}", "type": "c", "major": capability_major, "minor": number})
        elif node_exists(name):
            found.append({"path": f"/dev/{name}"})
    return found


def _mount(source: str, target: str, options: list[str]) -> dict[str, Any]:
    return {"hostPath": source, "containerPath": target, "options": options}


def in_container(path: str) -> str:
    """Return a file's place in a container: what Debian keeps aside and links to is where its links are."""
    if path.startswith(_ASIDE):
        return f"/usr/bin/{path.removeprefix(_ASIDE)}"
    return path.replace(_ASIDE.removeprefix("/usr/lib"), "/")


def _below(root: str, path: str) -> str:
    return path if root == "/" else root.rstrip("/") + path


def _hooks(program: str, files: DriverFiles) -> list[dict[str, Any]]:
    name = posixpath.basename(program)
    # nvidia-ctk has the hooks as subcommands, nvidia-cdi-hook is nothing else.
    first = [name, "hook"] if name == "nvidia-ctk" else [name]
    links = [
        argument
        for link, target in files.links.items()
        for argument in ("--link", f"{posixpath.basename(target)}::{in_container(link)}")
    ]
    folders = dict.fromkeys(posixpath.dirname(in_container(path)) for path in files.files if ".so." in path)
    commands = [["create-symlinks", *links]] if links else []
    if folders:
        commands.append(["update-ldcache", *(argument for folder in folders for argument in ("--folder", folder))])
    return [{"hookName": "createContainer", "path": program, "args": [*first, *command]} for command in commands]
