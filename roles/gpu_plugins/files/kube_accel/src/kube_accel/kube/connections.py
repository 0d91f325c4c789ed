# SPDX-License-Identifier: Apache-2.0
"""Kept HTTP/1.1 connections to one server, for requests that come often, and streams that bring small pieces.

A general client takes four times as long for a short request, most of it for what the API server does not use:
redirects, retries, cookies, compressed bodies, and headers as objects.
"""

from __future__ import annotations

import re
import select
import socket
import ssl
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

_KEPT: Final = 32
"""Connections that wait for a request. More are closed after their answer."""
_IDLE_SECONDS: Final = 60.0
"""A connection that has waited longer is closed: the API server and what stands before it do so after 90 and more."""
_CONNECT_SECONDS: Final = 5.0
_RECEIVED: Final = 1 << 16
_MOST_HEAD: Final = 64 << 10
"""Bytes of the head of an answer, and of a chunk's first line."""

_STATUS = re.compile(rb"HTTP/1\.([01]) ([1-5][0-9][0-9])(?: [^\r\n]*)?(?=\r\n)")
_FIELD = re.compile(rb"\r\n(content-length|transfer-encoding|connection):[ \t]*([^\r\n]*)", re.IGNORECASE)
_SIZE = re.compile(rb"[0-9A-Fa-f]{1,15}")
_LINE = re.compile(r"[\x21-\x7e][\x20-\x7e]*")
_BODILESS = (204, 304)
_DIGITS: Final = 15
"""Of the longest length that is believed."""


class AnswerError(OSError):
    """The server answered with what is not HTTP/1.1, or with a part of it."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a server has answered."""

    status: int
    body: bytes


class Connections:
    """The connections to one server. Threads may share it; each request has a connection to itself."""

    def __init__(self, url: str, context: ssl.SSLContext) -> None:
        """``url`` begins with ``https://`` or ``http://``. ``context`` says whom to trust. Raises ValueError."""
        parts = urlsplit(url)
        if parts.scheme not in ("https", "http") or not parts.hostname:
            raise ValueError(f"{url} is no URL of a server")
        self._context = context if parts.scheme == "https" else None
        self._address = parts.hostname, parts.port or (443 if self._context else 80)
        self._host = parts.netloc.rpartition("@")[2]
        self._prefix = parts.path.rstrip("/")
        self._kept: deque[_Connection] = deque()
        self._ended = False

    def ask(self, method: str, target: str, fields: dict[str, str], body: bytes | None, timeout: float) -> Answer:
        """Send one request, once, and return the answer. A redirect is an answer too.

        ``timeout`` is how many seconds the server may be silent. Raises OSError, and ValueError for a target or a
        field that would not be one line.
        """
        request = self._written(method, target, fields, body)
        connection = self._waiting() or _Connection(self._address, self._context)
        try:
            answer, keep = connection.ask(request, timeout)
        except BaseException:
            connection.close()
            raise
        if keep and not self._ended and len(self._kept) < _KEPT:
            connection.since = time.monotonic()
            self._kept.append(connection)
        else:
            connection.close()
        return answer

    @contextmanager
    def stream(self, target: str, fields: dict[str, str], timeout: float) -> Iterator[tuple[int, Iterator[bytes]]]:
        """GET on a connection of its own, and yield the status and the pieces of the body, as they come.

        ``timeout`` is how many seconds the server may be silent. Raises OSError and ValueError, OSError also while the
        pieces are read.
        """
        request = self._written("GET", target, fields, None)
        connection = _Connection(self._address, self._context)
        try:
            yield connection.stream(request, timeout)
        finally:
            # Closed, not drained: the rest of a watch has no end.
            connection.close()

    def end(self) -> None:
        """Close the connections that wait for a request, and those under way after their answers."""
        self._ended = True
        while self._kept:
            self._kept.pop().close()

    def _written(self, method: str, target: str, fields: dict[str, str], body: bytes | None) -> bytes:
        """Return a request as it is sent. Raises ValueError."""
        lines = [f"{method} {self._prefix}{target} HTTP/1.1", f"Host: {self._host}", "Accept-Encoding: identity"]
        lines += [f"{name}: {value}" for name, value in fields.items()]
        if body is not None:
            lines.append(f"Content-Length: {len(body)}")
        for number, line in enumerate(lines):
            if not _LINE.fullmatch(line) or (number == 0 and line.count(" ") != 2):
                raise ValueError("a request needs printable ASCII, without line breaks, in its path and its token")
        return "\r\n".join([*lines, "\r\n"]).encode("ascii") + (body or b"")

    def _waiting(self) -> _Connection | None:
        """Return the connection that was used last, if the server has not closed it."""
        oldest = time.monotonic() - _IDLE_SECONDS
        while True:
            try:
                found = self._kept.pop()
            except IndexError:
                return None
            if found.since > oldest and found.silent():
                return found
            found.close()


