# SPDX-License-Identifier: Apache-2.0
"""The CUDA driver's API by ctypes, as far as the tests go: real driver, simulated one, either with the interposer."""

from __future__ import annotations

import ctypes
from ctypes import c_char_p, c_float, c_int, c_size_t, c_uint, c_uint64, c_void_p
from typing import Any

OUT_OF_MEMORY = 2
PTX = b""".version 6.0
.target sm_60
.address_size 64
.visible .entry spin(.param .u64 rounds)
{
    .reg .u64 %rd<4>;
    .reg .pred %p<2>;
    .shared .u64 kept;
    ld.param.u64 %rd1, [rounds];
    mov.u64 %rd2, %rd1;
again:
    setp.eq.u64 %p1, %rd1, 0;
    @%p1 bra over;
    mad.lo.u64 %rd2, %rd2, 6364136223846793005, 1442695040888963407;
    sub.u64 %rd1, %rd1, 1;
    bra again;
over:
    st.volatile.shared.u64 [kept], %rd2;
    ret;
}
"""
"""Work, not time: a clock goes on while the GPU serves others."""


class CudaError(RuntimeError):
    """A call that failed: ``code`` is the CUresult."""

    def __init__(self, call: str, code: int) -> None:
        super().__init__(f"{call}: CUDA error {code}")
        self.code = code


class Driver:
    """``driver("cuInit", 0)`` answers the CUresult; the methods raise CudaError."""

    def __init__(self, library: str = "libcuda.so.1") -> None:
        self.library = ctypes.CDLL(library)
        self.events: list[c_void_p] = []

    def __call__(self, name: str, *arguments: Any) -> int:
        return int(getattr(self.library, name)(*arguments))

    def ok(self, name: str, *arguments: Any) -> None:
        code = self(name, *arguments)
        if code != 0:
            raise CudaError(name, code)

    def value(self, kind: Any, name: str, *arguments: Any) -> Any:
        """What the call writes to its first argument."""
        out = kind()
        self.ok(name, ctypes.byref(out), *arguments)
        return out.value

    def open(self, ordinal: int = 0) -> int:
        """Initialises, makes the device's primary context current and returns it."""
        self.ok("cuInit", 0)
        context = self.value(c_void_p, "cuDevicePrimaryCtxRetain", c_int(ordinal))
        self.ok("cuCtxSetCurrent", c_void_p(context))
        return int(context)

    def uuid(self, ordinal: int = 0) -> bytes:
        text = (ctypes.c_ubyte * 16)()
        self.ok("cuDeviceGetUuid_v2", text, c_int(ordinal))
        return bytes(text)

    def alloc(self, size: int) -> int:
        return int(self.value(c_uint64, "cuMemAlloc_v2", c_size_t(size)))

    def free(self, address: int) -> None:
        self.ok("cuMemFree_v2", c_uint64(address))

    def mem_info(self) -> tuple[int, int]:
        """Free and total bytes."""
        free, total = c_size_t(), c_size_t()
        self.ok("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        return free.value, total.value

    def stream(self, flags: int = 1) -> int:
        return int(self.value(c_void_p, "cuStreamCreate", c_uint(flags)))

    def event(self) -> int:
        return int(self.value(c_void_p, "cuEventCreate", c_uint(0)))

    def record(self, event: int, stream: int = 0) -> None:
        self.ok("cuEventRecord", c_void_p(event), c_void_p(stream))

    def elapsed_ms(self, start: int, end: int) -> float:
        return float(self.value(c_float, "cuEventElapsedTime", c_void_p(start), c_void_p(end)))

    def spinner(self) -> int:
        """A kernel that takes a number of rounds; the simulated driver's take gridDimX microseconds."""
        module = self.value(c_void_p, "cuModuleLoadData", c_char_p(PTX))
        return int(self.value(c_void_p, "cuModuleGetFunction", c_void_p(module), b"spin"))

    def launch(self, function: int, blocks: int, rounds: int = 0, stream: int = 0, name: str = "cuLaunchKernel") -> int:
        """The CUresult of one launch of ``spinner``'s kernel."""
        argument = c_uint64(rounds)
        arguments = (c_void_p * 1)(ctypes.addressof(argument))
        shape = [c_uint(number) for number in (blocks, 1, 1, 1, 1, 1, 0)]
        last = [arguments, None] if "Cooperative" not in name else [arguments]
        return self(name, c_void_p(function), *shape, c_void_p(stream), *last)

    def synchronize(self, stream: int | None = None) -> None:
        if stream is None:
            self.ok("cuCtxSynchronize")
        else:
            self.ok("cuStreamSynchronize", c_void_p(stream))
