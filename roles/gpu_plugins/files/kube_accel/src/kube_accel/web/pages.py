# SPDX-License-Identifier: Apache-2.0
"""Pages that anyone may read: probes and metrics."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from kube_accel.web.head import Head
from kube_accel.web.site import Request, Response, text

Page = Callable[[], Response]

Probe = Callable[[], str]
"""Returns an empty string when all is well, else one sentence."""

METRICS_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
"""Prometheus' text format."""


class Pages:
    """Answers GET of each path with its page, and nothing else. A request that brings a body is refused unread."""

    def __init__(self, probes: Mapping[str, Probe], pages: Mapping[str, Page]) -> None:
        """``probes`` are asked by the thread that receives all connections, and must not wait for anything."""
        self._probes = {path: _probe_page(probe) for path, probe in probes.items()}
        self._pages = {**self._probes, **pages}

    def __contains__(self, path: str) -> bool:
        return path in self._pages

    def admit(self, head: Head, known: bool) -> int | Response:
        """Refuse what is no page, and what has a body."""
        if head.path not in self._pages:
            return text(404, f"not found; known: {', '.join(self._pages)}")
        return 0 if head.method in ("GET", "HEAD") else text(405, "GET only")

    def probe(self, head: Head) -> Response | None:
        """Return the page of a probe."""
        page = self._probes.get(head.path)
        return None if page is None else page()

    def handle(self, request: Request) -> Response:
        """Return the page."""
        return self._pages[request.path]()


def _probe_page(probe: Probe) -> Page:
    """Return a page that is 200 ``ok``, or 503 and the reason."""

    def page() -> Response:
        reason = probe()
        return text(503 if reason else 200, reason or "ok")

    return page
