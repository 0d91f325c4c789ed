# SPDX-License-Identifier: Apache-2.0
"""``kube-accel validate --share``: proves from inside a pod what its share of a GPU is, in memory and in time.

Prints a table, and after it the same as one line of JSON.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass

from kube_accel.cli.benchmark import Worker
from kube_accel.cli.validate import Check, Status, check_nvml, look
from kube_accel.cli.validate_pod import OUT_OF_MEMORY, CudaError, check_shown
from kube_accel.shared.columns import columns

_LEAST_BYTES = 64 << 10
"""The last byte is looked for in steps that are halved down to this."""
_BEYOND_BYTES = 16 << 20
"""What is asked for when all of the share is taken."""
_MISSING = 0.9
"""Part of the share's memory below which what a pod gets is told as little."""
_UNITS = 16
"""Launches of which the shortest says how long one takes a GPU that does nothing else."""
_SPENT_SECONDS = 1.0
"""Work before time is measured: a share that was idle may use some more at first, and a GPU that was has low clocks."""
_REST_SECONDS = 0.5
"""After which a share may use some more, so that a launch waits for nothing."""
_TOLERANCE = 0.05
_ENFORCED = "see docs/reference/gpu-plugins.md, Enforcement of shares"


@dataclass(frozen=True, slots=True)
class Memory:
    """What CUDA shows, gives and refuses, in bytes."""

    shown: int
    free: int
    got: int
    """All that it gave before it refused the next step."""
    beyond: int
    """The driver's number for an allocation beyond that; 0 where it was given, too."""


@dataclass(frozen=True, slots=True)
class Speed:
    """Work on the GPU."""

    seconds: float
    launches: int
    unit_seconds: float
    """Of one launch, on the GPU alone."""

    @property
    def per_second(self) -> float:
        """Return launches a second."""
        return self.launches / self.seconds

    @property
    def ratio(self) -> float:
        """Return the part of the time in which the GPU worked for this program."""
        return min(1.0, self.per_second * self.unit_seconds)


class ShareWorker(Worker):
    """Allocates and works on the first device that CUDA shows."""

    def memory(self, step: int) -> Memory:
        """Take all there is, beginning with ``step`` bytes, and give it back. Raises CudaError."""
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self._ok("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        held: list[ctypes.c_uint64] = []
        got = 0
        try:
            while step >= _LEAST_BYTES:
                address = ctypes.c_uint64()
                code = self._call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(step))
                if code == 0:
                    held.append(address)
                    got += step
                elif code == OUT_OF_MEMORY:
                    step //= 2
                else:
                    raise CudaError(f"cuMemAlloc of {step} bytes returned {code}")
            beyond = self._allocated(_BEYOND_BYTES)
        finally:
            for address in held:
                self._call("cuMemFree_v2", address)
        return Memory(total.value, free.value, got, beyond)

    def speed(self, seconds: float) -> Speed:
        """Work for so long, and some before. Raises CudaError."""
        self._work_for(_SPENT_SECONDS)
        units = [self._unit()]
        self._work_for(_SPENT_SECONDS)
        took, launches = self._work_for(seconds)
        units.append(self._unit())
        return Speed(took, launches, min(units))

    def _unit(self) -> float:
        """Return how many seconds a launch takes that waits for nothing."""
        time.sleep(_REST_SECONDS)
        return min(self._timed() for _ in range(_UNITS))

    def _work_for(self, seconds: float) -> tuple[float, int]:
        began, launches = time.monotonic(), 0
        while (passed := time.monotonic() - began) < seconds:
            self.work(1)
            launches += 1
        return passed, launches

    def _timed(self) -> float:
        """Return how many seconds one launch takes by the GPU's own clock."""
        events = [ctypes.c_void_p(), ctypes.c_void_p()]
        milliseconds = ctypes.c_float()
        for event in events:
            self._ok("cuEventCreate", ctypes.byref(event), ctypes.c_uint(0))
        self._ok("cuEventRecord", events[0], None)
        self.work(1)
        self._ok("cuEventRecord", events[1], None)
        self._ok("cuEventSynchronize", events[1])
        self._ok("cuEventElapsedTime", ctypes.byref(milliseconds), *events)
        for event in events:
            self._call("cuEventDestroy_v2", event)
        return milliseconds.value / 1000


