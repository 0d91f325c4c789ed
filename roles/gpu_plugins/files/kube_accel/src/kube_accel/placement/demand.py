# SPDX-License-Identifier: Apache-2.0
"""How much a pod asks for in all, wherever its containers go. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from kube_accel.model import ContainerKind, PodRequest


@dataclass(frozen=True, slots=True)
class Demand:
    """Amounts of GPUs, added up over cards."""

    cores: int = 0
    """Percent of a card; whole cards included with 100 each."""
    memory_bytes: int = 0
    """Whole cards included with all of theirs."""
    cards: int = 0
    """Whole cards."""


def demand(request: PodRequest, card_memory: int) -> Demand:
    """Return a pod's demand at its peak, on cards with ``card_memory`` bytes: shares of init containers are reused."""
    active, most = (0, 0, 0), (0, 0, 0)
    for container in request.containers:
        own = (container.cores, container.memory_bytes, 0)
        if container.whole:
            own = (100 * container.whole, card_memory * container.whole, container.whole)
        now = (active[0] + own[0], active[1] + own[1], active[2] + own[2])
        most = (max(most[0], now[0]), max(most[1], now[1]), max(most[2], now[2]))
        if container.kind is not ContainerKind.INIT:
            active = now
    return Demand(*most)
