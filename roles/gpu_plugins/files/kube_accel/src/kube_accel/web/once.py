# SPDX-License-Identifier: Apache-2.0
"""A stranger's connection of HTTP/2: one request without a body, and then it is over."""

from __future__ import annotations

import socket
import time
from typing import Final

from hpack import Decoder
from hpack.exceptions import HPACKError

from kube_accel.http2 import frames
from kube_accel.http2.connection import Connection, Headers, opening
from kube_accel.http2.frames import Fields, FrameError
from kube_accel.web.head import MOST_BYTES
from kube_accel.web.site import Response

_FRAMES: Final = 16
"""That may come before the request and with it."""
_WINDOW: Final = (1 << 16) - 1
"""Bytes that may be sent before the other side says more, section 6.9.2."""


def first_request(data: bytes) -> tuple[int, Fields, int] | None:
    """Return stream, header fields and window of the first request in what a client has sent.

    None while it is not there as a whole. Raises ValueError when it never will be.
    """
    if data[: len(frames.PREFACE)] != frames.PREFACE[: len(data)]:
        raise FrameError("this is no HTTP/2")
    if len(data) > MOST_BYTES:
        raise FrameError("too much comes before a request")
    block, stream, window, position = bytearray(), 0, _WINDOW, len(frames.PREFACE)
    for _ in range(_FRAMES):
        frame = frames.parsed(data, position)
        if frame is None:
            return None
        position += frames.length(frame)
        if stream and (frame.kind, frame.stream) != (frames.CONTINUATION, stream):
            raise FrameError("headers were broken off")
        if frame.kind == frames.SETTINGS:
            window = frames.settings(frame).get(frames.INITIAL_WINDOW_SIZE, window)
        if frame.kind in (frames.HEADERS, frames.CONTINUATION):
            stream, block = frame.stream, block + frames.content(frame)
            if frame.flags & frames.END_HEADERS:
                return stream, _decoded(bytes(block)), window
    raise FrameError("too many frames come before a request")


def _decoded(block: bytes) -> Fields:
    try:
        return [(str(name), str(value)) for name, value in Decoder().decode(block)]
    except HPACKError as error:
        raise FrameError("headers cannot be read") from error


def last_words(stream: int, response: Response, whole: bool, window: int) -> bytes:
    """Return all that is sent to a client whose window that is: a short answer, and that nothing follows."""
    body = response.body if whole else b""
    if len(body) > min(window, frames.LARGEST):
        raise FrameError("there is no room for the answer")
    fields = frames.written_fields(response.fields())
    return b"".join(
        (
            opening(1),
            frames.written(frames.SETTINGS, frames.ACK, 0),
            frames.written(frames.HEADERS, frames.END_HEADERS, stream, fields),
            frames.written(frames.DATA, frames.END_STREAM, stream, body),
            _farewell(stream),
        )
    )


def answer_once(connected: socket.socket, data: bytes, response: Response, whole: bool, seconds: float) -> None:
    """Answer the first request at whatever length. Raises OSError, and what ``http2.connection`` does."""
    hurried = _Hurried(connected, time.monotonic() + seconds)
    http = Connection(hurried, 1)
    http.open()
    http.greeted(data)
    while not isinstance(event := http.read(), Headers):
        pass
    http.begin(event.stream)

    def take() -> bool:
        http.take()
        return True

    body = response.body if whole else b""
    http.send(event.stream, response.fields(), body, last=True, seconds=seconds, meanwhile=take)
    hurried.sendall(_farewell(event.stream))


def _farewell(stream: int) -> bytes:
    return frames.written(frames.GOAWAY, 0, 0, stream.to_bytes(4) + frames.NO_ERROR.to_bytes(4))


class _Hurried:
    """A socket, until a deadline."""

    def __init__(self, connected: socket.socket, deadline: float) -> None:
        self._connected = connected
        self._deadline = deadline

    def recv(self, size: int, /) -> bytes:
        self._hurry()
        return self._connected.recv(size)

    def sendall(self, data: bytes, /) -> None:
        self._hurry()
        self._connected.sendall(data)

    def shutdown(self, how: int, /) -> None:
        self._connected.shutdown(how)

    def close(self) -> None:
        self._connected.close()

    def _hurry(self) -> None:
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError("timed out")
        self._connected.settimeout(left)
