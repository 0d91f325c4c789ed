# SPDX-License-Identifier: Apache-2.0
"""The families about GPUs: what is not known has no series. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from kube_accel.metrics import families
from kube_accel.metrics.exposition import Family, Series
from kube_accel.metrics.sample import GpuSample, Profile, Rare
from kube_accel.model import DriverState, Health, Snapshot
from kube_accel.nvml.expected_gpus import Seen
from kube_accel.nvml.health_store import Xids

_PIPES = ("tensor", "fp64", "fp32", "fp16")


@dataclass(frozen=True, slots=True)
class Devices:
    """A node's GPUs at one collection."""

    node: str
    mode: str
    snapshot: Snapshot
    samples: Mapping[str, GpuSample] | None
    """By UUID, of those that answered; None when NVML did not."""
    rare: Mapping[str, Rare] = field(default_factory=dict)
    busy_seconds: Mapping[str, float] = field(default_factory=dict)
    """Seconds busy until now, for GPUs that report it."""
    xids: Xids = field(default_factory=dict)
    seen: Mapping[str, Seen] = field(default_factory=dict)
    """GPUs that there should be."""

    @property
    def here(self) -> set[str]:
        """GPUs that the node has, but for those that are left alone."""
        inventory = self.snapshot.inventory
        return {gpu.uuid for gpu in inventory.gpus} if inventory is not None else set()


def device_families(told: Devices) -> Iterator[tuple[Family, Series]]:
    """Yield every family with a series per GPU."""
    yield from _known(told)
    samples = told.samples or {}

    def series(values: Iterable[tuple[str, float | None]]) -> Series:
        return {(told.node, uuid): value for uuid, value in values if value is not None}

    def labelled(values: Iterable[tuple[str, Mapping[str, float]]]) -> Series:
        return {(told.node, uuid, name): value for uuid, found in values for name, value in found.items()}

    each = samples.items()
    yield families.GPU_UTILIZATION, series((uuid, s.busy.ratio if s.busy else None) for uuid, s in each)
    yield families.GPU_BUSY, series((uuid, s) for uuid, s in told.busy_seconds.items() if uuid in told.here)
    yield families.GPU_BANDWIDTH, series((uuid, s.memory_busy.ratio if s.memory_busy else None) for uuid, s in each)
    yield (
        families.MIG_USED,
        {(told.node, u, device): used for u, s in each for device, used in (s.mig_memory or {}).items()},
    )
    yield families.GPU_USED, series((uuid, s.used_bytes) for uuid, s in each)
    yield families.GPU_RESERVED, series((uuid, s.reserved_bytes) for uuid, s in each)
    yield families.GPU_TEMPERATURE, labelled((uuid, s.temperatures) for uuid, s in each)
    yield families.GPU_POWER, series((uuid, s.power_watts) for uuid, s in each)
    yield families.GPU_ENERGY, series((uuid, s.energy_joules) for uuid, s in each)
    yield families.GPU_CLOCK, labelled((uuid, s.clocks) for uuid, s in each)
    yield families.GPU_THROTTLED, labelled((uuid, s.throttled) for uuid, s in each)
    yield from _profiled(told.node, samples)
    rare = told.rare.items()
    yield families.GPU_POWER_LIMIT, series((uuid, found.power_limit_watts) for uuid, found in rare)
    yield families.GPU_ECC, labelled((uuid, found.ecc) for uuid, found in rare)
    yield families.GPU_REMAP_FAILURE, series((uuid, found.remap_failed) for uuid, found in rare)
    yield families.NODE_GPUS, {(told.node, state): count for state, count in _counts(told).items()}


