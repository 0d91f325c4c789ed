# Apache License 2.0 (see https://www.apache.org/licenses/LICENSE-2.0)
# SPDX-License-Identifier: Apache-2.0
"""Who has what of a cluster's GPUs, and who waits for some: from nodes, pods, and what plugins measure. Pure.

What a node holds is what its plugin says in the annotation ``kube-accel.io/inventory``, which follows kubelet. Of nodes
of mode dra it is what slices and claims say. What could not be read is a problem of the view, and never a zero.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Dict, Iterable, List, Mapping, Optional, Sequence, Tuple

from .api_json import ODD, of_each
from .api_json import unreadable as odd
from .claim_view import ClaimedGpus, ClaimObjects
from .inventory_annotation import INVENTORY, WHOLE, GpuView, UnreadableView, read_inventory, unreadable
from .modes import CGPU_LABEL, DRA_MODE, MODE_LABEL
from .plugin_metrics import Place
from .plugin_pods import NAMESPACE, PluginPods, condition, node_name_of, readable_pod
from .waiting_pods import Waiting, waiting_pod

VERSION = 1
"""The version of the view as JSON has it."""


@dataclass(frozen=True)
class NodeView:
    """A node with GPUs."""

    name: str
    address: str
    mode: str
    gpus: Tuple[GpuView, ...]
    problem: str = ""
    """Why this is not, or not all of, what the node has."""
    told: bool = True
    """Whether it is known who holds what, as far as the problem lets it."""
    unreadable: Tuple[UnreadableView, ...] = ()
    """GPUs of it that are not among the others."""


@dataclass(frozen=True)
class ClusterView:
    """All of it; nodes and pods by name."""

    nodes: Tuple[NodeView, ...]
    waiting: Tuple[Waiting, ...]
    problems: Tuple[str, ...]
    """What is not known, one sentence each; then totals count what is."""


def view(
    nodes: Iterable[Mapping[str, Any]],
    pods: Optional[Iterable[Mapping[str, Any]]],
    used: Optional[Mapping[Place, int]] = None,
    problems: Sequence[str] = (),
    namespace: str = NAMESPACE,
    objects: Optional[ClaimObjects] = None,
) -> ClusterView:
    """Return the cluster by its objects; ``pods`` is None where they were not read, ``namespace`` where plugins run.

    ``objects`` are of GPUs that are given by claims; None where they were not read.

    ``used`` are bytes, as ``read_used`` finds them; ``problems`` of finding them out. An object that cannot be read is
    a problem, and the others are seen.
    """
    unread: List[str] = []
    items = None if pods is None else list(of_each("pod", readable_pod, pods, unread))
    told = PluginPods(items, namespace)
    claimed = None if objects is None else ClaimedGpus(objects, told.get, used or {}, unread)
    found_nodes = of_each("node", lambda item: _node(item, used or {}, told, claimed), nodes, unread)
    seen = [found for found in found_nodes if found is not None]
    seen.sort(key=lambda node: node.name)
    holding = {(t.namespace, t.pod, node.name) for node in seen for gpu in node.gpus for t in gpu.tenants}
    untold = {node.name for node in seen if not node.told}
    sure = {node.name for node in seen if not node.problem} if told.judged else set()
    asking = [item for item in items or () if node_name_of(item) not in untold]

    def waits(item: Mapping[str, Any]) -> Optional[Waiting]:
        return waiting_pod(item, holding, sure, _claimed(item, claimed))

    waiting = [found for found in of_each("pod", waits, asking, unread) if found is not None]
    waiting.sort(key=lambda pod: (pod.namespace, pod.pod))
    unclear = [f"node {node.name}: {node.problem}" for node in seen if node.problem]
    doubts = [told.doubt] if told.doubt and any(node.gpus for node in seen) else []
    return ClusterView(tuple(seen), tuple(waiting), (*unclear, *unread, *doubts, *problems))


def narrowed(found: ClusterView, mode: str = "", names: Sequence[str] = ()) -> ClusterView:
    """Return the nodes of one mode, or of these names, and what waits for them or for any."""
    nodes = [node for node in found.nodes if (not mode or node.mode == mode) and (not names or node.name in names)]
    kept = {node.name for node in nodes}
    left = {node.name for node in found.nodes} - kept
    return ClusterView(
        tuple(nodes),
        tuple(pod for pod in found.waiting if not pod.node or pod.node in kept),
        tuple(text for text in found.problems if not any(text.startswith(f"node {name}:") for name in left)),
    )


def of_node(found: ClusterView, name: str) -> ClusterView:
    """Return the node of this name, and what waits on it, not what waits for any."""
    alone = narrowed(found, names=[name])
    return replace(alone, waiting=tuple(pod for pod in alone.waiting if pod.node))


def not_ready(nodes: Iterable[Mapping[str, Any]]) -> Dict[str, str]:
    """Return the last known state of each node that is not ready and whose plugin is not worth waiting for."""
    found = of_each("node", lambda item: (_name(item), _readiness(item)), nodes, [])
    return {name: text for name, text in found if text}


def is_silent(item: Mapping[str, Any]) -> bool:
    """Return whether the node's kubelet has stopped reporting, which is less than not being ready."""
    try:
        return condition(item, "Ready").get("status") == "Unknown"
    except ODD:
        return False


