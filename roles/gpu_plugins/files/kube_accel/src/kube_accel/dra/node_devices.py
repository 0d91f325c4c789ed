# SPDX-License-Identifier: Apache-2.0
"""The node's devices as they are now."""

from __future__ import annotations

import threading
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from kube_accel.dra.offering import NOTHING, Offering
from kube_accel.dra.partitions import Divided
from kube_accel.dra.slices import Device, devices, gpu_of, parts_by_device
from kube_accel.model import Gpu, GpuHealth, Health, Snapshot
from kube_accel.nvml.machine import pcie_roots
from kube_accel.plugin.kubelet.devices import healthy_gpus
from kube_accel.shared.claim_devices import MIG, cut, device_names
from kube_accel.sharing.whole import Part

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kube_accel.model import Inventory

_UNKNOWN = GpuHealth(Health.UNKNOWN, "the driver has not told")


@dataclass(frozen=True, slots=True)
class DeviceState:
    """One look at all devices. Replaced as a whole."""

    serial: int = 0
    """Grows with each change."""
    inventory: Inventory | None = None
    parts: Mapping[str, Part] = field(default_factory=lambda: MappingProxyType({}))
    """By the device of the whole GPU, or of the MIG device."""
    good: frozenset[str] = frozenset()
    """UUIDs of the GPUs that may be allocated."""
    health: Mapping[str, GpuHealth] = field(default_factory=lambda: MappingProxyType({}))
    """By UUID."""

    def part_of(self, device: str) -> Part | None:
        """Return the GPU or MIG device that a device is, or is a fixed share of; None where it is not there."""
        return self.parts.get(cut(device)[0])

    def gpu_of(self, device: str) -> Gpu | None:
        """Return a device's GPU, also where the device itself is not there; None where the GPU is not."""
        return None if self.inventory is None else gpu_of(device, self.inventory.gpus)

    def health_of(self, device: str) -> GpuHealth:
        """Return the health of a device's GPU."""
        gpu = self.gpu_of(device)
        return _UNKNOWN if gpu is None else self.health.get(gpu.uuid, _UNKNOWN)

    def has(self, uuid: str) -> bool:
        """Return whether a MIG device is there."""
        gpus = self.inventory.gpus if self.inventory is not None else ()
        return any(mig.uuid == uuid for gpu in gpus for mig in gpu.mig_devices)


class NodeDevices:
    """Follows the GPUs; any thread may look."""

    def __init__(self, sysfs_root: Path) -> None:
        self._sysfs_root = sysfs_root
        self._roots: Mapping[str, str] = {}
        self._changed = threading.Condition()
        self._closed = False
        self.state = DeviceState()
        self._cut: Mapping[str, int] = {}
        """Into how many fixed shares GPUs are cut, by the device of the whole GPU."""
        self._divided: Mapping[str, Divided] = {}
        """The GPUs of which MIG devices are made for claims, as published last, by UUID."""
        self.waiting = False
        """Whether a GPU is to be cut otherwise once what claims have of it is released."""

    def see(self, snapshot: Snapshot) -> bool:
        """Note what is known of the GPUs; return whether that is new."""
        inventory, old = snapshot.inventory, self.state
        if inventory is None:
            return False
        good = healthy_gpus(snapshot, old.good)
        if (inventory, good, snapshot.health) == (old.inventory, old.good, old.health):
            return False
        if inventory != old.inventory:
            self._roots = pcie_roots(self._sysfs_root, (gpu.pci_address for gpu in inventory.gpus))
        with self._changed:
            self.state = DeviceState(old.serial + 1, inventory, parts_by_device(inventory), good, snapshot.health)
            self._changed.notify_all()
        return True

    def wait(self, after: int, timeout: float) -> DeviceState | None:
        """Return the first state newer than ``after``, or the current one after so many seconds; None once closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self.state.serial > after, timeout)
            return None if self._closed else self.state

    def wake(self) -> None:
        """Have all who wait look again."""
        with self._changed:
            self._changed.notify_all()

    def close(self) -> None:
        """Have nobody wait any more."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def names(self) -> tuple[str, ...]:
        """Return the devices as they were published last, those that are left out too."""
        inventory = self.state.inventory
        parts = parts_by_device(inventory, self._divided) if inventory is not None else ()
        found = [name for device in parts for name in device_names(device, self._cut.get(device, 0))]
        return (*found, *(each.device for gpu in self._divided.values() for each in gpu.partitions))

    def wanted(
        self,
        keeps_taints: bool,
        withheld: bool,
        prepared: Collection[str],
        shared: bool = False,
        fixed: int = 0,
        offering: Offering = NOTHING,
    ) -> tuple[Device, ...] | None:
        """Return the devices to publish, and sets of counters; None while no GPU was read.

        All of them are sick where they are ``withheld``. Where the cluster keeps no taints a sick GPU is not published,
        unless its device is ``prepared``: what is allocated stays to be seen. Claims may take parts of ``shared`` ones,
        if they are not cut into so many ``fixed`` shares. What is ``offering`` says of which MIG devices are made.
        """
        state = self.state
        if state.inventory is None:
            return None
        good = frozenset[str]() if withheld else state.good - offering.doubtful
        # A GPU of which claims have something stays cut as it is: its devices are theirs.
        held = dict(map(cut, sorted(prepared)))
        self._divided = offering.divided
        whole = {gpu.name for gpu in offering.divided.values()}
        parts = parts_by_device(state.inventory, offering.divided)
        self._cut = {name: held.get(name, 0 if MIG in name or name in whole else fixed) for name in parts}
        self.waiting = any(number != fixed for name, number in self._cut.items() if MIG not in name)
        sick = {name for name in self.names() if (gpu := state.gpu_of(name)) is None or gpu.uuid not in good}
        left_out = () if keeps_taints else sick - set(prepared)
        return devices(state.inventory, good, self._roots, left_out, shared, self._cut, offering.divided)
