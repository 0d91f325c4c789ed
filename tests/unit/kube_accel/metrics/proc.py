# SPDX-License-Identifier: Apache-2.0
"""A ``/proc`` of one's own making."""

from __future__ import annotations

from pathlib import Path

UID = "3f2a7c1e-0b6d-4a55-9f10-6a1c2b3d4e5f"
ID = "0123456789abcdef" * 4
CGROUPS = (
    "0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{slice}.slice/cri-containerd-{id}.scope\n",
    "0::/kubepods.slice/kubepods-pod{slice}.slice/crio-{id}.scope\n",
    "0::/kubepods.slice/kubepods-pod{slice}.slice/docker-{id}.scope\n",
    "11:memory:/kubepods/burstable/pod{uid}/{id}\n1:name=systemd:/kubepods/burstable/pod{uid}/{id}\n",
    "0::/kubepods/besteffort/pod{uid}/{id}\n",
)
"""Versions 2 and 1, by systemd and by cgroupfs, of containerd, CRI-O and Docker."""


def cgroup(uid: str, container: str, form: str = CGROUPS[0]) -> str:
    """What a process of a container has in ``/proc/<pid>/cgroup``."""
    return form.format(uid=uid, slice=uid.replace("-", "_"), id=container)


def run(root: Path, pid: int, groups: str, command: str = "python3", started: int = 1) -> None:
    """A process is there."""
    directory = root / str(pid)
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "cgroup").write_text(groups)
    fields = ["S", *("0" for _ in range(18)), str(started), "0"]
    (directory / "stat").write_text(f"{pid} ({command}) {' '.join(fields)}\n")
