# SPDX-License-Identifier: Apache-2.0
"""What a container gets so that the interposer stands wherever a program looks for the driver's library. Pure.

The driver's own libcuda and NVML lie at a private path, everything else of the driver where it always is. A container's
distribution decides in which directory its loader looks: the libraries are in all of them, so that nothing has to run
in the container, and no variable decides which library is found.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from kube_accel.sharing.cdi import VERSION, DriverFiles, in_container
from kube_accel.sharing.delivery import Delivery, Grant, Strategy

CDI_KIND = "kube-accel.io/share"
CDI_FILES = "kube-accel.io-share-"
"""How the names of its specifications begin, one a container."""
POLICY = "/etc/kube-accel/policy"
STATE = "/run/kube-accel/state"
DRIVER = "/usr/lib/kube-accel/driver"
"""In the container, the driver's own libraries of those that are shimmed."""
SHIMMED = ("libcuda", "libnvidia-ml")

_VOID = {"NVIDIA_VISIBLE_DEVICES": "void"}
"""Has NVIDIA's runtime add nothing."""


@dataclass(frozen=True, slots=True)
class Sources:
    """Where things are on the host."""

    files: DriverFiles
    driver_root: str
    version: str
    """Of the driver."""
    shim: str
    """Directory of one build of the interposer: ``libcuda.so.1`` and ``libnvidia-ml.so.1``."""
    machine: str
    """``x86_64`` or ``aarch64``."""


@dataclass(frozen=True, slots=True)
class Interposed:
    """What one container gets."""

    read_only: Mapping[str, str]
    """Paths on the host by path in the container."""
    writable: Mapping[str, str]
    device_nodes: tuple[str, ...]
    """Names below ``/dev``."""


def missing(files: DriverFiles, version: str) -> str:
    """Which library of the driver there is none of; empty when all are there."""
    names = {posixpath.basename(path) for path in files.files}
    return next((f"{stem}.so.{version}" for stem in SHIMMED if f"{stem}.so.{version}" not in names), "")


def interposed(sources: Sources, policy: str, state: str, device_nodes: Iterable[str]) -> Interposed:
    """The mounts for a container whose two files are at these paths on the host.

    The driver's files are complete: ``missing`` found nothing.
    """
    read_only = {POLICY: policy}
    primary = _primary(sources)
    directories = tuple(dict.fromkeys((primary, f"/usr/lib/{sources.machine}-linux-gnu", "/usr/lib64")))
    for path, library in _names(sources, primary):
        for directory in directories:
            read_only[f"{directory}/{path}"] = library
    for path in sources.files.files:
        # Libraries of other directories are of another word size.
        if ".so." not in path:
            read_only[in_container(path)] = _below(sources.driver_root, path)
    for stem in SHIMMED:
        read_only[f"{DRIVER}/{stem}.so.1"] = _below(sources.driver_root, f"{primary}/{stem}.so.{sources.version}")
    # A socket is connected to on a read-only mount too.
    read_only |= {path: _below(sources.driver_root, path) for path in sources.files.sockets}
    return Interposed(read_only, {STATE: state}, tuple(device_nodes))


def _names(sources: Sources, primary: str) -> Iterator[tuple[str, str]]:
    """Every name of a library in a directory of the container, with the file on the host that is to be there."""
    for path in sources.files.files:
        if posixpath.dirname(path) == primary and ".so." in path:
            yield posixpath.basename(path), _below(sources.driver_root, path)
    for link, target in sources.files.links.items():
        if posixpath.dirname(link) == primary:
            yield posixpath.basename(link), _below(sources.driver_root, target)
    for stem in SHIMMED:
        for ending in ("", ".1", f".{sources.version}"):
            yield f"{stem}.so{ending}", f"{sources.shim}/{stem}.so.1"


def _primary(sources: Sources) -> str:
    """The directory of the driver's libraries on the host; the first of several, as the loader has it."""
    wanted = f"libcuda.so.{sources.version}"
    return next(posixpath.dirname(path) for path in sources.files.files if posixpath.basename(path) == wanted)


def _below(root: str, path: str) -> str:
    return path if root == "/" else root.rstrip("/") + path


def grant(got: Interposed, key: str, delivery: Delivery) -> Grant:
    """What kubelet is answered: the names of CDI devices, or everything itself. ``key`` is the container's."""
    device = f"{CDI_KIND}={key}"
    if Strategy.CDI_CRI in delivery.strategies:
        return Grant(dict(_VOID), (), cdi_devices=(device,))
    if Strategy.CDI_ANNOTATIONS in delivery.strategies:
        return Grant(dict(_VOID), (), annotations={f"{delivery.annotation_prefix}kube-accel_share-{key[:16]}": device})
    return Grant(dict(_VOID), got.device_nodes, mounts=dict(got.writable), read_only_mounts=dict(got.read_only))


def specification(got: Interposed, key: str) -> dict[str, Any]:
    """The CDI specification with this container's one device."""
    mounts = [_mount(source, target, "ro") for target, source in got.read_only.items()]
    mounts += [_mount(source, target, "rw") for target, source in got.writable.items()]
    edits = {
        "env": [f"{name}={value}" for name, value in _VOID.items()],
        "deviceNodes": [{"path": f"/dev/{name}"} for name in got.device_nodes],
        "mounts": mounts,
    }
    return {"cdiVersion": VERSION, "kind": CDI_KIND, "devices": [{"name": key, "containerEdits": edits}]}


def _mount(source: str, target: str, access: str) -> dict[str, Any]:
    return {"hostPath": source, "containerPath": target, "options": [access, "nosuid", "nodev", "rbind", "rprivate"]}
