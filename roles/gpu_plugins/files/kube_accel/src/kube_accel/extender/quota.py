# SPDX-License-Identifier: Apache-2.0
"""The quota in force: read from a ConfigMap as it changes, asked before a pod gets GPUs."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final

from kube_accel.extender.cache import Cluster
from kube_accel.extender.node import Node
from kube_accel.extender.pods import Pod
from kube_accel.model import PodRequest
from kube_accel.placement.choose import Refusal
from kube_accel.placement.quota import check_quota
from kube_accel.shared.quota import NamespaceQuota, Quota, QuotaError, parse

_log = logging.getLogger(__name__)

KEY: Final = "quota.yaml"
"""Key of the quota in the ConfigMap's data."""

_WAITING = 10_000
"""Pods that wait, after which those that do no longer are looked for among them."""

Choose = Callable[[Pod, PodRequest, Node, Mapping[str, str]], object]
"""Answers a Refusal when there is no room."""


class Quotas:
    """The last good quota. Threads may share it."""

    def __init__(self, cluster: Cluster, choose: Choose) -> None:
        """``choose`` places a pod on a node without some of its models, under the node's lock."""
        self._cluster = cluster
        self._choose = choose
        self._locks: dict[str, threading.RLock] = {}
        self.quota = Quota()
        self._waiting: dict[str, Pod] = {}
        self._many = _WAITING

    def deciding(self, namespace: str) -> AbstractContextManager[object]:
        """Keep the pod from asking what a namespace may have until that is charged."""
        if self.quota.of(namespace) == NamespaceQuota():
            return nullcontext()
        return self._locks.setdefault(namespace, threading.RLock())

    def excluded(self, pod: Pod, request: PodRequest, node: Node) -> Mapping[str, str]:
        """Return the node's models that the pod may have nothing of, and why."""
        quota, node_gpus, namespace = self.quota, node.gpus, pod.namespace
        if node_gpus is None or quota.of(namespace) == NamespaceQuota():
            return {}
        if node_gpus.leaves(request):
            # No whole GPUs, which limits count.
            outside = quota.outside(namespace, node.labels)
            return {} if outside is None else dict.fromkeys([gpu.model for gpu in node_gpus.gpus], outside)
        used = self._cluster.charges.used(namespace, besides=pod.uid)
        found = {}
        for model, memory in {(gpu.model, gpu.memory_bytes) for gpu in node_gpus.gpus}:
            reason = check_quota(quota, namespace, request, node.labels, model, memory, used)
            if reason is not None:
                found[model] = reason
        return found

    def limits(self, pod: Pod, names: Iterable[str]) -> dict[str, Refusal]:
        """Return the nodes the pod may have nothing of, and why."""
        quota = self.quota
        if pod.request is None or quota.of(pod.namespace) == NamespaceQuota():
            return {}
        known: dict[object, tuple[Mapping[str, str], Refusal | None]] = {}
        found = {}
        for name in names:
            node = self._cluster.nodes.get(name)
            if node is None or (node_gpus := node.gpus) is None:
                continue
            # Nodes with the same GPUs in the same pools are judged once.
            pools = tuple(name for name, labels in quota.pools.items() if labels.items() <= node.labels.items())
            gpus = frozenset((gpu.model, gpu.memory_bytes) for gpu in node_gpus.gpus)
            key = (pools, gpus, node_gpus.leaves(pod.request))
            if key not in known:
                excluded = self.excluded(pod, pod.request, node)
                all_of_them = len(excluded) == len({model for model, _ in gpus})
                reason = "; ".join(sorted(set(excluded.values())))
                known[key] = excluded, Refusal(reason, False) if all_of_them else None
            excluded, refusal = known[key]
            if excluded and refusal is None:
                with node.lock:
                    chosen = self._choose(pod, pod.request, node, excluded)
                refusal = chosen if isinstance(chosen, Refusal) else None
            if refusal is not None:
                found[name] = refusal
        if found:
            self._waiting[pod.uid] = pod
            if len(self._waiting) > self._many:
                self._forget_others()
        return found

    def _forget_others(self) -> None:
        """Forget pods other than those that wait, once as many have come, so that a pod costs no more for it."""
        for uid, pod in list(self._waiting.items()):
            if not self._waits(pod):
                self._waiting.pop(uid, None)
        self._many = max(_WAITING, 2 * len(self._waiting))

    def _waits(self, pod: Pod) -> bool:
        return pod.uid in self._cluster.pods and not pod.node

    def replace(self, quota: Quota) -> list[Pod]:
        """Apply this quota from now on, and return the pods that the one before kept waiting."""
        self.quota = quota
        waiting, self._waiting = self._waiting, {}
        return [pod for pod in waiting.values() if self._waits(pod)]


class QuotaSink:
    """The quota as a watch of its ConfigMap fills it."""

    def __init__(
        self,
        quotas: Quotas,
        wake: Callable[[list[Pod]], None],
        complain: Callable[[Mapping[str, Any], str], None],
    ) -> None:
        """``wake`` gets pods that may be let in now, ``complain`` the ConfigMap and what is wrong with it."""
        self._quotas = quotas
        self._wake = wake
        self._complain = complain
        self._text: str | None = None
        self._kept: set[str] = set()

    def keep(self, item: dict[str, Any]) -> str | None:
        """Take the ConfigMap; what cannot be read changes nothing and is logged."""
        name = str((item.get("metadata") or {}).get("name"))
        text = (item.get("data") or {}).get(KEY)
        if name in self._kept and text == self._text:
            return name
        self._kept = {name}
        self._text = text if isinstance(text, str) else None
        try:
            if not isinstance(text, str):
                raise QuotaError(f"data has no key {KEY}")
            quota = parse(text)
        except QuotaError as error:
            _log.error("the quota cannot be read, the one before stays", extra={"reason": str(error)})
            self._complain(item, str(error))
            return name
        _log.info("quota in force", extra={"namespaces": sorted(quota.namespaces)})
        self._wake(self._quotas.replace(quota))
        return name

    def drop(self, item: dict[str, Any]) -> None:
        """Apply no quota: the ConfigMap is gone."""
        self.lose("")

    def keys(self) -> set[str]:
        """Return the ConfigMap's name, while there is one."""
        return set(self._kept)

    def lose(self, key: str) -> None:
        """Apply no quota: the list does not have the ConfigMap."""
        self._kept, self._text = set(), None
        _log.info("no quota in force")
        self._wake(self._quotas.replace(Quota()))
