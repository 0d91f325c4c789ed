# SPDX-License-Identifier: Apache-2.0
"""A registry that keeps what is pushed in memory, checks every digest and remembers each request."""

from __future__ import annotations

import base64
import hashlib
import json
import ssl
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

USER = "Basic " + base64.b64encode(b"robot:pass word").decode()


@dataclass
class Registry:
    auth: str = ""
    """Empty, ``basic`` or ``bearer``."""
    tls: ssl.SSLContext | None = None
    fail: dict[str, int] = field(default_factory=dict)
    """Status to answer a method with."""
    digest_header: bool = True
    realm: str = ""
    upload: str = ""
    """Where uploads are sent to instead of here."""
    blobs: dict[str, bytes] = field(default_factory=dict)
    manifests: dict[str, bytes] = field(default_factory=dict)
    requests: list[tuple[str, str, str]] = field(default_factory=list)
    """Method, path and Authorization."""

    def __enter__(self) -> Registry:
        registry = self

        class Handler(_Handler):
            state = registry

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        if self.tls is not None:
            self._server.socket = self.tls.wrap_socket(self._server.socket, server_side=True)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    @property
    def name(self) -> str:
        return f"localhost:{self._server.server_address[1]}"

    def sent(self) -> list[str]:
        """What was written, in order: ``METHOD path``."""
        return [f"{method} {path}" for method, path, _ in self.requests if method in ("POST", "PUT")]


class _Handler(BaseHTTPRequestHandler):
    state: Registry
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def _answer(self, status: int, body: bytes = b"", **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _handle(self) -> None:
        state = self.state
        url = urlsplit(self.path)
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        authorization = self.headers.get("Authorization", "")
        state.requests.append((self.command, url.path, authorization))
        if url.path == "/token":
            assert parse_qs(url.query)["service"] == ["the registry"]
            assert parse_qs(url.query)["scope"] == ["repository:gpu/kube-accel:pull,push"]
            if authorization == USER:
                return self._answer(200, json.dumps({"token": "fresh"}).encode())
            return self._answer(401)
        wanted = {"": authorization, "basic": USER, "bearer": "Bearer fresh"}[state.auth]
        if authorization != wanted and not url.path.startswith("/elsewhere/"):
            realm = state.realm or f"{'https' if state.tls else 'http'}://{state.name}/token"
            challenge = {"basic": 'Basic realm="x"', "bearer": f'Bearer realm="{realm}",service="the registry"'}
            return self._answer(401, WWW_Authenticate=challenge[state.auth])
        if self.command in state.fail:
            error = {"errors": [{"code": "DENIED", "message": "quota is used up"}]}
            return self._answer(state.fail[self.command], json.dumps(error).encode())
        kind, name = url.path.removeprefix("/v2/gpu/kube-accel/").split("/", 1)
        if self.command == "POST":
            return self._answer(202, Location=state.upload or f"{self.path}17?_state=a%2Fb")
        if self.command == "PUT":
            digest = "sha256:" + hashlib.sha256(body).hexdigest()
            if kind == "manifests":
                document = json.loads(body)
                assert self.headers["Content-Type"] == document["mediaType"]
                # An index refers to manifests, a manifest to blobs.
                needed = document.get("manifests") or [document["config"], *document["layers"]]
                held = state.manifests if "manifests" in document else state.blobs
                if any(len(held.get(one["digest"], b"")) != one["size"] for one in needed):
                    return self._answer(400)
                state.manifests[name] = body
                return self._answer(201, Docker_Content_Digest=digest)
            query = parse_qs(url.query)
            if query["digest"] != [digest] or query["_state"] != ["a/b"]:
                return self._answer(400)
            state.blobs[digest] = body
            return self._answer(201)
        stored = (state.manifests if kind == "manifests" else state.blobs).get(name)
        if stored is None or (kind == "manifests" and not self._accepted(stored)):
            return self._answer(404)
        if not state.digest_header:
            return self._answer(200, stored)
        return self._answer(200, stored, Docker_Content_Digest="sha256:" + hashlib.sha256(stored).hexdigest())

    def _accepted(self, manifest: bytes) -> bool:
        """One that does not say what it is has been sent as what the client takes."""
        kind = json.loads(manifest).get("mediaType")
        return kind is None or kind in self.headers["Accept"].split(", ")

    do_GET = do_HEAD = do_POST = do_PUT = _handle  # noqa: N815
