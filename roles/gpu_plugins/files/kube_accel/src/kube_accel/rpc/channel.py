# SPDX-License-Identifier: Apache-2.0
"""A gRPC client over a unix socket."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, Protocol, Self, TypeVar

from google.protobuf.message import DecodeError, Message

from kube_accel.http2 import connection as http2
from kube_accel.http2 import frames
from kube_accel.rpc import message
from kube_accel.rpc.status import Code, RpcError, from_headers

_Reply = TypeVar("_Reply")
_Reply_co = TypeVar("_Reply_co", covariant=True)


class Readable(Protocol[_Reply_co]):
    """What makes an answer of its bytes: as a rule a class of messages."""

    def FromString(self, data: bytes, /) -> _Reply_co:  # noqa: N802 - protobuf's name
        """Return the answer. Raises DecodeError."""


_RECEIVE_LIMIT: Final = 4 << 20
"""Bytes of an answer, as gRPC has it."""
_LOOK: Final = 0.1
"""Seconds from one look to the next whether an answer is still wanted."""
_LONGEST: Final = 99_999_999
"""Milliseconds that a deadline can be written in."""


class Channel:
    """Calls, one after the other, over one connection, which is made when there is none."""

    def __init__(self, path: Path, receive_limit: int = _RECEIVE_LIMIT) -> None:
        """``path`` is the socket, ``receive_limit`` in bytes. Opens nothing."""
        self._path = path
        self._limit = receive_limit
        self._lock = threading.Lock()
        self._connection: http2.Connection | None = None
        self._socket: socket.socket | None = None
        self._stream = 1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection, if there is one."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.shut()
            connection.close()

    def call(
        self,
        method: str,
        request: Message,
        reply: Readable[_Reply],
        timeout: float,
        wanted: Callable[[], bool] | None = None,
    ) -> _Reply:
        """Return what ``method``, a ``/service/name``, answers within so many seconds.

        ``wanted`` is asked every tenth of a second whether to go on. Raises RpcError: UNAVAILABLE when nothing is there
        or the connection ends, DEADLINE_EXCEEDED, CANCELLED when it is not wanted any more, RESOURCE_EXHAUSTED when the
        answer is too long, or what the other side says.
        """
        with self._lock:
            try:
                answer = self._call(method, request, time.monotonic() + timeout, wanted)
            except http2.ConnectionEndedError as error:
                self.close()
                raise RpcError(Code.UNAVAILABLE, f"{self._path}: {error}") from error
            except BaseException:
                # Of a call that was given up more may come.
                self.close()
                raise
        if isinstance(answer, RpcError):
            raise answer
        try:
            return reply.FromString(message.unpack(answer))
        except (DecodeError, ValueError) as error:
            raise RpcError(Code.INTERNAL, f"the answer cannot be read: {error}") from error

    def _call(
        self, method: str, request: Message, deadline: float, wanted: Callable[[], bool] | None
    ) -> bytes | RpcError:
        """Return the answer, or what the other side says instead."""
        connection, connected = self._connected(deadline)
        stream, self._stream = self._stream, self._stream + 2
        packed = message.pack(request)
        if not connection.fits(len(packed)):
            raise RpcError(Code.RESOURCE_EXHAUSTED, f"a request of {len(packed)} bytes is too long")
        left = max(1, min(_LONGEST, round((deadline - time.monotonic()) * 1000)))
        headers = (
            (":method", "POST"),
            (":scheme", "http"),
            (":path", method),
            # The socket's path as authority is refused by strict servers.
            (":authority", "localhost"),
            ("grpc-timeout", f"{left}m"),
            ("content-type", "application/grpc"),
            ("te", "trailers"),
        )
        connection.begin(stream)
        connection.send(stream, headers, packed, last=True)
        body = bytearray()
        while True:
            self._wait(connected, deadline, wanted)
            try:
                event = connection.read()
            except TimeoutError:
                continue
            match event:
                case http2.GoAway(final, reason) if final < stream:
                    raise http2.ConnectionEndedError(reason or "the other side goes away")
                case http2.Data(number, data, last) if number == stream:
                    body += data
                    if len(body) > self._limit + message.HEAD:
                        raise RpcError(Code.RESOURCE_EXHAUSTED, f"the answer has more than {self._limit} bytes")
                    if last:
                        raise RpcError(Code.INTERNAL, "the answer ends without a status")
                case http2.Headers(number, fields, True) if number == stream:
                    connection.end(stream)
                    return from_headers(dict(fields)) or bytes(body)
                case http2.Reset(number, code) if number == stream:
                    refused = code == frames.REFUSED_STREAM
                    raise RpcError(Code.UNAVAILABLE if refused else Code.CANCELLED, f"the call was reset, code {code}")

    def _wait(self, connected: socket.socket, deadline: float, wanted: Callable[[], bool] | None) -> None:
        """Have the next read from the socket end in time."""
        left = deadline - time.monotonic()
        if left <= 0:
            raise RpcError(Code.DEADLINE_EXCEEDED, "Deadline Exceeded")
        if wanted is not None and not wanted():
            raise RpcError(Code.CANCELLED, "the answer is not wanted any more")
        connected.settimeout(left if wanted is None else min(left, _LOOK))

    def _connected(self, deadline: float) -> tuple[http2.Connection, socket.socket]:
        if self._connection is not None and self._socket is not None:
            return self._connection, self._socket
        connected = socket.socket(socket.AF_UNIX)
        connected.settimeout(max(0.001, deadline - time.monotonic()))
        try:
            connected.connect(str(self._path))
        except OSError as error:
            connected.close()
            reason = f"failed to connect to {self._path}: {error.strerror or error}"
            raise RpcError(Code.UNAVAILABLE, reason) from error
        self._connection, self._socket, self._stream = http2.Connection(connected), connected, 1
        self._connection.open()
        return self._connection, connected