def absent(found: ClusterView, names: Iterable[str]) -> List[str]:
    """Return those names that no node with GPUs has."""
    return sorted(set(names) - {node.name for node in found.nodes})


def document(found: ClusterView) -> Dict[str, Any]:
    """Return the view as JSON has it; sizes in bytes, cores in percent of a GPU, null for what is not known."""
    return {
        "version": VERSION,
        "nodes": [
            {
                "name": node.name,
                "address": node.address,
                "mode": node.mode,
                "problem": node.problem,
                "gpus": [_gpu_document(gpu) for gpu in node.gpus],
                "unreadable": [{"index": gpu.index, "uuid": gpu.uuid, "reason": gpu.reason} for gpu in node.unreadable],
                "totals": totals([node]),
            }
            for node in found.nodes
        ],
        "waiting": [
            {
                "namespace": pod.namespace,
                "pod": pod.pod,
                "node": pod.node,
                "wants": dict(pod.wants),
                "reason": pod.reason,
            }
            for pod in found.waiting
        ],
        "totals": totals(found.nodes),
        "problems": list(found.problems),
    }


def totals(nodes: Iterable[NodeView]) -> Dict[str, int]:
    """Return sums over the GPUs of these nodes, unlike ones too."""
    gpus = [gpu for node in nodes for gpu in node.gpus]
    return {
        "gpus": len(gpus),
        "healthy": sum(gpu.health == "healthy" for gpu in gpus),
        "cores": WHOLE * len(gpus),
        "allocated_cores": sum(gpu.allocated_cores for gpu in gpus),
        "memory_bytes": sum(gpu.memory_bytes for gpu in gpus),
        "allocated_bytes": sum(gpu.allocated_bytes for gpu in gpus),
    }


def _gpu_document(gpu: GpuView) -> Dict[str, Any]:
    return {
        "index": gpu.index,
        "uuid": gpu.uuid,
        "model": gpu.model,
        "health": gpu.health,
        "reason": gpu.reason,
        "faults": list(gpu.faults),
        "memory_bytes": gpu.memory_bytes,
        "allocated_bytes": gpu.allocated_bytes,
        "allocated_cores": gpu.allocated_cores,
        "used_bytes": gpu.used_bytes,
        "containers": [
            {
                "namespace": tenant.namespace,
                "pod": tenant.pod,
                "container": tenant.container,
                "cores": tenant.cores,
                "memory_bytes": tenant.memory_bytes,
                "used_bytes": tenant.used_bytes,
                "why": tenant.why,
            }
            for tenant in gpu.tenants
        ],
    }


def _name(item: Mapping[str, Any]) -> str:
    name = item["metadata"]["name"]
    if not isinstance(name, str):
        raise TypeError("its name is no text")
    return name


def _claimed(item: Mapping[str, Any], claimed: Optional[ClaimedGpus]) -> Mapping[str, str]:
    """Return what a pod without a node asks for by claims. Raises one of ODD."""
    return claimed.wants(item) if claimed is not None and not node_name_of(item) else {}


def _node(
    item: Mapping[str, Any], used: Mapping[Place, int], pods: PluginPods, claimed: Optional[ClaimedGpus]
) -> Optional[NodeView]:
    """Return the node of an object; None for one that neither has our GPUs nor is to have some. Raises one of ODD."""
    metadata = item["metadata"]
    name = _name(item)
    labels = metadata.get("labels") or {}
    text = (metadata.get("annotations") or {}).get(INVENTORY)
    wanted = labels.get(MODE_LABEL, "cgpu" if labels.get(CGPU_LABEL) == "true" else "")
    if text is None and not wanted:
        return None
    node = NodeView(name, "", wanted, (), told=False)
    try:
        node, unready = replace(node, address=_address(item)), _readiness(item)
    except ODD as error:
        return replace(node, problem=f"it {odd(error)}")
    if wanted == DRA_MODE:
        if claimed is None:
            return replace(node, problem="its GPUs are given by claims, and these were not read")
        gpus, lack = claimed.of_node(name)
        return replace(node, gpus=gpus, problem=unready or lack or pods.plugin_problem(name), told=bool(gpus))
    if text is None:
        problem = f"its plugin for mode {wanted} has reported nothing; look at its pod in kube-system"
        return replace(node, problem=problem)
    try:
        said = read_inventory(text, used, pods.get)
    except ValueError as error:
        return replace(node, problem=unreadable(node.name, INVENTORY, error))
    problem = unready or pods.plugin_problem(node.name)
    if not said.told:
        problem = problem or "kubelet has not told who holds what"
    return replace(node, mode=said.mode, gpus=said.gpus, problem=problem, told=said.told, unreadable=said.unreadable)


def _address(item: Mapping[str, Any]) -> str:
    """Return the node's own address; empty without one."""
    addresses = (item.get("status") or {}).get("addresses") or ()
    return str({entry["type"]: entry["address"] for entry in addresses}.get("InternalIP", ""))


def _readiness(item: Mapping[str, Any]) -> str:
    ready = condition(item, "Ready")
    if not ready or ready["status"] == "True":
        return ""
    return f"it is not ready, and this was last heard: {ready.get('message') or ready.get('reason')}"
