# SPDX-License-Identifier: Apache-2.0
"""The cluster as watches of pods and nodes fill it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from kube_accel.extender.cache import Cluster
from kube_accel.extender.pods import TAKEN, has_ended
from kube_accel.extender.unheeded import unheeded

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

    def keep(self, item: dict[str, Any]) -> str | None:
        """Take a pod."""
        uid = self._cluster.keep_pod(item)
        if self._tell is not None:
            self._look(item, uid is not None, self._tell)
        labels = (item.get("metadata") or {}).get("labels") or {}
        if uid is not None and TAKEN in labels:
            self._cluster.mark = labels[TAKEN]
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
