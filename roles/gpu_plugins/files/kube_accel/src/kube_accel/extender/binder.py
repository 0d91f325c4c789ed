# SPDX-License-Identifier: Apache-2.0
"""Bind: choose the GPUs under the node's lock, keep them, and write node and assignment into the pod in one call."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Protocol

from kube_accel.extender.cache import Cluster
from kube_accel.extender.decide import Decider
from kube_accel.extender.leader_lease import LeaderLease, NotOursError
from kube_accel.extender.node import Node, Reservation
from kube_accel.extender.pods import Pod, uses_of
from kube_accel.extender.quota import Quotas
from kube_accel.extender.wire import BindArguments
from kube_accel.kube.api import ApiError, ApiRefusedError, pod_path
from kube_accel.model import PodRequest
from kube_accel.placement.choose import Refusal
from kube_accel.placement.why import why
from kube_accel.shared.api_json import ODD, unreadable
from kube_accel.sharing.assignment import pod_annotations

_log = logging.getLogger(__name__)

RESERVED_SECONDS = 60.0
"""How long GPUs are kept for a pod that is not seen bound."""

_TRIES = 3
"""Number of times a bind is tried while others change the pod."""


class Api(Protocol):
    """What binding needs of ``kube_accel.kube.client.KubeClient``."""

    def post(self, path: str, body: object) -> dict[str, Any]:
        """Create an object. Raises ApiError."""


class Outcome(StrEnum):
    """How a bind ended."""

    BOUND = "bound"
    REFUSED = "refused"
    """There is no room on the node any more, or the pod cannot be served."""
    FAILED = "failed"
    """The API server said no, or could not be asked."""


@dataclass(frozen=True, slots=True)
class Bound:
    """How a bind ended, and why."""

    outcome: Outcome
    reason: str = ""
    kept: Reservation | None = None
    """What was chosen for the pod, if it came so far."""


class Binder:
    """Binds pods, several at once; one after the other on a node for as long as choosing takes."""

    def __init__(
        self,
        api: Api,
        cluster: Cluster,
        decider: Decider,
        quotas: Quotas,
        lease: LeaderLease,
        aside: Callable[[], AbstractContextManager[None]] = nullcontext,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``aside`` is entered while the API server is waited for."""
        self._api = api
        self._cluster = cluster
        self._decider = decider
        self._quotas = quotas
        self._lease = lease
        self._aside = aside
        self._clock = clock
        self._sent: dict[str, str] = {}
        """By UID, pods whose bind is about to be sent, on its way, or may still be; the resourceVersion it names."""
        self._bound_by = threading.local()
        """``waits`` of the bind that this thread works on."""
        self._under_way: dict[str, object] = {}
        """By UID of the pod, who works on its bind."""

    def bind(self, asked: BindArguments, waits: Callable[[], None] = lambda: None) -> Bound:
        """Bind a pod to a node, or return the reason and release its reservation.

        ``waits`` is called before anything is waited for. As a rule GPUs are reserved by then, so that who is asked
        next knows of them.
        """
        self._bound_by.waits = waits
        pod = self._cluster.pods.get(asked.uid)
        if pod is None:
            return self._bind_unknown(asked)
        if pod.request is None:
            return Bound(Outcome.REFUSED, pod.refused)
        if pod.node:
            return _already(pod.node, asked.node)
        if self._under_way.setdefault(pod.uid, asked) is not asked:
            return Bound(Outcome.FAILED, f"pod {pod.namespace}/{pod.name} is being bound; try again")
        try:
            return self._bind(pod, pod.request, asked)
        finally:
            del self._under_way[pod.uid]

    @contextmanager
    def _waiting(self) -> Iterator[None]:
        self._bound_by.waits()
        with self._aside():
            yield

    def _bind_unknown(self, asked: BindArguments) -> Bound:
        """Bind a pod that, by the API server, asks for no GPU: no second bind of it can take any."""
        who, reason = f"pod {asked.namespace}/{asked.name}", ""
        for _ in range(_TRIES):
            try:
                with self._waiting():
                    item = self._lease.look(asked)
                    if item is None:
                        return Bound(Outcome.FAILED, f"{who} is gone")
                    if self._cluster.asks(item):
                        return Bound(Outcome.REFUSED, f"{who} has not been seen yet; try again")
                    if is_on := _node_of(item):
                        return _already(is_on, asked.node)
                    self._post(asked, asked.node, str(item["metadata"].get("resourceVersion", "")), {})
            except ODD as error:
                reason = f"{who} was not bound to {asked.node}: it {unreadable(error)}"
                break
            except ApiError as error:
                reason = f"{who} was not bound to {asked.node}: {error}"
                if not isinstance(error, ApiRefusedError) or error.status != 409:
                    break
            else:
                _log.info("bound without GPUs", extra={"pod": f"{asked.namespace}/{asked.name}", "node": asked.node})
                return Bound(Outcome.BOUND)
        _warn(asked, reason)
        return Bound(Outcome.FAILED, reason)

    def _bind(self, pod: Pod, request: PodRequest, asked: BindArguments) -> Bound:
        try:
            if pod.uid in self._sent:
                self._bound_by.waits()
                self._recall(pod)
        except ApiError as error:
            return Bound(Outcome.FAILED, f"pod {pod.namespace}/{pod.name} may be bound already: {error}")
        if pod.node:
            return _already(pod.node, asked.node)
        for _ in range(_TRIES):
            found = self._try(pod, request, asked)
            if found is not None:
                return found
        return Bound(Outcome.FAILED, f"pod {pod.namespace}/{pod.name} changes all the time; try again")

    def _try(self, pod: Pod, request: PodRequest, asked: BindArguments) -> Bound | None:
        """Return how it ended; None when the pod has changed since we knew it."""
        try:
            version = self._lease.proven(pod)
            if not version:
                # Who is asked meanwhile is to know of it. Chosen anew then, when all binds of others are known.
                self.reserve(pod, request, asked.node, self._clock() + RESERVED_SECONDS)
                with self._waiting():
                    version = self._lease.wait(pod)
            if problem := self._lease.unfenced_pod(pod):
                raise NotOursError(problem)
        except NotOursError as error:
            self._cluster.release(pod.uid)
            return Bound(Outcome.FAILED, f"pod {pod.namespace}/{pod.name} was not bound to {asked.node}: {error}")
        self._sent[pod.uid] = version  # first: what is kept ends otherwise if we are stopped before it is sent
        chosen = self.reserve(pod, request, asked.node, self._clock() + RESERVED_SECONDS)
        if isinstance(chosen, str):
            self._sent.pop(pod.uid, None)
            return Bound(Outcome.REFUSED, chosen)
        bound = self._send(pod, asked, chosen, version)
        return None if bound is None else replace(bound, kept=chosen)

    def expire(self) -> None:
        """Release the reservations that were held too long for pods that are not bound.

        The API server is asked: however late the watch is, GPUs of a pod that is bound are not given away.
        Raises ApiError; what could not be settled stays until the next time, and holds nothing else up.
        """
        problem = ""
        for reservation in self._cluster.overdue(self._clock()):
            pod = reservation.pod
            if self._under_way.setdefault(pod.uid, self) is not self:
                continue
            try:
                self._expire(reservation)
            except ApiError as error:
                problem = problem or f"pod {pod.namespace}/{pod.name}: {error}"
            finally:
                del self._under_way[pod.uid]
        if problem:
            raise ApiError(problem)

    def _expire(self, reservation: Reservation) -> None:
        pod = reservation.pod
        item = self._recall(pod)
        self._sent.pop(pod.uid, None)
        if item is None or not _node_of(item):
            _log.info("a reservation has expired", extra={"pod": f"{pod.namespace}/{pod.name}"})
        self._cluster.end(reservation)

    def _recall(self, pod: Pod) -> dict[str, Any] | None:
        """Take in the pod's object and return it; None when it is gone. An earlier bind of it has no effect then.

        Raises ApiError.
        """
        item = self._lease.look(pod)
        if item is None:
            return None
        if not _node_of(item) and item["metadata"].get("resourceVersion") == self._sent.get(pod.uid):
            return self._lease.change(pod)
        self._cluster.hear_of(item)
        return item

    def reserve(self, pod: Pod, request: PodRequest, name: str, expires: float) -> Reservation | str:
        """Reserve GPUs of a node for a pod in place of its earlier reservation, or return why there are none."""
        self._cluster.release(pod.uid)
        # What a namespace has and what it gets must not be decided for two of its pods at once.
        with self._cluster.node(name) as node, self._quotas.deciding(pod.namespace):
            return self._choose(pod, request, node, expires)

    def _choose(self, pod: Pod, request: PodRequest, node: Node, expires: float) -> Reservation | str:
        if pod.node:
            return f"pod {pod.namespace}/{pod.name} is bound to {pod.node} by now"
        excluded = self._quotas.excluded(pod, request, node)
        found = self._decider.choose(pod, request, node, excluded)
        if isinstance(found, Refusal):
            return f"{node.name}: {found.reason}"
        assignment, view = found
        if view.node.leaves(request):
            reservation = Reservation(pod, (), {}, expires, assignment, view)
            self._cluster.reserve(node, reservation)
            return reservation
        indexes = {gpu.uuid: gpu.index for gpu in view.node.gpus}
        allowed = [gpu for gpu in view.gpus if gpu.gpu.model not in excluded]
        reasons = why(request, assignment, allowed, view.node.connectivity)
        annotations = pod_annotations(assignment, request.mode, pod.containers, indexes, time.time_ns(), reasons)
        reservation = Reservation(pod, uses_of(request, assignment), annotations, expires, assignment, view)
        self._cluster.reserve(node, reservation)
        return reservation

    def _send(self, pod: Pod, asked: BindArguments, kept: Reservation, version: str) -> Bound | None:
        try:
            with self._waiting():
                self._post(pod, asked.node, version, kept.annotations)
        except ApiError as error:
            return self._settle(pod, asked, version, error)
        self._sent.pop(pod.uid, None)
        return Bound(Outcome.BOUND)

    def _post(self, pod: Pod | BindArguments, node: str, version: str, annotations: Mapping[str, str]) -> None:
        binding = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {
                "name": pod.name,
                "namespace": pod.namespace,
                "uid": pod.uid,
                "resourceVersion": version,
                "annotations": dict(annotations),
            },
            "target": {"apiVersion": "v1", "kind": "Node", "name": node},
        }
        self._api.post(f"{pod_path(pod.namespace, pod.name)}/binding", binding)

    def _settle(self, pod: Pod, asked: BindArguments, version: str, error: ApiError) -> Bound | None:
        """Ask for the pod after a failed bind, which it may contradict. None when it has changed since we knew it."""
        reason = f"pod {pod.namespace}/{pod.name} was not bound to {asked.node}: {error}"
        status = error.status if isinstance(error, ApiRefusedError) else 0
        try:
            if status == 409:
                item = self._lease.look(pod)
            elif status in (400, 401, 403, 404, 422):
                item = None
            else:
                # It may still be on its way; once the pod has changed, nothing comes of that.
                item = self._lease.change(pod)
        except ApiError:
            # It may be bound. What is kept for it stays until it is seen, tried again, or expires.
            _warn(asked, reason)
            return Bound(Outcome.FAILED, reason)
        self._sent.pop(pod.uid, None)
        if item is not None:
            self._cluster.hear_of(item)
            if is_on := _node_of(item):
                return _already(is_on, asked.node)
        self._cluster.release(pod.uid)
        if status == 409 and item is not None and item["metadata"].get("resourceVersion") != version:
            return None
        _warn(asked, reason)
        return Bound(Outcome.FAILED, reason)


def _node_of(item: Mapping[str, Any]) -> str:
    return str((item.get("spec") or {}).get("nodeName") or "")


def _warn(asked: BindArguments, reason: str) -> None:
    extra = {"pod": f"{asked.namespace}/{asked.name}", "node": asked.node, "reason": reason}
    _log.warning("a bind failed", extra=extra)


def _already(is_on: str, asked: str) -> Bound:
    if is_on == asked:
        return Bound(Outcome.BOUND)
    return Bound(Outcome.FAILED, f"the pod is already bound to {is_on}")
