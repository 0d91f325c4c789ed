# SPDX-License-Identifier: Apache-2.0
"""Python's collector of cyclic garbage, which stops all threads for as long as it looks at a heap, kept off requests.

What a cluster consists of is no garbage and stays for long. Frozen, it is not looked at: a collection during a request
sees only what has come since.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable

_YOUNG = 10_000
"""New objects after which the youngest are looked at; a request leaves few."""
_TIDY_SECONDS = 300.0


class Heap:
    """The heap of this process."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Suspend collections until ``settle``: a first list is all growth."""
        self._clock = clock
        self._settled: float | None = None
        gc.disable()

    def settle(self) -> None:
        """Freeze what is there, now that the cluster is known: little of it is garbage, which ``tidy`` finds."""
        gc.freeze()
        gc.set_threshold(_YOUNG, 10, 10)
        gc.enable()
        self._settled = self._clock()

    def tidy(self) -> None:
        """Look at everything, if that is due: a tenth of a second with 20,000 pods. No request should be waiting."""
        if self._settled is not None and self._clock() > self._settled + _TIDY_SECONDS:
            gc.unfreeze()
            gc.collect()
            self.settle()

    def release(self) -> None:
        """Leave the collector as it was."""
        gc.unfreeze()
        gc.set_threshold(700, 10, 10)
        gc.enable()
