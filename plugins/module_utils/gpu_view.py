# Apache License 2.0 (see https://www.apache.org/licenses/LICENSE-2.0)
# SPDX-License-Identifier: Apache-2.0
"""Who has what of a cluster's GPUs, and who waits for some: from nodes, pods, and what plugins measure. Pure.

What a node holds is what its plugin says in the annotation ``kube-accel.io/inventory``, which follows kubelet. What
could not be read is a problem of the view, and never a zero.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from typing import Any, Callable, Dict, Iterable, Iterator, List, Mapping, Optional, Sequence, Tuple, Type

INVENTORY = "kube-accel.io/inventory"
ASSIGNMENT = "kube-accel.io/assignment"
MODE_LABEL = "nvidia-device-enable"
CGPU_LABEL = "cgpu"
_VERSION = 1
WHOLE = 100
"""Cores of one GPU."""

NAMESPACE = "kube-system"
"""Where plugins run unless somebody says otherwise."""

_LISTEN = re.compile(r"--listen=.*:([0-9]+)")
RESOURCE = re.compile(r"(?:tencent\.com/vcuda-(?:core|memory)|aliyun\.com/gpu-mem|nvidia\.com/.+)\Z")
"""Names of what pods ask for."""
PAGE_BYTES = 8 << 20
"""Of a plugin's ``/metrics``: more than a full node says."""
ENDED = ("Succeeded", "Failed")
"""Phases of a pod that holds nothing any more."""
_SERIES = re.compile(r'(accel_[a-z_]+)(?:\{((?:[a-z_]+="(?:[^"\\]|\\.)*",?)*)\})? (\S+)\Z')
_LABEL = re.compile(r'([a-z_]+)="((?:[^"\\]|\\.)*)"')

_UNSEEN = re.compile(r"[^ -~]+")
_LONGEST_WHY = 200
_Pods = Mapping[Tuple[str, str], Mapping[str, Any]]
"""By namespace and name."""

Place = Tuple[str, str, str, str]
"""UUID, namespace, pod, container."""


@dataclass(frozen=True)
class Sample:
    """A line of a plugin's ``/metrics``."""

    name: str
    labels: Mapping[str, str]
    value: float

    @property
    def place(self) -> Place:
        """Whose it is. Raises KeyError where it is no container's."""
        return self.labels["uuid"], self.labels["namespace"], self.labels["pod"], self.labels["container"]


@dataclass(frozen=True)
class Tenant:
    """What a container has of a GPU."""

    namespace: str
    pod: str
    container: str
    cores: int
    memory_bytes: int
    used_bytes: Optional[int] = None
    """None where nothing tells."""
    why: str = ""
    """Why it has this GPU, as its pod tells; empty where nothing tells."""


@dataclass(frozen=True)
class GpuView:
    """A GPU and who has some of it."""

    uuid: str
    index: int
    model: str
    memory_bytes: int
    health: str
    """``healthy``, ``unhealthy`` or ``unknown``."""
    reason: str
    tenants: Tuple[Tenant, ...]

    @property
    def allocated_bytes(self) -> int:
        """Never more than there is: pods that share all of a GPU by time have all of it each."""
        return min(self.memory_bytes, sum(tenant.memory_bytes for tenant in self.tenants))

    @property
    def allocated_cores(self) -> int:
        """Percent of the GPU."""
        return min(WHOLE, sum(tenant.cores for tenant in self.tenants))

    @property
    def used_bytes(self) -> Optional[int]:
        """Of all tenants; None unless all are known."""
        used = [tenant.used_bytes for tenant in self.tenants]
        known = [amount for amount in used if amount is not None]
        return sum(known) if len(known) == len(used) else None


@dataclass(frozen=True)
class NodeView:
    """A node with GPUs."""

    name: str
    address: str
    mode: str
    gpus: Tuple[GpuView, ...]
    problem: str = ""
    """Why this is not, or not all of, what the node has."""


@dataclass(frozen=True)
class Waiting:
    """A pod that asks for GPUs and has none yet."""

    namespace: str
    pod: str
    node: str
    """Empty while no scheduler has chosen one."""
    wants: Mapping[str, str]
    """Amount by resource, over all its containers."""
    reason: str


@dataclass(frozen=True)
class ClusterView:
    """All of it; nodes and pods by name."""

    nodes: Tuple[NodeView, ...]
    waiting: Tuple[Waiting, ...]
    problems: Tuple[str, ...]
    """What is not known, one sentence each; then totals count what is."""


