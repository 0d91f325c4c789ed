# SPDX-License-Identifier: Apache-2.0
"""One connection of HTTP/2, for either side; compressed headers are read by hpack.

h2, which keeps the state of streams for both, takes twice as long for a call: docs/measurements/plugin.md.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Protocol

from hpack import Decoder
from hpack.exceptions import HPACKError

from kube_accel.http2 import frames
from kube_accel.http2.frames import LARGEST_WINDOW, PREFACE, Fields, Frame, FrameError

_WINDOW: Final = (1 << 16) - 1
"""Bytes that may be sent before the other side says more, section 6.9.2."""
_ACKNOWLEDGED: Final = 1 << 24
"""After so many bytes the other side is sent word that there is room for them again."""
_RECEIVED: Final = 1 << 16
_REMEMBERED, _REMEMBERED_BYTES = 16, 1 << 10
"""How many headers are remembered with what they said, and how long they may be."""
_CONTINUED: Final = 16
"""Frames that headers may come in."""


class Stream(Protocol):
    """What a connection needs of a socket."""

    def recv(self, size: int, /) -> bytes:
        """Return what has come, up to so many bytes. Raises OSError."""

    def sendall(self, data: bytes, /) -> None:
        """Send all of it. Raises OSError."""

    def shutdown(self, how: int, /) -> None:
        """End it, also for who waits. Raises OSError."""

    def close(self) -> None:
        """Free it."""


class ConnectionEndedError(Exception):
    """There is nothing to be read or sent any more; the message says why."""


class StreamEndedError(Exception):
    """The other side wants no more of this stream."""


@dataclass(frozen=True, slots=True)
class Headers:
    """Headers or trailers have come."""

    stream: int
    fields: Fields
    last: bool


@dataclass(frozen=True, slots=True)
class Data:
    """Some data has come."""

    stream: int
    data: bytes
    last: bool


@dataclass(frozen=True, slots=True)
class Reset:
    """The other side ends a stream."""

    stream: int
    code: int


@dataclass(frozen=True, slots=True)
class GoAway:
    """The other side takes no stream after this one."""

    stream: int
    reason: str


Event = Headers | Data | Reset | GoAway


class Connection:
    """One connection. To be read by one thread at a time; any may send."""

    def __init__(self, connected: Stream, streams: int = 0) -> None:
        """``streams`` is how many a client may have open at once, of a server; 0 is a client.

        Nothing is sent or read here.
        """
        self._socket = connected
        self._streams = streams
        self._received = bytearray()
        self._coming: tuple[Frame, bytearray, int] | None = None
        """Headers that have begun: how, what there is of them, and in how many frames."""
        self._decoder = Decoder()
        self._read: dict[bytes, Fields] = {}
        """Headers as they came, and what they said: the same as long as none is added to the decoder's table."""
        self._writing = threading.Lock()
        self._room = threading.Condition()
        self._window = self._first_window = _WINDOW
        self._windows: dict[int, int] = {}
        """Windows of open streams, in bytes."""
        self._frame = frames.LARGEST
        self._unacknowledged = 0
        self._ended = False

    def open(self) -> None:
        """Send what comes first. Raises ConnectionEndedError."""
        self._write(opening(self._streams))

    def greeted(self, data: bytes = b"") -> None:
        """Read how a client begins; ``data`` has come already. Raises ConnectionEndedError."""
        self._received += data
        while len(self._received) < len(PREFACE):
            self._receive()
        if self._received[: len(PREFACE)] != PREFACE:
            raise ConnectionEndedError("this is no HTTP/2")
        del self._received[: len(PREFACE)]

    def begin(self, stream: int) -> None:
        """Let this stream be sent on from now on."""
        with self._room:
            self._windows[stream] = self._first_window

    def end(self, stream: int) -> None:
        """Let this stream be sent on no more."""
        with self._room:
            self._windows.pop(stream, None)
            self._room.notify_all()

    def read(self) -> Event:
        """Return what comes next for a stream.

        Raises ConnectionEndedError, and TimeoutError, after which it may be called again.
        """
        while (event := self.take()) is None:
            pass
        return event

    def take(self) -> Event | None:
        """Take the next frame, and return what comes of it for a stream; see ``read``."""
        frame = self._next()
        try:
            return self._headers(frame) if frame.kind in _OF_HEADERS or self._coming else self._taken(frame)
        except FrameError as error:
            raise ConnectionEndedError(str(error)) from error

    def send(
        self,
        stream: int,
        headers: Fields = (),
        data: bytes = b"",
        trailers: Fields = (),
        last: bool = False,
        seconds: float | None = None,
        meanwhile: Callable[[], bool | None] = lambda: None,
    ) -> None:
        """Send these, in this order; data waits for room, so somebody has to read meanwhile.

        ``meanwhile`` is called when there is none. It takes a frame and returns True, or sees to it that another
        thread does. Trailers or ``last`` end our side of the stream. Raises StreamEndedError, ConnectionEndedError,
        and TimeoutError when there is no room for all of it within so many seconds.
        """
        deadline = None if seconds is None else time.monotonic() + seconds
        parts = [_field_frame(stream, headers, last and not data)] if headers else []
        if last and not (headers or data):
            parts = [frames.written(frames.DATA, frames.END_STREAM, stream)]
        sent = 0
        while True:
            room = self._take_room(stream, len(data) - sent, deadline, meanwhile)
            done = sent + room == len(data)
            while room > 0:
                part = data[sent : sent + min(room, self._frame)]
                sent, room = sent + len(part), room - len(part)
                flags = frames.END_STREAM if last and sent == len(data) else 0
                parts.append(frames.written(frames.DATA, flags, stream, part))
            if trailers and done:
                parts.append(_field_frame(stream, trailers, True))
            self._write(b"".join(parts))
            if done:
                return
            parts = []

    def fits(self, size: int) -> bool:
        """Return whether so many bytes could be sent on a new stream at once."""
        return size <= min(self._window, self._first_window)

    def reset(self, stream: int, code: int = frames.CANCEL) -> None:
        """Take and send no more of a stream. Raises ConnectionEndedError."""
        self.end(stream)
        self._write(frames.written_number(frames.RST_STREAM, stream, code))

    def shut(self) -> None:
        """End the connection for all who read or send. ``close`` it when none does."""
        with self._room:
            self._ended = True
            self._room.notify_all()
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            return  # the other side was first

    def close(self) -> None:
        """Free the socket."""
        self._socket.close()

    def _next(self) -> Frame:
        try:
            while (frame := frames.parsed(self._received)) is None:
                self._receive()
        except FrameError as error:
            raise ConnectionEndedError(str(error)) from error
        del self._received[: frames.length(frame)]
        return frame

    def _receive(self) -> None:
        try:
            received = self._socket.recv(_RECEIVED)
        except TimeoutError:
            raise
        except OSError as error:
            raise ConnectionEndedError(error.strerror or "the socket failed") from error
        if not received:
            raise ConnectionEndedError("the other side closed the connection")
        self._received += received

    def _headers(self, frame: Frame) -> Headers | None:
        """Return the headers that are complete with this frame. Raises FrameError and ConnectionEndedError."""
        if self._coming is None and frame.kind == frames.HEADERS:
            first, block, parts = frame, bytearray(frames.content(frame)), 1
        elif self._coming is not None and frame.kind == frames.CONTINUATION and frame.stream == self._coming[0].stream:
            first, block, parts = self._coming
            block, parts = block + frame.payload, parts + 1
        else:
            raise ConnectionEndedError("headers were broken off")
        if len(block) > _RECEIVED or parts > _CONTINUED:
            raise ConnectionEndedError("headers are too long")
        if not frame.flags & frames.END_HEADERS:
            self._coming = first, block, parts
            return None
        self._coming = None
        return Headers(first.stream, self._decoded(bytes(block)), bool(first.flags & frames.END_STREAM))

    def _decoded(self, block: bytes) -> Fields:
        known = self._read.get(block)
        if known is not None:
            return known
        table = self._decoder.header_table
        size, count, first = table.maxsize, len(table.dynamic_entries), next(iter(table.dynamic_entries), None)
        try:
            fields = [(str(name), str(value)) for name, value in self._decoder.decode(block)]
        except HPACKError as error:
            raise ConnectionEndedError(f"headers cannot be read: {error}") from error
        entries = table.dynamic_entries
        # What is added comes first, and drives out the last.
        if (table.maxsize, len(entries)) != (size, count) or next(iter(entries), None) is not first:
            self._read.clear()
        elif len(block) <= _REMEMBERED_BYTES and len(self._read) < _REMEMBERED:
            self._read[block] = fields
        return fields

    def _taken(self, frame: Frame) -> Event | None:
        """Return what a frame is to a stream; what it is to the connection is done. Raises FrameError."""
        kind, stream = frame.kind, frame.stream
        if kind == frames.DATA:
            self._acknowledge(len(frame.payload))
            return Data(stream, frames.content(frame), bool(frame.flags & frames.END_STREAM))
        if kind == frames.RST_STREAM:
            self.end(stream)
            return Reset(stream, frames.number(frame))
        if kind == frames.GOAWAY:
            if len(frame.payload) < 8:
                raise FrameError("a farewell is cut off")
            return GoAway(frames.number(frame) & LARGEST_WINDOW, frame.payload[8:].decode(errors="replace"))
        if kind == frames.WINDOW_UPDATE:
            self._widen(stream, frames.number(frame))
        elif kind == frames.PING and not frame.flags & frames.ACK:
            self._write(frames.written(frames.PING, frames.ACK, 0, frame.payload))
        elif kind == frames.SETTINGS and not frame.flags & frames.ACK:
            self._settle(frames.settings(frame))
        return None

    def _settle(self, settings: Mapping[int, int]) -> None:
        first = settings.get(frames.INITIAL_WINDOW_SIZE)
        with self._room:
            if first is not None:
                more, self._first_window = first - self._first_window, first
                self._windows = {stream: window + more for stream, window in self._windows.items()}
            self._frame = settings.get(frames.MAX_FRAME_SIZE, self._frame)
            self._room.notify_all()
        self._write(frames.written(frames.SETTINGS, frames.ACK, 0))

    def _widen(self, stream: int, more: int) -> None:
        with self._room:
            window = self._window if stream == 0 else self._windows.get(stream, 0)
            if not 0 < more <= LARGEST_WINDOW - window:
                raise FrameError("a window is widened by too much, or by nothing")
            if stream == 0:
                self._window += more
            elif stream in self._windows:
                self._windows[stream] += more
            self._room.notify_all()

    def _acknowledge(self, size: int) -> None:
        self._unacknowledged += size
        if self._unacknowledged >= _ACKNOWLEDGED:
            more, self._unacknowledged = self._unacknowledged, 0
            self._write(frames.written_number(frames.WINDOW_UPDATE, 0, more))

    def _take_room(self, stream: int, wanted: int, deadline: float | None, meanwhile: Callable[[], bool | None]) -> int:
        """Return how many bytes may be sent now, at least one if any are wanted."""
        looks_again = False
        while True:
            with self._room:
                while True:
                    if self._ended:
                        raise ConnectionEndedError("the connection is ended")
                    if stream not in self._windows:
                        raise StreamEndedError
                    found = max(0, min(wanted, self._window, self._windows[stream]))
                    if found or not wanted:
                        self._window -= found
                        self._windows[stream] -= found
                        return found
                    left = None if deadline is None else deadline - time.monotonic()
                    if left is not None and left <= 0:
                        raise TimeoutError("the other side has taken too little")
                    if not looks_again:
                        break
                    self._room.wait(left)
            looks_again = not meanwhile()

    def _write(self, data: bytes) -> None:
        with self._writing:
            try:
                self._socket.sendall(data)
            except OSError as error:
                raise ConnectionEndedError(error.strerror or "the socket failed") from error


_OF_HEADERS: Final = (frames.HEADERS, frames.CONTINUATION)


def opening(streams: int = 0) -> bytes:
    """Return what comes first: of a server, with how many streams a client may have open at once; 0 is a client."""
    settings = {frames.INITIAL_WINDOW_SIZE: LARGEST_WINDOW}
    settings |= {frames.MAX_CONCURRENT_STREAMS: streams} if streams else {}
    room = frames.written_number(frames.WINDOW_UPDATE, 0, LARGEST_WINDOW - _WINDOW)
    return (b"" if streams else PREFACE) + frames.written_settings(settings) + room


def _field_frame(stream: int, fields: Fields, last: bool) -> bytes:
    flags = frames.END_HEADERS | (frames.END_STREAM if last else 0)
    return frames.written(frames.HEADERS, flags, stream, frames.written_fields(tuple(fields)))
