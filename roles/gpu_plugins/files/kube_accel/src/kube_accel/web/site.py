# SPDX-License-Identifier: Apache-2.0
"""What a server serves: requests, responses, and who says what is answered."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from typing import Protocol

from kube_accel.shared.printable import line
from kube_accel.web.head import Head, RequestError


@dataclass(frozen=True, slots=True)
class Request:
    """A request that came in whole."""

    method: str
    path: str
    """Without the query."""
    body: bytes | bytearray
    known: bool
    """The client showed a certificate of the client CA."""
    waits: Callable[[], None] = lambda: None
    """To be called before anything is waited for: others of the client's requests are read meanwhile."""


@dataclass(frozen=True, slots=True)
class Response:
    """What is answered."""

    status: int
    body: bytes
    content_type: str = "application/json"
    afterwards: Callable[[], None] | None = None
    """What can wait until the client has its answer."""

    def fields(self) -> tuple[tuple[str, str], ...]:
        """Return the header fields of HTTP/2."""
        return ((":status", str(self.status)), ("content-type", self.content_type))

    def head(self, keep: bool) -> bytes:
        """Return what is sent before the body; ``keep``: the connection goes on."""
        lines = [
            f"HTTP/1.1 {self.status} {HTTPStatus(self.status).phrase}",
            f"Content-Type: {self.content_type}",
            f"Content-Length: {len(self.body)}",
            *(() if keep else ("Connection: close",)),
        ]
        return ("\r\n".join(lines) + "\r\n\r\n").encode()


class Site(Protocol):
    """What is served. Several threads ask it at once."""

    def admit(self, head: Head, known: bool) -> int | Response:
        """Return the most bytes of body that this request may bring, or how it is refused with none read."""

    def probe(self, head: Head) -> Response | None:
        """Return the answer to a probe, which takes no time; None for everything else. The request was admitted."""

    def handle(self, request: Request) -> Response:
        """Return the answer to a request that was admitted."""


def text(status: int, words: str) -> Response:
    """Return a line for people."""
    return Response(status, f"{line(words)}\n".encode(), "text/plain; charset=utf-8")


def refusal(site: Site, head: Head, known: bool) -> Response | None:
    """Return how a request is refused with none of its body read; None when it is admitted."""
    most = site.admit(head, known)
    if isinstance(most, Response):
        return most
    if head.length > most:
        return text(413, f"the body has {head.length} bytes; at most {most} are taken here")
    return None


def mistake(error: RequestError) -> Response:
    """Return what is answered to what is no request."""
    return text(error.status, str(error))
