# SPDX-License-Identifier: Apache-2.0
"""worker SECONDS MILLISECONDS ROUNDS: kernels of that length for so long; prints their share of the second half's time.

ROUNDS is how many the GPU does in a millisecond, by ``calibrate``, when nobody else is on it. With GPU_KERNEL=blocks a
kernel's length is its number of blocks in microseconds, as the simulated driver has it.
"""

from __future__ import annotations

import os
import sys
import time

from gpu.driver import Driver

AHEAD_MS = 16
"""Work between two waits for the GPU."""
CALIBRATION_SECONDS = 1.0
"""By then the GPU's clock has risen."""


def in_blocks() -> bool:
    """Whether a kernel's length is its number of blocks."""
    return os.environ.get("GPU_KERNEL") == "blocks"


def calibrate(driver: Driver) -> float:
    """Rounds a millisecond of a program that is alone on the GPU and not limited."""
    if in_blocks():
        return 1.0
    kernel, start, end, rounds = driver.spinner(), driver.event(), driver.event(), 1_000_000
    until = time.monotonic() + CALIBRATION_SECONDS
    while True:
        driver.record(start)
        driver.launch(kernel, 1, rounds)
        driver.record(end)
        driver.synchronize()
        if time.monotonic() > until:
            return rounds / driver.elapsed_ms(start, end)


def main(seconds: float, milliseconds: float, rounds_each_ms: float) -> None:
    """Launch for so many seconds."""
    driver = Driver()
    driver.open()
    kernel = driver.spinner()
    blocks = int(milliseconds * 1000) if in_blocks() else 1
    rounds = int(milliseconds * rounds_each_ms)
    each = max(1, int(AHEAD_MS / milliseconds))
    begin, done, half, half_done = time.monotonic(), 0, 0.0, 0
    while time.monotonic() < begin + seconds:
        for _ in range(each):
            code = driver.launch(kernel, blocks, rounds)
            if code != 0:
                sys.exit(f"launch: CUDA error {code}")
        driver.synchronize()
        done += each
        if half == 0 and time.monotonic() >= begin + seconds / 2:
            half, half_done = time.monotonic(), done
    print((done - half_done) * milliseconds / 1000 / (time.monotonic() - half))


if __name__ == "__main__":
    main(*(float(word) for word in sys.argv[1:4]))