class _Connection:
    """One connection, for one request at a time."""

    def __init__(self, address: tuple[str, int], context: ssl.SSLContext | None) -> None:
        """Connect. Raises OSError."""
        plain = socket.create_connection(address, _CONNECT_SECONDS)
        try:
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            name = address[0].rstrip(".")
            self._socket = plain if context is None else context.wrap_socket(plain, server_hostname=name)
        except BaseException:
            plain.close()
            raise
        self._buffer = bytearray()
        self._chunked = False
        self._poll = select.poll()
        self._poll.register(self._socket, select.POLLIN)
        self.since = 0.0
        """Monotonic seconds; since when it waits for a request."""

    def close(self) -> None:
        self._socket.close()

    def silent(self) -> bool:
        """Return whether the server has neither closed the connection nor said something that nobody asked for."""
        return not self._buffer and not self._poll.poll(0)

    def ask(self, request: bytes, timeout: float) -> tuple[Answer, bool]:
        """Return the answer, and whether the connection may be used again. Raises OSError."""
        status, keep, length = self._begin(request, timeout)
        if length is not None:
            return Answer(status, self._take(length)), keep
        return Answer(status, b"".join(self._pieces(None))), keep

    def stream(self, request: bytes, timeout: float) -> tuple[int, Iterator[bytes]]:
        """Return the status, and the pieces of the body as they come. Raises OSError, also while these are read."""
        status, _, length = self._begin(request, timeout)
        return status, self._pieces(length)

    def _begin(self, request: bytes, timeout: float) -> tuple[int, bool, int | None]:
        """Send a request and read the head of its answer.

        Return the status, whether the connection may be used again after the body, and how long that is: None where
        only its end will tell.
        """
        self._socket.settimeout(timeout)
        self._socket.sendall(request)
        while True:
            minor, status, fields = self._head()
            if status >= 200:
                break
            if status == 101:
                raise AnswerError("the answer switches to another protocol")
        lengths = {value.strip() for name, value in fields if name.lower() == b"content-length"}
        codings = [value.strip().lower() for name, value in fields if name.lower() == b"transfer-encoding"]
        options = b",".join(value.lower() for name, value in fields if name.lower() == b"connection")
        keep = minor == b"1" and b"close" not in options
        self._chunked = bool(codings)
        if status in _BODILESS:
            return status, keep, 0
        if codings:
            if codings != [b"chunked"]:
                raise AnswerError("the answer has a transfer coding other than chunked")
            return status, keep and not lengths, None
        if not lengths:
            return status, False, None
        length = lengths.pop()
        if lengths or not length.isdigit() or len(length) > _DIGITS:
            raise AnswerError("the answer has no single length")
        return status, keep, int(length)

    def _head(self) -> tuple[bytes, int, list[tuple[bytes, bytes]]]:
        """Return the minor version, the status, and the fields that say how long the body is."""
        end = self._find(b"\r\n\r\n", "head")
        head = self._take(end + 4)
        found = _STATUS.match(head)
        if found is None:
            raise AnswerError("the answer is no HTTP/1.1")
        return found[1], int(found[2]), _FIELD.findall(head)

    def _pieces(self, length: int | None) -> Iterator[bytes]:
        if length is not None:
            yield from self._counted(length)
        elif not self._chunked:
            yield bytes(self._buffer)
            while data := self._socket.recv(_RECEIVED):
                yield data
        else:
            while size := self._chunk_size():
                yield from self._counted(size)
                if self._take(2) != b"\r\n":
                    raise AnswerError("the answer has a chunk that does not end")
            while self._take(self._find(b"\r\n", "trailer") + 2) != b"\r\n":
                pass

    def _counted(self, left: int) -> Iterator[bytes]:
        """Yield so many bytes, as they come."""
        while left:
            if not self._buffer:
                self._receive()
            piece = self._take(min(left, len(self._buffer)))
            left -= len(piece)
            yield piece

    def _chunk_size(self) -> int:
        line = self._take(self._find(b"\r\n", "chunk") + 2)
        size = line[:-2].partition(b";")[0].strip()
        if not _SIZE.fullmatch(size):
            raise AnswerError("the answer has a chunk without a size")
        return int(size, 16)

    def _find(self, end: bytes, what: str) -> int:
        """Return where this comes in what has been, or will be, received."""
        while (position := self._buffer.find(end)) < 0:
            if len(self._buffer) > _MOST_HEAD:
                raise AnswerError(f"the answer has a {what} of more than {_MOST_HEAD} bytes")
            self._receive()
        return position

    def _take(self, size: int) -> bytes:
        self._fill(size)
        taken = bytes(memoryview(self._buffer)[:size])
        del self._buffer[:size]
        return taken

    def _fill(self, size: int) -> None:
        while len(self._buffer) < size:
            self._receive()

    def _receive(self) -> None:
        data = self._socket.recv(_RECEIVED)
        if not data:
            raise AnswerError("the server closed the connection before the end of its answer")
        self._buffer += data
