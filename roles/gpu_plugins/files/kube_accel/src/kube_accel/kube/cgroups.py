# SPDX-License-Identifier: Apache-2.0
"""Which container a process belongs to, by its cgroups, and where a pod's cgroup is. Needs no rights over processes."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

_POD = re.compile(r"pod([0-9a-f]{8}(?:[-_]?[0-9a-f]{4}){3}[-_]?[0-9a-f]{12})(?![0-9a-f])")
"""Dashes in cgroupfs, underscores in systemd's slices, neither for static pods."""
_CONTAINER = re.compile(r"(?<![0-9a-f])[0-9a-f]{64}(?![0-9a-f])")
_LIMIT = 64 << 10
_MOST_KNOWN = 4096
"""Processes that are remembered: NVML lists a few hundred."""
_TRUSTED_SECONDS = 5.0
"""Numbers go round: the kernel gives all others before it reuses one."""


@dataclass(frozen=True, slots=True)
class Place:
    """A container by what container runtimes write into cgroups' names."""

    pod_uid: str
    """With dashes."""
    container_id: str
    """64 hexadecimal digits."""


def place(text: str) -> Place | None:
    """Return where a process is by its ``/proc/<pid>/cgroup``; None for one that is in no container of a pod. Pure.

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
    """Return a pod's UID as the API server spells it, from any way that cgroups do."""
    digits = re.sub("[-_]", "", text)
    return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))


def place_of(pid: int, proc_root: Path = Path("/proc")) -> Place | None:
    """Return where the process is; None too when it has gone."""
    try:
        with (proc_root / str(pid) / "cgroup").open(encoding="utf-8", errors="replace") as file:
            return place(file.read(_LIMIT))
    except OSError:
        return None


class Places:
    """``place_of`` for processes that are asked about again and again: their cgroups are read once in their lives."""

    def __init__(self, proc_root: Path = Path("/proc"), clock: Callable[[], float] = time.monotonic) -> None:
        self._root = proc_root
        self._clock = clock
        self._known: dict[int, tuple[float, tuple[int, int], Place | None]] = {}

    def of(self, pid: int) -> Place | None:
        """Return where the process is; None too when it has gone, of which it takes a moment to hear."""
        now, known = self._clock(), self._known.get(pid)
        if known is not None and now - known[0] < _TRUSTED_SECONDS:
            return known[2]
        try:
            # A number that is reused has another directory, made at another time.
            found = os.stat(f"{self._root}/{pid}")  # noqa: PTH116
        except OSError:
            self._known.pop(pid, None)
            return None
        stamp = found.st_ino, found.st_ctime_ns
        where = known[2] if known is not None and known[1] == stamp else place_of(pid, self._root)
        if len(self._known) >= _MOST_KNOWN:
            self._known.clear()
        self._known[pid] = now, stamp, where
        return where


def unified(cgroup_root: Path) -> bool:
    """Return whether there is one hierarchy of cgroups, version 2, for everything."""
    return (cgroup_root / "cgroup.controllers").is_file()


def pod_path(uid: str, cgroup_root: Path) -> str | None:
    """Return a pod's cgroup below ``cgroup_root``, as ``/kubepods.slice/...``; None when there is none."""
    names = {f"pod{uid}", f"pod{uid.replace('-', '_')}.slice"}
    for depth in ("*kubepods*", "*kubepods*/*", "*kubepods*/*/*", "*/*kubepods*/*", "*/*kubepods*/*/*"):
        for path in cgroup_root.glob(depth):
            if path.name in names or any(path.name.endswith(f"-{name}") for name in names):
                return f"/{path.relative_to(cgroup_root)}"
    return None
