# SPDX-License-Identifier: Apache-2.0
"""What is kept true at the API server: written when it may have changed and now and then, however often that fails."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import NoReturn


def reconcile_loop(
    step: Callable[[], bool],
    wake: threading.Event,
    every: float,
    back_off: tuple[float, float],
    errors: tuple[type[Exception], ...],
    failed: Callable[[str], None],
) -> NoReturn:
    """Call ``step`` when ``wake`` is set, and every ``every`` seconds; it returns whether it did its work.

    After one of these ``errors`` it is called again, after the first of the ``back_off`` seconds and each time twice as
    many up to the second. ``failed`` is called with the reason, for the same one once until there was work done.
    """
    pause, said = back_off[0], ""
    while True:
        wake.wait(every)
        wake.clear()
        try:
            done = step()
        except errors as error:
            if str(error) != said:
                failed(str(error))
            said = str(error)
            wake.set()
            time.sleep(pause)
            pause = min(pause * 2, back_off[1])
            continue
        if done:
            pause, said = back_off[0], ""
