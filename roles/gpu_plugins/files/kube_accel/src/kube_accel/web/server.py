# SPDX-License-Identifier: Apache-2.0
"""HTTP/1.1 and, if given, TLS, which may bring HTTP/2. Everything is bounded before it is known who asks.

A thread for all connections of which nothing is known, see ``reception``; then one a connection. Whoever shows a client
certificate is known and is asked nothing more. The others are strangers and share a few threads: a new one ends the
oldest of the address that has the most, so that no slow client keeps others out.
"""

from __future__ import annotations

import logging
import socket
import ssl
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass

from kube_accel.http2.connection import ConnectionEndedError, StreamEndedError
from kube_accel.listening import listener
from kube_accel.web.head import Head, RequestError, end_of_head, head_of, read_head
from kube_accel.web.multiplexed import Multiplexed
from kube_accel.web.once import answer_once, first_request
from kube_accel.web.reception import Reception, speaks_http2
from kube_accel.web.room import Place, Room
from kube_accel.web.secured import Secured
from kube_accel.web.site import Request, Response, Site, mistake, refusal, text

_log = logging.getLogger(__name__)

_HEAD_SECONDS = 5.0
_BODY_SECONDS = 15.0
_ANSWER_SECONDS = 15.0
"""In which a client has taken a whole answer."""
_IDLE_SECONDS = 120.0
"""Longer than Go keeps an idle connection: the client closes first, so no request meets a closed one."""
_SERVANT_SECONDS = 1.0
"""A thread that serves strangers waits so long for another one."""
_LINGER_SECONDS = 0.5
"""A client that is refused still sends its body meanwhile, and would not read the answer if we closed at once."""
_LINGER_BYTES = 1 << 20
_RECEIVED = 1 << 16
_BACKLOG = 256
"""Connections that wait to be accepted: where there are more, a probe has to come a second time."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What a server spends on its clients."""

    known: int = 224
    """Connections of clients that showed a certificate."""
    strangers: int = 32
    """Connections of all others that have asked for something."""
    received: int = 256
    """Connections of which nothing is known yet."""
    strangers_stay: bool = False
    """A stranger's connection goes on after a request."""
    known_bytes: int = 64 << 20
    """Bodies and answers of known clients that are in memory at once."""
    stranger_bytes: int = 16 << 20
    """Likewise of strangers."""


