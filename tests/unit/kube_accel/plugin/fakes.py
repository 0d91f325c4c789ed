# SPDX-License-Identifier: Apache-2.0
"""GPUs without NVML: inventories, snapshots and a monitor that says what a test wants."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from kube_accel.enforce.mps import MpsPaths
from kube_accel.kube.podresources import PodDevices
from kube_accel.model import Ancestor, DriverState, Gpu, GpuHealth, GpuLink, GpuUsage, Health, Inventory, Snapshot
from kube_accel.nvml.expected_gpus import Seen
from kube_accel.nvml.health_store import Xids
from kube_accel.plugin.kubelet.device_exclusivity import DeviceExclusivity
from kube_accel.plugin.kubelet.devices import healthy_gpus
from kube_accel.plugin.kubelet.server import WholeGpuPlugin
from kube_accel.sharing.whole import RESOURCE, layout

HEALTHY = GpuHealth(Health.HEALTHY)
LOST = GpuHealth(Health.UNHEALTHY, "the GPU is lost")
UNKNOWN = GpuHealth(Health.UNKNOWN, "NVML did not answer")


def uuid(index: int) -> str:
    return f"GPU-{index:08x}-0000-0000-0000-000000000000"


def inventory(count: int) -> Inventory:
    """Half of the GPUs on NUMA node 0, half on 1; all joined by NVLink. Minor numbers differ from the indices."""
    gpus = tuple(
        Gpu(
            uuid=uuid(index),
            index=index,
            minor=count - 1 - index,
            model="NVIDIA H100",
            memory_bytes=80 << 30,
            compute_capability=(9, 0),
            pci_address=f"0000:{0x10 + index:02x}:00.0",
            numa_node=index * 2 // count if count > 1 else None,
            mig_enabled=False,
        )
        for index in range(count)
    )
    links = {
        frozenset((a.uuid, b.uuid)): GpuLink(Ancestor.NODE if a.numa_node == b.numa_node else Ancestor.SYSTEM, 18)
        for a in gpus
        for b in gpus
        if a.index < b.index
    }
    return Inventory("580.159.04", (13, 0), gpus, links)


def ready(count: int, changed: Mapping[int, GpuHealth] | None = None) -> Snapshot:
    """A driver that answers; every GPU healthy but the ``changed`` ones, by index."""
    known = inventory(count)
    health = {gpu.uuid: (changed or {}).get(gpu.index, HEALTHY) for gpu in known.gpus}
    return Snapshot(1, DriverState.READY, "", known, health)


class Listed:
    """Kubelet's PodResources with pods of one container in namespace team: the devices of each, by name."""

    def __init__(self) -> None:
        self.pods: dict[str, set[str]] = {}

    def list(self, timeout: float) -> tuple[PodDevices, ...]:
        return tuple(PodDevices("team", pod, "main", RESOURCE, tuple(ids)) for pod, ids in self.pods.items())


def plugin(dev_root: Path, on_stream_end: Callable[[], None] = lambda: None) -> WholeGpuPlugin:
    """One that nobody needs to hear of, with a kubelet that lists nothing."""
    exclusivity = DeviceExclusivity(Listed(), lambda reason: None)
    mps = MpsPaths(dev_root / "mps", "nvidia-cuda-mps-control")
    return WholeGpuPlugin(dev_root, lambda devices: None, on_stream_end, exclusivity, mps)


def offer(plugin: WholeGpuPlugin, snapshot: Snapshot) -> bool:
    """Have it offer every GPU that the snapshot says to be healthy; whether that is news to kubelet."""
    parts = layout(snapshot.inventory)[RESOURCE] if snapshot.inventory is not None else ()
    return plugin.offer(parts, healthy_gpus(snapshot, ()), snapshot.inventory)


STARTING = Snapshot(0, DriverState.STARTING, "NVML has not answered yet", None, {})
UNAVAILABLE = Snapshot(0, DriverState.UNAVAILABLE, "no driver is loaded", None, {})


class FakeMonitor:
    """What a daemon asks of GpuMonitor."""

    def __init__(self, first: Snapshot = STARTING) -> None:
        self._changed = threading.Condition()
        self._snapshot = first

    def set(self, snapshot: Snapshot) -> None:
        with self._changed:
            self._snapshot = replace(snapshot, version=self._snapshot.version + 1)
            self._changed.notify_all()

    def snapshot(self) -> Snapshot:
        return self._snapshot

    def wait(self, after_version: int, timeout: float) -> Snapshot:
        with self._changed:
            self._changed.wait_for(lambda: self._snapshot.version > after_version, timeout)
            return self._snapshot

    def usage(self, uuids: Iterable[str], timeout: float) -> Mapping[str, GpuUsage] | None:
        return None

    def samples(self, slow: bool, profile: bool, timeout: float) -> Mapping[str, Any] | None:
        return None

    def xids(self) -> Xids:
        return {}

    def seen(self) -> Mapping[str, Seen]:
        return {}

    def limit_memory(self, uuid: str, cgroup: str, memory_bytes: int, timeout: float) -> str:
        return "no NVML"

    def quiesce(self, seconds: float, holder: str = "admin") -> None:
        self.set(replace(self._snapshot, driver_state=DriverState.QUIESCED, detail=f"for {seconds:g} s"))

    def resume(self, holder: str = "admin") -> None:
        self.set(replace(self._snapshot, driver_state=DriverState.READY, detail=""))
