# Apache License 2.0 (see https://www.apache.org/licenses/LICENSE-2.0)
# SPDX-License-Identifier: Apache-2.0
"""Who has what of a cluster's GPUs, and who waits for some: from nodes, pods, and what plugins measure. Pure.

What a node holds is what its plugin says in the annotation ``kube-accel.io/inventory``, which follows kubelet. What
could not be read is a problem of the view, and never a zero.
"""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Callable, Dict, Iterable, Iterator, List, Mapping, Optional, Sequence, Tuple, Type, TypeVar

from .api_json import ODD, of_each
from .api_json import unreadable as odd
from .asked import asked
from .modes import CORES
from .printable import line
from .reading import read_document, read_number, read_object, read_objects, read_text

INVENTORY = "kube-accel.io/inventory"
ASSIGNMENT = "kube-accel.io/assignment"
MODE_LABEL = "nvidia-device-enable"
CGPU_LABEL = "cgpu"
_VERSION = 1
WHOLE = CORES
"""Cores of one GPU."""

NAMESPACE = "kube-system"
"""Where plugins run unless another place is given."""

_LISTEN = re.compile(r"--listen=.*:([0-9]+)")
RESOURCE = re.compile(r"(?:tencent\.com/vcuda-(?:core|memory)|aliyun\.com/gpu-mem|nvidia\.com/.+)\Z")
"""Names of what pods ask for."""
PAGE_BYTES = 8 << 20
"""The most bytes that are read of a plugin's ``/metrics``: more than a full node says."""
ENDED = ("Succeeded", "Failed")
"""Phases of a pod that holds nothing any more."""
_SERIES = re.compile(r'(accel_[a-z_]+)(?:\{((?:[a-z_]+="(?:[^"\\]|\\.)*",?)*)\})? (\S+)\Z')
_LABEL = re.compile(r'([a-z_]+)="((?:[^"\\]|\\.)*)"')

_LONGEST_WHY = 200
_MOST_TEXT = 256 << 10
"""Characters of an annotation: the API server accepts no more for all of an object."""
_MOST_GPUS = 64
_MOST_HOLDERS = 1024
_MOST_NUMBER = 2**63 - 1
_TOKEN = re.compile(r"[A-Za-z0-9_.:-]{1,64}")
_NAME = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?")
_WORDS = re.compile(r"[\s\S]{0,1024}")
_AT_ONCE = 8
"""Pods asked at a time."""

Answer = TypeVar("Answer")

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
    """None where it is not known."""
    why: str = ""
    """Why it has this GPU, as its pod says; empty where it is not known."""


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
    faults: Tuple[str, ...] = ()
    """What its driver does not report about it although it may be handed out: function, cause and remedy."""

    @property
    def allocated_bytes(self) -> int:
        """Never more than there is, whatever the plugin reports."""
        return min(self.memory_bytes, sum(tenant.memory_bytes for tenant in self.tenants))

    @property
    def allocated_cores(self) -> int:
        """Percent of the GPU."""
        return min(WHOLE, sum(tenant.cores for tenant in self.tenants))

    @property
    def used_bytes(self) -> Optional[int]:
        """Return what all tenants use together; None unless all are known."""
        used = [tenant.used_bytes for tenant in self.tenants]
        known = [amount for amount in used if amount is not None]
        return sum(known) if len(known) == len(used) else None


@dataclass(frozen=True)
class UnreadableView:
    """A GPU that the driver shows and does not describe: it is not handed out."""

    index: int
    uuid: str
    """Empty where it is not reported."""
    reason: str


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


