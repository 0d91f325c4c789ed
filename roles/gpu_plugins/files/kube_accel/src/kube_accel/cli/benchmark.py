# SPDX-License-Identifier: Apache-2.0
"""``kube-accel benchmark``: does a fixed amount of work on a GPU, and prints how many seconds it took."""

from __future__ import annotations

import argparse
import ctypes
import json
import sys
import time

from kube_accel.cli.validate_pod import Cuda, CudaError

_BLOCKS, _THREADS, _ROUNDS = 4096, 256, 2048
"""A launch keeps every multiprocessor busy and is the same work on each GPU: 34 billion floating-point operations."""
_QUEUED = 16
"""Launches between two waits: enough that the GPU never is idle, and few enough that shares stay exact."""
_FMA = "    fma.rn.f32 %f1, %f1, 0f3F7FFFFF, 0f3F800000;\n"
_PTX = f""".version 6.0
.target sm_60
.address_size 64
.visible .entry work(.param .u32 rounds)
{{
    .reg .u32 %r<3>;
    .reg .f32 %f<2>;
    .reg .pred %p<2>;
    .shared .f32 kept;
    ld.param.u32 %r1, [rounds];
    mov.u32 %r2, %tid.x;
    cvt.rn.f32.u32 %f1, %r2;
again:
    setp.eq.u32 %p1, %r1, 0;
    @%p1 bra over;
{_FMA * 8}    sub.u32 %r1, %r1, 1;
    bra again;
over:
    st.volatile.shared.f32 [kept], %f1;
    ret;
}}
"""


class Worker(Cuda):
    """The first device that CUDA shows, and a kernel for it."""

    def prepare(self) -> str:
        """Load the kernel on the device, and return the device's name. Raises CudaError."""
        device, context, module = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_void_p()
        name = ctypes.create_string_buffer(256)
        self._kernel = ctypes.c_void_p()
        self._ok("cuInit", ctypes.c_uint(0))
        self._ok("cuDeviceGet", ctypes.byref(device), 0)
        self._ok("cuDeviceGetName", name, ctypes.c_int(len(name)), device)
        self._ok("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self._ok("cuCtxSetCurrent", context)
        self._ok("cuModuleLoadData", ctypes.byref(module), ctypes.c_char_p(_PTX.encode()))
        self._ok("cuModuleGetFunction", ctypes.byref(self._kernel), module, b"work")
        return name.value.decode(errors="replace")

    def work(self, launches: int) -> None:
        """Launch the kernel so many times and wait for the last. Raises CudaError."""
        rounds = ctypes.c_uint32(_ROUNDS)
        arguments = (ctypes.c_void_p * 1)(ctypes.addressof(rounds))
        shape = [ctypes.c_uint(number) for number in (_BLOCKS, 1, 1, _THREADS, 1, 1, 0)]
        for number in range(1, launches + 1):
            self._ok("cuLaunchKernel", self._kernel, *shape, None, arguments, None)
            if number % _QUEUED == 0 or number == launches:
                self._ok("cuCtxSynchronize")


def run(arguments: argparse.Namespace) -> int:
    """Print the seconds that the launches took as one line of JSON, and return 1 where CUDA failed."""
    try:
        worker = Worker()
        device = worker.prepare()
        # The first launch brings the kernel to the device.
        worker.work(1)
        began = time.monotonic()
        worker.work(arguments.launches)
        seconds = time.monotonic() - began
    except CudaError as error:
        print(f"kube-accel benchmark: {error}", file=sys.stderr, flush=True)
        return 1
    print(json.dumps({"seconds": round(seconds, 6), "launches": arguments.launches, "device": device}), flush=True)
    return 0
