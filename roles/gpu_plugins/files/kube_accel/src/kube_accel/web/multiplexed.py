# SPDX-License-Identifier: Apache-2.0
"""A connection of HTTP/2: many requests at once, of a client that showed a certificate.

They are read and answered by the threads of a crew. A request that waits for nothing is answered by the thread that
reads, before the next one is read. What strangers may do is in ``once``.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

from kube_accel.http2 import frames
from kube_accel.http2.connection import Connection, ConnectionEndedError, Data, GoAway, Headers, Reset, StreamEndedError
from kube_accel.http2.crew import Crew
from kube_accel.web.head import Head, RequestError, head_of
from kube_accel.web.room import Place, Room
from kube_accel.web.secured import Secured
from kube_accel.web.site import Request, Response, Site, mistake, refusal, text

_log = logging.getLogger(__name__)

_STREAMS = 100
"""Requests that a client may have under way. Go opens another connection for more."""
_IDLE_THREADS = 32
"""That wait to read: binds come in bursts, and to start a thread takes longer than most requests."""
_BODY_SECONDS = 15.0
_ANSWER_SECONDS = 15.0
"""In which a client has taken a whole answer."""
_IDLE_SECONDS = 120.0
"""Longer than Go is silent: it asks every 30 seconds whether we are still there."""


@dataclass(slots=True)
class _Call:
    """A request, or what there is of it."""

    stream: int
    head: Head
    place: Place
    until: float
    """Monotonic seconds; when its body has to be there."""
    body: bytearray = field(default_factory=bytearray)


class Multiplexed:
    """Serves one connection."""

    def __init__(
        self,
        stream: Secured,
        site: Site,
        room: Room,
        under_way: Callable[[], AbstractContextManager[None]],
        over: Callable[[], None],
    ) -> None:
        """``under_way`` is entered for each request. ``over`` is called when the connection has ended."""
        self._stream = stream
        self._site = site
        self._room = room
        self._under_way = under_way
        self._http = Connection(stream, _STREAMS)
        self._crew = Crew("connection", self._next, self._answer, over, _STREAMS, _IDLE_THREADS)
        self._greeted = False
        self._last = 0
        """The last stream that the client has begun."""
        self._coming: dict[int, _Call] = {}
        """By stream, requests whose bodies are not there yet. Belongs to the reading thread."""

    def start(self) -> None:
        """Have threads serve it."""
        self._crew.start()

    def _next(self) -> _Call | None:
        """Return the next whole request; None when there will be none."""
        try:
            if not self._greeted:
                self._http.open()
                self._http.greeted()
                self._greeted = True
            while True:
                self._wait()
                call = self._heard()
                if call is not None:
                    return call
        except (ConnectionEndedError, TimeoutError, ValueError):
            pass  # a client that went away, or speaks something else, is no event
        except Exception:
            _log.exception("a connection is not read any more")
        self._http.shut()
        for call in self._coming.values():
            self._room.leave(call.place)
        return None

    def _wait(self) -> None:
        """Have the next read end in time. Raises TimeoutError."""
        if not self._coming:
            self._stream.until = time.monotonic() + _IDLE_SECONDS
            return
        self._stream.until = min(call.until for call in self._coming.values())
        if time.monotonic() > self._stream.until:
            raise TimeoutError("a request took too long")

    def _heard(self) -> _Call | None:
        """Return the request that is whole with what comes next. Raises ConnectionEndedError and TimeoutError."""
        match self._http.take():
            case Headers(stream, fields, last):
                if stream in self._coming:  # trailers
                    return self._whole(stream) if last else None
                return self._begun(stream, fields, last)
            case Data(stream, data, last):
                call = self._coming.get(stream)
                if call is None:
                    return None
                call.body += data
                if len(call.body) > call.head.length:
                    self._drop(stream, frames.PROTOCOL_ERROR)
                    return None
                return self._whole(stream) if last else None
            case Reset(stream, _):
                if call := self._coming.pop(stream, None):
                    self._room.leave(call.place)
            case GoAway():
                pass
        return None

    def _begun(self, stream: int, fields: frames.Fields, last: bool) -> _Call | None:
        if stream <= self._last or not stream % 2:
            raise ConnectionEndedError("a stream begins twice")
        self._last = stream
        if len(self._coming) >= _STREAMS:
            self._http.reset(stream, frames.REFUSED_STREAM)
            return None
        self._http.begin(stream)
        place = self._room.place(self._http.shut)
        try:
            head = head_of(fields)
            refused = refusal(self._site, head, True)
            if refused is None and not self._room.take(place, head.length):
                refused = text(503, "there are too many requests at once; try again")
        except RequestError as error:
            refused = mistake(error)
        if refused is not None:
            self._send(stream, refused, True)
            if not last:
                self._http.reset(stream, frames.NO_ERROR)
            return None
        self._coming[stream] = _Call(stream, head, place, time.monotonic() + _BODY_SECONDS)
        return self._whole(stream) if last else None

    def _whole(self, stream: int) -> _Call | None:
        call = self._coming[stream]
        if len(call.body) != call.head.length:
            self._drop(stream, frames.PROTOCOL_ERROR)
            return None
        return self._coming.pop(stream)

    def _drop(self, stream: int, code: int) -> None:
        self._room.leave(self._coming.pop(stream).place)
        self._http.reset(stream, code)

    def _answer(self, call: _Call, pass_on: Callable[[], None]) -> None:
        try:
            with call.place, self._under_way():
                if not call.place.busy():
                    raise ConnectionEndedError("others needed the room")
                request = Request(call.head.method, call.head.path, call.body, True, pass_on)
                try:
                    response = self._site.handle(request)
                except Exception:
                    _log.exception("a request failed", extra={"path": call.head.path})
                    response = text(500, "internal error, see the log")
                call.place.answer(len(response.body))
                self._send(call.stream, response, call.head.method != "HEAD", pass_on)
            if response.afterwards is not None:
                pass_on()
                response.afterwards()
        except (ConnectionEndedError, TimeoutError):
            self._http.shut()
        except StreamEndedError:
            pass  # it is not waited for any more
        finally:
            self._http.end(call.stream)

    def _send(self, stream: int, response: Response, whole: bool, meanwhile: Callable[[], None] = lambda: None) -> None:
        body = response.body if whole else b""
        self._http.send(stream, response.fields(), body, last=True, seconds=_ANSWER_SECONDS, meanwhile=meanwhile)
