# SPDX-License-Identifier: Apache-2.0
"""The verbs kube-scheduler calls, and who may call them."""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable, Mapping
from enum import StrEnum
from functools import partial
from typing import Any, Final

from kube_accel.extender import decisions, wire
from kube_accel.extender.binder import Binder, Outcome
from kube_accel.extender.cache import Cluster, Reservation
from kube_accel.extender.decide import Decider
from kube_accel.extender.metrics import Metrics
from kube_accel.extender.overtaken import Overtaken
from kube_accel.extender.pods import Pod, PodReader, nominated_node
from kube_accel.extender.server import Request, Response
from kube_accel.extender.tenure import Tenure
from kube_accel.extender.wire import Filtered
from kube_accel.placement.choose import Refusal

PREFIX: Final = "/scheduler/"
VERBS: Final = ("predicates", "priorities", "preemption", "bind")

Probe = Callable[[], str]
"""Returns an empty string when all is well, else one sentence."""

Answer = tuple[bytes, Callable[[], None] | None]
"""What is answered, and what is done when that is sent: the decision log, which nobody waits for."""

Limits = Callable[[Pod, list[str]], Mapping[str, Refusal]]
"""The nodes a pod may not have GPUs of, whatever room they have, and why."""

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


class Service:
    """Answers requests. Threads may share it."""

    def __init__(
        self,
        layout: Layout,
        reader: PodReader,
        cluster: Cluster,
        decider: Decider,
        binder: Binder,
        tenure: Tenure,
        limits: Limits,
        metrics: Metrics,
        pages: Mapping[str, Callable[[], Response]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``pages`` are what anyone may GET."""
        self._layout = layout
        self._reader = reader
        self._cluster = cluster
        self._decider = decider
        self._binder = binder
        self._tenure = tenure
        self._limits = limits
        self._metrics = metrics
        self._pages = pages
        self._page = serve_pages(pages)
        self._overtaken = Overtaken(cluster, lambda pod, names: bool(self._filtered(pod, names).passed), clock)
        self._verbs = {
            "predicates": self._filter if layout is Layout.LOCAL else self._filter_to_one,
            **(
                {"priorities": self._prioritize, "preemption": self._preempt, "bind": self._bind}
                if layout is Layout.LOCAL
                else {}
            ),
        }

    def handle(self, request: Request) -> Response:
        """Answer one request."""
        if request.path in self._pages:
            return self._page(request)
        verb = request.path.removeprefix(PREFIX)
        answer = self._verbs.get(verb) if request.path.startswith(PREFIX) else None
        if answer is None:
            return _text(404, f"not found; known: {', '.join(PREFIX + name for name in self._verbs)}")
        if self._layout is Layout.LOCAL and not request.known:
            return _text(403, "show a client certificate of --client-ca")
        if request.method != "POST":
            return _text(405, "POST only")
        begin = time.perf_counter()
        self._tenure.called()
        try:
            body, afterwards = answer(request.body)
            return Response(200, body, afterwards=afterwards)
        except wire.WireError as error:
            return _text(400, str(error))
        finally:
            self._metrics.request(verb, time.perf_counter() - begin)

    def overtaken(self) -> list[Pod]:
        """Pods that kube-scheduler is to try again: what made room for them came to us after it had asked."""
        return self._overtaken.look()

    def _filter(self, body: bytes) -> Answer:
        arguments = wire.read_arguments(body)
        pod = self._pod(arguments.pod)
        if pod is None:
            return wire.write_filtered(Filtered(arguments.names), arguments.nodes), None
        # Most pods that are filtered are bound next: what that waits for can begin.
        self._tenure.prepare(pod)
        if problem := self._tenure.stray(pod):
            return wire.write_filter_error(problem), None
        answer = self._filtered(pod, arguments.names)
        if pod.victims and self._has_room_now(pod, nominated_node(arguments.pod), answer):
            answer = self._filtered(pod, arguments.names)
        self._answered(pod, arguments.names, answer)
        written = wire.write_filtered(answer, arguments.nodes)
        return written, partial(decisions.log_filter, pod, len(arguments.names), answer)

    def _answered(self, pod: Pod, names: list[str], answer: Filtered) -> None:
        if pod.request is not None:
            self._overtaken.answered(pod, names, bool(answer.passed))

    def _has_room_now(self, pod: Pod, node: str, answer: Filtered) -> bool:
        """Whether those evicted for a pod have left since. kube-scheduler, which heard it first, would evict others."""
        return node in answer.failed and self._cluster.departed(node, pod.victims.get(node, ()), _HEARSAY_SECONDS)

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

    def _filter_to_one(self, body: bytes) -> Answer:
        """Like ``_filter``, but the best node alone passes, and GPUs are kept there: nobody says where the pod goes.

        Anyone may call this. Nothing is kept but for a pod the API server knows, and of that pod what it knows.
        """
        arguments = wire.read_arguments(body)
        asked = self._reader.read(arguments.pod)
        if asked is None:
            return wire.write_filtered(Filtered(arguments.names), arguments.nodes), None
        pod = self._cluster.known(asked.uid, _HEARSAY_SECONDS)
        if pod is None or pod.node:
            reason = f"pod {asked.namespace}/{asked.name} is not known to wait; try again"
            return wire.write_filter_error(reason), None
        self._cluster.release(pod.uid)
        answer = self._filtered(pod, arguments.names)
        self._answered(pod, arguments.names, answer)
        kept: Reservation | None = None
        left = self._decider.left_to_kubelet(pod.request, answer.passed) if pod.request is not None else []
        if pod.request is not None and (ours := [name for name in answer.passed if name not in left]):
            scores = self._decider.scores(pod.request, ours)
            for chosen in heapq.nsmallest(_CANDIDATES, scores, key=lambda name: (-scores[name], name)):
                found = self._binder.reserve(pod, pod.request, chosen)
                if not isinstance(found, str):
                    kept = found
                    break
            if kept is None and not left:
                self._answered(pod, arguments.names, Filtered([]))
                return wire.write_filter_error("others took the room that was found; try again"), None
            passed, reason = (
                ([chosen], f"GPUs are kept on {chosen}") if kept is not None else (left, "its room is taken")
            )
            others = dict.fromkeys((name for name in answer.passed if name not in passed), reason)
            answer = Filtered(passed, answer.failed | others, answer.unresolvable)

        def log() -> None:
            decisions.log_filter(pod, len(arguments.names), answer)
            if kept is not None:
                decisions.log_bind(kept)

        return wire.write_filtered(answer, arguments.nodes), log

    def _prioritize(self, body: bytes) -> Answer:
        arguments = wire.read_arguments(body)
        pod = self._pod(arguments.pod)
        if pod is None or pod.request is None:
            return wire.write_scores(dict.fromkeys(arguments.names, 0)), None
        scores = self._decider.scores(pod.request, arguments.names)
        return wire.write_scores(scores), partial(decisions.log_scores, pod, scores)

    def _preempt(self, body: bytes) -> Answer:
        arguments = wire.read_preemption(body)
        pod = self._pod(arguments.pod)
        if pod is None:
            return wire.write_preemption(arguments.victims), None
        if pod.request is None:
            return wire.write_preemption({}), None
        found = self._decider.preempt(pod, pod.request, arguments.victims)
        pod.victims = {name: victims.uids for name, victims in found.items()}
        return wire.write_preemption(found), partial(decisions.log_preemption, pod, found)

    def _bind(self, body: bytes) -> Answer:
        bound = self._binder.bind(wire.read_binding(body))
        self._metrics.bind(bound.outcome.value)
        error = "" if bound.outcome is Outcome.BOUND else bound.reason
        return wire.write_bound(error), None if bound.kept is None else partial(decisions.log_bind, bound.kept)

    def _pod(self, item: Mapping[str, Any]) -> Pod | None:
        pod = self._reader.read(item)
        return None if pod is None else self._cluster.meet(pod, item)


def serve_pages(pages: Mapping[str, Callable[[], Response]]) -> Callable[[Request], Response]:
    """What answers with these pages, for anyone, and with nothing else."""

    def handle(request: Request) -> Response:
        page = pages.get(request.path)
        if page is None:
            return _text(404, f"not found; known: {', '.join(pages)}")
        return page() if request.method in ("GET", "HEAD") else _text(405, "GET only")

    return handle


def probe_page(probe: Probe) -> Callable[[], Response]:
    """A page that is 200 ``ok``, or 503 and the reason."""

    def page() -> Response:
        reason = probe()
        return _text(503 if reason else 200, reason or "ok")

    return page


def _text(status: int, text: str) -> Response:
    return Response(status, f"{text}\n".encode(), "text/plain; charset=utf-8")
