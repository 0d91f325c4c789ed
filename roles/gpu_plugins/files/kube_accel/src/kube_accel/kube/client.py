# SPDX-License-Identifier: Apache-2.0
"""An API server for a daemon that asks often: kept connections, JSON, streams, credentials that rotate."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode

from kube_accel.kube.api import ApiRefusedError, ApiUnreachableError, status_message, trusting
from kube_accel.kube.connections import Connections
from kube_accel.shared.api_json import ApiJsonError, read_object

JSON: Final = "application/json"
MERGE_PATCH: Final = "application/merge-patch+json"

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
        self._reached: tuple[list[tuple[int, ...]], Connections] | None = None
        """Which files the connections were made with, as ``_which`` tells."""
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
            answer = self._reach().ask(method, _target(path, query), headers, content, self._timeout)
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
        fields = {"Accept": accept}
        with ExitStack() as stack:
            try:
                fields |= self._authorization()
                stream = self._reach().stream(_target(path, query), fields, silence)
                status, pieces = stack.enter_context(stream)
                if not 200 <= status < 300:
                    raise ApiRefusedError(status, status_message(b"".join(pieces)))
            except (OSError, ValueError) as error:
                raise self._unreachable(error) from error
            yield self._lines(pieces)

    def _lines(self, pieces: Iterator[bytes]) -> Iterator[bytes]:
        rest = b""
        try:
            for piece in pieces:
                *complete, rest = (rest + piece).split(b"\n")
                yield from complete
                if len(rest) > _MAX_LINE:
                    raise ApiUnreachableError(f"API server {self.url} sent a line of more than {_MAX_LINE} bytes")
        except OSError as error:
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

    def _reach(self) -> Connections:
        """Return connections made with the files as they are now. Raises OSError and ValueError."""
        files = (self._credentials.ca_file, self._credentials.cert_file, self._credentials.key_file)
        now = [_which(file) for file in files if file is not None]
        with self._lock:
            before = self._reached
            if before is not None and before[0] == now:
                return before[1]
            context = trusting(self._credentials.ca_file)
            if self._credentials.cert_file is not None:
                context.load_cert_chain(self._credentials.cert_file, self._credentials.key_file)
            found = Connections(self.url, context)
            self._reached = now, found
        if before is not None:
            before[1].end()
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
