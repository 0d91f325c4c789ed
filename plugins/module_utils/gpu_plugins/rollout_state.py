# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How the nodes and pods of a cluster are, and what is worse than it was before a rollout. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Collection, Iterable, Iterator, List, Mapping, Optional, Sequence

from ..cluster.annotations import node_told
from ..shared.printable import line
from ..shared.registers import labels_of, mapping, mappings, metadata_of


@dataclass(frozen=True)
class NodeState:
    """What a node's plugin reports about its GPUs."""

    healthy: Optional[int]
    """Number of healthy GPUs; None where that cannot be read."""
    bad: str
    """Why the node says ``GpusHealthy=False``; empty if it does not."""


@dataclass(frozen=True)
class PodState:
    """How a pod that has a node is."""

    name: str
    """Namespace and name."""
    holds: bool
    """Whether it holds GPUs."""
    well: bool
    """Whether it runs, is being deleted, or has come to its end."""
    ours: bool
    restarts: int


@dataclass(frozen=True)
class State:
    """How a cluster is."""

    nodes: Mapping[str, NodeState]
    pods: Mapping[str, PodState]
    """By uid."""
    problems: Sequence[str] = ()
    """Annotations of nodes that cannot be read."""
    harm: Sequence[str] = ()
    """What is worse than before, a sentence each."""


def cluster_state(
    nodes: Iterable[Mapping[str, Any]], pods: Iterable[Mapping[str, Any]], holders: Collection[str]
) -> State:
    """Return how nodes and pods are; ``holders`` are namespace and name of pods that hold GPUs."""
    nodes = list(nodes)
    problems = [problem for node in nodes for problem in node_told(node).problems]
    return State(
        {metadata_of(node)["name"]: _node(node) for node in nodes},
        {metadata_of(pod)["uid"]: _pod(pod, holders) for pod in pods if mapping(pod.get("spec")).get("nodeName")},
        problems,
    )


def read_state(value: object) -> State:
    """Return a state that was kept as plain values, and an empty one of nothing."""
    kept = mapping(value)
    return State(
        {name: NodeState(node["healthy"], node["bad"]) for name, node in mapping(kept.get("nodes")).items()},
        {
            uid: PodState(pod["name"], pod["holds"], pod["well"], pod["ours"], pod["restarts"])
            for uid, pod in mapping(kept.get("pods")).items()
        },
    )


def harm(before: State, now: State, lost: int) -> List[str]:
    """Return what is worse than before; as many pods with GPUs as ``lost`` may have failed."""
    return [*_harm_to_nodes(before, now), *_harm_to_pods(before, now, lost)]


def _node(node: Mapping[str, Any]) -> NodeState:
    conditions = {item.get("type"): item for item in mappings(mapping(node.get("status")).get("conditions"))}
    health = conditions.get("GpusHealthy", {})
    bad = str(health.get("message") or "no reason given") if health.get("status") == "False" else ""
    return NodeState(node_told(node).healthy, line(" ".join(bad.split())))


def _pod(pod: Mapping[str, Any], holders: Collection[str]) -> PodState:
    head, status = metadata_of(pod), mapping(pod.get("status"))
    containers = mappings(status.get("containerStatuses"))
    waits = any(mapping(item.get("state")).get("waiting") for item in containers)
    phase, name = status.get("phase"), f"{head.get('namespace')}/{head.get('name')}"
    return PodState(
        name=name,
        holds=name in holders,
        well="deletionTimestamp" in head or phase == "Succeeded" or (phase == "Running" and not waits),
        ours=labels_of(pod).get("app.kubernetes.io/managed-by") == "accel.kubernetes",
        restarts=sum(int(item.get("restartCount", 0)) for item in containers),
    )


def _harm_to_nodes(before: State, now: State) -> Iterator[str]:
    for name, was in before.nodes.items():
        node = now.nodes.get(name)
        if node is None:
            continue
        if was.healthy is not None and node.healthy is not None and node.healthy < was.healthy:
            yield f"Node {name} reports {node.healthy} healthy GPUs, {was.healthy} before."
        if node.bad and not was.bad:
            yield f"Node {name} has the condition GpusHealthy=False: {node.bad}"


def _harm_to_pods(before: State, now: State, lost: int) -> Iterator[str]:
    failed = [
        was.name
        for uid, was in before.pods.items()
        if was.holds and was.well and uid in now.pods and not now.pods[uid].well
    ]
    if len(failed) > lost:
        yield f"Pods with GPUs that no longer run: {', '.join(failed)}."
    for uid, pod in now.pods.items():
        if pod.ours and pod.restarts > (before.pods[uid].restarts if uid in before.pods else 0):
            yield f"Pod {pod.name} restarted."
