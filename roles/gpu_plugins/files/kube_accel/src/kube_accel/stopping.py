# SPDX-License-Identifier: Apache-2.0
"""The end of a daemon: SIGTERM asks for it, or a part of it fails."""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Callable

_log = logging.getLogger(__name__)

EXIT_OK, EXIT_FAILED = 0, 1


class Parts:
    """The threads of a daemon. No daemon lives on without one of them: kubelet starts a whole one."""

    def __init__(self, stop: threading.Event) -> None:
        """``stop`` is set when a part fails."""
        self._stop = stop
        self.exit_code = EXIT_OK
        """What the process is to end with."""

    def start(self, name: str, target: Callable[[], None]) -> threading.Thread:
        """Start a part, and end the daemon when it raises."""

        def guarded() -> None:
            try:
                target()
            except Exception:
                _log.exception("a part of the daemon failed", extra={"part": name})
                self.end(EXIT_FAILED)

        thread = threading.Thread(target=guarded, name=name, daemon=True)
        thread.start()
        return thread

    def end(self, exit_code: int) -> None:
        """End the daemon with this exit code."""
        self.exit_code = exit_code
        self._stop.set()


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
