# SPDX-License-Identifier: Apache-2.0
"""HTTP/2 (RFC 9113) over a unix socket, as far as gRPC needs it; frames are hyperframe's, compressed headers hpack's.

h2, which keeps the state of streams for both, takes twice as long for a call: docs/measurements/plugin.md.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from hpack import Decoder, Encoder
from hpack.exceptions import HPACKError
from hyperframe.exceptions import HyperframeError
from hyperframe.frame import (
    ContinuationFrame,
    DataFrame,
    Frame,
    GoAwayFrame,
    HeadersFrame,
    PingFrame,
    RstStreamFrame,
    SettingsFrame,
    WindowUpdateFrame,
)

Fields = Sequence[tuple[str, str]]

NO_ERROR: Final = 0x0
REFUSED_STREAM: Final = 0x7
CANCEL: Final = 0x8
"""Error codes of RFC 9113, section 7."""

_PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_HEAD: Final = 9
"""Bytes in front of each frame."""
_FRAME: Final = 1 << 14
"""Bytes of the largest frame that is taken, which is what peers assume."""
_WINDOW: Final = (1 << 16) - 1
"""Bytes that may be sent before the other side says more, section 6.9.2."""
_LARGEST_WINDOW: Final = (1 << 31) - 1
_ACKNOWLEDGED: Final = 1 << 24
"""After so many bytes the other side is sent word that there is room for them again."""
_RECEIVED: Final = 1 << 16


class ConnectionEndedError(Exception):
    """There is nothing to be read or sent any more; the message says why."""


class StreamEndedError(Exception):
    """The other side wants no more of this stream."""


@dataclass(frozen=True, slots=True)
class Headers:
    """Headers or trailers have come."""

    stream: int
    fields: Mapping[str, str]
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

    def __init__(self, connected: socket.socket, streams: int = 0) -> None:
        """``streams`` is how many a client may have open at once, of a server; 0 is a client.

        Nothing is sent or read here.
        """
        self._socket = connected
        self._streams = streams
        self._received = bytearray()
        self._coming: HeadersFrame | None = None
        """Headers that have begun."""
        self._decoder, self._encoder = Decoder(), Encoder()
        self._writing = threading.Lock()
        self._room = threading.Condition()
        self._window = self._first_window = _WINDOW
        self._windows: dict[int, int] = {}
        """Windows of open streams, in bytes."""
        self._frame = _FRAME
        self._unacknowledged = 0
        self._ended = False

    def open(self) -> None:
        """Send what comes first. Raises ConnectionEndedError."""
        settings = {SettingsFrame.INITIAL_WINDOW_SIZE: _LARGEST_WINDOW}
        settings |= {SettingsFrame.MAX_CONCURRENT_STREAMS: self._streams} if self._streams else {}
        first = b"" if self._streams else _PREFACE
        room = WindowUpdateFrame(0, window_increment=_LARGEST_WINDOW - _WINDOW)
        self._write(first + SettingsFrame(0, settings=settings).serialize() + room.serialize())

    def greeted(self) -> None:
        """Read how a client begins. Raises ConnectionEndedError."""
        self._fill(len(_PREFACE))
        if self._received[: len(_PREFACE)] != _PREFACE:
            raise ConnectionEndedError("this is no HTTP/2")
        del self._received[: len(_PREFACE)]

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
        while True:
            frame = self._next()
            headers = self._coming
            if headers is not None:
                if not isinstance(frame, ContinuationFrame) or frame.stream_id != headers.stream_id:
                    raise ConnectionEndedError("headers were broken off")
                headers.data += frame.data
                if len(headers.data) > _RECEIVED:
                    raise ConnectionEndedError("headers are too long")
            elif isinstance(frame, HeadersFrame):
                headers = self._coming = frame
            if headers is None:
                event = self._taken(frame)
                if event is not None:
                    return event
            elif "END_HEADERS" in frame.flags:
                self._coming = None
                return Headers(headers.stream_id, self._decoded(headers.data), "END_STREAM" in headers.flags)

    def send(
        self, stream: int, headers: Fields = (), data: bytes = b"", trailers: Fields = (), last: bool = False
    ) -> None:
        """Send these, in this order; data waits for room, so another thread has to read meanwhile.

        Trailers or ``last`` end our side of the stream. Raises StreamEndedError and ConnectionEndedError.
        """
        sent = 0
        while True:
            room = self._take_room(stream, len(data) - sent)
            with self._writing:
                # The order of compressed headers matters, so they are made here.
                parts = [self._headers(stream, headers, False)] if headers and not sent else []
                done = sent + room == len(data)
                while room > 0:
                    part = data[sent : sent + min(room, self._frame)]
                    sent, room = sent + len(part), room - len(part)
                    flags = ["END_STREAM"] if last and sent == len(data) else []
                    parts.append(DataFrame(stream, part, flags=flags).serialize())
                if trailers and done:
                    parts.append(self._headers(stream, trailers, True))
                self._send_all(b"".join(parts))
            if done:
                return

    def fits(self, size: int) -> bool:
        """Return whether so many bytes could be sent on a new stream at once."""
        return size <= min(self._window, self._first_window)

    def reset(self, stream: int, code: int = CANCEL) -> None:
        """Take and send no more of a stream. Raises ConnectionEndedError."""
        self.end(stream)
        self._write(RstStreamFrame(stream, error_code=code).serialize())

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
        self._fill(_HEAD)
        try:
            frame, length = Frame.parse_frame_header(memoryview(bytes(self._received[:_HEAD])))
            if length > _FRAME:
                raise ConnectionEndedError(f"a frame of {length} bytes is too large")
            self._fill(_HEAD + length)
            frame.parse_body(memoryview(bytes(self._received[_HEAD : _HEAD + length])))
        except HyperframeError as error:
            raise ConnectionEndedError(f"a frame cannot be read: {error}") from error
        del self._received[: _HEAD + length]
        return frame

    def _fill(self, size: int) -> None:
        while len(self._received) < size:
            try:
                received = self._socket.recv(_RECEIVED)
            except TimeoutError:
                raise
            except OSError as error:
                raise ConnectionEndedError(error.strerror or "the socket failed") from error
            if not received:
                raise ConnectionEndedError("the other side closed the connection")
            self._received += received

    def _decoded(self, block: bytes) -> dict[str, str]:
        try:
            return {str(name): str(value) for name, value in self._decoder.decode(block)}
        except HPACKError as error:
            raise ConnectionEndedError(f"headers cannot be read: {error}") from error

    def _taken(self, frame: Frame) -> Event | None:
        """Return what a frame is to a stream; what it is to the connection is done."""
        if isinstance(frame, DataFrame):
            self._acknowledge(frame.flow_controlled_length)
            return Data(frame.stream_id, frame.data, "END_STREAM" in frame.flags)
        if isinstance(frame, RstStreamFrame):
            self.end(frame.stream_id)
            return Reset(frame.stream_id, frame.error_code)
        if isinstance(frame, GoAwayFrame):
            return GoAway(frame.last_stream_id, frame.additional_data.decode(errors="replace"))
        if isinstance(frame, WindowUpdateFrame):
            self._widen(frame.stream_id, frame.window_increment)
        elif isinstance(frame, PingFrame) and "ACK" not in frame.flags:
            self._write(PingFrame(0, opaque_data=frame.opaque_data, flags=["ACK"]).serialize())
        elif isinstance(frame, SettingsFrame) and "ACK" not in frame.flags:
            self._settle(frame.settings)
        return None

    def _settle(self, settings: Mapping[int, int]) -> None:
        first = settings.get(SettingsFrame.INITIAL_WINDOW_SIZE)
        with self._room:
            if first is not None:
                more, self._first_window = first - self._first_window, first
                self._windows = {stream: window + more for stream, window in self._windows.items()}
            self._frame = settings.get(SettingsFrame.MAX_FRAME_SIZE, self._frame)
            self._room.notify_all()
        with self._writing:
            table = settings.get(SettingsFrame.HEADER_TABLE_SIZE)
            if table is not None:
                self._encoder.header_table_size = min(table, self._encoder.header_table_size)
            self._send_all(SettingsFrame(0, flags=["ACK"]).serialize())

    def _widen(self, stream: int, more: int) -> None:
        with self._room:
            if stream == 0:
                self._window += more
            elif stream in self._windows:
                self._windows[stream] += more
            self._room.notify_all()

    def _acknowledge(self, size: int) -> None:
        self._unacknowledged += size
        if self._unacknowledged >= _ACKNOWLEDGED:
            more, self._unacknowledged = self._unacknowledged, 0
            self._write(WindowUpdateFrame(0, window_increment=more).serialize())

    def _take_room(self, stream: int, wanted: int) -> int:
        """Return how many bytes may be sent now, at least one if any are wanted."""

        def room() -> int:
            return max(0, min(wanted, self._window, self._windows[stream]))

        with self._room:
            self._room.wait_for(lambda: self._ended or stream not in self._windows or room() or not wanted)
            if self._ended:
                raise ConnectionEndedError("the connection is ended")
            if stream not in self._windows:
                raise StreamEndedError
            found = room()
            self._window -= found
            self._windows[stream] -= found
            return found

    def _headers(self, stream: int, fields: Fields, last: bool) -> bytes:
        flags = ["END_HEADERS", *(["END_STREAM"] if last else [])]
        return HeadersFrame(stream, self._encoder.encode(fields, huffman=False), flags=flags).serialize()

    def _write(self, data: bytes) -> None:
        with self._writing:
            self._send_all(data)

    def _send_all(self, data: bytes) -> None:
        try:
            self._socket.sendall(data)
        except OSError as error:
            raise ConnectionEndedError(error.strerror or "the socket failed") from error
