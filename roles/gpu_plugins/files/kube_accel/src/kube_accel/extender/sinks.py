# SPDX-License-Identifier: Apache-2.0
"""The cluster as watches of pods and nodes fill it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from kube_accel.extender.cache import Cluster
from kube_accel.extender.pods import TAKEN, has_ended
from kube_accel.extender.unheeded import unheeded
from kube_accel.shared.waiting_pods import unplaced

Tell = Callable[[Mapping[str, Any], str], None]
_TOLD = 1000
"""Pods that are remembered as told of."""


class PodSink:
    """The cluster as a watch of pods fills it."""

    def __init__(self, cluster: Cluster, tell: Tell | None = None) -> None:
        """``tell`` is given each pod once of which there is something to say, and what."""
        self._cluster = cluster
        self._tell = tell
        self._told: dict[object, None] = {}
        self.unmanaged: dict[str, tuple[str, str]] = {}
        """Namespace and mode, by UID, of the pods without a node that ask for GPUs which kube-scheduler alone gives."""

    def keep(self, item: dict[str, Any]) -> str | None:
        """Take a pod."""
        uid = self._cluster.keep_pod(item)
        if self._tell is not None:
            self._look(item, uid is not None, self._tell)
        metadata = item.get("metadata") or {}
        labels = metadata.get("labels") or {}
        if uid is None:
            return self._keep_unmanaged(metadata.get("uid"), item)
        if TAKEN in labels:
            self._cluster.mark = labels[TAKEN]
        return uid

    def _keep_unmanaged(self, uid: object, item: dict[str, Any]) -> str | None:
        if not isinstance(uid, str):
            return None
        found = unplaced(item)
        if found is None or self._cluster.asks(item):
            self.unmanaged.pop(uid, None)
            return None
        self.unmanaged[uid] = found
        return uid

    def _look(self, item: Mapping[str, Any], managed: bool, tell: Tell) -> None:
        uid = (item.get("metadata") or {}).get("uid")
        said = "" if uid in self._told else unheeded(item, managed)
        if said:
            if len(self._told) >= _TOLD:
                self._told.clear()
            self._told[uid] = None
            tell(item, said)

    def drop(self, item: dict[str, Any]) -> None:
        """Forget a pod."""
        uid = (item.get("metadata") or {}).get("uid")
        if isinstance(uid, str) and self.unmanaged.pop(uid, None) is None:
            self._cluster.drop_pod(uid, has_ended(item))

    def keys(self) -> set[str]:
        """Return the UIDs of all pods."""
        return {*self._cluster.pods, *self.unmanaged}

    def lose(self, key: str) -> None:
        """Forget a pod that no list has."""
        if self.unmanaged.pop(key, None) is None:
            self._cluster.drop_pod(key)


class NodeSink:
    """The cluster as a watch of nodes fills it."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def keep(self, item: dict[str, Any]) -> str | None:
        """Take a node."""
        return self._cluster.keep_node(item)

    def drop(self, item: dict[str, Any]) -> None:
        """Forget a node."""
        name = (item.get("metadata") or {}).get("name")
        if isinstance(name, str):
            self._cluster.drop_node(name)

    def keys(self) -> set[str]:
        """Return the names of all nodes."""
        return set(self._cluster.nodes)

    def lose(self, key: str) -> None:
        """Forget a node that no list has."""
        self._cluster.drop_node(key)
