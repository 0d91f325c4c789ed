# SPDX-License-Identifier: Apache-2.0
"""worker SECONDS MILLISECONDS: kernels of that length for so long; prints their share of the time in the second half.

With GPU_KERNEL=blocks a kernel's length is its number of blocks in microseconds, as the simulated driver has it.
"""

from __future__ import annotations

import os
import sys
import time

from gpu.driver import Driver

AHEAD_MS = 16
"""Work between two waits for the GPU."""


def length(driver: Driver, kernel: int, milliseconds: float) -> tuple[int, int]:
    """Blocks and cycles of a kernel that takes so long."""
    if os.environ.get("GPU_KERNEL") == "blocks":
        return int(milliseconds * 1000), 0
    start, end, cycles = driver.event(), driver.event(), 10_000_000
    for _ in range(3):
        driver.record(start)
        driver.launch(kernel, 1, cycles)
        driver.record(end)
        driver.synchronize()
    return 1, int(cycles * milliseconds / driver.elapsed_ms(start, end))


def main(seconds: float, milliseconds: float) -> None:
    driver = Driver()
    driver.open()
    kernel = driver.spinner()
    blocks, cycles = length(driver, kernel, milliseconds)
    each = max(1, int(AHEAD_MS / milliseconds))
    begin, done, half, half_done = time.monotonic(), 0, 0.0, 0
    while time.monotonic() < begin + seconds:
        for _ in range(each):
            code = driver.launch(kernel, blocks, cycles)
            if code != 0:
                sys.exit(f"launch: CUDA error {code}")
        driver.synchronize()
        done += each
        if half == 0 and time.monotonic() >= begin + seconds / 2:
            half, half_done = time.monotonic(), done
    print((done - half_done) * milliseconds / 1000 / (time.monotonic() - half))


if __name__ == "__main__":
    main(float(sys.argv[1]), float(sys.argv[2]))
