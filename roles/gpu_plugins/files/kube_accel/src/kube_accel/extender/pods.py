# SPDX-License-Identifier: Apache-2.0
"""What the extender keeps of a pod, read from its object. Pure."""

from __future__ import annotations

import marshal
import re
import sys
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final

from kube_accel.model import Assignment, ContainerKind, Mode, PlacementPolicy, PodRequest
from kube_accel.placement.choose import usage
from kube_accel.shared.api_json import ODD, ApiJsonError, checked, named
from kube_accel.shared.asked import names_any
from kube_accel.shared.quantity import thousandths
from kube_accel.shared.wishes import WISHES
from kube_accel.sharing.assignment import ANNOTATION, decode
from kube_accel.sharing.profile import PROFILES, WHOLE_GPU_RESOURCE, Profile
from kube_accel.sharing.request import RequestRefused, pod_request

Uses = tuple[tuple[str, int, int, int], ...]
"""UUID, cores, bytes and containers of each GPU of a pod."""

Amounts = tuple[tuple[str, int], ...]
"""By resource, in thousandths."""

Version = tuple[str, int]
"""A waiting pod's resourceVersion, and the moment we knew it, as ``Cluster.moment`` counts them."""

Asked = tuple[PodRequest | None, str, Amounts]
"""What a pod asks for, why that is refused, and what it requests of resources that are not ours."""

Reading = tuple[str, PodRequest | None]
"""The resourceVersion of an object, and the request that was read from it."""

TAKEN: Final = "kube-accel.io/extender"
"""Label by which an extender changes the waiting pods when its turn begins: a random word. A label, since there is a
limit to what a pod's annotations take, which its author may have reached."""

_MIRROR = "kubernetes.io/config.mirror"
_LONGEST = 2048
"""Bytes of what is kept of a shape."""
_UNKNOWN: Final = object()
_SHAPES = 4096
"""Different requests that are kept once for all pods that make them."""


@dataclass(frozen=True, slots=True)
class Held:
    """The GPUs that kubelet has allocated to a pod."""

    containers: frozenset[str]
    uses: Uses


@dataclass(slots=True, eq=False)
class Pod:
    """A pod that asks for GPUs."""

    uid: str
    namespace: str
    name: str
    priority: int
    request: PodRequest | None
    """None when it was refused."""
    refused: str
    containers: tuple[str, ...]
    """Names in ``spec.containers``, in order."""
    node: str = ""
    """Empty until it is bound; never changes again."""
    version: Version = ("", 0)
    """Kept while it waits."""
    read: Reading = ("", None)
    """Kept while it waits."""
    uses: Uses | None = None
    """What it was assigned; None without an assignment that can be believed."""
    ours: bool = False
    """``uses`` is what this process decided, which no annotation changes any more."""
    annotation: int | None = None
    """The hash of the assignment annotation as it was last read."""
    nominated: str = ""
    """The node where others were evicted for it, while it waits."""
    victims: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """By node, the UIDs of those that kube-scheduler was asked to evict for it."""
    static: bool = False
    """Kubelet's own: it runs whatever becomes of its copy at the API server."""
    stale: Held | None = None
    """What kubelet reported for this name before the pod was bound: an earlier pod's."""
    shadowed: bool = False
    """It still held that for the earlier pod, which the API server had forgotten."""
    besides: Amounts = ()
    """What it requests of resources that are not ours to schedule, as kube-scheduler counts it."""
    runs_since: float = float("inf")
    """Monotonic seconds; when its containers were first seen running, which have their devices then."""
    schedulable: bool = True
    """It is not being deleted and no scheduling gate holds it back; kube-scheduler may place it."""
    kept_until: float = float("-inf")
    """Monotonic seconds; when what was last kept for it before a bind ends. ``Keeper`` counts."""
    kept_times: int = 0
    """How many times that began."""


