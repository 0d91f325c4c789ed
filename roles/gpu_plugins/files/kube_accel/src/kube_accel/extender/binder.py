# SPDX-License-Identifier: Apache-2.0
"""Bind: choose the GPUs under the node's lock, keep them, and write node and assignment into the pod in one call."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Protocol
from urllib.parse import quote

from kube_accel.extender.cache import Cluster, Node, Reservation
from kube_accel.extender.decide import Decider
from kube_accel.extender.pods import Pod, uses_of
from kube_accel.extender.quota import Quotas
from kube_accel.extender.wire import BindArguments
from kube_accel.kube.api import ApiError, ApiRefusedError
from kube_accel.model import PodRequest
from kube_accel.placement.choose import Refusal
from kube_accel.sharing.assignment import pod_annotations

_log = logging.getLogger(__name__)

RESERVED_SECONDS = 60.0
"""How long GPUs are kept for a pod that is not seen bound."""

_SILENCE = 2.0
"""Seconds without a call after which another extender may have been the one that was called."""
_TAKEOVER = 5.0
"""Seconds after such a silence in which our watches may not have caught up with what the other one did."""


class Api(Protocol):
    """What binding needs of ``kube_accel.kube.client.KubeClient``."""

    def get(self, path: str, query: Mapping[str, str] | None = None) -> dict[str, Any]:
        """The object at ``path``. Raises ApiError."""

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
        aside: Callable[[], AbstractContextManager[None]] = nullcontext,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``aside`` is entered while the API server is waited for."""
        self._api = api
        self._cluster = cluster
        self._decider = decider
        self._quotas = quotas
        self._aside = aside
        self._clock = clock
        self._takeovers = 0
        self._last_call = float("-inf")
        self._taken_over = float("-inf")

    def called(self) -> None:
        """kube-scheduler has called, with whatever verb."""
        now = self._clock()
        if now > self._last_call + _SILENCE:
            self._takeovers += 1
            self._taken_over = now
        self._last_call = now

    def idle(self) -> bool:
        """Nobody has called for a while."""
        return self._clock() > self._last_call + _SILENCE

    def bind(self, asked: BindArguments) -> Bound:
        """Bind a pod to a node. Not bound: a reason; what was kept for the pod is given back."""
        pod = self._cluster.pods.get(asked.uid)
        if pod is None or pod.request is None:
            reason = pod.refused if pod else f"pod {asked.namespace}/{asked.name} has not been seen yet; try again"
            return Bound(Outcome.REFUSED, reason)
        if pod.node:
            return _already(pod.node, asked.node)
        node = self._cluster.node(asked.node)
        try:
            self._catch_up(node)
        except ApiError as error:
            return Bound(Outcome.FAILED, f"the pods of node {node.name} could not be looked at: {error}")
        chosen = self.reserve(pod, pod.request, node)
        if isinstance(chosen, str):
            return Bound(Outcome.REFUSED, chosen)
        return replace(self._send(pod, asked, node, chosen), kept=chosen)

    def expire(self) -> None:
        """Give back what was kept too long for pods that are not bound.

        The API server is asked: however late the watch is, GPUs of a pod that is bound are not given away.
        Raises ApiError; what is left stays until the next time.
        """
        for reservation in self._cluster.overdue(self._clock()):
            pod = reservation.pod
            item = self._bound_item(pod)
            if item is not None:
                self._cluster.keep_pod(item)
            else:
                _log.info("a reservation has expired", extra={"pod": f"{pod.namespace}/{pod.name}"})
            self._cluster.end(reservation)

    def _bound_item(self, pod: Pod) -> dict[str, Any] | None:
        """The pod's object if it is bound. Raises ApiError."""
        try:
            item = self._api.get(pod_path(pod.namespace, pod.name))
        except ApiRefusedError as error:
            if error.status == 404:
                return None
            raise
        known = (item.get("metadata") or {}).get("uid") == pod.uid
        return item if known and (item.get("spec") or {}).get("nodeName") else None

    def reserve(self, pod: Pod, request: PodRequest, node: Node) -> Reservation | str:
        """Keep GPUs of a node for a pod, instead of what was kept for it before; or why there are none."""
        self._cluster.release(pod.uid)
        # What a namespace has and what it gets must not be decided for two of its pods at once.
        with node.lock, self._quotas.deciding(pod.namespace):
            return self._choose(pod, request, node)

    def _choose(self, pod: Pod, request: PodRequest, node: Node) -> Reservation | str:
        if pod.node:
            return f"pod {pod.namespace}/{pod.name} is bound to {pod.node} by now"
        excluded = self._quotas.excluded(pod.namespace, request, node)
        found = self._decider.choose(pod, request, node, excluded)
        if isinstance(found, Refusal):
            return f"{node.name}: {found.reason}"
        assignment, view = found
        indexes = {gpu.uuid: gpu.index for gpu in view.node.gpus}
        annotations = pod_annotations(assignment, request.mode, pod.containers, indexes, time.time_ns())
        expires = self._clock() + RESERVED_SECONDS
        reservation = Reservation(pod, uses_of(request, assignment), annotations, expires, assignment, view)
        self._cluster.reserve(node, reservation)
        return reservation

    def _send(self, pod: Pod, asked: BindArguments, node: Node, kept: Reservation) -> Bound:
        binding = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {
                "name": pod.name,
                "namespace": pod.namespace,
                "uid": pod.uid,
                "annotations": dict(kept.annotations),
            },
            "target": {"apiVersion": "v1", "kind": "Node", "name": node.name},
        }
        try:
            with self._aside():
                self._api.post(f"{pod_path(pod.namespace, pod.name)}/binding", binding)
        except ApiError as error:
            return self._settle(pod, asked, error)
        return Bound(Outcome.BOUND)

    def _settle(self, pod: Pod, asked: BindArguments, error: ApiError) -> Bound:
        """The bind failed, or so it seems: the pod itself tells."""
        reason = f"pod {pod.namespace}/{pod.name} was not bound to {asked.node}: {error}"
        _log.warning(
            "a bind failed", extra={"pod": f"{pod.namespace}/{pod.name}", "node": asked.node, "reason": reason}
        )
        certain = isinstance(error, ApiRefusedError) and error.status in (400, 401, 403, 404, 422)
        try:
            item = None if certain else self._bound_item(pod)
        except ApiError:
            # It may be bound. What is kept for it stays until it is seen, tried again, or expires.
            return Bound(Outcome.FAILED, reason)
        if item is not None:
            self._cluster.keep_pod(item)
            return _already(item["spec"]["nodeName"], asked.node)
        self._cluster.release(pod.uid)
        return Bound(Outcome.FAILED, reason)

    def _catch_up(self, node: Node) -> None:
        """Soon after another extender may have been called: learn what it did on this node. Raises ApiError."""
        takeover = self._takeovers
        if node.looked_at == takeover or self._clock() > self._taken_over + _TAKEOVER:
            return
        selector = f"spec.nodeName={node.name},status.phase!=Succeeded,status.phase!=Failed"
        for item in self._api.get("/api/v1/pods", {"fieldSelector": selector}).get("items") or ():
            self._cluster.keep_pod(item)
        node.looked_at = takeover


def pod_path(namespace: str, name: str) -> str:
    """Where the API server has a pod."""
    return f"/api/v1/namespaces/{quote(namespace, safe='')}/pods/{quote(name, safe='')}"


def _already(is_on: str, asked: str) -> Bound:
    if is_on == asked:
        return Bound(Outcome.BOUND)
    return Bound(Outcome.FAILED, f"the pod is already bound to {is_on}")