def view(
    nodes: Iterable[Mapping[str, Any]],
    pods: Iterable[Mapping[str, Any]],
    used: Optional[Mapping[Place, int]] = None,
    problems: Sequence[str] = (),
) -> ClusterView:
    """The cluster by its objects. ``used`` are bytes, as ``read_used`` finds them; ``problems`` of finding them out."""
    pods = list(pods)
    told = {(pod["metadata"]["namespace"], pod["metadata"]["name"]): pod for pod in pods}
    seen = [found for found in (_node(item, used or {}, told) for item in nodes) if found is not None]
    seen.sort(key=lambda node: node.name)
    holding = {(t.namespace, t.pod, node.name) for node in seen for gpu in node.gpus for t in gpu.tenants}
    waiting = [found for found in (_waiting(item, holding) for item in pods) if found is not None]
    waiting.sort(key=lambda pod: (pod.namespace, pod.pod))
    unclear = [f"node {node.name}: {node.problem}" for node in seen if node.problem]
    return ClusterView(tuple(seen), tuple(waiting), (*unclear, *problems))


def narrowed(found: ClusterView, mode: str = "", names: Sequence[str] = ()) -> ClusterView:
    """The nodes of one mode, or of these names, and what waits for them or for any."""
    nodes = [node for node in found.nodes if (not mode or node.mode == mode) and (not names or node.name in names)]
    kept = {node.name for node in nodes}
    left = {node.name for node in found.nodes} - kept
    return ClusterView(
        tuple(nodes),
        tuple(pod for pod in found.waiting if not pod.node or pod.node in kept),
        tuple(text for text in found.problems if not any(text.startswith(f"node {name}:") for name in left)),
    )


def metrics_paths(pods: Iterable[Mapping[str, Any]], namespace: str = NAMESPACE) -> Dict[str, str]:
    """By node, where the API server passes on what the node's plugin measures.

    Pods of other namespaces do not count, whatever they call themselves.
    """
    found = {}
    for pod in pods:
        metadata, spec = pod["metadata"], pod.get("spec") or {}
        if metadata["namespace"] != namespace or not spec.get("nodeName") or metadata.get("deletionTimestamp"):
            continue
        for container in spec.get("containers") or ():
            command = container.get("command") or []
            ports = [match.group(1) for match in map(_LISTEN.match, command) if match is not None]
            if command[:2] == ["kube-accel", "plugin"] and ports:
                pod_path = f"/api/v1/namespaces/{namespace}/pods/{metadata['name']}:{ports[0]}"
                found[spec["nodeName"]] = f"{pod_path}/proxy/metrics"
    return found


def read_used(text: str) -> Dict[Place, int]:
    """Bytes in use by container, from what a plugin says on ``/metrics``."""
    found = {}
    for sample in read_samples(text):
        if sample.name == "accel_container_gpu_memory_used_bytes":
            try:
                found[sample.place] = int(sample.value)
            except (KeyError, ValueError, OverflowError):
                continue
    return found


def read_pages(pages: Mapping[str, Callable[[], str]], failure: Type[Exception]) -> Tuple[Dict[Place, int], List[str]]:
    """Bytes in use by container, from plugins' pages by node, and whose page was not had, and why.

    A page is had by calling for it; ``failure`` is what that raises.
    """
    used, problems = {}, []
    for name, page in pages.items():
        try:
            used.update(read_used(page()))
        except failure as error:
            problems.append(f"node {name}: what is used: {error}")
    return used, problems


def absent(found: ClusterView, names: Iterable[str]) -> List[str]:
    """Those of the names that no node with GPUs has."""
    return sorted(set(names) - {node.name for node in found.nodes})


def read_samples(text: str) -> Iterator[Sample]:
    """Everything a plugin says on ``/metrics`` that is a number."""
    for name, labels, value in read_series(text):
        try:
            yield Sample(name, labels, float(value))
        except ValueError:
            continue


def read_series(text: str) -> Iterator[Tuple[str, Dict[str, str], str]]:
    """Name, labels and value as it is written, of all of ours in a page of Prometheus' text format."""
    for line in text.splitlines():
        match = _SERIES.match(line)
        if match is not None:
            labels = {name: _unescaped(value) for name, value in _LABEL.findall(match.group(2) or "")}
            yield match.group(1), labels, match.group(3)