def run(arguments: argparse.Namespace) -> int:
    """Print what was found, and return 1 when a check failed."""
    checks: list[Check] = []
    figures: dict[str, object] = {}
    for found in _found(arguments):
        if isinstance(found, Check):
            checks.append(found)
        else:
            figures |= found
    rows = [("CHECK", "RESULT", "FOUND"), *((check.name, check.status.value, check.detail) for check in checks)]
    print("\n".join(columns(rows)))
    told = [asdict(check) | {"status": check.status.value} for check in checks]
    print(json.dumps({"checks": told, "share": figures}), flush=True)
    return int(any(check.status is Status.FAIL for check in checks))


def _found(arguments: argparse.Namespace) -> Iterator[Check | dict[str, object]]:
    """Yield checks, and the figures that they are made of."""
    snapshot = look(arguments.sysfs_root)
    yield check_nvml(snapshot)
    limit: int = arguments.memory
    if snapshot.inventory is not None and snapshot.inventory.gpus:
        shown = max(gpu.memory_bytes for gpu in snapshot.inventory.gpus)
        yield {"nvml_bytes": shown}
        if limit:
            yield check_shown("NVML", [shown], limit)
    try:
        worker = ShareWorker()
        device = worker.prepare()
        memory = worker.memory(limit or _BEYOND_BYTES)
        speed = worker.speed(arguments.seconds)
    except CudaError as error:
        yield Check(Status.FAIL, "cuda", str(error), "see the runtime class and the container runtime of the node")
        return
    yield {
        "device": device,
        "cuda_bytes": memory.shown,
        "free_bytes": memory.free,
        "got_bytes": memory.got,
        "beyond_code": memory.beyond,
        "gpu_time_ratio": round(speed.ratio, 4),
        "launches_per_second": round(speed.per_second, 3),
        "seconds": round(speed.seconds, 3),
    }
    if limit:
        yield check_shown("CUDA", [memory.shown], limit)
    yield check_got(memory, limit)
    yield check_beyond(memory)
    yield check_time(speed, arguments.cores)


def check_got(memory: Memory, limit: int) -> Check:
    """Check that a pod gets its memory, and no more. A ``limit`` of 0 is none."""
    said = f"{_mib(memory.got)} of {_mib(limit or memory.shown)} MiB were given"
    if limit and memory.got > limit:
        return Check(Status.FAIL, "last byte", said, _ENFORCED)
    if memory.got < _MISSING * (limit or memory.shown):
        return Check(
            Status.WARN, "last byte", said, "see who else uses memory of the GPU: kubectl inspect gpu -d --used"
        )
    return Check(Status.OK, "last byte", said)


def check_beyond(memory: Memory) -> Check:
    """Check that what is beyond is refused as a full GPU would refuse it."""
    if memory.beyond == OUT_OF_MEMORY:
        return Check(Status.OK, "beyond", f"{_mib(_BEYOND_BYTES)} MiB more: CUDA_ERROR_OUT_OF_MEMORY ({OUT_OF_MEMORY})")
    said = f"{_mib(_BEYOND_BYTES)} MiB more: cuMemAlloc returned {memory.beyond}, not {OUT_OF_MEMORY}"
    return Check(Status.FAIL, "beyond", said, _ENFORCED)


def check_time(speed: Speed, cores: int) -> Check:
    """Check that a pod has no more of the GPU's time than its cores, in percent. 0: that is not limited in time."""
    said = f"{speed.ratio:.0%} of the GPU's time, {speed.per_second:.1f} launches/s for {speed.seconds:.0f} s"
    if cores and speed.ratio > cores / 100 + _TOLERANCE:
        return Check(Status.FAIL, "GPU time", f"{said}; {cores} % are its share", _ENFORCED)
    return Check(Status.OK, "GPU time", f"{said}; {cores} % are its share" if cores else said)


def _mib(size: int) -> str:
    return f"{size / (1 << 20):g}"
