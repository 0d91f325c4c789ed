# SPDX-License-Identifier: Apache-2.0
"""The pods of this node that ask for our resources, as the API server lists them."""

from __future__ import annotations

import logging
import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from kube_accel.kube.cgroups import Place, pod_uid
from kube_accel.model import ContainerKind, ContainerRequest, Mode, PodRequest
from kube_accel.plugin.allocation.call_matcher import PendingPod
from kube_accel.shared.asked import names_any
from kube_accel.sharing.assignment import ANNOTATION, decode
from kube_accel.sharing.profile import Profile
from kube_accel.sharing.request import RequestRefused, pod_request

_log = logging.getLogger(__name__)

_STATIC_HASH = "kubernetes.io/config.hash"
"""What kubelet calls a static pod in cgroups; the API server has a copy of it with a UID of its own."""
_STATIC_MIRROR = "kubernetes.io/config.mirror"
"""Has the copy, and no other pod may."""
_PADDLE = re.compile("paddle|^FLAGS_allocator_strategy$", re.IGNORECASE)
_GONE = 1000
"""Pods remembered after they are gone, against news that come late."""


@dataclass(frozen=True, slots=True)
class NodePod:
    """A pod of this node that asks for our resources."""

    uid: str
    namespace: str
    name: str
    phase: str
    request: PodRequest | None
    """None when it asks for something that no pod gets."""
    assigned: Mapping[str, tuple[str, ...]] | None
    """UUIDs by container, which is a hint and no more: anyone may have written it."""
    failure: str
    """Why it failed admission; empty when it did not."""
    controlled: bool
    """A controller makes another one when it goes."""
    order: int
    """Grows from pod to pod, in the order they were first seen here."""
    waiting: bool
    """Kubelet may not have admitted it yet."""
    containers: Mapping[str, str] = field(default_factory=dict)
    """Names of running containers by the runtime's ids."""
    paddle: frozenset[str] = frozenset()
    """Names of containers that run PaddlePaddle, as far as the pod says so."""
    static: bool = False
    """Kubelet has it from a file of the node, and the API server only a copy."""
    version: int = field(default=0, compare=False)
    """The object's version at the API server: of two of one pod the younger has the greater."""


class NodePods:
    """What is known of this node's pods; a sink for ``kube.watch``. Threads may share it."""

    def __init__(self, profile: Profile, node: str, on_change: Callable[[NodePod], None] = lambda pod: None) -> None:
        """``on_change`` gets every pod that is new or changed, on the watch's thread."""
        self._profile = profile
        self._node = node
        self._resources = {name for name in (profile.core_resource, profile.memory_resource) if name is not None}
        self._on_change = on_change
        self._changed = threading.Condition()
        self._pods: dict[str, NodePod] = {}
        self._gone: OrderedDict[str, None] = OrderedDict()
        self._order = 0
        self._static: dict[str, str] = {}
        """UIDs of static pods by what their cgroups call them."""
        self.version = 0
        """Grows with every change."""

    @property
    def interesting(self) -> re.Pattern[bytes]:
        """Match the JSON of every pod that asks for our resources."""
        names = b"|".join(re.escape(name.encode()) for name in self._resources)
        return re.compile(b'"(?:' + names + b')"')

    def all(self) -> list[NodePod]:
        """Return every pod, in the order they were first seen."""
        with self._changed:
            return sorted(self._pods.values(), key=lambda pod: pod.order)

    def find(self, namespace: str, name: str) -> NodePod | None:
        """Return the pod of this name; of several the last one."""
        found = [pod for pod in self.all() if (pod.namespace, pod.name) == (namespace, name)]
        return found[-1] if found else None

    def at(self, place: Place) -> tuple[NodePod, str] | None:
        """Return the pod that a cgroup is of, and the name of the container, empty while it is not known."""
        with self._changed:
            pod = self._pods.get(place.pod_uid) or self._pods.get(self._static.get(place.pod_uid, ""))
        return (pod, pod.containers.get(place.container_id, "")) if pod is not None else None

    def wait(self, after_version: int, timeout: float) -> bool:
        """Wait until something has changed since ``after_version``; return False after ``timeout`` seconds."""
        with self._changed:
            return self._changed.wait_for(lambda: self.version > after_version, timeout)

    def keep(self, item: dict[str, Any], in_order: bool = True) -> str | None:
        """Take a pod object, and return its UID if it asks for our resources.

        One that does not come ``in_order`` is passed over where a younger one of the pod is known.
        """
        metadata = item.get("metadata") or {}
        uid, namespace, name = (metadata.get(key) for key in ("uid", "namespace", "name"))
        spec = item.get("spec") or {}
        if not (isinstance(uid, str) and isinstance(namespace, str) and isinstance(name, str)):
            return None
        if spec.get("nodeName") != self._node or not names_any(spec, self._resources):
            return None
        request: PodRequest | None = None
        try:
            request = pod_request(item, {self._profile.mode: self._profile})
            if request is None or request.mode is Mode.PGPU:
                return None
        except RequestRefused as error:
            _log.debug("a pod asks for what no pod gets", extra={"pod": f"{namespace}/{name}", "reason": str(error)})
        annotations = metadata.get("annotations") or {}
        with self._changed:
            if uid in self._gone:
                return None
            known = self._pods.get(uid)
            version = _version(metadata)
            if known is None:
                self._order += 1
            elif not in_order and version < known.version:
                return uid
            pod = self._pod(item, request, self._order if known is None else known.order)
            self._pods[uid] = pod
            if static := str(annotations.get(_STATIC_HASH, "")):
                self._static[pod_uid(static)] = uid
            self._note()
        if pod != known:
            self._on_change(pod)
        return uid

    def _pod(self, item: Mapping[str, Any], request: PodRequest | None, order: int) -> NodePod:
        metadata, spec, status = item["metadata"], item["spec"], item.get("status") or {}
        annotations = metadata.get("annotations") or {}
        phase = str(status.get("phase") or "Pending")
        return NodePod(
            uid=metadata["uid"],
            namespace=metadata["namespace"],
            name=metadata["name"],
            phase=phase,
            request=request,
            assigned=self._assigned(annotations),
            failure=_admission_failure(status),
            controlled=_controlled(metadata),
            order=order,
            waiting=phase == "Pending" and not metadata.get("deletionTimestamp") and not _begun(status),
            containers=names_by_id(status),
            paddle=paddle(spec),
            static=_STATIC_MIRROR in annotations,
            version=_version(metadata),
        )

    def drop(self, item: dict[str, Any]) -> None:
        """Forget a pod that is gone."""
        self.lose(str((item.get("metadata") or {}).get("uid")))

    def keys(self) -> set[str]:
        """Return the UIDs of all pods."""
        with self._changed:
            return set(self._pods)

    def lose(self, key: str) -> None:
        """Forget a pod that no list has."""
        with self._changed:
            self._gone[key] = None
            while len(self._gone) > _GONE:
                self._gone.popitem(last=False)
            if self._pods.pop(key, None) is not None:
                self._static = {name: uid for name, uid in self._static.items() if uid != key}
                self._note()

    def _note(self) -> None:
        self.version += 1
        self._changed.notify_all()

    def _assigned(self, annotations: Mapping[str, Any]) -> Mapping[str, tuple[str, ...]] | None:
        text = annotations.get(ANNOTATION)
        if not isinstance(text, str):
            return None
        try:
            assignment = decode(text)
        except ValueError:
            return None
        if assignment.node != self._node:
            return None
        return {name: tuple(share.uuid for share in shares) for name, shares in assignment.containers.items()}


