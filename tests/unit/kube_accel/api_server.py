# SPDX-License-Identifier: Apache-2.0
"""As much of an API server as a daemon on a node speaks to: HTTPS, its node, an answer a test chooses."""

from __future__ import annotations

import json
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import trustme


@dataclass
class Request:
    method: str
    path: str
    headers: dict[str, str]
    body: object


@dataclass
class ApiServer:
    """Answers PATCH and POST with ``status`` and ``reply``, keeps what it was sent and patches the one node it has."""

    port: int = 0
    status: int = 200
    reply: object = field(default_factory=dict)
    requests: list[Request] = field(default_factory=list)
    node: dict[str, dict[str, dict[str, str]]] = field(default_factory=lambda: {"metadata": {}})


@contextmanager
def serving(authority: trustme.CA, port: int = 0) -> Iterator[ApiServer]:
    """An API server on 127.0.0.1 whose certificate ``authority`` issued."""
    state = ApiServer()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            state.requests.append(Request(self.command, self.path, dict(self.headers), None))
            self.answer(json.dumps(state.node if state.status == 200 else state.reply).encode())

        def do_PATCH(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            state.requests.append(Request(self.command, self.path, dict(self.headers), body))
            if state.status == 200 and "metadata" in body and self.command == "PATCH":
                merge(state.node, body)
            self.answer(state.reply if isinstance(state.reply, bytes) else json.dumps(state.reply).encode())

        def answer(self, answer: bytes) -> None:
            self.send_response(state.status)
            self.send_header("Location", "https://127.0.0.1:1/elsewhere")
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def do_POST(self) -> None:
            self.do_PATCH()

        def log_message(self, format: str, *args: object) -> None:
            pass

    httpd = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    httpd.socket = context.wrap_socket(httpd.socket, server_side=True)
    state.port = httpd.server_port
    thread = threading.Thread(target=httpd.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield state
    finally:
        httpd.shutdown()
        httpd.server_close()
        thread.join()


def merge(document: dict[str, Any], patch: dict[str, Any]) -> None:
    """RFC 7396, of objects in objects."""
    for key, value in patch.items():
        if isinstance(value, dict):
            merge(document.setdefault(key, {}), value)
        elif value is None:
            document.pop(key, None)
        else:
            document[key] = value


def service_account(directory: Path, authority: trustme.CA) -> Path:
    """``directory`` as the service account's, for servers of ``authority``."""
    directory.mkdir(exist_ok=True)
    authority.cert_pem.write_to_path(directory / "ca.crt")
    (directory / "token").write_text("first\n")
    return directory
