# SPDX-License-Identifier: Apache-2.0
"""Connections until it is known who asks for what: one thread for all of them, which waits for no client.

Probes, and whatever is refused, are answered here, so that what others make the server do keeps no probe waiting.
Who shows a client certificate, and strangers with a whole head of anything else, are handed over.

A connection costs little here, so there may be many. When there are too many, one of the address that has the most
gives way: one that was answered, else one that has said nothing, else the oldest.
"""

from __future__ import annotations

import errno
import logging
import selectors
import socket
import ssl
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from enum import IntEnum
from typing import Protocol

from kube_accel.web.head import MOST_BYTES, Head, RequestError, end_of_head, head_of, read_head
from kube_accel.web.once import first_request, last_words
from kube_accel.web.site import Response, Site, mistake, refusal, text

_log = logging.getLogger(__name__)

_HEAD_SECONDS = 5.0
_LINGER_SECONDS = 0.5
"""A client that is refused still sends its body meanwhile, and would not read the answer if we closed at once."""
_LINGER_BYTES = 1 << 20
_RECEIVED = MOST_BYTES + 4
_AT_ONCE = 64
"""Connections accepted before others are heard."""
_LOOK_SECONDS = 0.25
_EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class HandOver(Protocol):
    """Takes a connection whose client is known, or has sent a whole head; it blocks from now on."""

    def __call__(self, stream: socket.socket, host: str, data: bytes, known: bool) -> None:
        """``data`` is what the client has sent."""


class _Stage(IntEnum):
    """Who gives way first comes first."""

    LEAVING = 0
    """Was answered."""
    SILENT = 1
    SPEAKING = 2


@dataclass(slots=True, eq=False)
class _Visitor:
    """A connection that has not said what it wants."""

    stream: socket.socket
    host: str
    until: float
    """Monotonic seconds; then it is ended."""
    greeted: bool
    """There is no TLS, or its handshake is over."""
    stage: _Stage = _Stage.SILENT
    data: bytes = b""
    discarded: int = 0
    awaited: bool = False
    """The selector has it."""


