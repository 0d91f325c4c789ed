# SPDX-License-Identifier: Apache-2.0
"""Kept HTTP/1.1 connections to one server, for requests that come often, and streams that bring small pieces.

``http.client`` reads the answers. It believes any length of them; what RFC 9112, 6.3, asks of that is checked here.
"""

from __future__ import annotations

import io
import re
import select
import socket
import ssl
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from http.client import HTTPException, HTTPResponse, IncompleteRead, RemoteDisconnected
from typing import Final
from urllib.parse import urlsplit

_KEPT: Final = 32
"""Connections that wait for a request. More are closed after their answer."""
_IDLE_SECONDS: Final = 60.0
"""A connection that has waited longer is closed: the API server and what stands before it do so after 90 and more."""
_CONNECT_SECONDS: Final = 5.0
_PIECE: Final = 1 << 16
"""Bytes of a stream that are read at once, at most."""

_LINE = re.compile(r"[\x21-\x7e][\x20-\x7e]*")
_LENGTH = re.compile("[0-9]{1,9} *")
_HTTP_1_0: Final = 10


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
            with _understanding():
                answer = connection.begin(request, timeout)
                content = answer.read()
        except BaseException:
            connection.close()
            raise
        if answer.will_close or self._ended or len(self._kept) >= _KEPT:
            connection.close()
        else:
            connection.since = time.monotonic()
            self._kept.append(connection)
        return Answer(answer.status, content)

    @contextmanager
    def stream(self, target: str, fields: dict[str, str], timeout: float) -> Iterator[tuple[int, Iterator[bytes]]]:
        """GET on a connection of its own, and yield the status and the pieces of the body, as they come.

        ``timeout`` is how many seconds the server may be silent. Raises OSError and ValueError, OSError also while the
        pieces are read.
        """
        request = self._written("GET", target, fields, None)
        connection = _Connection(self._address, self._context)
        try:
            with _understanding():
                answer = connection.begin(request, timeout)
            yield answer.status, _pieces(answer)
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


class _Received(io.BufferedReader):
    """What comes on one connection, answer after answer. Each reads it as a file of its own, and closes that."""

    def makefile(self, _mode: str) -> _Received:
        return self

    def close(self) -> None:
        """Leave it open for the next answer."""

    def end(self) -> None:
        super().close()


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
        self._received = _Received(self._socket.makefile("rb", buffering=0))
        self._poll = select.poll()
        self._poll.register(self._socket, select.POLLIN)
        self.since = 0.0
        """Monotonic seconds; since when it waits for a request."""

    def close(self) -> None:
        self._received.end()
        self._socket.close()

    def silent(self) -> bool:
        """Return whether the server has neither closed the connection nor said something that nobody asked for."""
        if self._poll.poll(0):
            return False
        self._socket.settimeout(0)
        try:
            return not self._received.peek(1)
        except OSError as error:
            return isinstance(error, ssl.SSLWantReadError)

    def begin(self, request: bytes, timeout: float) -> HTTPResponse:
        """Send a request, and return its answer without the body. Raises OSError and HTTPException."""
        self._socket.settimeout(timeout)
        self._socket.sendall(request)
        while True:
            # Its constructor only calls ``makefile``.
            answer = HTTPResponse(self._received)  # type: ignore[arg-type]
            answer.begin()
            if answer.status == HTTPStatus.SWITCHING_PROTOCOLS:
                raise AnswerError("the answer switches to another protocol")
            if answer.status >= HTTPStatus.OK:
                _demand_length(answer)
                return answer


def _demand_length(answer: HTTPResponse) -> None:
    """Have an answer say once where it ends: a head that was cut off does not. Raises AnswerError."""
    if answer.status in (HTTPStatus.NO_CONTENT, HTTPStatus.NOT_MODIFIED):
        return
    lengths = set(answer.headers.get_all("Content-Length", ()))
    codings = answer.headers.get_all("Transfer-Encoding", ())
    closes = answer.version == _HTTP_1_0 or "close" in answer.headers.get("Connection", "").lower()
    if len(lengths) + len(codings) > 1 or not (lengths or codings or closes):
        raise AnswerError("the answer does not say, or says differently, how long it is")
    if codings and not answer.chunked:
        raise AnswerError("the answer has a transfer coding other than chunked")
    if lengths and not _LENGTH.fullmatch(lengths.pop()):
        raise AnswerError("the answer has no length that can be believed")


def _pieces(answer: HTTPResponse) -> Iterator[bytes]:
    with _understanding():
        while piece := answer.read1(_PIECE) if answer.length is None else answer.read():
            yield piece


@contextmanager
def _understanding() -> Iterator[None]:
    """Have what ``http.client`` cannot read raise AnswerError."""
    try:
        yield
    except (IncompleteRead, RemoteDisconnected) as error:
        raise AnswerError("the server closed the connection before the end of its answer") from error
    except HTTPException as error:
        # Its text is what came, of whatever length.
        raise AnswerError(f"the answer is no HTTP/1.1: {type(error).__name__}") from error
