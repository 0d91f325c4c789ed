# SPDX-License-Identifier: Apache-2.0
"""Who waits for an answer, and who lets them go first."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

_COURTESY_SECONDS = 0.002


class Traffic:
    """Requests under way. Python runs one thread at a time: background work lets requests go first."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._count = 0
        self._none = threading.Event()
        self._none.set()

    @contextmanager
    def request(self) -> Iterator[None]:
        """Count a request from start to end."""
        self._enter(1)
        try:
            yield
        finally:
            self._enter(-1)

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Count a request that waits for something else no more, until it goes on."""
        self._enter(-1)
        try:
            yield
        finally:
            self._enter(1)

    def _enter(self, count: int) -> None:
        with self._lock:
            self._count += count
            if self._count:
                self._none.clear()
            else:
                self._none.set()

    def let_pass(self) -> None:
        """Wait until no request is under way, but not for long: there may always be some."""
        if self._count:
            self._none.wait(_COURTESY_SECONDS)
