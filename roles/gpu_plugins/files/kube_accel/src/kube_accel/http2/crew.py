# SPDX-License-Identifier: Apache-2.0
"""The threads of a connection, which read it in turns.

Who has read a call answers it. Another reads on as soon as the answer has to wait for something, or at once: so a call
waits for no other thread, which is what takes most of the time of a small one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

Call = TypeVar("Call")


class Crew(Generic[Call]):
    """Reads and answers until there are no more calls."""

    def __init__(
        self,
        name: str,
        read: Callable[[], Call | None],
        answer: Callable[[Call, Callable[[], None]], None],
        over: Callable[[], None],
        most: int,
        idle: int,
    ) -> None:
        """``read`` returns None when there will be no more; it is called by one thread at a time.

        ``answer`` is given what lets another thread read meanwhile, to be called once at most. ``over`` is called by
        the last thread. There are ``most`` threads at most, of which so many ``idle`` ones wait.
        """
        self._name = name
        self._read = read
        self._answer = answer
        self._over = over
        self._most = most
        self._most_idle = idle
        self._reading = threading.Lock()
        self._counting = threading.Lock()
        self._threads = 0
        self._idle = 0
        self._ended = False

    def start(self) -> None:
        """Have one more thread read and answer."""
        with self._counting:
            self._threads += 1
        threading.Thread(target=self._work, name=self._name, daemon=True).start()

    def _work(self) -> None:
        try:
            while self._waits():
                with self._counting:
                    self._idle -= 1
                turn = _Turn(self._pass_on)
                try:
                    while not turn.passed and (call := self._next()) is not None:
                        self._answer(call, turn.pass_on)
                    if not turn.passed:
                        return
                finally:
                    if not turn.passed:
                        self._reading.release()
        finally:
            with self._counting:
                self._threads -= 1
                last = self._threads == 0
            if last:
                self._over()

    def _next(self) -> Call | None:
        call = None if self._ended else self._read()
        self._ended = call is None
        return call

    def _waits(self) -> bool:
        """Wait for the turn to read, unless enough wait for it."""
        with self._counting:
            if self._idle >= self._most_idle:
                return False
            self._idle += 1
        self._reading.acquire()
        return True

    def _pass_on(self) -> None:
        self._reading.release()
        with self._counting:
            alone = self._idle == 0 and self._threads < self._most
        if alone:
            self.start()


class _Turn:
    """Who reads."""

    def __init__(self, pass_on: Callable[[], None]) -> None:
        self._pass_on = pass_on
        self.passed = False

    def pass_on(self) -> None:
        if not self.passed:
            self.passed = True
            self._pass_on()
