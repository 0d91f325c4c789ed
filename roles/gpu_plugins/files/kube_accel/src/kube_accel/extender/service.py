# SPDX-License-Identifier: Apache-2.0
"""The verbs kube-scheduler calls, and who may call them."""

from __future__ import annotations

import heapq
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import Any, Final

from kube_accel.extender import decisions, wire
from kube_accel.extender.arguments import ArgumentReader
from kube_accel.extender.binder import Binder, Outcome
from kube_accel.extender.cache import Cluster
from kube_accel.extender.decide import Decider
from kube_accel.extender.keeper import Keeper
from kube_accel.extender.leader_lease import LeaderLease
from kube_accel.extender.metrics import Metrics
from kube_accel.extender.node import Reservation
from kube_accel.extender.pods import Pod, PodReader, nominated_node
from kube_accel.extender.recheck_queue import RecheckQueue
from kube_accel.extender.wire import Filtered
from kube_accel.model import PodRequest
from kube_accel.placement.choose import Refusal
from kube_accel.shared.api_json import ODD, named, unreadable
from kube_accel.web.head import Head
from kube_accel.web.pages import Pages
from kube_accel.web.server import Limits
from kube_accel.web.site import Request, Response, text

PREFIX: Final = "/scheduler/"
VERBS: Final = ("predicates", "priorities", "preemption", "bind")

Answer = tuple[bytes, decisions.Later]
"""What is answered, and what is done when that is sent: the decision log, which no request waits for."""

Quota = Callable[[Pod, list[str]], Mapping[str, Refusal]]
"""The nodes a pod may not have GPUs of, whatever room they have, and why."""

MAX_BODY: Final = 64 << 20
"""Bytes that a known client may send at once; 5,000 node objects are about 60 MiB."""
MAX_STRANGERS_BODY: Final = 4 << 20
"""Bytes that anyone may send in the layout proxied: the largest pod of etcd and the names of 5,000 nodes are 3 MiB."""
MAX_STRANGERS_VALUES: Final = 200_000
"""JSON values in it. Each takes up to 250 bytes of memory, and such a pod with such names has a tenth of them."""

_CANDIDATES = 3
"""Nodes tried for a pod that is given one node only."""
_HEARSAY_SECONDS = 0.5
"""How long our watch may be behind kube-scheduler's."""


class Layout(StrEnum):
    """How kube-scheduler reaches the extender."""

    LOCAL = "local"
    """Beside it, with a client certificate: all verbs."""
    PROXIED = "proxied"
    """Through the API server, which can show none: ``predicates`` alone, and it answers one node."""


@dataclass(frozen=True, slots=True)
class Scheduling:
    """What requests are answered from, and what they change."""

    reader: PodReader
    cluster: Cluster
    decider: Decider
    binder: Binder
    lease: LeaderLease
    limits: Quota
    metrics: Metrics


