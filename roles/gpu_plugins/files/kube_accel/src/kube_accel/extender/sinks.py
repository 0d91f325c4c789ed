# SPDX-License-Identifier: Apache-2.0
"""The cluster as watches of pods and nodes fill it."""

from __future__ import annotations

from typing import Any

from kube_accel.extender.cache import Cluster
from kube_accel.extender.pods import TAKEN, has_ended


class PodSink:
    """The cluster as a watch of pods fills it."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def keep(self, item: dict[str, Any]) -> str | None:
        """Take a pod."""
        uid = self._cluster.keep_pod(item)
        labels = (item.get("metadata") or {}).get("labels") or {}
        if uid is not None and TAKEN in labels:
            self._cluster.mark = labels[TAKEN]
        return uid

    def drop(self, item: dict[str, Any]) -> None:
        """Forget a pod."""
        uid = (item.get("metadata") or {}).get("uid")
        if isinstance(uid, str):
            self._cluster.drop_pod(uid, has_ended(item))

    def keys(self) -> set[str]:
        """Return the UIDs of all pods."""
        return set(self._cluster.pods)

    def lose(self, key: str) -> None:
        """Forget a pod that no list has."""
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
