# SPDX-License-Identifier: Apache-2.0
"""A gRPC server on a unix socket. The threads of a connection read it in turns: ``http2.crew``."""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from google.protobuf.message import DecodeError, Message

from kube_accel.http2 import connection as http2
from kube_accel.http2 import frames
from kube_accel.http2.crew import Crew
from kube_accel.rpc import message
from kube_accel.rpc.status import Code, RpcError, to_headers

_log = logging.getLogger(__name__)

_CALLS: Final = 64
"""Most calls of one connection at a time; it is read no further until one of them is answered."""
_RECEIVE_LIMIT: Final = 4 << 20
"""Bytes of a request, as gRPC has it."""
_IDLE: Final = 2
"""Threads of a connection that wait for something to read."""
_BEGIN: Final = ((":status", "200"), ("content-type", "application/grpc"))
_OK: Final = tuple(to_headers(Code.OK))


class Context:
    """What a handler sees of a call beside its request."""

    def __init__(self, stream: int, method: Method) -> None:
        self.stream = stream
        self.method = method
        self.body = bytearray()
        self.begun = False
        """Whether headers were sent."""
        self._lock = threading.Lock()
        self._active = True
        self._callbacks: list[Callable[[], None]] = []

    def is_active(self) -> bool:
        """Return whether the caller waits for the answer."""
        return self._active

    def add_callback(self, callback: Callable[[], None]) -> bool:
        """Have it called when the call ends, by any thread; return False when it has ended."""
        with self._lock:
            if self._active:
                self._callbacks.append(callback)
            return self._active

    def end(self) -> None:
        """Note that the caller waits no more."""
        with self._lock:
            self._active = False
            callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback()


@dataclass(frozen=True, slots=True)
class Method:
    """What answers a call. A handler that raises RpcError ends it so, any other exception as UNKNOWN."""

    handler: Callable[[Any, Context], Any]
    """Takes the request and the call; its message, or an iterator of messages."""
    request: type[Message]
    streams: bool = False
    """Whether there are several messages."""
    at_once: bool = False
    """Whether the handler waits for nothing: then no other thread is woken to read on meanwhile."""


class Server:
    """Answers until it is stopped."""

    def __init__(self, path: Path, methods: Mapping[str, Method]) -> None:
        """Listens on ``path`` and serves ``methods``, by ``/service/name``. Raises OSError."""
        self._path = path
        self._methods = methods
        self._changed = threading.Condition()
        self._connections: set[_Served] = set()
        self._busy = 0
        self._stopped = False
        self._listener = socket.socket(socket.AF_UNIX)
        try:
            self._listener.bind(str(path))
            path.chmod(0o600)  # before anybody can connect
            self._listener.listen()
        except OSError as error:
            self._listener.close()
            raise OSError(f"cannot listen on {path}: {error.strerror or error}") from error
        threading.Thread(target=self._accept, name="rpc-accept", daemon=True).start()

    @property
    def busy(self) -> int:
        """Return how many calls are being answered."""
        return self._busy

    def stop(self, grace: float = 0.0) -> None:
        """Take no more calls; those that are being answered have so many seconds. The socket is removed."""
        with self._changed:
            self._stopped = True
        self._path.unlink(missing_ok=True)
        # It wakes who accepts, as closing does not.
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        deadline = time.monotonic() + grace
        with self._changed:
            self._changed.wait_for(lambda: not self._busy, timeout=max(0.0, deadline - time.monotonic()))
            connections = list(self._connections)
        for connection in connections:
            connection.shut()

    def method(self, path: str) -> Method | None:
        """Return what answers calls of this path."""
        return self._methods.get(path)

    def count(self, more: int) -> None:
        """Count so many more calls that are being answered."""
        with self._changed:
            self._busy += more
            self._changed.notify_all()

    def forget(self, connection: _Served) -> None:
        """Forget a connection that has ended."""
        with self._changed:
            self._connections.discard(connection)

    def _accept(self) -> None:
        with self._listener:
            while True:
                try:
                    accepted, _ = self._listener.accept()
                except OSError:
                    if self._stopped:
                        return
                    _log.exception("no connection is accepted", extra={"socket": str(self._path)})
                    time.sleep(1)  # too many open files, for one
                    continue
                connection = _Served(self, accepted)
                with self._changed:
                    if self._stopped:
                        accepted.close()
                        return
                    self._connections.add(connection)
                connection.start()


