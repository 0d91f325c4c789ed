# SPDX-License-Identifier: Apache-2.0
"""``/healthz``, ``/readyz`` and ``/metrics``. Read-only: nothing is changed over HTTP."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from kube_accel.web.pages import METRICS_TYPE, Page, Pages, Probe
from kube_accel.web.server import Limits, Server
from kube_accel.web.site import Response

Rendered = Callable[[], bytes]
"""What is served as it is; never waits."""

_CLIENTS = 8


def probe_server(
    address: tuple[str, int], probes: Mapping[str, Probe], pages: Mapping[str, Rendered] | None = None
) -> Server:
    """Return a server of probes and rendered pages, by path, that listens at once. Raises OSError."""
    served = {path: _page(rendered) for path, rendered in (pages or {}).items()}
    return Server(address, Pages(probes, served), Limits(known=0, strangers=_CLIENTS))


def _page(rendered: Rendered) -> Page:
    return lambda: Response(200, rendered(), METRICS_TYPE)
