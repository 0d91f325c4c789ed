# SPDX-License-Identifier: Apache-2.0
"""``kube-accel validate --pod``: checks from inside a pod what it was given of GPUs, by NVML and by CUDA."""

from __future__ import annotations

import argparse
import ctypes
import json
import os
from collections.abc import Collection, Iterator
from dataclasses import asdict, dataclass

from kube_accel.cli.validate import Check, Status, check_nvml, look

_LIBRARY = "libcuda.so.1"
_TRIAL_BYTES = 16 << 20
OUT_OF_MEMORY = 2
"""CUDA_ERROR_OUT_OF_MEMORY."""
_RUNTIME = "see the runtime class and the container runtime of the node"


class CudaError(Exception):
    """A call of the driver failed; says which, and how."""


@dataclass(frozen=True, slots=True)
class CudaDevice:
    """A device as CUDA shows it, after something was allocated on it and freed."""

    name: str
    total_bytes: int
    over: int | None
    """What an allocation over the limit returned, the driver's number; None where there is no limit."""


class Cuda:
    """The driver's interface, by its library. Signatures are those of the CUDA driver API."""

    def __init__(self, library: str = _LIBRARY) -> None:
        """Raises CudaError where the library cannot be loaded."""
        try:
            self._library = ctypes.CDLL(library)
        except OSError as error:
            raise CudaError(f"{library} cannot be loaded: {error}") from error

    def _call(self, name: str, *arguments: object) -> int:
        try:
            return int(self._library[name](*arguments))
        except AttributeError as error:
            raise CudaError(f"the driver has no {name}") from error

    def _ok(self, name: str, *arguments: object) -> None:
        if code := self._call(name, *arguments):
            text = ctypes.c_char_p()
            self._call("cuGetErrorName", code, ctypes.byref(text))
            raise CudaError(f"{name} returned {code} {(text.value or b'').decode()}".rstrip())

    def version(self) -> tuple[int, int]:
        """Initialize CUDA and return the newest version that the driver supports. Raises CudaError."""
        self._ok("cuInit", ctypes.c_uint(0))
        number = ctypes.c_int()
        self._ok("cuDriverGetVersion", ctypes.byref(number))
        return number.value // 1000, number.value % 1000 // 10

    def count(self) -> int:
        """Return how many devices there are. Raises CudaError."""
        number = ctypes.c_int()
        self._ok("cuDeviceGetCount", ctypes.byref(number))
        return number.value

    def tried(self, ordinal: int, limit: int) -> CudaDevice:
        """Allocate a little, and more than ``limit`` bytes unless that is 0. Raises CudaError."""
        device, context, total = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_size_t()
        name = ctypes.create_string_buffer(256)
        self._ok("cuDeviceGet", ctypes.byref(device), ordinal)
        self._ok("cuDeviceGetName", name, ctypes.c_int(len(name)), device)
        self._ok("cuDeviceTotalMem_v2", ctypes.byref(total), device)
        self._ok("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        try:
            self._ok("cuCtxSetCurrent", context)
            if code := self._allocated(_TRIAL_BYTES):
                raise CudaError(f"cuMemAlloc of {_TRIAL_BYTES >> 20} MiB returned {code}")
            over = self._allocated(limit + _TRIAL_BYTES) if limit else None
        finally:
            self._call("cuDevicePrimaryCtxRelease_v2", device)
        return CudaDevice(name.value.decode(errors="replace"), total.value, over)

    def _allocated(self, size: int) -> int:
        address = ctypes.c_uint64()
        code = self._call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(size))
        if not code:
            self._ok("cuMemFree_v2", address)
        return code


def run(arguments: argparse.Namespace) -> int:
    """Print the checks as one line of JSON, and return 1 when one of them failed."""
    checks = list(_checks(arguments))
    print(json.dumps({"checks": [asdict(check) | {"status": check.status.value} for check in checks]}), flush=True)
    return int(any(check.status is Status.FAIL for check in checks))


def _checks(arguments: argparse.Namespace) -> Iterator[Check]:
    snapshot = look(arguments.sysfs_root)
    yield check_nvml(snapshot)
    if snapshot.inventory is not None:
        sizes = {gpu.uuid: gpu.memory_bytes for gpu in snapshot.inventory.gpus}
        yield check_given(sizes, arguments.gpus, os.environ.get("NVIDIA_VISIBLE_DEVICES", ""))
        if arguments.memory:
            yield check_shown("NVML", list(sizes.values()), arguments.memory)
    try:
        cuda = Cuda()
        major, minor = cuda.version()
        devices = [cuda.tried(ordinal, arguments.memory) for ordinal in range(cuda.count())]
    except CudaError as error:
        yield Check(Status.FAIL, "cuda", str(error), _RUNTIME)
        return
    yield check_cuda((major, minor), devices, arguments.gpus)
    if arguments.memory:
        yield check_shown("CUDA", [device.total_bytes for device in devices], arguments.memory)
        yield check_limit(devices, arguments.memory)


def check_given(uuids: Collection[str], expected: int, variable: str) -> Check:
    """Check that NVML shows the number of GPUs asked for, and those that the environment names, if it does."""
    if len(uuids) != expected:
        return Check(Status.FAIL, "gpus", f"NVML shows {len(uuids)} GPUs, but the pod requests {expected}", _RUNTIME)
    strange = [name for name in variable.split(",") if name.startswith("GPU-") and name not in uuids]
    if strange:
        return Check(
            Status.FAIL, "gpus", f"NVML does not show {', '.join(strange)} of NVIDIA_VISIBLE_DEVICES", _RUNTIME
        )
    return Check(Status.OK, "gpus", f"NVML shows {', '.join(sorted(uuids))}")


def check_cuda(version: tuple[int, int], devices: Collection[CudaDevice], expected: int) -> Check:
    """Check that CUDA has as many devices, and that memory of each can be allocated."""
    if len(devices) != expected:
        return Check(
            Status.FAIL, "cuda", f"CUDA shows {len(devices)} devices, but the pod requests {expected}", _RUNTIME
        )
    names = ", ".join(device.name for device in devices)
    return Check(Status.OK, "cuda", f"CUDA {version[0]}.{version[1]} allocates on {names}")


def check_shown(by: str, sizes: Collection[int], limit: int) -> Check:
    """Check that no GPU seems larger than the share of it."""
    most = max(sizes, default=0)
    if most > limit:
        detail = f"{by} shows {most >> 20} MiB, but the share has {limit >> 20}"
        return Check(Status.FAIL, "share", detail, "see docs/reference/gpu-plugins.md, Enforcement of shares")
    return Check(Status.OK, "share", f"{by} shows {most >> 20} MiB")


def check_limit(devices: Collection[CudaDevice], limit: int) -> Check:
    """Check that more than the share is refused, as a full GPU would refuse it."""
    codes = sorted({device.over for device in devices if device.over != OUT_OF_MEMORY}, key=str)
    if codes:
        detail = f"over {limit >> 20} MiB cuMemAlloc returned {', '.join(map(str, codes))}, not {OUT_OF_MEMORY}"
        return Check(Status.FAIL, "limit", detail, "see docs/reference/gpu-plugins.md, Enforcement of shares")
    return Check(Status.OK, "limit", f"more than {limit >> 20} MiB is refused")
