# SPDX-License-Identifier: Apache-2.0
"""What the plugin does for kubelet, by resource. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from kube_accel.metrics import families
from kube_accel.metrics.exposition import Family, Series


class Outcome(StrEnum):
    """How a call ended."""

    OK = "ok"
    REFUSED = "refused"
    """Answered with an error, as the request deserved."""
    FAILED = "failed"
    """A fault of the plugin."""


@dataclass(frozen=True, slots=True)
class Call:
    """What kubelet called of one kind until now."""

    outcomes: Mapping[Outcome, int] = field(default_factory=lambda: dict.fromkeys(Outcome, 0))
    seconds: float = 0.0
    """That answering all of them took."""


@dataclass(frozen=True, slots=True)
class Service:
    """What the plugin did for one resource."""

    registered: bool
    """Kubelet knows its plugin."""
    healthy: bool
    """Its list has a healthy device."""
    calls: Mapping[str, Call] = field(default_factory=dict)
    """By name: ``allocate`` and others."""


class Services:
    """All resources of a node, and when each could be had last. For one thread."""

    def __init__(self, node: str) -> None:
        self._node = node
        self._at: dict[str, float] = {}

    def families(self, told: Mapping[str, Service], now: float) -> Iterator[tuple[Family, Series]]:
        """Yield the families as they are at this time, in seconds since 1970."""
        node = self._node
        self._at = {
            name: now if service.registered and service.healthy else self._at.get(name, 0.0)
            for name, service in told.items()
        }
        yield families.PLUGIN_REGISTERED, {(node, name): service.registered for name, service in told.items()}
        yield families.PLUGIN_HEALTHY_AT, {(node, name): at for name, at in self._at.items() if at}
        calls = [(name, kind, call) for name, service in told.items() for kind, call in service.calls.items()]
        yield (
            families.ALLOCATE_REQUESTS,
            {
                (node, name, outcome.value): count
                for name, kind, call in calls
                if kind == "allocate"
                for outcome, count in call.outcomes.items()
            },
        )
        yield families.PLUGIN_CALLS, {(node, name, kind): sum(call.outcomes.values()) for name, kind, call in calls}
        yield families.PLUGIN_CALL_SECONDS, {(node, name, kind): call.seconds for name, kind, call in calls}
