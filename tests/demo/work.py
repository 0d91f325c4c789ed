# SPDX-License-Identifier: Apache-2.0
"""A CUDA program of a pod that works: ``work.py GIB PERCENT``, of each GPU that it sees, until it is ended."""

from __future__ import annotations

import sys
import time
from ctypes import c_int, c_void_p

from gpu.driver import Driver

GIB = 1 << 30
SECOND = 1_000_000
"""Blocks of a kernel that takes the simulated GPU a second."""


def main(gib: int, percent: int) -> None:
    driver = Driver()
    driver.ok("cuInit", 0)
    work = []
    for ordinal in range(driver.value(c_int, "cuDeviceGetCount")):
        context = driver.open(ordinal)
        driver.alloc(gib * GIB)
        work.append((context, driver.spinner()))
    print(f"works with {gib} GiB and {percent} % of each of {len(work)} GPU(s)", flush=True)
    while True:
        for context, kernel in work:
            driver.ok("cuCtxSetCurrent", c_void_p(context))
            driver.launch(kernel, percent * SECOND // 100)
        time.sleep(1)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
