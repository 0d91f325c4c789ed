# SPDX-License-Identifier: Apache-2.0
"""Which nodes have room for a pod, which of them is best, who must go for it, and which GPUs it gets there."""

from __future__ import annotations

import heapq
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from kube_accel.extender.accounting import NodeView
from kube_accel.extender.cache import Cluster, Node
from kube_accel.extender.pods import Pod
from kube_accel.extender.wire import Filtered, Victims
from kube_accel.model import Assignment, Mode, PodRequest
from kube_accel.placement.choose import Refusal, place
from kube_accel.placement.demand import demand
from kube_accel.placement.score import score
from kube_accel.quantity import human_bytes

DETAILED = 5
"""Nodes for which a refusal names the GPU that came nearest. kube-scheduler puts every different reason it is given
into the pod's status, each time it tries."""

_SHAPES = 64
"""Different requests for which every node's verdict is remembered."""


@dataclass(frozen=True, slots=True)
class Short:
    """A node without room, whose exact reason nobody has asked for yet."""

    shortage: float
    """The less, the nearer it is to having room."""


Verdict = int | Short | Refusal
"""A node's score, 0 to 10, or that it has no room."""


@dataclass(slots=True)
class Verdicts:
    """What was found for a node and a request, until the node changes."""

    _found: dict[PodRequest, dict[str, Verdict]] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def of(self, request: PodRequest) -> dict[str, Verdict]:
        """The verdicts about one request, by node. Write to it under that node's lock only."""
        found = self._found.get(request)
        if found is None:
            with self._lock:
                found = self._found.setdefault(request, {})
                while len(self._found) > _SHAPES:
                    self._found.pop(next(iter(self._found)))
        return found

    def forget(self, name: str) -> None:
        """A node has changed. Call it under that node's lock."""
        for verdicts in list(self._found.values()):
            verdicts.pop(name, None)


class Decider:
    """Answers from the cluster as it is known now. Never waits for anything but a node's lock."""

    def __init__(self, cluster: Cluster, verdicts: Verdicts) -> None:
        """``verdicts`` must hear of every change of the cluster's nodes."""
        self._cluster = cluster
        self._verdicts = verdicts

    def filter(self, request: PodRequest, names: Sequence[str]) -> Filtered:
        """The nodes that have room, and why the others have none."""
        verdicts = self._verdicts.of(request)
        passed: list[str] = []
        answer = Filtered(passed)
        short: list[tuple[float, str]] = []
        for name in names:
            verdict = verdicts.get(name)
            if verdict is None:
                verdict = self._judge(name, request, verdicts)
            if type(verdict) is int:
                passed.append(name)
            elif isinstance(verdict, Short):
                short.append((verdict.shortage, name))
            elif isinstance(verdict, Refusal):
                (answer.failed if verdict.resolvable else answer.unresolvable)[name] = verdict.reason
        nearest = {name for _, name in heapq.nsmallest(DETAILED, short)}
        general = f"no room for {describe(request)}" if short else ""
        for _, name in short:
            if name not in nearest:
                answer.failed[name] = general
                continue
            found = self._explain(name, request)
            if found is None:
                passed.append(name)
            else:
                (answer.failed if found.resolvable else answer.unresolvable)[name] = f"{name}: {found.reason}"
        return answer

    def scores(self, request: PodRequest, names: Iterable[str]) -> list[tuple[str, int]]:
        """How good each node is for the pod, 0 to 10."""
        verdicts = self._verdicts.of(request)
        found = []
        for name in names:
            verdict = verdicts.get(name)
            if verdict is None:
                verdict = self._judge(name, request, verdicts)
            found.append((name, verdict if isinstance(verdict, int) else 0))
        return found

    def choose(
        self, request: PodRequest, node: Node, excluded: Mapping[str, str] = MappingProxyType({})
    ) -> tuple[Assignment, NodeView] | Refusal:
        """The GPUs the pod gets on this node, and what was there to choose from. Hold the node's lock.

        ``excluded`` are models the pod may have nothing of, and why.
        """
        view = node.view()
        refusal = _unfit(node, view, request)
        if refusal is not None or view is None:
            return refusal or Refusal(node.problem, False)
        gpus = [
            replace(gpu, excluded=excluded[gpu.gpu.model]) if gpu.gpu.model in excluded else gpu for gpu in view.gpus
        ]
        found = place(request, gpus, node.name, view.node.connectivity)
        return found if isinstance(found, Refusal) else (found, view)

    def preempt(self, request: PodRequest, priority: int, victims: Mapping[str, Victims]) -> dict[str, Victims]:
        """The nodes where evicting pods helps, with the pods to evict.

        kube-scheduler chooses victims by sums over a node's GPUs. Where these leave no room on a GPU, pods of lower
        priority are added, lowest first, and spared again where the pod fits without them.
        """
        found = {}
        for name, given in victims.items():
            node = self._cluster.nodes.get(name)
            if node is None:
                continue
            with node.lock:
                uids = _enough_victims(node, request, priority, given.uids)
            if uids is not None:
                found[name] = Victims(uids, given.pdb_violations)
        return found

    def _judge(self, name: str, request: PodRequest, verdicts: dict[str, Verdict]) -> Verdict:
        node = self._cluster.nodes.get(name)
        if node is None:
            return Refusal(_UNKNOWN, False)
        with node.lock:
            verdict = verdicts[name] = _verdict(node, request)
        return verdict

    def _explain(self, name: str, request: PodRequest) -> Refusal | None:
        """Why exactly a node has no room; None when by now it has."""
        node = self._cluster.node(name)
        with node.lock:
            found = self.choose(request, node)
        return found if isinstance(found, Refusal) else None


