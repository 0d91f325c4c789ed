# SPDX-License-Identifier: Apache-2.0
"""What containers are charged for. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from kube_accel.metrics.tenancy import Container, Holding


def charged(holdings: Iterable[Holding]) -> Mapping[Container, float]:
    """Parts of one GPU, which come to 1 at most: 80 % of the cores and 80 % of the memory can be two containers'."""
    shares: dict[Container, float] = {}
    for holding in holdings:
        shares[holding.container] = shares.get(holding.container, 0.0) + holding.share
    scale = min(1.0, 1.0 / total) if (total := sum(shares.values())) else 0.0
    return {container: share * scale for container, share in shares.items()}
