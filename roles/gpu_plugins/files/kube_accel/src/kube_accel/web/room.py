# SPDX-License-Identifier: Apache-2.0
"""Memory for bodies and answers, shared by the connections of a server."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self


class Room:
    """A number of bytes. When they run short, the requests end first that keep the most for a slow client."""

    def __init__(self, size: int, patience: float = 3.0) -> None:
        """``size`` is in bytes; a request waits for some ``patience`` seconds at most."""
        self._free = size
        self._patience = patience
        self._changed = threading.Condition()
        self._slow: dict[Place, None] = {}
        """Places that wait for their client, the oldest first."""
        self._leaving = 0
        """Bytes of those that were ended and are not gone yet."""

    def place(self, end: Callable[[], None]) -> Place:
        """Return a place without bytes, for one request; ``end`` ends its connection."""
        return Place(self, end)

    def take(self, place: Place, size: int) -> bool:
        """Give a place so many bytes for what its client sends; return False when there are none to be had."""
        deadline = time.monotonic() + self._patience
        with self._changed:
            while self._free < size:
                self._make_room(size)
                left = deadline - time.monotonic()
                if left <= 0 or not self._changed.wait(left):
                    return False
            self._hold(place, size)
            return True

    def busy(self, place: Place) -> bool:
        """Note that the client has sent everything: the place is not ended any more. False when it was before."""
        with self._changed:
            self._slow.pop(place, None)
            return not place.ended

    def answer(self, place: Place, size: int) -> None:
        """Keep so many bytes instead, until the client has read them. Others make room."""
        with self._changed:
            self._give_back(place)
            self._make_room(size)
            self._hold(place, size)

    def leave(self, place: Place) -> None:
        """End the request."""
        with self._changed:
            self._give_back(place)
            self._changed.notify_all()

    def _hold(self, place: Place, size: int) -> None:
        self._free -= size
        place.size = size
        self._slow[place] = None

    def _give_back(self, place: Place) -> None:
        self._slow.pop(place, None)
        self._free += place.size
        if place.ended:
            self._leaving -= place.size
        place.size, place.ended = 0, False

    def _make_room(self, size: int) -> None:
        while self._free + self._leaving < size and self._slow:
            largest = max(self._slow, key=lambda place: place.size)
            del self._slow[largest]
            largest.ended = True
            self._leaving += largest.size
            largest.end()


class Place:
    """What one request keeps of the room. Left at the end of ``with``."""

    __slots__ = ("_room", "end", "ended", "size")

    def __init__(self, room: Room, end: Callable[[], None]) -> None:
        self._room = room
        self.end = end
        self.size = 0
        self.ended = False

    def take(self, size: int) -> bool:
        """See ``Room.take``."""
        return self._room.take(self, size)

    def busy(self) -> bool:
        """See ``Room.busy``."""
        return self._room.busy(self)

    def answer(self, size: int) -> None:
        """See ``Room.answer``."""
        self._room.answer(self, size)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._room.leave(self)