_UNKNOWN = "its plugin has not reported GPUs"


def describe(request: PodRequest) -> str:
    """What a pod asks for: ``30 % and 8 GiB of a GPU``, ``2 whole GPUs``."""
    parts = []
    for container in request.containers:
        if container.whole:
            parts.append(f"{container.whole} whole GPU{'s' if container.whole > 1 else ''}")
        else:
            cores = "" if request.mode is Mode.CGPU else f"{container.cores} % and "
            parts.append(f"{cores}{human_bytes(container.memory_bytes)} of a GPU")
    return " + ".join(parts)


def _unfit(node: Node, view: NodeView | None, request: PodRequest) -> Refusal | None:
    """Why this node is none for the pod, whatever room it has."""
    if view is None:
        return Refusal(node.problem, False)
    if view.node.mode is not request.mode:
        return Refusal(f"serves {view.node.mode.value}, not {request.mode.value}", False)
    return None


def _verdict(node: Node, request: PodRequest) -> Verdict:
    view = node.view()
    refusal = _unfit(node, view, request)
    if refusal is not None or view is None:
        return refusal or Refusal(node.problem, False)
    fits = view.room.fits(request)
    if fits is None:
        found = place(request, view.gpus, node.name, view.node.connectivity)
        fits = not isinstance(found, Refusal)
        if isinstance(found, Refusal) and not found.resolvable:
            return Short(float("inf"))
    return score(request, view.room) if fits else Short(_shortage(view, request))


def _shortage(view: NodeView, request: PodRequest) -> float:
    room = view.room
    if not room.gpus:
        return float("inf")
    if len(request.containers) > 1:
        wanted = demand(request, room.memory_bytes // room.gpus)
        return max(0, wanted.cores - room.free_cores) / 100 + max(0, wanted.memory_bytes - room.free_memory) / (1 << 40)
    (container,) = request.containers
    if container.whole:
        return float(max(0, container.whole - room.whole))
    card = room.memory_bytes / room.gpus
    return min(
        (
            max(0, container.cores - cores) / 100 + max(0, container.memory_bytes - memory) / card
            for cores, memory in room.shares
        ),
        default=float("inf"),
    )


def _enough_victims(node: Node, request: PodRequest, priority: int, given: Sequence[str]) -> tuple[str, ...] | None:
    def fits(uids: set[str]) -> bool:
        view = node.view_without(uids)
        if _unfit(node, view, request) is not None or view is None:
            return False
        return not isinstance(place(request, view.gpus, node.name, view.node.connectivity), Refusal)

    if fits(set(given)):
        return tuple(given)
    others: list[Pod] = sorted(
        (pod for uid, pod in node.pods.items() if pod.priority < priority and uid not in given),
        key=lambda pod: (pod.priority, pod.uid),
    )
    added = [pod.uid for pod in others]
    if not fits({*given, *added}):
        return None
    for uid in reversed(list(added)):
        if fits({*given, *added} - {uid}):
            added.remove(uid)
    return (*given, *added)
