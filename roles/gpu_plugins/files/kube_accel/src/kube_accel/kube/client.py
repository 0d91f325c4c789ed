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
from kube_accel.kube.connections import Connections
from kube_accel.shared.api_json import ApiJsonError, read_object

JSON: Final = "application/json"
MERGE_PATCH: Final = "application/merge-patch+json"

_STREAMS = 8
"""Connections for streams that are kept."""
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


@dataclass(frozen=True, slots=True)
class _Reached:
    """The API server, as it is reached with the credentials of a moment."""

    files: list[tuple[int, ...]]
    """Which files these were, as ``_which`` tells."""
    connections: Connections
    streams: urllib3.PoolManager


class KubeClient:
    """One API server. Threads may share it; every request has a connection to itself."""

    def __init__(self, url: str, credentials: Credentials, timeout: float = 10) -> None:
        """``timeout`` is the number of seconds that one answer may take."""
        self.url = url.rstrip("/")
        self._credentials = credentials
        self._timeout = timeout
        self._lock = threading.Lock()
        self._reached: _Reached | None = None
        self._token: tuple[tuple[int, ...], str] = (), ""
        """Which file the token was read from, as ``_which`` tells, and what it says."""

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
        content = None if body is None else json.dumps(body).encode()
        try:
            headers |= self._authorization()
            answer = self._reach().connections.ask(method, _target(path, query), headers, content, self._timeout)
        except (OSError, ValueError) as error:
            raise self._unreachable(error) from error
        if not 200 <= answer.status < 300:
            raise ApiRefusedError(answer.status, status_message(answer.body))
        return answer.body

    @contextmanager
    def lines(
        self, path: str, query: Mapping[str, str], silence: float, accept: str = JSON
    ) -> Iterator[Iterator[bytes]]:
        """Yield the lines of an open answer, until the server ends it or is silent for ``silence`` seconds.

        Raises ApiError, also while the lines are read.
        """
        try:
            response = self._reach().streams.request(
                "GET",
                self.url + _target(path, query),
                headers={"Accept": accept, **self._authorization()},
                timeout=urllib3.Timeout(connect=_CONNECT_TIMEOUT, read=silence),
                retries=False,
                redirect=False,
                preload_content=False,
            )
            if not 200 <= response.status < 300:
                raise ApiRefusedError(response.status, status_message(response.data))
        except (OSError, ValueError, urllib3.exceptions.HTTPError) as error:
            raise self._unreachable(error) from error
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
            raise self._unreachable(error) from error

    def _unreachable(self, error: Exception) -> ApiUnreachableError:
        return ApiUnreachableError(f"API server {self.url} not reached: {error}")

    def _authorization(self) -> dict[str, str]:
        """Return the header that says who we are; none where a certificate does. Raises OSError and ValueError."""
        token, file = self._credentials.token, self._credentials.token_file
        if file is not None:
            found, known = _which(file), self._token
            if known[0] != found:
                known = self._token = found, file.read_text().strip()
            token = known[1]
        return {"Authorization": f"Bearer {token}"} if token else {}

    def _reach(self) -> _Reached:
        """Return connections made with the files as they are now. Raises OSError and ValueError."""
        files = (self._credentials.ca_file, self._credentials.cert_file, self._credentials.key_file)
        now = [_which(file) for file in files if file is not None]
        with self._lock:
            before = self._reached
            if before is not None and before.files == now:
                return before
            context = trusting(self._credentials.ca_file)
            if self._credentials.cert_file is not None:
                context.load_cert_chain(self._credentials.cert_file, self._credentials.key_file)
            streams = urllib3.PoolManager(num_pools=2, maxsize=_STREAMS, ssl_context=context)
            self._reached = found = _Reached(now, Connections(self.url, context), streams)
        if before is not None:
            before.connections.end()
        return found


def _which(file: Path) -> tuple[int, ...]:
    """Return what differs once a file was written or replaced. Raises OSError."""
    found = file.stat()
    return found.st_mtime_ns, found.st_ino, found.st_size


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