class Server:
    """Answers with what a site says."""

    def __init__(
        self,
        address: tuple[str, int],
        site: Site,
        limits: Limits,
        tls: Callable[[], ssl.SSLContext | None] = lambda: None,
        under_way: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        """Listens at once. ``tls`` is asked for each connection. Raises OSError.

        ``under_way`` is entered for each request of a known client.
        """
        self._socket = listener(address, backlog=_BACKLOG)
        self._site = site
        self._limits = limits
        self._under_way = under_way
        self._changed = threading.Condition()
        self._known: set[socket.socket] = set()
        self._strangers: set[socket.socket] = set()
        self._hosts: dict[socket.socket, str] = {}
        """Addresses of the strangers that were not ended, the oldest first."""
        self._asked: deque[tuple[socket.socket, bytes]] = deque()
        """Strangers that no thread serves yet, and what they have sent."""
        self._servants = self._idle = 0
        """Threads that serve strangers, and those of them that wait for one."""
        self._reception = Reception(self._socket, site, limits.received, tls, self._take)
        self._known_room, self._strangers_room = Room(limits.known_bytes), Room(limits.stranger_bytes)

    @property
    def port(self) -> int:
        """Return the port it listens on."""
        return int(self._socket.getsockname()[1])

    def run(self) -> None:
        """Serve until ``stop``."""
        self._reception.run()

    def stop(self) -> None:
        """Listen no more and end all connections."""
        self._reception.stop()
        with self._changed:
            for connection in self._known | self._strangers:
                _end(connection)

    def _take(self, stream: socket.socket, host: str, data: bytes, known: bool) -> None:
        """Have a thread serve a connection. Called by the one that receives all, which must not wait."""
        with self._changed:
            others = self._known if known else self._strangers
            # Strangers that were ended are there until their threads notice.
            if len(others) >= (self._limits.known if known else 2 * self._limits.strangers):
                stream.close()
                return
            others.add(stream)
            more = known or self._queue(stream, host, data)
        if not more:
            return
        if known and speaks_http2(stream):
            self._serve_many(stream)
            return
        target, arguments = (self._serve, (stream, data, True)) if known else (self._serve_strangers, ())
        try:
            threading.Thread(target=target, args=arguments, name="connection", daemon=True).start()
        except RuntimeError:  # out of threads
            with self._changed:
                self._servants -= not known
            self._forget(stream)

    def _serve_many(self, stream: socket.socket) -> None:
        """Have threads serve a known client's connection of HTTP/2."""
        assert isinstance(stream, ssl.SSLSocket)
        secured = Secured(stream, _ANSWER_SECONDS)
        served = Multiplexed(secured, self._site, self._known_room, self._under_way, lambda: self._forget(stream))
        try:
            served.start()
        except RuntimeError:  # out of threads
            self._forget(stream)

    def _queue(self, stream: socket.socket, host: str, data: bytes) -> bool:
        """Give a stranger to the serving threads; return whether there has to be one more. Hold the lock."""
        if len(self._hosts) >= self._limits.strangers:
            crowd = Counter(self._hosts.values()).most_common(1)[0][0]
            oldest = next(other for other, address in self._hosts.items() if address == crowd)
            del self._hosts[oldest]
            _end(oldest)
        self._hosts[stream] = host
        self._asked.append((stream, data))
        if len(self._asked) > self._idle and self._servants < self._limits.strangers:
            self._servants += 1
            return True
        self._changed.notify()
        return False

    def _serve_strangers(self) -> None:
        while True:
            with self._changed:
                self._idle += 1
                self._changed.wait_for(lambda: self._asked, _SERVANT_SECONDS)
                self._idle -= 1
                if not self._asked:
                    self._servants -= 1
                    return
                stream, data = self._asked.popleft()
                ended = stream not in self._hosts
            if ended:
                self._forget(stream)
            else:
                self._serve(stream, data, False)

    def _forget(self, stream: socket.socket) -> None:
        with self._changed:
            self._known.discard(stream)
            self._strangers.discard(stream)
            self._hosts.pop(stream, None)
        _end(stream)
        stream.close()

    def _serve(self, stream: socket.socket, data: bytes, known: bool) -> None:
        try:
            if speaks_http2(stream):
                self._answer_once(stream, data)
            else:
                self._answer_all(stream, data, known)
        except (OSError, ValueError, ConnectionEndedError, StreamEndedError):
            pass  # a client that went away, or speaks something else, is no event
        finally:
            self._forget(stream)

    def _answer_once(self, stream: socket.socket, data: bytes) -> None:
        """Answer a stranger's request of HTTP/2, which was admitted and has no body."""
        found = first_request(data)
        assert found is not None  # the reception has seen it
        head = head_of(found[1])
        with self._strangers_room.place(lambda: _end(stream)) as place:
            if head.length or not place.busy():
                return
            response = self._handled(Request(head.method, head.path, b"", False))
            place.answer(len(response.body))
            answer_once(stream, data, response, head.method != "HEAD", _ANSWER_SECONDS)
        if response.afterwards is not None:
            response.afterwards()
        _linger(stream)

    def _handled(self, request: Request) -> Response:
        try:
            return self._site.handle(request)
        except Exception:
            _log.exception("a request failed", extra={"path": request.path})
            return text(500, "internal error, see the log")

    def _answer_all(self, stream: socket.socket, data: bytes, known: bool) -> None:
        keep = True
        patience = _IDLE_SECONDS if known else _HEAD_SECONDS
        while keep:
            if not data:
                stream.settimeout(patience)
                data = stream.recv(_RECEIVED)
                if not data:
                    return
            # A stranger may take as long over a request as it is let; nothing waits for it.
            with self._under_way() if known else nullcontext():
                response, keep, data = self._answer(stream, data, known)
            if response.afterwards is not None:
                response.afterwards()
            patience = _IDLE_SECONDS
        _linger(stream)

    def _answer(self, stream: socket.socket, data: bytes, known: bool) -> tuple[Response, bool, bytes]:
        """Return the answer to the request that ``data`` begins, whether to go on, and what came after."""
        room = self._known_room if known else self._strangers_room
        with room.place(lambda: _end(stream)) as place:
            method, keep, rest = "", False, b""
            try:
                head, data = _read_head(stream, data)
                method = head.method
                response, rest = self._respond(stream, place, head, data, known)
                keep = head.keep and (known or self._limits.strangers_stay)
            except RequestError as error:
                response = mistake(error)
            place.answer(len(response.body))
            _send(stream, response, keep, method != "HEAD")
        return response, keep, rest

    def _respond(
        self, stream: socket.socket, place: Place, head: Head, data: bytes, known: bool
    ) -> tuple[Response, bytes]:
        """Return the answer, and what came after the request. Raises RequestError."""
        refused = refusal(self._site, head, known)
        if refused is not None:
            if head.length:
                raise RequestError(refused.status, refused.body.decode().strip())
            return refused, data
        if not place.take(head.length):
            raise RequestError(503, "there are too many requests at once; try again")
        body, rest = _read_body(stream, data, head.length)
        if not place.busy():
            raise ConnectionError("others needed the room")
        return self._handled(Request(head.method, head.path, body, known)), rest


def _read_head(stream: socket.socket, data: bytes) -> tuple[Head, bytes]:
    """Return a head, and what came after it. Raises RequestError."""
    deadline = time.monotonic() + _HEAD_SECONDS
    while (end := end_of_head(data)) < 0:
        data += _receive(stream, deadline, _RECEIVED)
    return read_head(data[:end]), data[end + 4 :]


def _read_body(stream: socket.socket, start: bytes, length: int) -> tuple[bytes | bytearray, bytes]:
    """Return a body, and what came after it."""
    if len(start) >= length:
        return start[:length], start[length:]
    deadline = time.monotonic() + _BODY_SECONDS
    body = bytearray(start)
    while len(body) < length:
        body += _receive(stream, deadline, min(length - len(body), 4 * _RECEIVED))
    return body, b""


def _receive(stream: socket.socket, deadline: float, most: int) -> bytes:
    stream.settimeout(max(0.001, deadline - time.monotonic()))
    data = stream.recv(most)
    if not data:
        raise ConnectionError("ended in the middle of a request")
    if time.monotonic() > deadline:
        raise TimeoutError("a request took too long")
    return data


def _send(stream: socket.socket, response: Response, keep: bool, whole: bool) -> None:
    """Send an answer. Raises TimeoutError when the client has not taken all of it in time."""
    deadline = time.monotonic() + _ANSWER_SECONDS
    first, body = response.head(keep), response.body if whole else b""
    # No copy of a large one, which many may ask for at once.
    for part in (first + body,) if len(body) <= _RECEIVED else (first, body):
        stream.settimeout(max(0.001, deadline - time.monotonic()))
        stream.sendall(part)


def _linger(stream: socket.socket) -> None:
    """Close our side, and for a moment take from the client what it still sends."""
    with suppress(OSError, ValueError):
        stream.shutdown(socket.SHUT_WR)
        deadline = time.monotonic() + _LINGER_SECONDS
        left = _LINGER_BYTES
        while left > 0:
            left -= len(_receive(stream, deadline, _RECEIVED))


def _end(connection: socket.socket) -> None:
    with suppress(OSError):
        # TLS's own makes of it a socket without TLS first, and another thread may be about to send.
        socket.socket.shutdown(connection, socket.SHUT_RDWR)