class PodReader:
    """Reads pods and their requests; the same request of many pods is one object."""

    def __init__(
        self,
        profiles: Mapping[Mode, Profile] = PROFILES,
        policy: PlacementPolicy = PlacementPolicy.BINPACK,
        whole_gpus: bool = False,
    ) -> None:
        """``policy`` holds for pods without one of their own; ``whole_gpus`` makes plain GPUs ours to schedule too."""
        self._profiles = profiles
        self._policy = policy
        self.resources = frozenset(
            resource
            for profile in profiles.values()
            for resource in (profile.core_resource, profile.memory_resource)
            if resource is not None
        ) | ({WHOLE_GPU_RESOURCE} if whole_gpus else frozenset())
        told = sorted(self.resources | WISHES)
        words = [*(re.escape(name.encode()) for name in told), rb'nvidia\.com/[^"]+']
        self.interesting = re.compile(b'"(?:' + b"|".join(words) + b')"')
        """Matches the JSON of every pod that asks for GPUs, whoever places it, or by an annotation says which GPU it
        wants."""
        self._requests: dict[PodRequest, PodRequest] = {}
        self._known: dict[bytes, Asked | None] = {}
        """By what ``_alike`` makes of a pod."""
        self._amounts: dict[Amounts, Amounts] = {}

    def read(self, item: Mapping[str, Any]) -> Pod | None:
        """Return the pod of an object; None for one that asks for nothing of ours.

        kube-scheduler asks us about more: about those that name a resource of ours, and ask for 0 of it. Raises one of
        ``api_json.ODD`` where it is not known which pod it is, or whether it asks.
        """
        metadata, spec = checked(item)["metadata"], item.get("spec") or {}
        if not names_any(spec, self.resources):
            return None
        uid, namespace, name = (metadata.get(key) for key in ("uid", "namespace", "name"))
        if not (uid and namespace and name):
            raise ApiJsonError(f"pod {named(item)} has no metadata.uid, namespace or name")
        priority, containers = spec.get("priority"), spec.get("containers") or ()
        asked = self._asked(item, metadata, spec)
        if asked is None:
            return None
        request, refused, besides = asked
        return Pod(
            uid=uid,
            namespace=sys.intern(namespace),
            name=name,
            priority=priority if isinstance(priority, int) else 0,
            request=request,
            refused=refused,
            containers=tuple(sys.intern(str(entry.get("name"))) for entry in containers if isinstance(entry, dict)),
            node=sys.intern(str(spec.get("nodeName") or "")),
            static=_MIRROR in (metadata.get("annotations") or {}),
            besides=besides,
            read=(_version(metadata), request) if not spec.get("nodeName") else ("", None),
            schedulable=not metadata.get("deletionTimestamp") and not spec.get("schedulingGates"),
        )

    def known(self, item: Mapping[str, Any], pods: Mapping[str, Pod]) -> Pod | None:
        """Return the waiting pod whose request was last read from this very object; None when that is not certain."""
        metadata = item.get("metadata")
        if not isinstance(metadata, dict):
            return None
        uid, version = metadata.get("uid"), metadata.get("resourceVersion")
        pod = pods.get(uid) if isinstance(uid, str) else None
        if pod is None or pod.node or not version:
            return None
        # Both, since two threads may be noting two objects.
        if pod.read[0] != version or pod.request is None or pod.request is not pod.read[1]:
            return None
        return pod if (pod.namespace, pod.name) == (metadata.get("namespace"), metadata.get("name")) else None

    def _asked(self, item: Mapping[str, Any], metadata: Mapping[str, Any], spec: Mapping[str, Any]) -> Asked | None:
        """Return what a pod asks for; None when that is nothing of ours. Alike pods are looked at once."""
        key = _alike(metadata.get("annotations") or {}, spec)
        found = self._known.get(key, _UNKNOWN) if key is not None else _UNKNOWN
        if found is _UNKNOWN:
            found = self._looked_at(item, spec)
            if key is not None:
                if len(self._known) >= _SHAPES:
                    self._known.clear()
                self._known[key] = found
        return found  # type: ignore[return-value]

    def _looked_at(self, item: Mapping[str, Any], spec: Mapping[str, Any]) -> Asked | None:
        try:
            request = pod_request(item, self._profiles, self._policy)
        except RequestRefused as error:
            return None, str(error), self._besides(spec)
        if request is None or (request.mode is Mode.PGPU and WHOLE_GPU_RESOURCE not in self.resources):
            return None
        return self._shared(request), "", self._besides(spec)

    def _besides(self, spec: Mapping[str, Any]) -> Amounts:
        found = requested(spec, self.resources)
        if len(self._amounts) > _SHAPES:
            self._amounts.clear()
        return self._amounts.setdefault(found, found)

    def _shared(self, request: PodRequest) -> PodRequest:
        if len(self._requests) > _SHAPES:
            self._requests.clear()
        return self._requests.setdefault(request, request)


def _alike(annotations: Mapping[str, Any], spec: Mapping[str, Any]) -> bytes | None:
    """Return what is equal for pods that ask for the same: all that ``pod_request`` and ``requested`` look at.

    None for a large pod, and for one of which a part is of a kind that it never is.
    """
    looked_at: list[object] = [bool(spec.get("nodeName")), spec.get("overhead")]
    try:
        for key in ("initContainers", "containers"):
            looked_at.append(key)
            for container in _list(spec.get(key)):
                paths = [mount["mountPath"] for mount in _list(container.get("volumeMounts"))]
                looked_at += (container.get("name"), container.get("restartPolicy"), container.get("resources"), paths)
        looked_at += [entry for entry in annotations.items() if entry[0] in WISHES]
        # Version 2 writes equal values alike, whether or not they are one object.
        found = marshal.dumps(looked_at, 2)
    except ODD:
        return None
    return found if len(found) <= _LONGEST else None