class _Pods:
    """The pods that one is shown, and how the plugins among them are."""

    def __init__(self, items: Optional[Sequence[Mapping[str, Any]]], namespace: str) -> None:
        """``items`` is None where they were not read; ``namespace`` is where plugins run."""
        self._namespace = namespace
        self._named = {(pod["metadata"]["namespace"], pod["metadata"]["name"]): pod for pod in items or ()}
        everywhere = [pod for pod in items or () if _plugin_port(pod) is not None]
        plugins = [pod for pod in everywhere if pod["metadata"]["namespace"] == namespace]
        self._plugins: Dict[str, List[Mapping[str, Any]]] = {}
        for pod in plugins:
            self._plugins.setdefault(_place(pod), []).append(pod)
        self.doubt = ""
        """Why nothing can be said of any plugin; empty where something can."""
        if items is not None and not plugins and everywhere:
            others = ", ".join(sorted({pod["metadata"]["namespace"] for pod in everywhere}))
            self.doubt = f"no plugin is in namespace {namespace}, but in {others}; say where plugins run"
        # Some accounts are shown the pods of their own namespaces alone.
        elif items is not None and not any(place == namespace for place, _name in self._named):
            self.doubt = (
                f"no pod of namespace {namespace} is seen: whether plugins run, and what nodes told still holds, is "
                "not known; say where plugins run, and use an account that may list the pods of all namespaces"
            )
        self.judged = items is not None and not self.doubt
        """Whether it is known which plugins run."""

    def get(self, name: Tuple[str, str]) -> Optional[Mapping[str, Any]]:
        """Return a pod by namespace and name."""
        return self._named.get(name)

    def plugin_problem(self, node: str) -> str:
        """Return why the report of the node's plugin may be old; empty where it runs, or where that is not known."""
        mine = self._plugins.get(node, [])
        if not self.judged or any(map(_ready, mine)):
            return ""
        if not mine:
            return f"no plugin of it runs in {self._namespace}, and this was last told; look at the DaemonSets there"
        return (
            f"its plugin {self._namespace}/{mine[0]['metadata']['name']} is not ready, and this was last told; look at "
            "that pod and its log"
        )


def view(
    nodes: Iterable[Mapping[str, Any]],
    pods: Optional[Iterable[Mapping[str, Any]]],
    used: Optional[Mapping[Place, int]] = None,
    problems: Sequence[str] = (),
    namespace: str = NAMESPACE,
) -> ClusterView:
    """Return the cluster by its objects; ``pods`` is None where they were not read, ``namespace`` where plugins run.

    ``used`` are bytes, as ``read_used`` finds them; ``problems`` of finding them out. An object that cannot be read is
    a problem, and the others are seen.
    """
    unread: List[str] = []
    items = None if pods is None else list(of_each("pod", _pod, pods, unread))
    told = _Pods(items, namespace)
    found_nodes = of_each("node", lambda item: _node(item, used or {}, told), nodes, unread)
    seen = [found for found in found_nodes if found is not None]
    seen.sort(key=lambda node: node.name)
    holding = {(t.namespace, t.pod, node.name) for node in seen for gpu in node.gpus for t in gpu.tenants}
    untold = {node.name for node in seen if not node.told}
    sure = {node.name for node in seen if not node.problem} if told.judged else set()
    asking = [item for item in items or () if _place(item) not in untold]
    found_waiting = of_each("pod", lambda item: _waiting(item, holding, sure), asking, unread)
    waiting = [found for found in found_waiting if found is not None]
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


def metrics_paths(pods: Iterable[Mapping[str, Any]], namespace: str = NAMESPACE) -> Dict[str, str]:
    """Return, by node, the API server's path to the metrics of the node's plugin.

    Pods of other namespaces do not count, whatever they call themselves. Of two on a node, as while one is replaced,
    the one that is ready is taken. What ``view`` cannot read is left out.
    """
    ports = [(pod, _plugin_port(pod)) for pod in of_each("pod", _pod, pods, [])]
    mine = [(pod, port) for pod, port in ports if port is not None and pod["metadata"]["namespace"] == namespace]
    return {
        _place(pod): f"/api/v1/namespaces/{namespace}/pods/{pod['metadata']['name']}:{port}/proxy/metrics"
        for pod, port in sorted(mine, key=lambda entry: _ready(entry[0]))
    }


def not_ready(nodes: Iterable[Mapping[str, Any]]) -> Dict[str, str]:
    """Return the last known state of each node that is not ready and whose plugin is not worth waiting for."""
    found = of_each("node", lambda item: (_name(item), _readiness(item)), nodes, [])
    return {name: text for name, text in found if text}


