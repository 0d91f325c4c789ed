# SPDX-License-Identifier: Apache-2.0
"""HTTP/1.1 with kept connections and, if given, TLS: as much of it as kube-scheduler and probes speak, with bounds.

A thread a connection. Whoever shows a client certificate is asked nothing more; the others share a few connections, and
a new one ends the oldest, so that they keep nobody out.
"""

from __future__ import annotations

import logging
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass

from kube_accel.listening import listener

_log = logging.getLogger(__name__)

MAX_BODY = 128 << 20
"""Bytes; 5,000 node objects are about 60 MiB."""

_LARGE = 1 << 20
_MAX_HEAD = 16 << 10
_HEAD_SECONDS = 5.0
_BODY_SECONDS = 15.0
_IDLE_SECONDS = 120.0
"""Longer than Go keeps an idle connection: the client closes first, so no request meets a closed one."""
_COURTESY_SECONDS = 0.002
_STRANGERS = 32
_CONNECTIONS = 256
_REASONS = {200: "OK", 400: "Bad Request", 403: "Forbidden", 404: "Not Found", 405: "Method Not Allowed"} | {
    411: "Length Required",
    413: "Content Too Large",
    431: "Request Header Fields Too Large",
    500: "Internal Server Error",
    503: "Service Unavailable",
}


@dataclass(frozen=True, slots=True)
class Request:
    """A request that came in whole."""

    method: str
    path: str
    """Without the query."""
    body: bytes
    known: bool
    """The client showed a certificate of the client CA."""


@dataclass(frozen=True, slots=True)
class Response:
    """What is answered."""

    status: int
    body: bytes
    content_type: str = "application/json"
    afterwards: Callable[[], None] | None = None
    """What can wait until the client has its answer."""


class _BadRequestError(Exception):
    """The connection ends with this status."""

    def __init__(self, status: int) -> None:
        super().__init__(_REASONS[status])
        self.status = status


