# SPDX-License-Identifier: Apache-2.0
"""Which container a process belongs to, by its cgroups, and where a pod's cgroup is. Needs no rights over processes."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

_POD = re.compile(r"pod([0-9a-f]{8}(?:[-_]?[0-9a-f]{4}){3}[-_]?[0-9a-f]{12})(?![0-9a-f])")
"""Dashes in cgroupfs, underscores in systemd's slices, neither for static pods."""
_CONTAINER = re.compile(r"(?<![0-9a-f])[0-9a-f]{64}(?![0-9a-f])")
_LIMIT = 64 << 10


@dataclass(frozen=True, slots=True)
class Place:
    """A container by what container runtimes write into cgroups' names."""

    pod_uid: str
    """With dashes."""
    container_id: str
    """64 hexadecimal digits."""


def place(text: str) -> Place | None:
    """Where a process is by its ``/proc/<pid>/cgroup``; None for one that is in no container of a pod. Pure.

    Versions 1 and 2, cgroupfs and systemd, containerd, CRI-O and Docker, nested kubelets, and paths relative to a
    cgroup namespace of ours; a monitor of CRI-O's is no workload.
    """
    for line in text.splitlines():
        path = line.split(":", 2)[-1]
        pods = list(_POD.finditer(path))
        if not pods or "crio-conmon-" in path:
            continue
        containers = _CONTAINER.findall(path, pods[-1].end())
        if containers:
            return Place(pod_uid(pods[-1][1]), containers[-1])
    return None


def pod_uid(text: str) -> str:
    """A pod's UID as the API server spells it, from any way that cgroups do."""
    digits = re.sub("[-_]", "", text)
    return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))


def place_of(pid: int, proc_root: Path = Path("/proc")) -> Place | None:
    """Where the process is; None too when it has gone."""
    try:
        with (proc_root / str(pid) / "cgroup").open(encoding="utf-8", errors="replace") as file:
            return place(file.read(_LIMIT))
    except OSError:
        return None


def unified(cgroup_root: Path) -> bool:
    """Whether there is one hierarchy of cgroups, version 2, for everything."""
    return (cgroup_root / "cgroup.controllers").is_file()


def pod_path(uid: str, cgroup_root: Path) -> str | None:
    """A pod's cgroup below ``cgroup_root``, as ``/kubepods.slice/...``; None when there is none."""
    names = {f"pod{uid}", f"pod{uid.replace('-', '_')}.slice"}
    for depth in ("*kubepods*", "*kubepods*/*", "*kubepods*/*/*", "*/*kubepods*/*", "*/*kubepods*/*/*"):
        for path in cgroup_root.glob(depth):
            if path.name in names or any(path.name.endswith(f"-{name}") for name in names):
                return f"/{path.relative_to(cgroup_root)}"
    return None