def is_silent(item: Mapping[str, Any]) -> bool:
    """Return whether the node's kubelet has stopped reporting, which is less than not being ready."""
    try:
        return _condition(item, "Ready").get("status") == "Unknown"
    except ODD:
        return False


def read_used(text: str) -> Dict[Place, int]:
    """Return the bytes in use by container, from what a plugin says on ``/metrics``."""
    found = {}
    for sample in read_samples(text):
        if sample.name == "accel_container_gpu_memory_used_bytes":
            try:
                found[sample.place] = int(sample.value)
            except (KeyError, ValueError, OverflowError):
                continue
    return found


def at_once(ask: Callable[[str], Answer], paths: Mapping[str, str]) -> Dict[str, Callable[[], Answer]]:
    """Ask for all paths, a few at a time; return by name what returns or raises what ``ask`` did."""
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        return {name: pool.submit(ask, path).result for name, path in paths.items()}


def read_pages(pages: Mapping[str, Callable[[], str]], failure: Type[Exception]) -> Tuple[Dict[Place, int], List[str]]:
    """Return the bytes in use by container, from plugins' pages by node, and which pages are missing, and why.

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
    """Return those names that no node with GPUs has."""
    return sorted(set(names) - {node.name for node in found.nodes})


def read_samples(text: str) -> Iterator[Sample]:
    """Yield every number on a plugin's ``/metrics``."""
    for name, labels, value in read_series(text):
        try:
            yield Sample(name, labels, float(value))
        except ValueError:
            continue


def read_series(text: str) -> Iterator[Tuple[str, Dict[str, str], str]]:
    """Name, labels and value as it is written, of all of ours in a page of Prometheus' text format."""
    # Not splitlines, which divides at what may stand within a label.
    for series in text.split("\n"):
        match = _SERIES.match(series)
        if match is not None:
            labels = {name: _unescaped(value) for name, value in _LABEL.findall(match.group(2) or "")}
            yield match.group(1), labels, match.group(3)


