# SPDX-License-Identifier: Apache-2.0
"""The end of a daemon, as SIGTERM asks for it."""

from __future__ import annotations

import os
import signal
import threading


def stop_event() -> threading.Event:
    """Return an event that SIGTERM or SIGINT sets. To be called once, from the main thread.

    A signal's Python handler runs in the main thread, which goes on waiting where the kernel gave the signal to another
    (signal(7)): one that starts a thread or a process just then takes it. Any of them writes to the wake-up file.
    """
    stop = threading.Event()
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)

    def follow() -> None:
        os.read(reading, 1)
        stop.set()

    threading.Thread(target=follow, name="signals", daemon=True).start()
    return stop
