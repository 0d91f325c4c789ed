# SPDX-License-Identifier: Apache-2.0
"""What one GPU does and feels, for metrics. Part of the worker: few imports."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from functools import partial
from types import ModuleType
from typing import Any, TypeVar

from kube_accel.nvml.asking import Attempts, number, token

_T = TypeVar("_T")
_S = TypeVar("_S", bound=tuple[int, ...])

Record = dict[str, object]

LONGEST_SAMPLE = 1.0
"""Seconds. NVML samples utilization six times to once a second: a longer gap is not known."""

_FIELDS = {  # NVML_FI_DEV_*: name on the wire. Throttling in nanoseconds, energy in millijoules.
    74: "power",
    75: "thermal",
    76: "sync_boost",
    77: "board_limit",
    79: "reliability",
    82: "memory_temperature",
    83: "energy",
    94: "pcie_replays",
}
_THROTTLING = ("power", "thermal", "sync_boost", "board_limit", "reliability")
_CLOCKS = {"graphics": 0, "sm": 1, "memory": 2, "video": 3}  # nvmlClockType_t
_UNION = {0: "dVal", 1: "uiVal", 2: "ulVal", 3: "ullVal", 4: "sllVal", 5: "siVal"}  # nvmlValueType_t
_PERCENT = 100
_MAX_MIG_DEVICES = 64
"""Slots of a GPU that are looked at, however many it claims: there are 7 as of 2026."""
_AHEAD = 1_000_000
"""Microseconds that a sample may seem to be from the future: two clocks are not read as one."""


def integral(samples: Iterable[tuple[int, int]], since: int) -> tuple[float, float, int]:
    """Return seconds busy, seconds known, and the newest stamp, of (microseconds, percent) after ``since``. Pure.

    A sample stands for the time since the one before it, and for LONGEST_SAMPLE at most.
    """
    busy = known = 0.0
    for stamp, percent in sorted(samples):
        if stamp > since and percent <= _PERCENT:
            seconds = min((stamp - since) / 1e6, LONGEST_SAMPLE)
            busy += seconds * (percent / _PERCENT)  # in this order never more than all of it
            known += seconds
        since = max(since, stamp)
    return busy, known, since


def each_mig_device(
    nvml: ModuleType,
    handle: object,
    read: Callable[[object, int], _T],
    failed: Callable[[Exception], None] | None = None,
) -> list[_T]:
    """Return what ``read`` makes of the MIG devices of a GPU, each given with its slot.

    One that errs is left out, and ``failed`` is called with the reason. Without it this raises what ``read`` raised.
    """
    found = []
    for slot in range(min(number(nvml.nvmlDeviceGetMaxMigDeviceCount(handle)), _MAX_MIG_DEVICES)):
        try:
            found.append(read(nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, slot), slot))
        except Exception as error:
            # Nothing in this slot, or not any more; drivers answer so or so.
            if getattr(error, "value", None) in (nvml.NVML_ERROR_NOT_FOUND, nvml.NVML_ERROR_INVALID_ARGUMENT):
                continue
            if failed is None:
                raise
            failed(error)
    return found


def memory(nvml: ModuleType, handle: object) -> tuple[int, int | None]:
    """Return bytes a GPU has, and in use. NVML reports neither for one that has the host's memory (GB10).

    Raises ``pynvml.NVMLError`` for a GPU that does not answer.
    """
    try:
        told = nvml.nvmlDeviceGetMemoryInfo(handle)
    except nvml.NVMLError as error:
        if error.value != nvml.NVML_ERROR_NOT_SUPPORTED:
            raise
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"), None
    return number(told.total, least=1), number(told.used)


class Sampler:
    """Reads GPUs, and remembers up to where their samples were read."""

    def __init__(self, nvml: ModuleType, attempts: Attempts, clock: Callable[[], float] = time.time) -> None:
        self._nvml = nvml
        self._attempts = attempts
        self._optional = attempts.optional
        self._time = clock
        self._read_to: dict[tuple[str, int], int] = {}
        self._processes_to: dict[str, int] = {}

    def read(self, handle: object, uuid: str, slow: bool, mig: bool = False) -> Record:
        """Return everything of one GPU; None for what it does not report, or what errs.

        ``slow`` adds what changes rarely or takes long. ``mig`` is for a GPU in MIG mode.
        """
        nvml, optional = self._nvml, self._optional
        record: Record = {
            "memory": optional(lambda: self._memory(handle)),
            "busy": self._busy(handle, uuid, nvml.NVML_GPU_UTILIZATION_SAMPLES),
            "memory_busy": self._busy(handle, uuid, nvml.NVML_MEMORY_UTILIZATION_SAMPLES),
            "temperature": optional(lambda: number(nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU))),
            "power": optional(lambda: number(nvml.nvmlDeviceGetPowerUsage(handle))),
            "clocks": {name: mhz for name, kind in _CLOCKS.items() if (mhz := self._clock(handle, kind)) is not None},
            "processes": self.processes(handle),
            "process_time": self._process_time(handle, uuid),
            "mig_memory": optional(lambda: self._mig_memory(handle)) if mig else None,
            **self._fields(handle),
        }
        if slow:
            record["slow"] = self._slow(handle)
        return record

    def _slow(self, handle: object) -> Record:
        nvml, optional = self._nvml, self._optional
        kinds = {
            "corrected": nvml.NVML_MEMORY_ERROR_TYPE_CORRECTED,
            "uncorrected": nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED,
        }

        def errors(kind: int) -> int:
            return number(nvml.nvmlDeviceGetTotalEccErrors(handle, kind, nvml.NVML_VOLATILE_ECC))

        counts = {name: optional(partial(errors, kind)) for name, kind in kinds.items()}
        return {
            "power_limit": optional(lambda: number(nvml.nvmlDeviceGetEnforcedPowerLimit(handle))),
            "ecc": {name: count for name, count in counts.items() if count is not None},
            "remapped": optional(lambda: remapped_rows(nvml, handle)),
        }

    def _memory(self, handle: object) -> Record:
        nvml = self._nvml
        # The first version counts what the driver keeps for itself as used.
        found: Any = self._optional(lambda: nvml.nvmlDeviceGetMemoryInfo(handle, nvml.nvmlMemory_v2))
        if found is not None:
            total, used, reserved = number(found.total, least=1), number(found.used), number(found.reserved)
            return {"total": total, "used": used, "reserved": reserved}
        total, told = memory(nvml, handle)
        return {"total": total, "used": told, "reserved": None}

    def _mig_memory(self, handle: object) -> dict[str, int]:
        """Return bytes in use by MIG device."""
        nvml = self._nvml

        def used(part: object, _: int) -> tuple[str, int]:
            return token(nvml.nvmlDeviceGetUUID(part)), number(nvml.nvmlDeviceGetMemoryInfo(part).used)

        return dict(each_mig_device(nvml, handle, used, self._attempts.failed))

    def _busy(self, handle: object, uuid: str, kind: int) -> list[float] | None:
        """Return seconds busy and seconds known since the question before; nothing at the first."""
        since = self._begin(self._read_to.get((uuid, kind)))
        told = self.since(
            lambda: self._nvml.nvmlDeviceGetSamples(handle, kind, since or 0)[1],
            lambda sample: (number(sample.timeStamp), number(sample.sampleValue.uiVal)),
        )
        if told is None:
            return None
        newest = max((stamp for stamp, _ in told), default=since or 0)
        busy, known, self._read_to[uuid, kind] = integral(told, newest if since is None else since)
        return [busy, known]

    def now(self) -> int:
        """Return the time as NVML stamps its samples: microseconds since 1970."""
        return int(self._time() * 1e6)

    def _begin(self, since: int | None) -> int | None:
        # NVML's stamps follow the machine's clock: after it was set back nothing is newer than what was read before.
        return None if since is None else min(since, self.now())

    def since(self, ask: Callable[[], Any], read: Callable[[Any], _S]) -> list[_S] | None:
        """Return what ``read`` makes of samples, none where there are no new ones; None where they are not to be had.

        It makes a tuple with the sample's stamp.
        """
        nvml = self._nvml

        def asked() -> list[_S]:
            try:
                found = ask()
            except nvml.NVMLError as error:
                # NVML says success to a question about the number of samples where there is none.
                if error.value in (nvml.NVML_SUCCESS, nvml.NVML_ERROR_NOT_FOUND):
                    return []
                raise
            # Younger ones are from before the clock was set back, and were read then.
            latest = self.now() + _AHEAD
            return [read(sample) for sample in found if sample.timeStamp <= latest]

        return self._optional(asked)

    def _clock(self, handle: object, kind: int) -> int | None:
        nvml = self._nvml

        def asked() -> int | None:
            try:
                return number(nvml.nvmlDeviceGetClockInfo(handle, kind))
            except nvml.NVMLError as error:
                if error.value == nvml.NVML_ERROR_INVALID_ARGUMENT:  # a domain that this GPU does not have
                    return None
                raise

        return self._optional(asked)

    def _fields(self, handle: object) -> Record:
        nvml = self._nvml

        def asked() -> dict[str, object]:
            return {
                _FIELDS[value.fieldId]: getattr(value.value, _UNION[value.valueType])
                for value in nvml.nvmlDeviceGetFieldValues(handle, list(_FIELDS))
                if value.nvmlReturn == nvml.NVML_SUCCESS and value.valueType in _UNION and value.fieldId in _FIELDS
            }

        found = self._optional(asked) or {}
        throttled = {name: found[name] for name in _THROTTLING if name in found}
        rest = ("memory_temperature", "energy", "pcie_replays")
        return {"throttled": throttled, **{name: found.get(name) for name in rest}}

    def processes(self, handle: object) -> list[tuple[int, int | None]] | None:
        """Return memory by process; None where processes are not listed at all."""
        listed = self._optional(lambda: _memory_by_process(self._nvml.nvmlDeviceGetComputeRunningProcesses_v3(handle)))
        if listed is None:
            return None
        clients = self._optional(
            lambda: _memory_by_process(self._nvml.nvmlDeviceGetMPSComputeRunningProcesses_v3(handle))
        )
        return list(((clients or {}) | listed).items())

    def _process_time(self, handle: object, uuid: str) -> list[tuple[int, int, int]] | None:
        """Return (process, microseconds, percent) since the question before; None where that is not known."""
        since = self._begin(self._processes_to.get(uuid))
        samples = self.since(lambda: self._nvml.nvmlDeviceGetProcessUtilization(handle, since or 0), process_sample)
        if samples is None:
            return None
        self._processes_to[uuid] = max((stamp for _, stamp, _ in samples), default=since or 0)
        if since is None:
            return []  # of processes that may have ended long ago
        return [sample for sample in samples if sample[1] > since and sample[2] <= _PERCENT]


def process_sample(sample: Any) -> tuple[int, int, int]:  # noqa: ANN401
    """Return (process, microseconds, percent) of NVML's sample. Raises OddAnswerError."""
    return number(sample.pid), number(sample.timeStamp), number(sample.smUtil)


def remapped_rows(nvml: ModuleType, handle: object) -> tuple[int, int, bool, bool]:
    """Return the rows remapped for correctable and uncorrectable errors, and whether one is pending, or failed.

    Raises ``pynvml.NVMLError``, OddAnswerError.
    """
    corrected, uncorrected, pending, failed = nvml.nvmlDeviceGetRemappedRows(handle)
    return number(corrected), number(uncorrected), bool(pending), bool(failed)


def _memory_by_process(listed: Iterable[Any]) -> dict[int, int | None]:
    return {
        number(process.pid): None if process.usedGpuMemory is None else number(process.usedGpuMemory)
        for process in listed
    }
