# SPDX-License-Identifier: Apache-2.0
"""``/healthz`` and ``/readyz``. Read-only: nothing is changed over HTTP."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socket import AF_INET, AF_INET6, socket

Probe = Callable[[], str]
"""Returns an empty string when all is well, else one sentence."""

_CLIENTS = 8


class ProbeServer(ThreadingHTTPServer):
    """Answers GET of each probe's path: 200 ``ok``, or 503 and the reason."""

    daemon_threads = True
    block_on_close = False

    def __init__(self, address: tuple[str, int], probes: Mapping[str, Probe]) -> None:
        """Listens at once. Raises OSError."""
        self.probes = probes
        self.address_family = AF_INET6 if ":" in address[0] else AF_INET
        self._free = threading.BoundedSemaphore(_CLIENTS)
        super().__init__(address, _Handler)

    def process_request(self, request: socket | tuple[bytes, socket], client_address: object) -> None:
        """One thread a client, a few clients at a time; more are turned away."""
        if not self._free.acquire(blocking=False):
            self.shutdown_request(request)
            return
        super().process_request(request, client_address)

    def process_request_thread(self, request: socket | tuple[bytes, socket], client_address: object) -> None:
        """Answer one client."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: socket | tuple[bytes, socket], client_address: object) -> None:
        """A client that went away is no event."""


class _Handler(BaseHTTPRequestHandler):
    server: ProbeServer
    timeout = 5
    server_version = "kube-accel"
    sys_version = ""

    def do_GET(self) -> None:
        probe = self.server.probes.get(self.path.partition("?")[0])
        if probe is None:
            self._answer(404, "not found")
            return
        reason = probe()
        self._answer(503 if reason else 200, reason or "ok")

    def _answer(self, status: int, text: str) -> None:
        body = f"{text}\n".encode()
        self.send_response(status)
        self.send_header("Content-Type", "text/plain; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Probes come every few seconds: not logged."""