class Reception:
    """Receives until it is stopped. ``run`` is for one thread."""

    def __init__(
        self,
        listener: socket.socket,
        site: Site,
        most: int,
        tls: Callable[[], ssl.SSLContext | None],
        hand_over: HandOver,
    ) -> None:
        """``most`` connections are kept here. ``tls`` is asked for each of them."""
        self._listener = listener
        self._site = site
        self._most = most
        self._tls = tls
        self._hand_over = hand_over
        self._beginning = threading.Lock()
        self._stopped = self._runs = False
        self._visitors: dict[_Visitor, None] = {}
        """The oldest first."""
        self._hosts: Counter[str] = Counter()
        self._selector = selectors.DefaultSelector()

    def run(self) -> None:
        """Receive until ``stop``."""
        with self._beginning:
            if self._stopped:
                return
            self._runs = True
        self._listener.setblocking(False)
        self._listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # accepted ones have it too
        self._selector.register(self._listener, selectors.EVENT_READ)
        try:
            while not self._stopped:
                self._turn()
        finally:
            for visitor in list(self._visitors):
                self._end(visitor)
            self._close()

    def stop(self) -> None:
        """Listen no more, and end all connections that are still here. The port is free then."""
        with self._beginning:
            self._stopped = True
        if not self._runs:
            self._close()
            return
        # It wakes ``run``, as closing does not.
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)

    def _close(self) -> None:
        self._listener.close()
        self._selector.close()

    def _turn(self) -> None:
        for key, _ in self._selector.select(_LOOK_SECONDS if self._visitors else None):
            visitor = key.data
            if visitor is None:
                self._accept()
            elif visitor in self._visitors:
                if visitor.stage is _Stage.SILENT:
                    visitor.stage = _Stage.SPEAKING
                self._hear(visitor)
        now = time.monotonic()
        for visitor in [each for each in self._visitors if each.until < now]:
            self._end(visitor)

    def _accept(self) -> None:
        for _ in range(_AT_ONCE):
            try:
                connection, address = self._listener.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if self._stopped:
                    return
                if error.errno in _EXHAUSTED:
                    time.sleep(0.1)  # some will be free
                    return
                continue
            self._enter(connection, str(address[0]))

    def _enter(self, connection: socket.socket, host: str) -> None:
        if len(self._visitors) >= self._most:
            crowd = max(self._hosts, key=self._hosts.__getitem__)
            # The first of those that are equal, so the oldest.
            self._end(min((each for each in self._visitors if each.host == crowd), key=lambda each: each.stage))
        tls = self._tls()
        if tls is not None:
            try:
                connection.setblocking(False)
                connection = tls.wrap_socket(connection, server_side=True, do_handshake_on_connect=False)
            except (OSError, ValueError):
                connection.close()
                return
        visitor = _Visitor(connection, host, time.monotonic() + _HEAD_SECONDS, tls is None)
        self._visitors[visitor] = None
        self._hosts[host] += 1
        # As a rule what a probe sends is there by now.
        self._hear(visitor)
        if visitor in self._visitors:
            self._selector.register(connection, selectors.EVENT_READ, visitor)
            visitor.awaited = True

    def _hear(self, visitor: _Visitor) -> None:
        """Go on as far as what has come suffices for."""
        try:
            if not visitor.greeted:
                secured: ssl.SSLSocket = visitor.stream  # type: ignore[assignment]
                secured.do_handshake()
                visitor.greeted = True
                if secured.getpeercert():
                    self._pass_on(visitor, True)
                    return
            while data := _receive(visitor.stream):
                if visitor.stage is _Stage.LEAVING:
                    visitor.discarded += len(data)
                    if visitor.discarded > _LINGER_BYTES:
                        break
                    return
                visitor.stage = _Stage.SPEAKING
                visitor.data += data
                if self._understand(visitor):
                    return
        except (BlockingIOError, ssl.SSLWantReadError):
            return
        except (OSError, ValueError):
            pass  # a client that went away, or speaks something else, is no event
        self._end(visitor)

    def _understand(self, visitor: _Visitor) -> bool:
        """Return whether the head is there as a whole; then the visitor is answered, or passed on.

        Raises ValueError for what is no HTTP/2.
        """
        if speaks_http2(visitor.stream):
            found = first_request(visitor.data)
            if found is None:
                return False
            stream, fields, window = found
            response, whole = self._found(lambda: head_of(fields))
            said = last_words(stream, response, whole, window) if response is not None else b""
        else:
            try:
                end = end_of_head(visitor.data)
            except RequestError as error:
                response, whole = mistake(error), True
            else:
                if end < 0:
                    return False
                response, whole = self._found(lambda: read_head(visitor.data[:end]))
            said = response.head(keep=False) + (response.body if whole else b"") if response is not None else b""
        if response is None:
            self._pass_on(visitor, False)
        else:
            self._answer(visitor, said)
        return True

    def _found(self, read: Callable[[], Head]) -> tuple[Response | None, bool]:
        """Return what is answered here, and whether with its body; None when others answer."""
        whole = True
        try:
            head = read()
            whole = head.method != "HEAD"
            return refusal(self._site, head, False) or self._site.probe(head), whole
        except RequestError as error:
            return mistake(error), whole
        except Exception:
            _log.exception("a request failed")
            return text(500, "internal error, see the log"), whole

    def _answer(self, visitor: _Visitor, said: bytes) -> None:
        """Send what the connection's buffer has room for in any case, and hear the client out."""
        visitor.stage, visitor.data, visitor.until = _Stage.LEAVING, b"", time.monotonic() + _LINGER_SECONDS
        _send(visitor.stream, said)
        visitor.stream.shutdown(socket.SHUT_WR)

    def _pass_on(self, visitor: _Visitor, known: bool) -> None:
        self._forget(visitor)
        visitor.stream.settimeout(_HEAD_SECONDS)
        self._hand_over(visitor.stream, visitor.host, visitor.data, known)

    def _end(self, visitor: _Visitor) -> None:
        self._forget(visitor)
        visitor.stream.close()

    def _forget(self, visitor: _Visitor) -> None:
        del self._visitors[visitor]
        self._hosts[visitor.host] -= 1
        if not self._hosts[visitor.host]:
            del self._hosts[visitor.host]
        if visitor.awaited:
            self._selector.unregister(visitor.stream)


def speaks_http2(stream: socket.socket) -> bool:
    """Return whether the client and we have agreed on HTTP/2 in the handshake."""
    return isinstance(stream, ssl.SSLSocket) and stream.selected_alpn_protocol() == "h2"


# TLS demands a socket that does not block. Else a flag does, which is a call less: there may be another thread that
# computes, and after each call this one waits for it.


def _receive(stream: socket.socket) -> bytes:
    if isinstance(stream, ssl.SSLSocket):
        return stream.recv(_RECEIVED)
    return stream.recv(_RECEIVED, socket.MSG_DONTWAIT)


def _send(stream: socket.socket, data: bytes) -> None:
    if isinstance(stream, ssl.SSLSocket):
        stream.send(data)
    else:
        stream.send(data, socket.MSG_DONTWAIT)