class Service:
    """Answers requests. Threads may share it."""

    def __init__(
        self, layout: Layout, scheduling: Scheduling, pages: Pages, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """``pages`` are what anyone may GET."""
        self._layout = layout
        self._reader = scheduling.reader
        self._cluster = scheduling.cluster
        self._decider = scheduling.decider
        self._binder = scheduling.binder
        self._lease = scheduling.lease
        self._keeper = Keeper(self._cluster, self._binder, clock)
        self._limits = scheduling.limits
        self._metrics = scheduling.metrics
        self._arguments = ArgumentReader()
        self._decisions = decisions.Decisions()
        self._pages = pages
        self._reading, self._deciding = threading.Lock(), threading.Lock()
        self._rechecks = RecheckQueue(self._cluster, lambda pod, names: bool(self._filtered(pod, names).passed), clock)
        self._verbs = {
            "predicates": self._filter if layout is Layout.LOCAL else self._filter_to_one,
            **(
                {"priorities": self._prioritize, "preemption": self._preempt, "bind": self._bind}
                if layout is Layout.LOCAL
                else {}
            ),
        }

    @property
    def limits(self) -> Limits:
        """Return what its server may spend."""
        if self._layout is Layout.LOCAL:
            return Limits(known_bytes=MAX_BODY)
        return Limits(strangers_stay=True, stranger_bytes=2 * MAX_STRANGERS_BODY)

    def admit(self, head: Head, known: bool) -> int | Response:
        """Return the most bytes that a request may bring, or how it is refused with none of them read."""
        if head.path in self._pages:
            return self._pages.admit(head, known)
        if not head.path.startswith(PREFIX) or head.path.removeprefix(PREFIX) not in self._verbs:
            return text(404, f"not found; known: {', '.join(PREFIX + name for name in self._verbs)}")
        if self._layout is Layout.LOCAL and not known:
            return text(403, "show a client certificate of --client-ca")
        if head.method != "POST":
            return text(405, "POST only")
        return MAX_BODY if known else MAX_STRANGERS_BODY

    def probe(self, head: Head) -> Response | None:
        """Return the page of a probe."""
        return self._pages.probe(head)

    def handle(self, request: Request) -> Response:
        """Answer a request that was admitted."""
        if request.path in self._pages:
            return self._pages.handle(request)
        verb = request.path.removeprefix(PREFIX)
        begin = time.perf_counter()
        self._lease.called()
        try:
            body, afterwards = self._verbs[verb](request)
            return Response(200, body, afterwards=afterwards)
        except wire.WireError as error:
            return text(400, str(error))
        finally:
            self._metrics.request(verb, time.perf_counter() - begin)

    def recheck(self) -> list[Pod]:
        """Return the pods that kube-scheduler is to try again: we learned of their room after it had asked."""
        return self._rechecks.look()

    def _filter(self, request: Request) -> Answer:
        arguments = self._arguments.read(request.body)
        pod = self._pod(arguments.pod)
        if pod is None:
            return wire.write_filtered(Filtered(arguments.names), arguments.nodes), None
        # Most pods that are filtered are bound next: what that waits for can begin.
        self._lease.prepare(pod)
        if problem := self._lease.unfenced_pod(pod):
            return wire.write_filter_error(problem), None
        answer = self._filtered(pod, arguments.names)
        node = nominated_node(arguments.pod)
        if pod.victims and node in answer.failed:
            # Whether those evicted for it have left: kube-scheduler, which knew first, would evict others.
            request.waits()
            if self._cluster.departed(node, pod.victims.get(node, ()), _HEARSAY_SECONDS):
                answer = self._filtered(pod, arguments.names)
        self._answered(pod, arguments.names, answer)
        later = self._decisions.filtered(pod, len(arguments.names), answer)
        return self._arguments.write(answer, arguments), later

    def _answered(self, pod: Pod, names: list[str], answer: Filtered) -> None:
        if pod.request is not None:
            self._rechecks.answered(pod, names, bool(answer.passed))

    def _filtered(self, pod: Pod, names: list[str]) -> Filtered:
        if pod.request is None:
            return Filtered([], {}, dict.fromkeys(names, pod.refused))
        limited = self._limits(pod, names)
        if not limited:
            return self._decider.filter(pod, pod.request, names)
        answer = self._decider.filter(pod, pod.request, [name for name in names if name not in limited])
        for name, refusal in limited.items():
            (answer.failed if refusal.resolvable else answer.unresolvable)[name] = refusal.reason
        return answer

    def _filter_to_one(self, request: Request) -> Answer:
        """Let the best node alone pass, and reserve GPUs there: kube-scheduler does not say where the pod goes.

        Anyone may call this. Nothing is kept but for a pod that waits, as the API server has it; ``Keeper`` says how
        long. What is kept is not given back, whatever nodes a call names.
        """
        wire.demand_few_values(request.body, MAX_STRANGERS_VALUES)
        with self._reading:  # one at a time, for what it takes while it is read
            arguments = wire.read_arguments(request.body)
        if arguments.nodes is not None:
            raise wire.WireError("Nodes: only names are taken here; set nodeCacheCapable: true for this extender")
        asked = self._read(arguments.pod)
        if asked is None:
            return wire.write_filtered(Filtered(arguments.names), arguments.nodes), None
        pod = self._cluster.waiting(asked.uid, _HEARSAY_SECONDS)
        if pod is None:
            reason = f"pod {asked.namespace}/{asked.name} is not known to wait; try again"
            return wire.write_filter_error(reason), None
        with self._deciding:
            if refusal := self._keeper.refusal(pod, arguments.names):
                return wire.write_filter_error(refusal), None
            answer = self._filtered(pod, arguments.names)
            self._answered(pod, arguments.names, answer)
            kept: Reservation | None = None
            left = self._decider.left_to_kubelet(pod.request, answer.passed) if pod.request is not None else []
            if pod.request is not None and (ours := [name for name in answer.passed if name not in left]):
                kept = self._keeper.keep(pod, pod.request, self._best(pod, pod.request, ours))
                if kept is None and not left:
                    self._answered(pod, arguments.names, Filtered([]))
                    return wire.write_filter_error("others took the room that was found; try again"), None
                passed, reason = (
                    ([kept.assignment.node], f"GPUs are kept on {kept.assignment.node}")
                    if kept is not None
                    else (left, "its room is taken")
                )
                others = dict.fromkeys((name for name in answer.passed if name not in passed), reason)
                answer = Filtered(passed, answer.failed | others, answer.unresolvable)

        def log() -> None:
            decisions.log_filter(pod, len(arguments.names), answer)
            if kept is not None:
                decisions.log_bind(kept)

        return wire.write_filtered(answer, arguments.nodes), log

    def _best(self, pod: Pod, request: PodRequest, names: list[str]) -> list[str]:
        """Return the nodes to try: the one where GPUs are kept for the pod, then the best."""
        ranks, kept_on = self._decider.ranks(request, names), self._cluster.kept_on(pod.uid)
        return heapq.nlargest(_CANDIDATES, sorted(ranks), key=lambda name: (name == kept_on, ranks[name]))

    def _prioritize(self, request: Request) -> Answer:
        arguments = self._arguments.read(request.body)
        pod = self._pod(arguments.pod)
        if pod is None or pod.request is None:
            return wire.write_scores(dict.fromkeys(arguments.names, 0)), None
        scores = self._decider.scores(pod.request, arguments.names)
        self._decisions.scored(pod, scores)
        return wire.write_scores(scores), None

    def _preempt(self, request: Request) -> Answer:
        arguments = wire.read_preemption(request.body)
        pod = self._pod(arguments.pod)
        if pod is None:
            return wire.write_preemption(arguments.victims), None
        if pod.request is None:
            return wire.write_preemption({}), None
        found = self._decider.preempt(pod, pod.request, arguments.victims)
        pod.victims = {name: victims.uids for name, victims in found.items()}
        return wire.write_preemption(found), partial(decisions.log_preemption, pod, found)

    def _bind(self, request: Request) -> Answer:
        asked = wire.read_binding(request.body)
        bound = self._binder.bind(asked, request.waits)
        self._metrics.bind(bound.outcome.value)
        error = "" if bound.outcome is Outcome.BOUND else bound.reason
        return wire.write_bound(error), self._decisions.bound(asked.uid, bound.kept)

    def _pod(self, item: Mapping[str, Any]) -> Pod | None:
        """Return the pod of a client that is known; None when it asks for nothing of ours."""
        known = self._reader.known(item, self._cluster.pods)
        if known is not None:
            return known
        pod = self._read(item)
        return None if pod is None else self._cluster.meet(pod, item)

    def _read(self, item: Mapping[str, Any]) -> Pod | None:
        try:
            return self._reader.read(item)
        except ODD as error:
            raise wire.WireError(f"pod {named(item)} {unreadable(error)}; see kubectl get pod --output=yaml") from error
