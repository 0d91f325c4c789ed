# SPDX-License-Identifier: Apache-2.0
"""What each namespace has of the cluster's GPUs, by model: counted when a pod gets GPUs and when it is gone."""

from __future__ import annotations

import threading
from collections.abc import Mapping

from kube_accel.extender.accounting import NodeGpus
from kube_accel.extender.pods import Pod, Uses
from kube_accel.placement.demand import Demand, demand

_NOTHING = Demand()


class Charges:
    """Running totals. Threads may share it; its lock is held for an addition."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._of: dict[str, tuple[str, str, Demand]] = {}
        self._totals: dict[str, dict[str, Demand]] = {}

    def charge(self, pod: Pod, uses: Uses | None, node: NodeGpus | None) -> None:
        """Charge the pod for these GPUs, or for some of this node when it is not known which. It counts once."""
        if pod.request is None:
            return
        gpus = () if node is None else node.gpus
        used = {uuid for uuid, *_ in uses or ()}
        gpu = next((gpu for gpu in gpus if gpu.uuid in used), gpus[0] if gpus else None)
        model, memory = (gpu.model, gpu.memory_bytes) if gpu is not None else ("", 0)
        with self._lock:
            self._take_off(pod.uid)
            entry = self._of[pod.uid] = (pod.namespace, model, demand(pod.request, memory))
            self._add(*entry, 1)

    def discharge(self, uid: str) -> None:
        """Charge the pod for nothing any more."""
        with self._lock:
            self._take_off(uid)

    def used(self, namespace: str, besides: str = "") -> Mapping[str, Demand]:
        """Return what a namespace has, by model; without what is charged for the pod with the UID ``besides``."""
        with self._lock:
            found = dict(self._totals.get(namespace, {}))
            if entry := self._of.get(besides):
                _, model, amount = entry
                found[model] = _sum(found.get(model, _NOTHING), amount, -1)
            return found

    def namespaces(self) -> list[str]:
        """Return the namespaces that have something."""
        with self._lock:
            return sorted(self._totals)

    def _take_off(self, uid: str) -> None:
        entry = self._of.pop(uid, None)
        if entry is not None:
            self._add(*entry, -1)

    def _add(self, namespace: str, model: str, amount: Demand, sign: int) -> None:
        models = self._totals.setdefault(namespace, {})
        after = _sum(models.get(model, _NOTHING), amount, sign)
        if after != _NOTHING:
            models[model] = after
            return
        models.pop(model, None)
        if not models:
            del self._totals[namespace]


def _sum(before: Demand, amount: Demand, sign: int) -> Demand:
    return Demand(
        before.cores + sign * amount.cores,
        before.memory_bytes + sign * amount.memory_bytes,
        before.cards + sign * amount.cards,
    )
