# SPDX-License-Identifier: Apache-2.0
"""Which nodes have room for a pod, which of them is best, who must go for it, and which GPUs it gets there."""

from __future__ import annotations

import heapq
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from kube_accel.extender.accounting import NodeView
from kube_accel.extender.cache import Cluster
from kube_accel.extender.node import Node
from kube_accel.extender.pods import Pod
from kube_accel.extender.wire import Filtered, Victims
from kube_accel.model import Assignment, Mode, PodRequest
from kube_accel.placement.choose import Refusal, place, unwanted
from kube_accel.placement.demand import demand
from kube_accel.placement.rank import LAST, Rank, left_of, left_with, points, rank
from kube_accel.shared.quantity import human_bytes

DETAILED = 5
"""Nodes for which the refusal of a pod that fits nowhere names the GPU that came nearest. kube-scheduler puts every
different reason it is given into the pod's status, each time it tries."""

_NAMED = 3
"""Pods that a reason names."""
_REQUESTS = 64
"""Different requests for which every node's verdict is remembered."""
_KINDS = 10_000
"""Different nodes for which a request's verdict is remembered."""


@dataclass(frozen=True, slots=True)
class Short:
    """A node without room, whose exact reason was not asked for yet."""

    shortage: float
    """The less, the nearer it is to having room."""


Verdict = Rank | Short | Refusal
"""Where a node stands, or that it has no room."""


@dataclass(frozen=True, slots=True)
class Judged:
    """The verdicts about one request."""

    nodes: dict[str, Verdict] = field(default_factory=dict)
    """By node, until it changes. Write to it under that node's lock only."""
    kinds: dict[int, Verdict] = field(default_factory=dict)
    """By what a node is like: most nodes of a cluster are like some other."""


@dataclass(slots=True)
class Verdicts:
    """What was found for nodes and requests."""

    _found: dict[PodRequest, Judged] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def of(self, request: PodRequest) -> Judged:
        """Return the verdicts about one request."""
        found = self._found.get(request)
        if found is None:
            with self._lock:
                found = self._found.setdefault(request, Judged())
                while len(self._found) > _REQUESTS:
                    self._found.pop(next(iter(self._found)))
        return found

    def forget(self, name: str) -> None:
        """Forget the verdicts about a node that has changed. Hold that node's lock."""
        for judged in list(self._found.values()):
            judged.nodes.pop(name, None)


