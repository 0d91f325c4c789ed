# SPDX-License-Identifier: Apache-2.0
"""The lock of who cuts a node's GPUs: one process at a time, of all daemons that share a state directory."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

_TRY: Final = 0.05
"""Seconds from one try to the next."""


@contextmanager
def alone(state_dir: Path, timeout: float = 0.0) -> Iterator[bool]:
    """Yield whether nobody else is at it, at the latest after ``timeout`` seconds. Raises OSError."""
    end = time.monotonic() + timeout
    with os.fdopen(os.open(state_dir / "mig.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)) as file:
        while not (taken := _take(file.fileno())) and time.monotonic() < end:
            time.sleep(_TRY)
        yield taken


def _take(file: int) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