def pending(pods: list[NodePod], admitted: set[str]) -> list[PendingPod]:
    """Return the pods kubelet may be about to admit, oldest first; ``admitted`` has the UIDs of admitted ones. Pure."""
    return [
        PendingPod(pod.uid, pod.request, pod.assigned)
        for pod in pods
        if pod.waiting and pod.request is not None and pod.uid not in admitted
    ]


def staying(request: PodRequest) -> list[ContainerRequest]:
    """Return the containers that keep what they have, which are the ones kubelet lists."""
    return [entry for entry in request.containers if entry.kind is not ContainerKind.INIT]


def _controlled(metadata: Mapping[str, Any]) -> bool:
    # A node owns the copy of its static pod: without it, kubelet makes another of the pod as it is.
    owners = metadata.get("ownerReferences") or ()
    return any(owner.get("controller") and owner.get("kind") != "Node" for owner in owners)


def _version(metadata: Mapping[str, Any]) -> int:
    text = str(metadata.get("resourceVersion", ""))
    return int(text) if text.isascii() and text.isdigit() else 0


def _admission_failure(status: Mapping[str, Any]) -> str:
    if status.get("phase") == "Failed" and status.get("reason") == "UnexpectedAdmissionError":
        return str(status.get("message") or "no message")
    return ""


def names_by_id(status: Mapping[str, Any]) -> dict[str, str]:
    """Return the names of a pod's containers, by the ids that their cgroups have, from its status."""
    found = {}
    for key in ("initContainerStatuses", "containerStatuses"):
        for container in status.get(key) or ():
            _, _, identity = str(container.get("containerID") or "").rpartition("://")
            if identity:
                found[identity] = str(container.get("name"))
    return found


def paddle(spec: Mapping[str, Any]) -> frozenset[str]:
    """Return, of a pod's specification, the containers whose image, command or variables name PaddlePaddle."""
    return frozenset(
        str(container.get("name"))
        for container in spec.get("containers") or ()
        if any(_PADDLE.search(str(word)) for word in _words(container))
    )


def _words(container: Mapping[str, Any]) -> Iterator[object]:
    yield container.get("image")
    yield from container.get("command") or ()
    yield from container.get("args") or ()
    yield from (variable.get("name") for variable in container.get("env") or ())


def _begun(status: Mapping[str, Any]) -> bool:
    """Return whether kubelet reports a container of this pod, which it does once the pod is admitted."""
    for key in ("initContainerStatuses", "containerStatuses"):
        for container in status.get(key) or ():
            state = container.get("state") or {}
            if "running" in state or "terminated" in state or int(container.get("restartCount") or 0):
                return True
    return False