class Decider:
    """Answers from the cluster as it is known now. Never waits for anything but a node's lock."""

    def __init__(self, cluster: Cluster, verdicts: Verdicts) -> None:
        """``verdicts`` must hear of every change of the cluster's nodes."""
        self._cluster = cluster
        self._verdicts = verdicts

    def filter(self, pod: Pod, request: PodRequest, names: Sequence[str]) -> Filtered:
        """Return the nodes that have room, and why the others have none."""
        judged = self._verdicts.of(request)
        contested, kept_on = self._cluster.contested, self._cluster.kept_on(pod.uid)
        passed: list[str] = []
        answer = Filtered(passed)
        short: list[tuple[float, str]] = []
        for name in names:
            verdict = judged.nodes.get(name)
            if verdict is None:
                verdict = self._judge(name, request, judged)
            if name == kept_on and not isinstance(verdict, Refusal):
                # From a bind without an answer. The reservation is free to the pod itself, so this is looked at below.
                verdict = Short(-1)
            if type(verdict) is tuple:
                if name in contested and (refusal := self._explain(pod, request, name)) is not None:
                    answer.failed[name] = f"{name}: {refusal.reason}"
                    continue
                passed.append(name)
            elif isinstance(verdict, Short):
                short.append((verdict.shortage, name))
            elif isinstance(verdict, Refusal):
                (answer.failed if verdict.resolvable else answer.unresolvable)[name] = verdict.reason
        # kube-scheduler reads reasons where no node is left to the pod.
        asked = short if not passed else [entry for entry in short if entry[1] == kept_on]
        nearest = {name for _, name in heapq.nsmallest(DETAILED, asked)}
        general = f"no room for {describe(request)}" if short else ""
        for _, name in short:
            if name not in nearest:
                answer.failed[name] = general
                continue
            found = self._explain(pod, request, name)
            if found is None:
                passed.append(name)
            else:
                (answer.failed if found.resolvable else answer.unresolvable)[name] = f"{name}: {found.reason}"
        return answer

    def ranks(self, request: PodRequest, names: Iterable[str]) -> dict[str, Rank]:
        """Return where each node stands for the pod."""
        judged = self._verdicts.of(request)
        found = {}
        for name in names:
            verdict = judged.nodes.get(name)
            if verdict is None:
                verdict = self._judge(name, request, judged)
            found[name] = verdict if isinstance(verdict, tuple) else LAST
        return found

    def scores(self, request: PodRequest, names: Iterable[str]) -> dict[str, int]:
        """Return the points of each node among these, 0 to 10."""
        return points(self.ranks(request, names), request.policy)

    def left_to_kubelet(self, request: PodRequest, names: Iterable[str]) -> list[str]:
        """Return those nodes on which kubelet chooses for such a pod."""
        nodes = ((name, self._cluster.nodes.get(name)) for name in names)
        return [name for name, node in nodes if node and node.gpus and node.gpus.leaves(request)]

    def choose(
        self, pod: Pod, request: PodRequest, node: Node, excluded: Mapping[str, str] = MappingProxyType({})
    ) -> tuple[Assignment, NodeView] | Refusal:
        """Return the GPUs the pod gets on this node, and what was there to choose from. Hold the node's lock.

        No GPUs where kubelet chooses. ``excluded`` are models the pod may have nothing of, and why.
        """
        view = node.view_for(pod)
        refusal = _unfit(node, view, request)
        if refusal is not None or view is None:
            return refusal or Refusal(node.problem, False)
        if view.node.leaves(request):
            problem = next(iter(excluded.values()), "")
            return Refusal(problem, False) if problem else (Assignment(node.name, {}), view)
        gpus = [
            replace(gpu, excluded=excluded[gpu.gpu.model]) if gpu.gpu.model in excluded else gpu for gpu in view.gpus
        ]
        found = place(request, gpus, node.name, view.node.connectivity)
        if not isinstance(found, Refusal):
            return found, view
        reason = found.reason
        if rivals := _several(f"{rival.namespace}/{rival.name}" for rival in node.rivals(pod)):
            reason += f"; room is kept for {rivals}"
        if forgotten := _several(map("/".join, node.forgotten())):
            reason += (
                f"; {forgotten}, which the API server no longer has, still holds GPUs: end its containers on the node"
            )
        return replace(found, reason=reason)

    def preempt(self, pod: Pod, request: PodRequest, victims: Mapping[str, Victims]) -> dict[str, Victims]:
        """Return the nodes where evicting pods helps, with the pods to evict.

        kube-scheduler chooses victims by sums over a node's GPUs. Where these leave no room on a GPU, pods of lower
        priority are added. Pods without whose end the pod fits are spared, the highest priority first.
        """
        found = {}
        for name, given in victims.items():
            node = self._cluster.nodes.get(name)
            if node is None:
                continue
            with node.lock:
                uids = _enough_victims(node, pod, request, given.uids)
            if uids is not None:
                found[name] = Victims(uids, min(given.pdb_violations, len(uids)))
        return found

    def _judge(self, name: str, request: PodRequest, judged: Judged) -> Verdict:
        node = self._cluster.nodes.get(name)
        if node is None:
            return Refusal(_UNKNOWN, False)
        with node.lock:
            view = node.view()
            refusal = _unfit(node, view, request)
            if refusal is not None or view is None:
                verdict: Verdict = refusal or Refusal(node.problem, False)
            elif view.node.leaves(request):
                verdict = LAST
            else:
                verdict = _verdict(view, request, judged.kinds)
            if self._cluster.nodes.get(name) is node:
                judged.nodes[name] = verdict
        return verdict

    def _explain(self, pod: Pod, request: PodRequest, name: str) -> Refusal | None:
        """Return why exactly a node has no room for the pod; None when it has."""
        node = self._cluster.nodes.get(name)
        if node is None:
            return Refusal(_UNKNOWN, False)
        with node.lock:
            found = self.choose(pod, request, node)
        return found if isinstance(found, Refusal) else None


def _several(names: Iterable[str]) -> str:
    """Return the first of these names, and how many there are more."""
    found = sorted(names)
    more = f" and {len(found) - _NAMED} more" if len(found) > _NAMED else ""
    return ", ".join(found[:_NAMED]) + more


_UNKNOWN = "its plugin has not reported GPUs"


def describe(request: PodRequest) -> str:
    """Describe what a pod asks for: ``30 % and 8 GiB of a GPU``, ``2 whole GPUs``."""
    parts = []
    for container in request.containers:
        if container.whole:
            parts.append(f"{container.whole} whole GPU{'s' if container.whole > 1 else ''}")
        else:
            cores = "" if request.mode is Mode.CGPU else f"{container.cores} % and "
            parts.append(f"{cores}{human_bytes(container.memory_bytes)} of a GPU")
    return " + ".join(parts)