def document(found: ClusterView) -> Dict[str, Any]:
    """Return the view as JSON has it; sizes in bytes, cores in percent of a GPU, null for what is not known."""
    return {
        "version": _VERSION,
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


def _plugin_port(pod: Mapping[str, Any]) -> Optional[str]:
    """Return where a plugin listens that is on a node and stays; None for any other pod."""
    spec = pod.get("spec") or {}
    if not spec.get("nodeName") or pod["metadata"].get("deletionTimestamp"):
        return None
    for container in spec.get("containers") or ():
        command = container.get("command") or []
        ports = [match.group(1) for match in map(_LISTEN.match, command) if match is not None]
        if command[:2] == ["kube-accel", "plugin"] and ports:
            return ports[0]
    return None


def _pod(item: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the pod if it can be read which one it is, and whether it is a plugin. Raises one of ODD."""
    name = item["metadata"]["namespace"], item["metadata"]["name"]
    if not all(isinstance(part, str) for part in name):
        raise TypeError("its name is no text")
    if _plugin_port(item) is not None:
        _ready(item)
    return item


def _name(item: Mapping[str, Any]) -> str:
    name = item["metadata"]["name"]
    if not isinstance(name, str):
        raise TypeError("its name is no text")
    return name


def _place(pod: Mapping[str, Any]) -> str:
    """Return the name of a pod's node; empty without one."""
    return str((pod.get("spec") or {}).get("nodeName") or "")


def _node(item: Mapping[str, Any], used: Mapping[Place, int], pods: _Pods) -> Optional[NodeView]:
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
    if text is None:
        problem = f"its plugin for mode {wanted} has reported nothing; look at its pod in kube-system"
        return replace(node, problem=problem)
    try:
        said = read_inventory(text, used, pods)
    except ValueError as error:
        return replace(node, problem=unreadable(node.name, INVENTORY, error))
    problem = unready or pods.plugin_problem(node.name)
    if not said.told:
        problem = problem or "kubelet has not told who holds what"
    return replace(node, mode=said.mode, gpus=said.gpus, problem=problem, told=said.told, unreadable=said.unreadable)


@dataclass(frozen=True)
class InventoryView:
    """What a node's plugin says in the annotation."""

    mode: str
    driver: str
    gpus: Tuple[GpuView, ...]
    told: bool
    """Whether kubelet has reported who holds what."""
    unreadable: Tuple[UnreadableView, ...] = ()

    @property
    def healthy(self) -> int:
        """GPUs that may be handed out."""
        return sum(gpu.health == "healthy" for gpu in self.gpus)


def read_inventory(
    text: object, used: Mapping[Place, int] = MappingProxyType({}), pods: Optional[_Pods] = None
) -> InventoryView:
    """Return what a text of the annotation ``kube-accel.io/inventory`` says. Raises ValueError, whatever the text."""
    said = read_document(text, _VERSION, _MOST_TEXT)
    mode, entries = read_text(said, "mode", _TOKEN), read_objects(said.get("gpus"), "gpus", _MOST_GPUS)
    seen = pods or _Pods(None, "")
    gpus = sorted((_gpu(entry, used, seen, mode) for entry in entries), key=lambda gpu: gpu.index)
    driver = read_text(said, "driver", _TOKEN) if "driver" in said else ""
    unread = [_unreadable(entry) for entry in read_objects(said.get("unreadable") or [], "unreadable", _MOST_GPUS)]
    return InventoryView(mode, driver, tuple(gpus), all("held" in entry for entry in entries), tuple(unread))


def unreadable(node: str, annotation: str, error: ValueError) -> str:
    """Say of a node's annotation, which the plugin writes, why it cannot be read, and what to do."""
    return (
        f"annotation {annotation} cannot be read: {error}; use the release of the node's plugin, or run kubectl "
        f"annotate node {node} {annotation}- and the plugin writes it again"
    )


def _address(item: Mapping[str, Any]) -> str:
    """Return the node's own address; empty without one."""
    addresses = (item.get("status") or {}).get("addresses") or ()
    return str({entry["type"]: entry["address"] for entry in addresses}.get("InternalIP", ""))


def _readiness(item: Mapping[str, Any]) -> str:
    ready = _condition(item, "Ready")
    if not ready or ready["status"] == "True":
        return ""
    return f"it is not ready, and this was last heard: {ready.get('message') or ready.get('reason')}"


def _ready(item: Mapping[str, Any]) -> bool:
    return _condition(item, "Ready").get("status") == "True"


def _condition(item: Mapping[str, Any], kind: str) -> Mapping[str, Any]:
    conditions = (item.get("status") or {}).get("conditions") or ()
    return next((entry for entry in conditions if entry["type"] == kind), {})


def _gpu(entry: Dict[str, Any], used: Mapping[Place, int], pods: _Pods, mode: str) -> GpuView:
    """Return a GPU of the annotation. Raises ValueError."""
    uuid, memory = read_text(entry, "uuid", _TOKEN), read_number(entry, "memoryBytes", _MOST_NUMBER)
    tenants = []
    for holding in read_objects(entry.get("held") or [], "held", _MOST_HOLDERS):
        namespace, pod, container = (read_text(holding, key, _NAME) for key in ("namespace", "pod", "container"))
        amounts = WHOLE, memory
        if "cores" in holding:
            amounts = read_number(holding, "cores", WHOLE), read_number(holding, "memoryBytes", _MOST_NUMBER)
        have = used.get((uuid, namespace, pod, container))
        why = _why(pods.get((namespace, pod)), container, uuid, mode)
        tenants.append(Tenant(namespace, pod, container, *amounts, used_bytes=have, why=why))
    return GpuView(
        uuid,
        read_number(entry, "index", 1 << 16),
        read_text(entry, "model", _WORDS),
        memory,
        read_text(entry, "health", _TOKEN),
        read_text({"reason": "", **entry}, "reason", _WORDS),
        tuple(tenants),
        tuple(read_text({"faults": row}, "faults", _WORDS) for row in _rows(entry.get("faults"))),
    )


def _unreadable(entry: Dict[str, Any]) -> UnreadableView:
    """Return a GPU of the annotation that could not be read. Raises ValueError."""
    uuid = read_text(entry, "uuid", _TOKEN) if entry.get("uuid") is not None else ""
    return UnreadableView(read_number(entry, "index", 1 << 16), uuid, read_text(entry, "reason", _WORDS))


def _rows(value: object) -> List[Any]:
    """Return a list of the annotation, empty where there is none. Raises ValueError."""
    if value is None:
        return []
    if not isinstance(value, list) or len(value) > _MOST_GPUS:
        raise ValueError("faults: no list")
    return value


def _why(pod: Optional[Mapping[str, Any]], container: str, uuid: str, mode: str) -> str:
    """Return the extender's reason in the pod, which its owner may have overwritten, or that it did not choose."""
    if pod is None:
        return ""
    text = (pod["metadata"].get("annotations") or {}).get(ASSIGNMENT)
    if text is None:
        return "chosen on the node: no extender assigned it" if mode != "pgpu" else ""
    try:
        said = read_object(text, _MOST_TEXT)
        assigned = {share["uuid"] for share in said["containers"][container]}
        reason = said.get("why", {}).get(container, "")
    except (ValueError, LookupError, TypeError, AttributeError):
        return "its pod's assignment cannot be read"
    if uuid not in assigned:
        return "chosen on the node, instead of the one that the extender assigned"
    return line(reason, _LONGEST_WHY) if isinstance(reason, str) else ""


def _waiting(
    item: Mapping[str, Any], holding: Iterable[Tuple[str, str, str]], sure: Iterable[str]
) -> Optional[Waiting]:
    """Return a pod without GPUs; of the nodes that are ``sure`` it is known that what does not hold any has none."""
    metadata, spec, status = item["metadata"], item.get("spec") or {}, item.get("status") or {}
    wants, node = _wants(spec), _place(item)
    if not wants or (metadata["namespace"], metadata["name"], node) in holding or _started(spec, status):
        return None
    if node:
        allocated = (
            "kubelet has not allocated its GPUs yet" if node in sure else "whether it has its GPUs yet is not known"
        )
        reason = next(_hurdles(status), f"scheduled, and {allocated}")
    else:
        reason = _not_scheduled(status)
    return Waiting(metadata["namespace"], metadata["name"], node, wants, reason)


def _started(spec: Mapping[str, Any], status: Mapping[str, Any]) -> bool:
    """Return whether kubelet has allocated: it starts nothing before, and does not report what init containers have."""
    if status.get("phase") in (*ENDED, "Running"):
        return True
    asking = {container["name"] for container in _containers(spec) if asked(container, RESOURCE.match)}
    return any(
        entry["name"] in asking and {"running", "terminated"} & set(entry.get("state") or {})
        for entry in _statuses(status)
    )


def _wants(spec: Mapping[str, Any]) -> Dict[str, str]:
    """Amounts as the containers name them, several joined by ``+``."""
    found: Dict[str, List[str]] = {}
    for container in _containers(spec):
        for name, amount in asked(container, RESOURCE.match).items():
            found.setdefault(name, []).append(str(amount))
    return {name: "+".join(amounts) for name, amounts in sorted(found.items())}


def _containers(spec: Mapping[str, Any]) -> List[Mapping[str, Any]]:
    return [*(spec.get("initContainers") or ()), *(spec.get("containers") or ())]


def _not_scheduled(status: Mapping[str, Any]) -> str:
    for condition in status.get("conditions") or ():
        if condition["type"] == "PodScheduled" and condition["status"] != "True":
            return str(condition.get("message") or condition.get("reason") or "not scheduled")
    return "no scheduler has tried it"


def _statuses(status: Mapping[str, Any]) -> List[Mapping[str, Any]]:
    return [*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())]


def _hurdles(status: Mapping[str, Any]) -> Iterator[str]:
    for entry in _statuses(status):
        state = (entry.get("state") or {}).get("waiting") or {}
        if state.get("reason") not in (None, "PodInitializing", "ContainerCreating"):
            message = state.get("message")
            yield f"container {entry['name']}: {state['reason']}" + (f": {message}" if message else "")


def _unescaped(value: str) -> str:
    return re.sub(r"\\(.)", lambda match: "\n" if match.group(1) == "n" else match.group(1), value)
