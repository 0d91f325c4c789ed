# SPDX-License-Identifier: Apache-2.0
"""What the parts of the daemon need of ``kube_accel.nvml.monitor.GpuMonitor``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from kube_accel.model import GpuUsage, Snapshot


class HeldGpus(Protocol):
    """GPUs that can be read, and let go of for a while."""

    def snapshot(self) -> Snapshot:
        """The last thing known. Never waits."""

    def wait(self, after_version: int, timeout: float) -> Snapshot:
        """The first snapshot newer than ``after_version``, or the current one after ``timeout`` seconds."""

    def quiesce(self, seconds: float) -> None:
        """Let go of NVML for so long. Raises TimeoutError when it does not let go."""

    def resume(self) -> None:
        """Take NVML up again."""


class SharedGpus(Protocol):
    """What is asked of NVML while containers that share GPUs start and run."""

    def usage(self, uuids: Iterable[str], timeout: float) -> Mapping[str, GpuUsage] | None:
        """What processes have of these GPUs; None when NVML does not tell within ``timeout`` seconds."""

    def limit_memory(self, uuid: str, cgroup: str, memory_bytes: int, timeout: float) -> str:
        """Have the kernel limit a cgroup's memory of a GPU; why that failed, empty when it did not."""


class WatchedGpus(Protocol):
    """What metrics are made of."""

    def samples(self, slow: bool, timeout: float) -> Mapping[str, Any] | None:
        """What every GPU does, as ``nvml.sampling`` has it; None when NVML does not tell within ``timeout`` seconds."""

    def xids(self) -> Mapping[tuple[str, int], tuple[int, float]]:
        """How often XIDs were reported and when last, by GPU and number."""


class Gpus(HeldGpus, SharedGpus, WatchedGpus, Protocol):
    """What the daemon needs of them."""
