# SPDX-License-Identifier: Apache-2.0
"""A gRPC channel that costs next to nothing, so that what is timed over it is the server and its socket.

HTTP/2 (RFC 9113) as far as one unary call after the other to a server on a unix socket needs it. The headers of answers
are not read: an answer without a message is a refusal.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

from http2_bytes import PREFACE, frame, literal

DATA, HEADERS, RESET, SETTINGS, PING, GOAWAY, WINDOW = 0, 1, 3, 4, 6, 7, 8
ACK, END_STREAM, END_HEADERS = 1, 1, 4
_INITIAL_WINDOW = 4
_LARGE = 1 << 30
"""Bytes the server may send without being told of more room."""
_HEAD = 9
_SECONDS = 60.0


class Channel:
    """What of ``grpc.Channel`` unary calls need, for one thread. A call raises RuntimeError unless it is answered."""

    def __init__(self, path: Path) -> None:
        """``path`` is the socket. Raises OSError."""
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(_SECONDS)
        self._socket.connect(str(path))
        self._received = b""
        self._stream = -1
        room = frame(SETTINGS, 0, 0, struct.pack(">HI", _INITIAL_WINDOW, _LARGE))
        self._socket.sendall(PREFACE + room + frame(WINDOW, 0, 0, struct.pack(">I", _LARGE)))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def unary_unary(
        self, path: str, serialize: Callable[[Any], bytes], deserialize: Callable[[bytes], Any]
    ) -> Callable[..., Any]:
        """A method of the server."""
        # :method POST and :scheme http of RFC 7541's static table.
        head = b"\x83\x86" + b"".join(
            literal(name, value)
            for name, value in (
                (":path", path),
                (":authority", "localhost"),
                ("content-type", "application/grpc"),
                ("te", "trailers"),
            )
        )

        def call(request: Any, timeout: float | None = None) -> Any:
            return deserialize(self._call(head, serialize(request)))

        return call

    def unary_stream(self, path: str, *_: object) -> Callable[..., Any]:
        """Not over this channel."""

        def call(request: Any) -> Any:
            raise RuntimeError(f"{path} answers with a stream")

        return call

    def _call(self, head: bytes, message: bytes) -> bytes:
        self._stream += 2
        body = b"\0" + struct.pack(">I", len(message)) + message
        self._socket.sendall(
            frame(HEADERS, END_HEADERS, self._stream, head) + frame(DATA, END_STREAM, self._stream, body)
        )
        answer = b""
        while True:
            kind, flags, stream, payload = self._next()
            if kind == GOAWAY:
                raise RuntimeError(f"the server ends the connection: {payload[8:].decode(errors='replace')}")
            if kind in (SETTINGS, PING) and not flags & ACK:
                self._socket.sendall(frame(kind, ACK, 0, payload if kind == PING else b""))
            elif stream == self._stream:
                answer += payload if kind == DATA else b""
                if kind == RESET or (kind in (DATA, HEADERS) and flags & END_STREAM):
                    break
        if not answer:
            raise RuntimeError("the server refuses the call")
        return answer[5:]

    def _next(self) -> tuple[int, int, int, bytes]:
        """The next frame's type, flags, stream and payload."""
        while len(self._received) < (end := _HEAD + int.from_bytes(self._received[:3])):
            received = self._socket.recv(1 << 16)
            if not received:
                raise RuntimeError("the server has closed the connection")
            self._received += received
        head, payload, self._received = self._received[:_HEAD], self._received[_HEAD:end], self._received[end:]
        return head[3], head[4], int.from_bytes(head[5:]), payload