class _Served:
    """One connection of a server."""

    def __init__(self, server: Server, connected: socket.socket) -> None:
        self._server = server
        self._http = http2.Connection(connected, _CALLS)
        self._crew = Crew("rpc", self._next, self._answer, self._close, _CALLS, _IDLE)
        self._greeted = False
        self._coming: dict[int, Context] = {}
        """Calls whose requests have come in part, by stream. Belongs to the reading thread."""
        self._calls: dict[int, Context] = {}
        """All of them."""

    def start(self) -> None:
        """Have a thread read and answer."""
        self._crew.start()

    def shut(self) -> None:
        """End the connection."""
        self._http.shut()

    def _close(self) -> None:
        self._http.close()
        self._server.forget(self)

    def _next(self) -> Context | None:
        """Return the next call whose request has come whole; None when there will be none."""
        try:
            if not self._greeted:
                self._http.open()
                self._http.greeted()
                self._greeted = True
            while True:
                call = self._heard(self._http.read())
                if call is not None:
                    self._server.count(1)
                    return call
        except http2.ConnectionEndedError:
            self._end_all()
            return None
        except Exception:
            _log.exception("a connection is not read any more")
            self._end_all()
            return None

    def _end_all(self) -> None:
        self._http.shut()
        for call in list(self._calls.values()):
            call.end()

    def _heard(self, event: http2.Event) -> Context | None:
        """Return the call that is complete with this event."""
        match event:
            case http2.Headers(stream, fields, last):
                if stream not in self._calls and not self._begun(stream, dict(fields)):
                    return None
                call = self._coming.get(stream)
            case http2.Data(stream, data, last):
                call = self._coming.get(stream)
                if call is not None:
                    call.body += data
                    if len(call.body) > _RECEIVE_LIMIT:
                        self._refuse(stream, Code.RESOURCE_EXHAUSTED, f"a request of more than {_RECEIVE_LIMIT} bytes")
                        return None
            case http2.Reset(stream, _):
                self._coming.pop(stream, None)
                ended = self._calls.pop(stream, None)
                if ended is not None:
                    ended.end()
                return None
            case http2.GoAway():
                return None
        if call is None or not last:
            return None
        return self._coming.pop(stream)

    def _begun(self, stream: int, fields: Mapping[str, str]) -> bool:
        """Return whether this begins a call that can be answered."""
        self._http.begin(stream)
        path = fields.get(":path", "")
        method = self._server.method(path)
        if method is None:
            self._refuse(stream, Code.UNIMPLEMENTED, f"there is no method {path}")
            return False
        self._calls[stream] = self._coming[stream] = Context(stream, method)
        return True

    def _refuse(self, stream: int, code: Code, details: str) -> None:
        self._coming.pop(stream, None)
        self._calls.pop(stream, None)
        with suppress(http2.StreamEndedError):
            self._http.send(stream, trailers=(*_BEGIN, *to_headers(code, details)))
        self._http.reset(stream, frames.NO_ERROR)

    def _answer(self, call: Context, pass_on: Callable[[], None]) -> None:
        if not call.method.at_once:
            pass_on()  # a handler may wait for whatever it likes
        try:
            try:
                self._handle(call, pass_on)
            except RpcError as error:
                self._end(call, error.code, error.details)
            except (http2.StreamEndedError, http2.ConnectionEndedError):
                raise
            except Exception as error:
                _log.exception("a call failed")
                self._end(call, Code.UNKNOWN, f"{type(error).__name__}: {error}")
        except (http2.StreamEndedError, http2.ConnectionEndedError):
            return  # the caller waits for it no more
        finally:
            self._calls.pop(call.stream, None)
            self._http.end(call.stream)
            call.end()
            self._server.count(-1)

    def _handle(self, call: Context, pass_on: Callable[[], None]) -> None:
        try:
            request = call.method.request.FromString(message.unpack(bytes(call.body)))
        except (DecodeError, ValueError) as error:
            raise RpcError(Code.INTERNAL, f"the request cannot be read: {error}") from error
        if not call.method.streams:
            reply: Message = call.method.handler(request, call)
            self._http.send(call.stream, _BEGIN, message.pack(reply), _OK, meanwhile=pass_on)
            return
        call.begun = True
        self._http.send(call.stream, _BEGIN)
        replies: Iterable[Message] = call.method.handler(request, call)
        with closing(replies):  # type: ignore[type-var]
            for reply in replies:
                self._http.send(call.stream, data=message.pack(reply))
        self._end(call, Code.OK, "")

    def _end(self, call: Context, code: Code, details: str) -> None:
        begin = () if call.begun else _BEGIN
        self._http.send(call.stream, trailers=(*begin, *to_headers(code, details)))
