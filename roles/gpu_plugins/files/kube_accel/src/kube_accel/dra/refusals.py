# SPDX-License-Identifier: Apache-2.0
"""Tells the owners of pods with claims that memory was refused, as device plugins do."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from kube_accel.dra.pods import ClaimPods
from kube_accel.dra.tenants import Tenant
from kube_accel.metrics.tenancy import Container
from kube_accel.model import Gpu
from kube_accel.plugin.node.pod_reporter import MEMORY_REFUSED, Named
from kube_accel.plugin.tenancy.running import refusal

_log = logging.getLogger(__name__)


class Events(Protocol):
    """Where events go."""

    def event(self, pod: Named, reason: str, message: str) -> None:
        """Queue an event about a pod."""


@dataclass(frozen=True, slots=True)
class ToldPod:
    """A pod that is told something."""

    uid: str
    namespace: str
    name: str


class Refusals:
    """Sends each pod of a claim an event. For one thread."""

    def __init__(self, events: Events, pods: ClaimPods, gpus: Callable[[], Iterable[Gpu] | None]) -> None:
        self._events = events
        self._pods = pods
        self._gpus = gpus

    def tell(self, tenant: Tenant, uuid: str, limit_bytes: int, reasons: Collection[str]) -> None:
        """Tell of these reasons of the ledger; ``limit_bytes`` is the tenant's share of the GPU."""
        gpu = next((f"GPU {each.index}" for each in self._gpus() or () if each.uuid == uuid), uuid)
        subject, whose = _subject(tenant)
        names = {(each.namespace, each.pod) for each in tenant.among}
        pods = [ToldPod(self._pods.uid(*name), *name) for name in sorted(names)]
        for reason in sorted(reasons):
            message = f"{subject}: {refusal(reason, gpu, limit_bytes, whose)}"
            for pod in pods:
                self._events.event(pod, MEMORY_REFUSED, message)
            if not pods:
                _log.warning("not reported to a pod", extra={"claim": str(tenant.name), "reason": message})


def _subject(tenant: Tenant) -> tuple[str, str]:
    """Return the containers that have a share, and whose its limit is: of several, nobody knows which it was."""
    several = len({each.pod for each in tenant.among}) > 1
    names = [f"{each.pod}/{each.name}" if several else each.name for each in tenant.among]
    if len(names) > 1:
        return f"containers {', '.join(names)}", "containers'"
    return f"container {''.join(names)}", "container's"


def grown(
    told: Mapping[str, Mapping[str, Counter[str]]], before: Mapping[str, object], names: Mapping[str, Container]
) -> dict[Container, dict[str, Counter[str]]]:
    """Return the refusals of each tenant of which a claim has others than ``before``, over all its claims, by GPU.

    ``told`` has them by the claim's UID, and ``names`` its tenant. Pure.
    """
    news = {names[uid] for uid, counts in told.items() if counts != before.get(uid)}
    found: dict[Container, dict[str, Counter[str]]] = {}
    for uid, counts in told.items():
        if names[uid] in news:
            sums = found.setdefault(names[uid], {})
            for gpu, reasons in counts.items():
                sums.setdefault(gpu, Counter()).update(reasons)
    return found
