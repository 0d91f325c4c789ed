# SPDX-License-Identifier: Apache-2.0
"""What others need of ``kube_accel.nvml.monitor.GpuMonitor``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from kube_accel.model import GpuUsage, Snapshot
from kube_accel.nvml.expected_gpus import Seen
from kube_accel.nvml.health_store import Xids


class KnownGpus(Protocol):
    """What is known of GPUs."""

    def snapshot(self) -> Snapshot:
        """Return the last thing known. Never waits."""

    def wait(self, after_version: int, timeout: float) -> Snapshot:
        """Return the first snapshot newer than ``after_version``, or the current one after ``timeout`` seconds."""


class HeldGpus(KnownGpus, Protocol):
    """GPUs that can be let go of for a while."""

    def quiesce(self, seconds: float, holder: str = ...) -> None:
        """Let go of NVML for so long. Raises TimeoutError when it does not let go."""

    def resume(self, holder: str = ...) -> None:
        """Take NVML up again, unless another holder has it let go of."""


class SharedGpus(Protocol):
    """What is asked of NVML while containers that share GPUs start and run."""

    def usage(self, uuids: Iterable[str], timeout: float) -> Mapping[str, GpuUsage] | None:
        """Return what processes have of these GPUs; None when NVML does not answer within ``timeout`` seconds."""

    def limit_memory(self, uuid: str, cgroup: str, memory_bytes: int, timeout: float) -> str:
        """Have the kernel limit a cgroup's memory of a GPU; return why that failed, empty when it did not."""


class WatchedGpus(KnownGpus, Protocol):
    """What metrics are made of."""

    def samples(self, slow: bool, profile: bool, timeout: float) -> Mapping[str, Any] | None:
        """Return what every GPU does, as ``nvml.sampling`` has it, and ``nvml.profiling`` where that is asked for.

        None when NVML does not answer within ``timeout`` seconds.
        """

    def xids(self) -> Xids:
        """Return the XIDs reported until now, before this process too. Never waits."""

    def seen(self) -> Mapping[str, Seen]:
        """Return the GPUs that there should be, by UUID. Never waits."""


class Gpus(HeldGpus, SharedGpus, WatchedGpus, Protocol):
    """What the daemon needs of them."""
