# SPDX-License-Identifier: Apache-2.0
"""An API server for a daemon that asks often: kept connections, JSON, streams, credentials that rotate."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode

import urllib3

from kube_accel.kube.api import ApiRefusedError, ApiUnreachableError, status_message, trusting
from kube_accel.shared.api_json import ApiJsonError, read_object

JSON: Final = "application/json"
MERGE_PATCH: Final = "application/merge-patch+json"

_CONNECTIONS = 32
_CONNECT_TIMEOUT = 5.0
_MAX_LINE = 8 << 20
"""Bytes of one watch event; the API server takes no object above 3 MiB."""


@dataclass(frozen=True, slots=True)
class Credentials:
    """How we know the API server and it knows us. Files, because they rotate; None: not used."""

    ca_file: Path | None = None
    token_file: Path | None = None
    cert_file: Path | None = None
    key_file: Path | None = None
    token: str = ""


class KubeClient:
    """One API server. Threads may share it; every request has a connection to itself."""

    def __init__(self, url: str, credentials: Credentials, timeout: float = 10) -> None:
        """``timeout`` is the number of seconds that one answer may take."""
        self.url = url.rstrip("/")
        self._credentials = credentials
        self._timeout = timeout
        self._lock = threading.Lock()
        self._pool: tuple[list[int], urllib3.PoolManager] | None = None

    def get(self, path: str, query: Mapping[str, str] | None = None) -> dict[str, Any]:
        """Return the object at ``path``. Raises ApiError."""
        return _object(self.send("GET", path, query=query))

    def post(self, path: str, body: object) -> dict[str, Any]:
        """Create an object. Raises ApiError."""
        return _object(self.send("POST", path, body))

    def put(self, path: str, body: object) -> dict[str, Any]:
        """Replace the object at ``path``, or create it where that is done by PUT. Raises ApiError."""
        return _object(self.send("PUT", path, body))

    def patch(self, path: str, body: object) -> dict[str, Any]:
        """Merge ``body`` into the object at ``path``. Raises ApiError."""
        return _object(self.send("PATCH", path, body, MERGE_PATCH))

    def send(
        self,
        method: str,
        path: str,
        body: object = None,
        content_type: str = JSON,
        query: Mapping[str, str] | None = None,
        accept: str = JSON,
    ) -> bytes:
        """Send one request and return the body of its answer. Raises ApiError."""
        headers = {"Accept": accept} if body is None else {"Accept": accept, "Content-Type": content_type}
        return self._request(method, _target(path, query), body, headers, self._timeout, stream=False).data

    @contextmanager
    def lines(
        self, path: str, query: Mapping[str, str], silence: float, accept: str = JSON
    ) -> Iterator[Iterator[bytes]]:
        """Yield the lines of an open answer, until the server ends it or is silent for ``silence`` seconds.

        Raises ApiError, also while the lines are read.
        """
        response = self._request("GET", _target(path, query), None, {"Accept": accept}, silence, stream=True)
        try:
            yield self._lines(response)
        finally:
            # Closed, not drained: the rest of a watch has no end.
            response.close()

    def _lines(self, response: urllib3.BaseHTTPResponse) -> Iterator[bytes]:
        rest = b""
        try:
            for chunk in response.stream(1 << 16):
                *complete, rest = (rest + chunk).split(b"\n")
                yield from complete
                if len(rest) > _MAX_LINE:
                    raise ApiUnreachableError(f"API server {self.url} sent a line of more than {_MAX_LINE} bytes")
        except (OSError, urllib3.exceptions.HTTPError) as error:
            raise ApiUnreachableError(f"API server {self.url} not reached: {error}") from error

    def _request(
        self,
        method: str,
        target: str,
        body: object,
        headers: dict[str, str],
        timeout: float,
        stream: bool,
    ) -> urllib3.BaseHTTPResponse:
        try:
            token = self._credentials.token
            if self._credentials.token_file is not None:
                token = self._credentials.token_file.read_text().strip()
            if token:
                headers["Authorization"] = f"Bearer {token}"
            response = self._connections().request(
                method,
                self.url + target,
                body=None if body is None else json.dumps(body).encode(),
                headers=headers,
                timeout=urllib3.Timeout(connect=_CONNECT_TIMEOUT, read=timeout),
                retries=False,
                redirect=False,
                preload_content=not stream,
            )
            if not 200 <= response.status < 300:
                raise ApiRefusedError(response.status, status_message(response.data))
        except (OSError, urllib3.exceptions.HTTPError) as error:
            raise ApiUnreachableError(f"API server {self.url} not reached: {error}") from error
        return response

    def _connections(self) -> urllib3.PoolManager:
        """Return connections made with the files as they are now."""
        files = (self._credentials.ca_file, self._credentials.cert_file, self._credentials.key_file)
        written = [file.stat().st_mtime_ns for file in files if file is not None]
        with self._lock:
            if self._pool is None or self._pool[0] != written:
                context = trusting(self._credentials.ca_file)
                if self._credentials.cert_file is not None:
                    context.load_cert_chain(self._credentials.cert_file, self._credentials.key_file)
                pool = urllib3.PoolManager(num_pools=2, maxsize=_CONNECTIONS, ssl_context=context)
                self._pool = written, pool
            return self._pool[1]


def _object(body: bytes) -> dict[str, Any]:
    try:
        document = read_object(body)
    except ApiJsonError as error:
        raise ApiUnreachableError(f"the API server's answer is {error}") from error
    if not isinstance(document.get("metadata") or {}, dict):
        raise ApiUnreachableError("the API server's answer has metadata that is no JSON object")
    return document


def _target(path: str, query: Mapping[str, str] | None) -> str:
    return f"{path}?{urlencode(query)}" if query else path
