# SPDX-License-Identifier: Apache-2.0
"""Memory of shares enforced by the kernel: limits of a pod's cgroup that NVML of driver 615 and newer sets.

Not verified: no such driver was at hand. Nothing limits cores this way.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from kube_accel.enforce.backend import Ask, EnforceError, Name, Start, Unenforced
from kube_accel.kube.cgroups import pod_path, unified
from kube_accel.model import Inventory
from kube_accel.sharing.delivery import Grant

_MIN_DRIVER = 615
_NVML_SECONDS = 5.0

LimitMemory = Callable[[str, str, int, float], str]
"""Limits a cgroup's memory of a GPU: UUID, cgroup, bytes, seconds; why that failed, empty when it did not."""


class Dmem:
    """A pod's containers have the pod's memory of a GPU together: theirs have no cgroups before they start."""

    name = Name.DMEM

    def __init__(self, plain: Unenforced, limit: LimitMemory, sysfs_root: Path) -> None:
        self._plain = plain
        self._limit = limit
        self._cgroups = sysfs_root / "fs/cgroup"

    def unfit(self, inventory: Inventory) -> str:
        """Return why it cannot be used with this driver and kernel; empty when it can."""
        major = inventory.driver_version.partition(".")[0]
        if not major.isdecimal() or int(major) < _MIN_DRIVER:
            return f"driver {inventory.driver_version} limits no cgroup's memory; that is from {_MIN_DRIVER} on"
        if not unified(self._cgroups):
            return "the node has cgroups of version 1; memory of GPUs is limited in version 2"
        return ""

    def grant(self, ask: Ask) -> Grant:
        """Return the GPU's name, for NVIDIA's runtime."""
        return self._plain.grant(ask)

    def start(self, start: Start) -> None:
        """Limit the pod. Raises EnforceError."""
        if not start.pod_uid:
            raise EnforceError("its memory cannot be limited: the API server has not reported its pod yet")
        path = pod_path(start.pod_uid, self._cgroups)
        if path is None:
            raise EnforceError(f"its memory cannot be limited: pod {start.pod_uid} has no cgroup")
        for limit in start.limits:
            if not limit.memory_bytes:
                continue
            memory = limit.memory_bytes + start.beside.get(limit.uuid, 0)
            if problem := self._limit(limit.uuid, f"/sys/fs/cgroup{path}", memory, _NVML_SECONDS):
                raise EnforceError(f"its memory cannot be limited: {problem}")
