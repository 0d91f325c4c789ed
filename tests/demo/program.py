# SPDX-License-Identifier: Apache-2.0
"""A CUDA program of a pod: allocates so many GiB each, tells what became of it, and keeps what it got."""

from __future__ import annotations

import signal
import sys

from gpu.driver import CudaError, Driver

GIB = 1 << 30


def main(sizes: list[int]) -> None:
    driver = Driver()
    driver.open()
    free, total = driver.mem_info()
    print(f"CUDA shows {total / GIB:g} GiB, {free / GIB:g} of them free", flush=True)
    for size in sizes:
        try:
            driver.alloc(size * GIB)
            print(f"{size} GiB: allocated", flush=True)
        except CudaError as error:
            print(f"{size} GiB: refused, CUDA error {error.code}", flush=True)
    print("done", flush=True)
    signal.pause()


if __name__ == "__main__":
    main([int(word) for word in sys.argv[1:]])