def _unfit(node: Node, view: NodeView | None, request: PodRequest) -> Refusal | None:
    """Return why this node is none for the pod, whatever room it has."""
    if view is None:
        return Refusal(node.problem, False)
    if view.node.mode is not request.mode:
        return Refusal(f"serves {view.node.mode.value}, not {request.mode.value}", False)
    if view.node.leaves(request) and (reason := unwanted(request, view.gpus)):
        return Refusal(f"none of its GPUs is wanted: {reason}", False)
    return None


def _verdict(view: NodeView, request: PodRequest, kinds: dict[int, Verdict]) -> Verdict:
    """Return the verdict about a fit node, from what was found for others like it if that settles it."""
    if request.constraints.uuids_in or request.constraints.uuids_out:
        return _examined(view, request)
    verdict = kinds.get(view.kind)
    if verdict is None:
        if len(kinds) >= _KINDS:
            kinds.clear()
        verdict = kinds[view.kind] = _examined(view, request)
    return verdict


def _examined(view: NodeView, request: PodRequest) -> Rank | Short:
    fits = view.room.fits(request)
    if fits is None or (fits and _wants_connected(request)):
        found = place(request, view.gpus, "", view.node.connectivity)
        if not isinstance(found, Refusal):
            left = left_with(request, found, view.gpus)
            return rank(request, view.room, left, _closeness(view, request, found))
        if not found.resolvable:
            return Short(float("inf"))
        fits = False
    if not fits:
        return Short(_shortage(view, request))
    (container,) = request.containers
    return rank(request, view.room, left_of(container, view.room, request.mode))


def _wants_connected(request: PodRequest) -> bool:
    return any(container.whole > 1 for container in request.containers)


def _closeness(view: NodeView, request: PodRequest, found: Assignment) -> float | None:
    """Return how well connected the GPUs are that containers get together; None where none gets several."""
    several = [found.containers[container.name] for container in request.containers if container.whole > 1]
    if not several:
        return None
    return min(view.node.connectivity.closeness([share.uuid for share in shares]) for shares in several)


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


def _enough_victims(node: Node, pod: Pod, request: PodRequest, told: Sequence[str]) -> tuple[str, ...] | None:
    """Return the pods to evict, the most important first; None where evicting does not help."""
    rivals = node.rivals(pod)
    static = {uid for uid, other in node.pods.items() if other.static}
    given = [uid for uid in told if uid not in static]

    def fits(uids: Collection[str]) -> bool:
        view = node.view_without({*uids, pod.uid}, rivals)
        if _unfit(node, view, request) is not None or view is None:
            return False
        if view.node.leaves(request):
            # kube-scheduler's sums are all there is to it.
            return True
        return not isinstance(place(request, view.gpus, node.name, view.node.connectivity), Refusal)

    if fits(()):
        # They go for what kube-scheduler alone knows. An answer without victims ends all preemption, unless it has
        # asked without any for us to add some.
        return tuple(given) if given or not told else None
    others = sorted(
        (
            other
            for uid, other in node.pods.items()
            if other.priority < pod.priority and uid not in given and uid not in static
        ),
        key=lambda other: (-other.priority, other.uid),
    )
    added = [other.uid for other in others]
    if fits(given):
        added = []
    elif not fits([*given, *added]):
        return None
    # What kube-scheduler would spare is spared first: disruption budgets may be why.
    return _needed(node, _by_priority(node, given), added, fits)


def _needed(
    node: Node, given: Sequence[str], added: Sequence[str], fits: Callable[[Collection[str]], bool]
) -> tuple[str, ...]:
    """Return the pods without any one of which the others would not do; ``pods`` are spared in their order.

    Of what we know nothing of, processors say, they free no less than those that kube-scheduler has given.
    """
    least = _freed(node, given)
    found = [*added, *given]
    spared = True
    while spared:
        spared = False
        for uid in list(found):
            rest = [other for other in found if other != uid]
            if uid in node.pods and least <= _freed(node, rest) and fits(rest):
                found, spared = rest, True
    return tuple(_by_priority(node, [*(uid for uid in given if uid in found), *(uid for uid in added if uid in found)]))


def _freed(node: Node, uids: Iterable[str]) -> Counter[str]:
    """Return what pods that we know request besides GPUs."""
    found = Counter[str]()
    for uid in uids:
        if uid in node.pods:
            found.update(dict(node.pods[uid].besides))
    return found


def _by_priority(node: Node, uids: Iterable[str]) -> list[str]:
    """Return the pods by priority, highest first. Unknown ones stay where kube-scheduler has them."""
    found, last = [], float("inf")
    for uid in uids:
        last = node.pods[uid].priority if uid in node.pods else last
        found.append((last, uid))
    return [uid for _, uid in sorted(found, key=lambda entry: -entry[0])]
