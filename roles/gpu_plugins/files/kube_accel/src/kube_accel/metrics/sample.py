# SPDX-License-Identifier: Apache-2.0
"""What NVML tells of the GPUs once a collection, in base units. Pure; the wire is described in ``nvml.sampling``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

_RATIOS = frozenset({"engine", "sm", "occupancy", "tensor", "fp64", "fp32", "fp16", "dram"})
_RATES = ("pcie_tx", "pcie_rx", "nvlink_tx", "nvlink_rx")
_ROUNDED = 101.0
"""Percent: what a part that never rests may come to."""
_MIB = 1 << 20
_NOT_A_PID = frozenset({0, 2**32 - 1})
"""What a driver of another version than its library reports about processes."""


@dataclass(frozen=True, slots=True)
class Busy:
    """How busy a GPU was since the last collection."""

    seconds: float
    known: float
    """Seconds that there are samples of."""

    @property
    def ratio(self) -> float | None:
        """Return the ratio; None without a sample."""
        return min(1.0, self.seconds / self.known) if self.known > 0 else None


@dataclass(frozen=True, slots=True)
class Rare:
    """What changes rarely, or takes long to read."""

    power_limit_watts: float | None
    ecc: Mapping[str, int]
    """Errors by type, where the GPU counts them."""
    remap_failed: bool | None
    remapped_rows: tuple[int, int] | None = None
    """For correctable and for uncorrectable errors."""


@dataclass(frozen=True, slots=True)
class Profile:
    """What parts of a GPU did since the last collection. An absent key was not reported."""

    ratios: Mapping[str, float]
    """Ratios of time or of capacity, by name: engine, sm, occupancy, tensor, fp64, fp32, fp16, dram."""
    rates: Mapping[str, float]
    """Bytes a second: pcie_tx, pcie_rx, nvlink_tx, nvlink_rx."""


@dataclass(frozen=True, slots=True)
class GpuSample:
    """One GPU that answered. None or an absent key: it is not reported."""

    uuid: str
    capacity_bytes: int
    used_bytes: int | None
    reserved_bytes: int | None
    busy: Busy | None
    memory_busy: Busy | None
    temperatures: Mapping[str, float] = field(default_factory=dict)
    """Celsius by sensor."""
    power_watts: float | None = None
    energy_joules: float | None = None
    clocks: Mapping[str, float] = field(default_factory=dict)
    """Hertz by domain."""
    throttled: Mapping[str, float] = field(default_factory=dict)
    """Seconds by reason."""
    pcie_replays: int | None = None
    processes: Mapping[int, int | None] | None = None
    """Bytes by host process id, None for one whose memory is not reported; None altogether where none are listed."""
    process_time: tuple[tuple[int, int, int], ...] | None = None
    """Process id, microseconds since 1970, percent of the multiprocessors' time in the sample that ended then."""
    mig_memory: Mapping[str, int] | None = None
    """Bytes in use by MIG device; None for a GPU that is not in MIG mode."""
    rare: Rare | None = None
    """When it was asked for."""
    profile: Profile | None = None
    """None where it was not asked for, or is not to be had."""
    mig_profiles: Mapping[str, Profile] = field(default_factory=dict)
    """By MIG device."""
    withheld: bool = False
    """Whether a value is missing for the driver erred, and not for the GPU does not have it."""


def samples(raw: Mapping[str, Any]) -> dict[str, GpuSample]:
    """Return the worker's answer to ``samples``: GPUs that answered, by UUID."""
    return {entry["uuid"]: _gpu(entry) for entry in raw["gpus"] if "error" not in entry}


def _gpu(entry: Mapping[str, Any]) -> GpuSample:
    profiles = entry.get("profile", {})
    memory, processes, time = entry["memory"], entry["processes"], entry["process_time"]
    sensors = {"core": entry["temperature"], "memory": entry["memory_temperature"]}
    return GpuSample(
        uuid=entry["uuid"],
        capacity_bytes=memory["total"],
        used_bytes=memory["used"],
        reserved_bytes=memory["reserved"],
        busy=_busy(entry["busy"]),
        memory_busy=_busy(entry["memory_busy"]),
        temperatures={name: float(value) for name, value in sensors.items() if value is not None},
        power_watts=scaled(entry["power"], 1e-3),
        energy_joules=scaled(entry["energy"], 1e-3),
        clocks={name: mhz * 1e6 for name, mhz in entry["clocks"].items()},
        throttled={reason: nanoseconds * 1e-9 for reason, nanoseconds in entry["throttled"].items()},
        pcie_replays=entry["pcie_replays"],
        processes=None if processes is None else {pid: used for pid, used in processes if pid not in _NOT_A_PID},
        process_time=None if time is None else tuple((pid, at, percent) for pid, at, percent in time),
        mig_memory=entry["mig_memory"],
        rare=_rare(entry["slow"]) if "slow" in entry else None,
        profile=_profile(profiles.get("gpu")),
        mig_profiles={
            part: told for part, raw in profiles.get("parts", {}).items() if (told := _profile(raw)) is not None
        },
        withheld="faults" in entry,
    )


def _profile(raw: Mapping[str, float] | None) -> Profile | None:
    if raw is None:
        return None
    ratios = {name: min(1.0, value / 100) for name, value in raw.items() if name in _RATIOS and 0 <= value <= _ROUNDED}
    return Profile(ratios, {name: raw[name] * _MIB for name in _RATES if raw.get(name, -1) >= 0})


def _busy(raw: list[float] | None) -> Busy | None:
    return None if raw is None else Busy(*raw)


def scaled(value: float | None, factor: float) -> float | None:
    """Return the value in another unit; None stays None."""
    return None if value is None else value * factor


def _rare(raw: Mapping[str, Any]) -> Rare:
    rows = raw["remapped"]
    limit, ecc = scaled(raw["power_limit"], 1e-3), raw["ecc"]
    return Rare(limit, ecc, None) if rows is None else Rare(limit, ecc, bool(rows[3]), (rows[0], rows[1]))