def document(found: ClusterView) -> Dict[str, Any]:
    """The view as JSON has it; sizes in bytes, cores in percent of a GPU, null for what is not known."""
    return {
        "version": _VERSION,
        "nodes": [
            {
                "name": node.name,
                "address": node.address,
                "mode": node.mode,
                "problem": node.problem,
                "gpus": [_gpu_document(gpu) for gpu in node.gpus],
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
    """Sums over the GPUs of these nodes, unlike ones too."""
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


def _node(item: Mapping[str, Any], used: Mapping[Place, int], pods: _Pods) -> Optional[NodeView]:
    """The node of an object; None for one that neither has our GPUs nor is to have some."""
    metadata = item["metadata"]
    labels = metadata.get("labels") or {}
    text = (metadata.get("annotations") or {}).get(INVENTORY)
    wanted = labels.get(MODE_LABEL, "cgpu" if labels.get(CGPU_LABEL) == "true" else "")
    if text is None and not wanted:
        return None
    addresses = {entry["type"]: entry["address"] for entry in (item.get("status") or {}).get("addresses") or ()}
    node = NodeView(metadata["name"], addresses.get("InternalIP", ""), wanted, ())
    if text is None:
        problem = f"its plugin for mode {wanted} has reported nothing; look at its pod in kube-system"
        return replace(node, problem=problem)
    try:
        said = json.loads(text)
        if said["version"] != _VERSION:
            raise ValueError(f"version {said['version']!r}")
        mode = str(said.get("mode"))
        gpus = tuple(sorted((_gpu(entry, used, pods, mode) for entry in said["gpus"]), key=lambda gpu: gpu.index))
        silent = any("held" not in entry for entry in said["gpus"])
        problem = "kubelet has not told who holds what" if silent else _readiness(item)
        return replace(node, mode=str(said["mode"]), gpus=gpus, problem=problem)
    except (ValueError, LookupError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        problem = f"annotation {INVENTORY} is not what this version reads: {error!r}; is its plugin newer?"
        return replace(node, problem=problem)


def _readiness(item: Mapping[str, Any]) -> str:
    conditions = {entry["type"]: entry for entry in (item.get("status") or {}).get("conditions") or ()}
    ready = conditions.get("Ready")
    if ready is None or ready["status"] == "True":
        return ""
    return f"it is not ready, and this was last heard: {ready.get('message') or ready.get('reason')}"


def _gpu(entry: Mapping[str, Any], used: Mapping[Place, int], pods: _Pods, mode: str) -> GpuView:
    uuid, memory = str(entry["uuid"]), int(entry["memoryBytes"])
    tenants = []
    for holding in entry.get("held") or ():
        names = (str(holding["namespace"]), str(holding["pod"]), str(holding["container"]))
        whole = "cores" not in holding
        amounts = (WHOLE, memory) if whole else (int(holding["cores"]), int(holding["memoryBytes"]))
        why = _why(pods.get(names[:2]), names[2], uuid, mode)
        tenants.append(Tenant(*names, *amounts, used_bytes=used.get((uuid, *names)), why=why))
    return GpuView(
        uuid,
        int(entry["index"]),
        str(entry["model"]),
        memory,
        str(entry["health"]),
        str(entry.get("reason") or ""),
        tuple(tenants),
    )


def _why(pod: Optional[Mapping[str, Any]], container: str, uuid: str, mode: str) -> str:
    """What the extender wrote into the pod, whose owner may have written over it, or that it did not choose."""
    if pod is None:
        return ""
    text = (pod["metadata"].get("annotations") or {}).get(ASSIGNMENT)
    if text is None:
        return "chosen on the node: no extender assigned it" if mode != "pgpu" else ""
    try:
        said = json.loads(text)
        assigned = {share["uuid"] for share in said["containers"][container]}
        reason = said.get("why", {}).get(container, "")
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return "its pod's assignment cannot be read"
    if uuid not in assigned:
        return "chosen on the node, instead of the one that the extender assigned"
    return _UNSEEN.sub(" ", reason)[:_LONGEST_WHY] if isinstance(reason, str) else ""


def _waiting(item: Mapping[str, Any], holding: Iterable[Tuple[str, str, str]]) -> Optional[Waiting]:
    metadata, spec, status = item["metadata"], item.get("spec") or {}, item.get("status") or {}
    wants = _wants(spec)
    node = str(spec.get("nodeName") or "")
    if not wants or status.get("phase") in ENDED or (metadata["namespace"], metadata["name"], node) in holding:
        return None
    reason = _not_started(status) if node else _not_scheduled(status)
    return Waiting(metadata["namespace"], metadata["name"], node, wants, reason)


def _wants(spec: Mapping[str, Any]) -> Dict[str, str]:
    """Amounts as the containers name them, several joined by ``+``."""
    found: Dict[str, List[str]] = {}
    for container in [*(spec.get("initContainers") or ()), *(spec.get("containers") or ())]:
        for name, amount in ((container.get("resources") or {}).get("limits") or {}).items():
            if RESOURCE.match(name):
                found.setdefault(name, []).append(str(amount))
    return {name: "+".join(amounts) for name, amounts in sorted(found.items())}


def _not_scheduled(status: Mapping[str, Any]) -> str:
    for condition in status.get("conditions") or ():
        if condition["type"] == "PodScheduled" and condition["status"] != "True":
            return str(condition.get("message") or condition.get("reason") or "not scheduled")
    return "no scheduler has tried it"


def _not_started(status: Mapping[str, Any]) -> str:
    return next(_hurdles(status), "scheduled, and kubelet has not allocated its GPUs yet")


def _hurdles(status: Mapping[str, Any]) -> Iterator[str]:
    for entry in [*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())]:
        state = (entry.get("state") or {}).get("waiting") or {}
        if state.get("reason") not in (None, "PodInitializing", "ContainerCreating"):
            message = state.get("message")
            yield f"container {entry['name']}: {state['reason']}" + (f": {message}" if message else "")


def _unescaped(value: str) -> str:
    return re.sub(r"\\(.)", lambda match: "\n" if match.group(1) == "n" else match.group(1), value)