def _list(value: object) -> list[Any]:
    if value is None:
        return []
    if not isinstance(value, list):
        raise ApiJsonError("not a list")
    return value


def _version(metadata: Mapping[str, Any]) -> str:
    version = metadata.get("resourceVersion")
    return version if isinstance(version, str) else ""


def requested(spec: Mapping[str, Any], ours: Container[str]) -> Amounts:
    """Return what kube-scheduler counts for a pod of the resources that are not ours; none where unreadable."""
    total: dict[str, int] = {}
    peak: dict[str, int] = {}
    for container in _objects(spec.get("initContainers")):
        found = _requests(container.get("resources"), ours)
        if container.get("restartPolicy") == "Always":
            _add(total, found)
        else:
            peak |= {name: max(peak.get(name, 0), total.get(name, 0) + amount) for name, amount in found}
    for container in _objects(spec.get("containers")):
        _add(total, _requests(container.get("resources"), ours))
    total |= {name: max(total.get(name, 0), amount) for name, amount in peak.items()}
    _add(total, _requests({"requests": spec.get("overhead")}, ours))
    return tuple(sorted(total.items()))


def _objects(entries: object) -> list[dict[str, Any]]:
    return [entry for entry in entries if isinstance(entry, dict)] if isinstance(entries, list) else []


def _add(total: dict[str, int], amounts: Iterable[tuple[str, int]]) -> None:
    for name, amount in amounts:
        total[name] = total.get(name, 0) + amount


def _requests(resources: object, ours: Container[str]) -> list[tuple[str, int]]:
    amounts = resources.get("requests") if isinstance(resources, dict) else None
    if not isinstance(amounts, dict):
        return []
    return [(sys.intern(name), _thousandths(str(amount))) for name, amount in amounts.items() if name not in ours]


@lru_cache(1024)
def _thousandths(amount: str) -> int:
    try:
        return thousandths(amount)
    except ValueError:
        return 0


def assignment_text(item: Mapping[str, Any]) -> str | None:
    """Return the assignment annotation of a pod object, whatever it says."""
    annotations = (item.get("metadata") or {}).get("annotations") or {}
    text = annotations.get(ANNOTATION)
    return text if isinstance(text, str) else None


def nominated_node(item: Mapping[str, Any]) -> str:
    """Return the node on which kube-scheduler has made room for a waiting pod, if it has."""
    if (item.get("spec") or {}).get("nodeName"):
        return ""
    name = (item.get("status") or {}).get("nominatedNodeName")
    return name if isinstance(name, str) else ""


def is_running(item: Mapping[str, Any]) -> bool:
    """Return whether kubelet has started the containers of a pod."""
    return (item.get("status") or {}).get("phase") == "Running"


def has_ended(item: Mapping[str, Any]) -> bool:
    """Return whether kubelet was done with a pod of which a watch of living pods tells that it is gone.

    Where a pod ends by itself, or by an eviction or deletion that lets it end, its phase says so first: it is no longer
    selected, and the watch tells of it as it was before. One that was deleted by force, or that shows no container yet,
    the API server forgets while kubelet may hold its devices.
    """
    metadata, status = item.get("metadata") or {}, item.get("status") or {}
    containers = status.get("containerStatuses") or ()
    if status.get("phase") in ("Succeeded", "Failed"):
        return True
    if metadata.get("deletionGracePeriodSeconds") == 0:
        return bool(containers) and all((entry.get("state") or {}).get("terminated") for entry in containers)
    return bool(containers or status.get("initContainerStatuses")) or is_running(item)


def uses_of(request: PodRequest, assignment: Assignment) -> Uses:
    """Return what such a pod takes of each assigned GPU. Raises ValueError if they do not belong together."""
    return tuple(
        (sys.intern(uuid), use.cores, use.memory_bytes, use.containers)
        for uuid, use in usage(request, assignment).items()
    )


def stated_uses(pod: Pod, text: str | None) -> Uses | None:
    """Return what a credible annotation gives the pod: the GPUs it names, in the amounts of the request."""
    if text is None or pod.request is None:
        return None
    try:
        assignment = decode(text)
        return uses_of(pod.request, assignment) if assignment.node == pod.node else None
    except ValueError:
        return None


def staying(request: PodRequest) -> frozenset[str]:
    """Return the containers that hold GPUs as long as the pod lives."""
    return frozenset(entry.name for entry in request.containers if entry.kind is not ContainerKind.INIT)
