# SPDX-License-Identifier: Apache-2.0
"""``/healthz``, ``/readyz`` and ``/metrics``. Read-only: nothing is changed over HTTP."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socket import SHUT_RDWR, socket

from kube_accel.listening import listener

Probe = Callable[[], str]
"""Returns an empty string when all is well, else one sentence."""

Page = Callable[[], bytes]
"""What is served as it is; never waits."""

_CLIENTS = 8
_PAGE_TYPE = "text/plain; version=0.0.4; charset=utf-8"
"""Prometheus' text format."""


class ProbeServer(ThreadingHTTPServer):
    """Answers GET of each probe's path: 200 ``ok``, or 503 and the reason; and of each page's, with the page."""

    daemon_threads = True
    block_on_close = False
    request_queue_size = 128
    """Connections that wait to be accepted: where there are more, a probe's has to come a second time."""

    def __init__(
        self, address: tuple[str, int], probes: Mapping[str, Probe], pages: Mapping[str, Page] | None = None
    ) -> None:
        """Listens at once. Raises OSError."""
        self.probes = probes
        self.pages = pages or {}
        self._lock = threading.Lock()
        self._clients: dict[object, socket] = {}
        super().__init__(address, _Handler)

    def server_bind(self) -> None:
        """Its parent's knows one family of addresses, and asks name servers for a name that nobody needs."""
        self.socket.close()
        self.socket = listener((str(self.server_address[0]), int(self.server_address[1])), self.request_queue_size)
        self.server_name, self.server_port = self.socket.getsockname()[:2]

    def process_request(self, request: socket | tuple[bytes, socket], client_address: object) -> None:
        """One thread a client, a few at a time. A new one ends the oldest: those that are slow keep nobody out."""
        assert isinstance(request, socket)
        with self._lock:
            if len(self._clients) >= _CLIENTS:
                oldest = self._clients.pop(next(iter(self._clients)))
                with suppress(OSError):  # it has gone by itself
                    oldest.shutdown(SHUT_RDWR)
            self._clients[request] = request
        super().process_request(request, client_address)

    def shutdown_request(self, request: socket | tuple[bytes, socket]) -> None:
        """A client has its answer."""
        with self._lock:
            self._clients.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, request: socket | tuple[bytes, socket], client_address: object) -> None:
        """A client that went away is no event."""


class _Handler(BaseHTTPRequestHandler):
    server: ProbeServer
    timeout = 5
    server_version = "kube-accel"
    sys_version = ""
    # Head and body in one go: a body sent by itself would wait for the head's acknowledgement.
    wbufsize = -1

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if (page := self.server.pages.get(path)) is not None:
            self._answer(200, page(), _PAGE_TYPE)
            return
        probe = self.server.probes.get(path)
        if probe is None:
            self._answer(404, b"not found\n")
            return
        reason = probe()
        self._answer(503 if reason else 200, f"{reason or 'ok'}\n".encode())

    def _answer(self, status: int, body: bytes, kind: str = "text/plain; charset=utf-8") -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Probes come every few seconds: not logged."""