def _profiled(node: str, samples: Mapping[str, GpuSample]) -> Iterator[tuple[Family, Series]]:
    """Yield what counters say of the parts of GPUs and of MIG devices."""
    whole = [((node, uuid), s.profile) for uuid, s in samples.items() if s.profile is not None]
    for family, name in (
        (families.GPU_SM_ACTIVE, "sm"),
        (families.GPU_SM_OCCUPANCY, "occupancy"),
        (families.GPU_DRAM, "dram"),
    ):
        yield family, {labels: told.ratios[name] for labels, told in whole if name in told.ratios}
    yield families.GPU_PIPES, _pipes(whole)
    for family, link in ((families.GPU_PCIE, "pcie"), (families.GPU_NVLINK, "nvlink")):
        yield (
            family,
            {
                (*labels, way): told.rates[f"{link}_{way}"]
                for labels, told in whole
                for way in ("tx", "rx")
                if f"{link}_{way}" in told.rates
            },
        )
    parts = [
        ((node, uuid, device), told) for uuid, sample in samples.items() for device, told in sample.mig_profiles.items()
    ]
    for family, name in (
        (families.MIG_ENGINE, "engine"),
        (families.MIG_SM_ACTIVE, "sm"),
        (families.MIG_SM_OCCUPANCY, "occupancy"),
        (families.MIG_DRAM, "dram"),
    ):
        yield family, {labels: told.ratios[name] for labels, told in parts if name in told.ratios}
    yield families.MIG_PIPES, _pipes(parts)


def _pipes(told: Iterable[tuple[tuple[str, ...], Profile]]) -> Series:
    return {
        (*labels, pipe): profile.ratios[pipe] for labels, profile in told for pipe in _PIPES if pipe in profile.ratios
    }


def _known(told: Devices) -> Iterator[tuple[Family, Series]]:
    """Yield what is known of GPUs that do not answer too."""
    node, snapshot = told.node, told.snapshot
    inventory = snapshot.inventory
    if inventory is not None:
        cuda = ".".join(map(str, inventory.cuda_version))
        yield (
            families.GPU_INFO,
            {
                (node, g.uuid, str(g.index), g.model, g.pci_address, told.mode, inventory.driver_version, cuda): 1
                for g in inventory.gpus
            },
        )
        yield families.GPU_CAPACITY, {(node, gpu.uuid): gpu.memory_bytes for gpu in inventory.gpus}
        parts = [(gpu, part) for gpu in inventory.gpus for part in gpu.mig_devices]
        yield (
            families.MIG_INFO,
            {(node, gpu.uuid, p.uuid, str(gpu.index), str(p.slot), p.profile): 1 for gpu, p in parts},
        )
        yield families.MIG_CAPACITY, {(node, gpu.uuid, p.uuid): p.memory_bytes for gpu, p in parts}
    states = {Health.HEALTHY: 1, Health.UNHEALTHY: 0}
    healths = snapshot.health.items()
    yield families.GPU_HEALTHY, {(node, u): states[h.health] for u, h in healths if h.health in states}
    ages = told.seen.items()
    yield families.GPU_HEALTHY_AT, {(node, u): seen.healthy_at for u, seen in ages if seen.healthy_at is not None}
    yield families.GPU_XIDS, {(node, uuid, str(xid)): count for (uuid, xid), (count, _) in told.xids.items()}
    yield families.GPU_XID_AT, {(node, uuid, str(xid)): at for (uuid, xid), (_, at) in told.xids.items()}


def _counts(told: Devices) -> dict[str, int]:
    """Return how many GPUs there should be and how many there are, as far as that is known."""
    snapshot, inventory = told.snapshot, told.snapshot.inventory
    known = told.here
    # One that was never readable here may be one of those seen before.
    expected = max(len(known | told.seen.keys()), len(known) + (len(inventory.unreadable) if inventory else 0))
    if not expected:
        return {}
    found = {"expected": expected}
    if snapshot.driver_state is DriverState.UNAVAILABLE:
        return found | {"visible": 0, "healthy": 0}
    if told.samples is not None:
        found["visible"] = len(told.samples)
    healths = [health.health for health in snapshot.health.values()]
    if inventory is not None and Health.UNKNOWN not in healths:
        found["healthy"] = healths.count(Health.HEALTHY)
    return found
