# SPDX-License-Identifier: Apache-2.0
"""The pods whose containers have claims: whose a process is. Asked of the API server one by one, and only when new."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from kube_accel.kube.api import ApiError, ApiRefusedError, pod_path
from kube_accel.kube.cgroups import Place
from kube_accel.kube.client import KubeClient
from kube_accel.metrics.tenancy import Container
from kube_accel.plugin.allocation.pods import names_by_id, paddle
from kube_accel.shared.api_json import ODD
from kube_accel.shared.printable import line

_log = logging.getLogger(__name__)

_NOT_FOUND: Final = 404
_MOST_STRANGERS: Final = 1024

PodKey = tuple[str, str]
"""Namespace and name."""


@dataclass(frozen=True, slots=True)
class SeenPod:
    """A pod as the API server had it."""

    uid: str
    containers: Mapping[str, str] = field(default_factory=dict)
    """Names by id."""
    paddle: frozenset[str] = frozenset()
    """Containers that run PaddlePaddle."""


class ClaimPods:
    """``owner`` is for any thread and waits for nothing; ``look`` asks."""

    def __init__(self, client: KubeClient) -> None:
        self._client = client
        self._lock = threading.Lock()
        self._pods: dict[PodKey, SeenPod] = {}
        self._by_uid: dict[str, PodKey] = {}
        self._stale: set[PodKey] = set()
        """Of these a process was seen in a container that is not known yet."""
        self._strangers: set[str] = set()
        """UIDs of pods with processes on GPUs that are none of ours, so far as is known."""
        self._news = False
        """Whether there is one since the last look."""

    @property
    def paddle(self) -> dict[PodKey, frozenset[str]]:
        """Return the containers that run PaddlePaddle, by pod."""
        with self._lock:
            return {key: pod.paddle for key, pod in self._pods.items() if pod.paddle}

    def owner(self, place: Place) -> Container | None:
        """Return the container of a cgroup; its name is empty while it is not known."""
        with self._lock:
            key = self._by_uid.get(place.pod_uid)
            if key is None:
                if place.pod_uid not in self._strangers:
                    # A pod of the same name may have come since.
                    if len(self._strangers) >= _MOST_STRANGERS:
                        self._strangers.clear()
                    self._strangers.add(place.pod_uid)
                    self._news = True
                return None
            name = self._pods[key].containers.get(place.container_id, "")
            if not name:
                self._stale.add(key)
            return Container(*key, name)

    def uid(self, namespace: str, pod: str) -> str:
        """Return the UID of a pod; empty where it is not known."""
        with self._lock:
            found = self._pods.get((namespace, pod))
            return found.uid if found is not None else ""

    def look(self, wanted: Iterable[PodKey]) -> None:
        """Know these pods, and no others; each is asked for when it is new, or what is known of it is too little."""
        keys = set(wanted)
        with self._lock:
            asked = keys if self._news else (keys - self._pods.keys()) | (keys & self._stale)
            self._news = False
            self._stale.clear()
        found: dict[PodKey, SeenPod] = {}
        for key in sorted(asked):
            pod = self._read(*key)
            if pod is None:
                break  # each question to a server that does not answer takes seconds
            found[key] = pod
        with self._lock:
            kept = {key: pod for key, pod in self._pods.items() if key in keys}
            self._pods = {**kept, **found}
            self._by_uid = {pod.uid: key for key, pod in self._pods.items() if pod.uid}
            self._strangers -= self._by_uid.keys()

    def _read(self, namespace: str, name: str) -> SeenPod | None:
        """Return a pod; an empty one where there is none, None while nobody answers."""
        try:
            return _seen(self._client.get(pod_path(namespace, name)))
        except ApiRefusedError as error:
            return SeenPod("") if error.status == _NOT_FOUND else None
        except ApiError:
            return None
        except ODD as error:
            _log.warning("a pod cannot be read", extra={"pod": f"{namespace}/{name}", "reason": line(str(error))})
            return SeenPod("")


def _seen(item: Mapping[str, Any]) -> SeenPod:
    """Raises one of ODD."""
    names = names_by_id(item.get("status") or {})
    return SeenPod(
        line(item["metadata"]["uid"]),
        {identity: line(name) for identity, name in names.items()},
        paddle(item.get("spec") or {}),
    )