class Traffic:
    """Requests under way. Python runs one thread at a time: what nobody waits for lets them go first."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._count = 0
        self._none = threading.Event()
        self._none.set()

    @contextmanager
    def request(self) -> Iterator[None]:
        """One of them, from start to end."""
        self._enter(1)
        try:
            yield
        finally:
            self._enter(-1)

    @contextmanager
    def aside(self) -> Iterator[None]:
        """A request that waits for somebody else: until it goes on, it does not count."""
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
        """Wait until there are none, but not for long: there may always be some."""
        if self._count:
            self._none.wait(_COURTESY_SECONDS)


class Server:
    """Answers with ``handle``, which several threads call at once."""

    def __init__(
        self,
        address: tuple[str, int],
        handle: Callable[[Request], Response],
        tls: Callable[[], ssl.SSLContext | None],
        traffic: Traffic,
    ) -> None:
        """Listens at once. ``tls`` is asked for each connection. Raises OSError."""
        self._socket = listener(address, backlog=256)
        self._handle = handle
        self._tls = tls
        self._traffic = traffic
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self._strangers: dict[socket.socket, None] = {}
        self._large = threading.Semaphore(2)

    @property
    def port(self) -> int:
        """The port it listens on."""
        return int(self._socket.getsockname()[1])

    def run(self) -> None:
        """Serve until ``stop``."""
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                if self._socket.fileno() < 0:
                    return
                time.sleep(0.1)  # out of descriptors: some will be free
                continue
            if self._admit(connection):
                threading.Thread(target=self._serve, args=(connection,), name="connection", daemon=True).start()

    def stop(self) -> None:
        """Listen no more and end all connections."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        with self._lock:
            for connection in self._open:
                _end(connection)

    def _admit(self, connection: socket.socket) -> bool:
        with self._lock:
            if len(self._open) >= _CONNECTIONS:
                connection.close()
                return False
            if len(self._strangers) >= _STRANGERS:
                oldest = next(iter(self._strangers))
                del self._strangers[oldest]
                _end(oldest)
            self._open.add(connection)
            self._strangers[connection] = None
        return True

    def _serve(self, connection: socket.socket) -> None:
        stream = connection
        try:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.settimeout(_HEAD_SECONDS)
            known = False
            tls = self._tls()
            if tls is not None:
                secured = tls.wrap_socket(connection, server_side=True, do_handshake_on_connect=False)
                with self._lock:
                    # wrap_socket has taken the descriptor over.
                    self._open.discard(connection)
                    self._open.add(secured)
                    if connection in self._strangers:
                        del self._strangers[connection]
                        self._strangers[secured] = None
                stream = secured
                secured.do_handshake()
                known = bool(secured.getpeercert())
                if known:
                    with self._lock:
                        self._strangers.pop(secured, None)
            self._answer_all(stream, known)
        except (OSError, ValueError):
            pass  # a client that went away, or speaks something else, is no event
        finally:
            with self._lock:
                self._open.discard(stream)
                self._strangers.pop(stream, None)
            _end(stream)
            stream.close()

    def _answer_all(self, stream: socket.socket, known: bool) -> None:
        data, keep = b"", True
        while keep:
            if not data:
                stream.settimeout(_IDLE_SECONDS)
                data = stream.recv(1 << 16)
                if not data:
                    return
            # A stranger may take as long over a request as it likes; nothing waits for it.
            with self._traffic.request() if known else nullcontext():
                response, keep, data = self._answer(stream, data, known)
            if response.afterwards is not None:
                response.afterwards()

    def _answer(self, stream: socket.socket, data: bytes, known: bool) -> tuple[Response, bool, bytes]:
        """The answer to the request that ``data`` begins, whether the connection goes on, and what came after."""
        try:
            request, keep, rest = self._read(stream, data, known)
        except _BadRequestError as error:
            response, keep, rest = Response(error.status, f"{error}\n".encode(), "text/plain"), False, b""
        else:
            try:
                response = self._handle(request)
            except Exception:
                _log.exception("a request failed", extra={"path": request.path})
                response = Response(500, b"internal error, see the log\n", "text/plain")
        stream.settimeout(_BODY_SECONDS)
        stream.sendall(_render(response, keep))
        return response, keep, rest

    def _read(self, stream: socket.socket, data: bytes, known: bool) -> tuple[Request, bool, bytes]:
        """A request, whether the connection goes on, and what came after. Raises _BadRequestError."""
        deadline = time.monotonic() + _HEAD_SECONDS
        while (end := data.find(b"\r\n\r\n")) < 0:
            if len(data) > _MAX_HEAD:
                raise _BadRequestError(431)
            data += _receive(stream, deadline)
        lines = data[:end].decode("latin-1").split("\r\n")
        words = lines[0].split(" ")
        if len(words) != 3 or not words[2].startswith("HTTP/1."):
            raise _BadRequestError(400)
        headers = {
            name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:])
        }
        if "transfer-encoding" in headers:
            raise _BadRequestError(411)
        if sum(line[:15].lower() == "content-length:" for line in lines[1:]) > 1:
            # Whoever stands before us may have read the other one.
            raise _BadRequestError(400)
        length_text = headers.get("content-length", "0")
        if not (length_text.isascii() and length_text.isdigit()):
            raise _BadRequestError(400)
        length = int(length_text)
        if length > (MAX_BODY if known or self._tls() is None else _LARGE):
            raise _BadRequestError(413)
        body, rest = self._body(stream, data[end + 4 :], length)
        keep = words[2] == "HTTP/1.1" and headers.get("connection", "").lower() != "close"
        return Request(words[0], words[1].partition("?")[0], body, known), keep, rest

    def _body(self, stream: socket.socket, start: bytes, length: int) -> tuple[bytes, bytes]:
        if len(start) >= length:
            return start[:length], start[length:]
        if length > _LARGE:
            with self._large:
                return _rest(stream, start, length), b""
        return _rest(stream, start, length), b""


def _rest(stream: socket.socket, start: bytes, length: int) -> bytes:
    deadline = time.monotonic() + _BODY_SECONDS
    body = bytearray(start)
    while len(body) < length:
        body += _receive(stream, deadline, length - len(body))
    return bytes(body)


def _receive(stream: socket.socket, deadline: float, most: int = 1 << 16) -> bytes:
    stream.settimeout(max(0.001, deadline - time.monotonic()))
    data = stream.recv(min(most, 1 << 20))
    if not data:
        raise ConnectionError("ended in the middle of a request")
    if time.monotonic() > deadline:
        raise TimeoutError("a request took too long")
    return data


def _render(response: Response, keep: bool) -> bytes:
    head = [
        f"HTTP/1.1 {response.status} {_REASONS[response.status]}",
        f"Content-Type: {response.content_type}",
        f"Content-Length: {len(response.body)}",
        *(() if keep else ("Connection: close",)),
    ]
    return ("\r\n".join(head) + "\r\n\r\n").encode() + response.body


def _end(connection: socket.socket) -> None:
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
