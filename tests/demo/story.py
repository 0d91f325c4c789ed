# SPDX-License-Identifier: Apache-2.0
"""How the demo tells what happens, and how it waits for it."""

from __future__ import annotations

import contextlib
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

WAIT_SECONDS = 60.0


class DemoError(Exception):
    """A step did not come out as the story says; the message names the step and where to look."""


class Story:
    """Prints what happens, with the time since the start."""

    def __init__(self) -> None:
        self._start = time.monotonic()

    def say(self, text: str) -> None:
        print(f"[{time.monotonic() - self._start:6.1f} s] {text}", flush=True)

    def chapter(self, title: str) -> None:
        print(f"\n== {title}", flush=True)

    def show(self, text: str) -> None:
        print(text, flush=True)


def until(done: Callable[[], Any], what: str) -> Any:
    """Waits until done() returns something true and returns it. Raises DemoError naming what was waited for."""
    deadline = time.monotonic() + WAIT_SECONDS
    while time.monotonic() < deadline:
        if value := done():
            return value
        time.sleep(0.1)
    raise DemoError(f"waited {WAIT_SECONDS:.0f} s for {what}")


@contextlib.contextmanager
def workplace() -> Iterator[Path]:
    """A new directory that is gone afterwards, also when SIGINT or SIGTERM interrupt the story: KeyboardInterrupt."""
    # Also where a shell started us with SIGINT ignored.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    root = Path(tempfile.mkdtemp(prefix="accel-"))
    try:
        yield root
    finally:
        shutil.rmtree(root, ignore_errors=True)
