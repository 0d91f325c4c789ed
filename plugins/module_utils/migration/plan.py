# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What it takes to have nodes served by our plugin that another serves, and back. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Callable, Dict, Iterator, List, Mapping, Optional, Sequence

from ansible_collections.accel.kubernetes.plugins.module_utils.migration import (
    carry,
    claims,
    notes,
    peers,
    resources,
    strangers,
)
from ansible_collections.accel.kubernetes.plugins.module_utils.migration import hami as hamis
from ansible_collections.accel.kubernetes.plugins.module_utils.migration.peers import Object, Peer
from ansible_collections.accel.kubernetes.plugins.module_utils.migration.settings import configmaps
from ansible_collections.accel.kubernetes.plugins.module_utils.shared.modes import (
    CGPU_LABEL,
    DRA_MODE,
    HELD_LABEL,
    MIB,
    MODE_LABEL,
    RESOURCE,
)
from ansible_collections.accel.kubernetes.plugins.module_utils.shared.quantity import whole_units
from ansible_collections.accel.kubernetes.plugins.module_utils.shared.waiting_pods import ENDED

from ..shared import label_names

DUE, BEGUN, DONE, OURS, NONE, REFUSED = "due", "begun", "done", "ours", "none", "refused"
"""States of a node: to be migrated, left in the middle of it, migrated, ours and never another's before, without any
plugin, and one that nothing here knows."""
_OURS: Mapping[str, str] = {
    "pgpu": "nvidia-device-plugin-ds",
    "vgpu": "gpu-manager-daemonset",
    "mps": "nvidia-mps-device-plugin-daemonset",
    "cgpu": "cgpu-device-plugin-ds",
    DRA_MODE: "kube-accel-dra",
}
"""Our DaemonSets by mode."""
_SELECTORS = ("gpu", "gpushare", "nvidia.com/gpu.present", "gaia.tencent.com/gpu-model")
"""Labels of nodes by which others choose theirs, and pods of users perhaps too."""
_AS_ITS_CHART = "its resources are taken to be those of its chart"


@dataclass(frozen=True)
class Wanted:
    """What the inventory says of a host."""

    node: str
    mode: str
    variables: Mapping[str, Any] = field(default_factory=dict)
    """Variables of role gpu_plugins that may have to be as the other plugin's settings."""
    memory_bytes: int = 0
    """The memory of its smallest GPU; 0 where it is not known."""
    gpus: Sequence[Mapping[str, Any]] = ()
    """Its GPUs with ``index``, ``uuid`` and ``mig``, as ``nvml_facts`` has them; none where they are not known."""


@dataclass(frozen=True)
class Cluster:
    """Objects of the API server."""

    nodes: Sequence[Object]
    daemonsets: Sequence[Object]
    pods: Sequence[Object] = ()
    deployments: Sequence[Object] = ()
    webhooks: Sequence[Object] = ()
    """MutatingWebhookConfigurations."""
    slices: Sequence[Object] = ()
    """ResourceSlices of all drivers."""
    claims: Sequence[Object] = ()
    """ResourceClaims."""
    files: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """The data of ConfigMaps, by ``namespace/name``."""
    problems: Sequence[str] = ()
    """Objects that cannot be read, one sentence each, which begins with kind and name."""


@dataclass(frozen=True)
class Terms:
    """How it is to be done."""

    namespace: str
    """The namespace of our DaemonSets."""
    strand: bool = False
    """Whether pods may be evicted whose manifests ask for what the node offers no longer."""


@dataclass(frozen=True)
class _Seen:
    """The cluster, and what is read of it once for all nodes."""

    cluster: Cluster
    peers: Sequence[Peer]
    reader: carry.Reader
    hami: Mapping[str, hamis.HamiTold]
    """By DaemonSet."""
    nodes: Mapping[str, Object]
    """By name."""
    pods: Mapping[str, Sequence[Object]]
    """By node."""
    asked: claims.Asked

    def hami_of(self, serving: Sequence[Object]) -> hamis.HamiTold:
        """Return HAMi's settings, from the DaemonSet that serves a node where one does."""
        names = [peers.full_name(item) for item in serving]
        return next((self.hami[name] for name in (*names, *self.hami) if name in self.hami), hamis.HamiTold())


def plan(cluster: Cluster, wanted: Sequence[Wanted], terms: Terms, parse: Callable[[str], Any]) -> Dict[str, Any]:
    """Return the whole plan, as a document: ``nodes`` by name, ``peers``, ``notes``. ``parse`` raises ValueError."""
    found = peers.peers(cluster.daemonsets)
    reader = carry.Reader(cluster.files, parse)
    hami = {
        peers.full_name(item): hamis.read(item, cluster.deployments, cluster.files, reader.parse)
        for peer in found
        if peer.kind.name == "hami"
        for item in peer.plugins
    }
    left_out = [note for peer in found for note in carry.left_out(peer, reader)]
    left_out += [
        f"of HAMi's DaemonSet {name}, {told.unread}; {_AS_ITS_CHART}" for name, told in hami.items() if told.unread
    ]
    left_out += [f"HAMi's DaemonSet {name} {remark}" for name, told in hami.items() for remark in told.remarks]
    pods: Dict[str, List[Object]] = {}
    for pod in cluster.pods:
        pods.setdefault(pod["spec"].get("nodeName") or "", []).append(pod)
    nodes = {item["metadata"]["name"]: item for item in cluster.nodes}
    seen = _Seen(cluster, found, reader, hami, nodes, pods, claims.asked_by(cluster.claims))
    left = notes.notes(cluster.nodes, cluster.deployments, cluster.webhooks, found)
    return {
        "nodes": {each.node: _node(seen, each, terms) for each in wanted},
        "peers": [_peer(peer, cluster) for peer in found],
        "ours": any(map(peers.is_ours, cluster.daemonsets)),
        "notes": [*cluster.problems, *left, *left_out],
    }


def _peer(peer: Peer, cluster: Cluster) -> Dict[str, Any]:
    left = [node for node in cluster.nodes if any(peers.selects(item, node) for item in peer.daemonsets)]
    marked = [node for node in cluster.nodes if peers.recorded(node).get("from") == peer.kind.name]
    avoid, restore = [], []
    for item in peer.daemonsets:
        head = {"namespace": item["metadata"]["namespace"], "name": item["metadata"]["name"]}
        if not peers.by_label(peer):
            avoid.append({**head, "patch": peers.merge_patch(item, peers.avoiding(item))})
        patch = peers.merge_patch(item, peers.restored(item))
        if patch:
            restore.append({**head, "patch": patch})
    return {
        "kind": peer.kind.name,
        "title": peer.kind.title,
        "daemonsets": list(peer.names),
        "nodes": [node["metadata"]["name"] for node in left],
        "migrated": [node["metadata"]["name"] for node in marked],
        "avoid": [each for each in avoid if each["patch"]],
        "restore": restore,
        "shares_label": peers.shares_label(peer),
        "hold": _patched(peer, peers.held, cluster.nodes),
        "release": [] if any(map(peers.is_ours, cluster.daemonsets)) else _patched(peer, peers.released, cluster.nodes),
        "removal": peers.removal(peer),
    }


def _patched(
    peer: Peer, change: Callable[[Peer, Object], Dict[str, Any]], nodes: Sequence[Object]
) -> List[Dict[str, Any]]:
    """Return the nodes that change, each with its patch."""
    patches = ((node["metadata"]["name"], change(peer, node)) for node in nodes)
    return [{"name": name, "patch": patch} for name, patch in patches if patch]


def _node(seen: _Seen, each: Wanted, terms: Terms) -> Dict[str, Any]:
    cluster, found = seen.cluster, seen.peers
    node = seen.nodes.get(each.node)
    empty: Dict[str, Any] = {
        **{"state": NONE, "mode": each.mode, "from": "", "title": "", "daemonsets": [], "uids": [], "serves": False},
        **{"labels": [], "resources": [], "pods": [], "returns": [], "stranded": [], "variables": {}, "problems": []},
        **{"off": {}, "forget": {}, "back": {}, "gone": [], "offers": "", "driver": ""},
    }
    if node is None:
        unread = _unread(cluster, "node", each.node)
        return {**empty, "state": REFUSED, "problems": unread or [f"the cluster has no node {each.node}"]}
    pods = seen.pods.get(each.node, ())
    serving = [peer for peer in found if peers.on_node(peer, node, pods)]
    record = peers.recorded(node)
    if len(serving) > 1:
        names = " and ".join(f"{peer.kind.title} ({', '.join(peer.names)})" for peer in serving)
        return {**empty, "state": REFUSED, "problems": [f"{names} are both on it; take one off first"]}
    known = [peer for peer in found if peer.kind.name == record.get("from")]
    peer = (serving or known or [None])[0]
    own = peers.serving(peer, node, pods) if peer else []
    hami = seen.hami_of(own)
    ours = any(peers.is_ours(item) and peers.selects(item, node) for item in cluster.daemonsets)
    strange = "" if ours else strangers.strange(cluster.daemonsets, node, pods, hami.resources)
    strange = strange or strangers.strange_driver(cluster.slices, node, peer.kind.driver if peer else "")
    # One of ours can be given back all the same.
    if strange and not record:
        return {**empty, "state": REFUSED, "problems": [strange]}
    if peer is None and not record:
        return {**empty, **_without(cluster, node)}
    gone = sorted(set(record.get("daemonsets") or ()) - set(map(peers.full_name, cluster.daemonsets)))
    entry = {**empty, "state": _state(node, each.mode, bool(serving), bool(record)), "from": record.get("from", "")}
    entry.update({"back": peers.node_back(node), "gone": gone, "serves": bool(serving)})
    if peer is None:
        return entry
    return _served(seen, each, terms, peer, node, {**entry, "problems": [strange] if strange else []})


def _served(seen: _Seen, each: Wanted, terms: Terms, peer: Peer, node: Object, entry: Dict[str, Any]) -> Dict[str, Any]:
    """Return the entry of a node that a known plugin serves, or served, with what its change takes."""
    pods = seen.pods.get(each.node, ())
    own = peers.serving(peer, node, pods)
    hami = seen.hami_of(own)
    told = carry.carried(peer, node, each.mode, seen.reader, next(iter(own), None), each.gpus)
    told = _with_hami(told, hami.excluded.get(each.node, ())) if peer.kind.name == "hami" else told
    card = _card(node, each, told, carry.memory_unit(peer, own, seen.cluster.files), hami.resources)
    card = replace(card, part_bytes=_part(peer, node, each, card))
    asking = _pods(seen, peer, pods, each.mode, card) if entry["serves"] else []
    returning = peers.recorded(node) and not entry["serves"]
    made = {
        **entry,
        **{"from": peer.kind.name, "title": peer.kind.title, "daemonsets": list(peer.names)},
        "offers": resources.offers(peer.kind.name, hami.resources),
        "driver": peer.kind.driver,
        "uids": [item["metadata"].get("uid", "") for item in peer.daemonsets],
        "off": peers.node_off(peer, node, each.mode),
        "forget": {name: None for name in peer.kind.forget if name in peers.annotations_of(node)},
        "labels": _labels(peer, node, each.mode),
        "resources": _resources(peer, node, each.mode, card),
        "pods": asking,
        "returns": _returns(seen, peer, node, pods, each.mode, card) if returning else [],
        "stranded": sorted({row["pod"] for row in asking if row["changes"]}),
    }
    if entry["state"] not in (DUE, BEGUN):
        return {**made, "problems": []}
    made["variables"] = carry.unset(told.variables, each.variables, seen.reader.parse)
    problems = [
        *entry["problems"],
        *told.problems,
        *_divided(hami.modes.get(each.node, "")),
        *_unread_of(seen, own, each, told),
        *_unsaid(own, each, told, card),
        *_problems(seen.cluster, peer, node, each, made, terms),
    ]
    return {**made, "problems": problems}


def _unread_of(seen: _Seen, own: Sequence[Object], each: Wanted, told: carry.Carried) -> List[str]:
    """Return what could not be read of what the node's plugin is told."""
    names = [name for item in own for name in configmaps(item)]
    unread = [problem for name in names for problem in _unread(seen.cluster, "configmap", name)]
    return [*unread, *carry.unread(told.variables, each.variables, seen.reader.parse)]


def _divided(mode: str) -> Iterator[str]:
    """Yield why a node that HAMi divides in this way cannot be taken over."""
    if mode == "mig":
        yield (
            "HAMi splits its GPUs into MIG devices on demand (operatingmode mig), and no mode here does. First end its "
            "pods, set operatingmode hami-core in HAMi's nodeconfig, and turn off MIG"
        )
    elif mode not in ("", "hami-core"):
        yield f"HAMi's nodeconfig has the unknown operatingmode {mode}. First set hami-core there"


def _with_hami(told: carry.Carried, excluded: Sequence[str]) -> carry.Carried:
    """Return it with the GPUs that HAMi leaves alone on the node."""
    if not excluded:
        return told
    both = [*told.variables.get(carry.EXCLUDED, ()), *excluded]
    return replace(told, variables={**told.variables, carry.EXCLUDED: both})


def _configured(each: Wanted) -> bool:
    return bool(each.variables.get("gpu_plugins_configs"))


def _unsaid(own: Sequence[Object], each: Wanted, told: carry.Carried, card: resources.Card) -> List[str]:
    """Return what a person has to find out, as long as the inventory does not say it."""
    problems = []
    if len(own) > 1:
        names = " and ".join(map(peers.full_name, own))
        problems.append(f"DaemonSets {names} both serve it. First remove one of them")
    if told.hidden and not each.variables.get(carry.EXCLUDED):
        problems.append(told.hidden)
    if each.mode == "pgpu" and not _configured(each):
        set_it = "set gpu_plugins_configs and gpu_plugins_config"
        if told.unknown:
            problems.append(f"{told.unknown}; {set_it} to what it has")
        elif card.replicas > 1 and not told.configuration:
            problems.append(
                f"its labels say that each GPU has {card.replicas} replicas by {card.sharing}, and no configuration "
                f"that can be read says so; {set_it}"
            )
    return problems


def _unread(cluster: Cluster, kind: str, name: str) -> List[str]:
    return [problem for problem in cluster.problems if name and problem.startswith(f"{kind} {name} ")]


def _state(node: Object, mode: str, serving: bool, record: bool) -> str:
    if not record:
        return DUE
    ours = peers.labels_of(node).get(MODE_LABEL) == mode and label_names.CORDONED not in peers.annotations_of(node)
    return DONE if ours and not serving else BEGUN


def _without(cluster: Cluster, node: Object) -> Dict[str, Any]:
    """Describes a node that none of the known plugins is on."""
    if any(peers.is_ours(item) and peers.selects(item, node) for item in cluster.daemonsets):
        return {"state": OURS}
    offered = {name: amount for name, amount in strangers.offered(node).items() if RESOURCE.match(name)}
    said = strangers.by_stranger(cluster.daemonsets, node, offered) if offered else ""
    return {"state": REFUSED, "problems": [said]} if said else {"state": NONE}


def _problems(
    cluster: Cluster, peer: Peer, node: Object, each: Wanted, entry: Mapping[str, Any], terms: Terms
) -> List[str]:
    problems = []
    if entry["variables"]:
        told = "; ".join(carry.lines(entry["variables"]))
        problems.append(f"{peer.kind.title} has settings that the inventory lacks; set {told}")
    ours = {f"{terms.namespace}/{name}" for name in _OURS.values()}
    theirs = sorted(ours & {peers.full_name(item) for item in cluster.daemonsets if not peers.is_ours(item)})
    if theirs:
        problems.append(f"DaemonSet {', '.join(theirs)} has a name that ours has; set gpu_plugins_namespace to another")
    tolerations = each.variables.get("gpu_plugins_tolerations") or ()
    for taint in (node.get("spec") or {}).get("taints") or ():
        own = taint["key"].startswith("node.kubernetes.io/")
        if taint.get("effect") != "PreferNoSchedule" and not own and not peers.tolerates(tolerations, taint):
            text = f"{taint['key']}={taint.get('value') or ''}:{taint['effect']}"
            problems.append(
                f"its taint {text} keeps the plugin of this collection off; add it to gpu_plugins_tolerations"
            )
    if entry["stranded"] and not terms.strand:
        problems.append(
            f"mode {each.mode} does not offer what these pods ask for, so they would stay pending after an eviction: "
            f"{', '.join(entry['stranded'])}. Change their manifests as the plan says, or set migrate_strand=true"
        )
    return problems


def _card(node: Object, each: Wanted, told: carry.Carried, unit_bytes: int, hami: resources.Hami) -> resources.Card:
    labels = peers.labels_of(node)
    memory = labels.get("nvidia.com/gpu.memory", "")
    memory_bytes = each.memory_bytes or (int(memory) * MIB if memory.isdecimal() else 0)
    count, how = labels.get("nvidia.com/gpu.replicas", "1"), labels.get("nvidia.com/gpu.sharing-strategy", "")
    slices = {} if told.unknown and not _configured(each) else carry.replicas(told.configuration)
    shared = (1, resources.UNKNOWN) if told.unknown and not _configured(each) else slices.get("nvidia.com/gpu", (1, ""))
    # Feature discovery is not everywhere, and may name a former configuration.
    if shared[0] == 1 and how in ("time-slicing", "mps") and count.isdecimal() and int(count) > 1:
        shared = int(count), how
    elif how == "none" and shared[1] == resources.UNKNOWN:
        shared = 1, ""
    return resources.Card(memory_bytes, *shared, unit_bytes, hami, slices, _mig(labels, each, told.strategy))


def _part(peer: Peer, node: Object, each: Wanted, card: resources.Card) -> int:
    """Return the memory of a GPU by the units of it that the plugin offers; 0 where either is not known."""
    name = resources.DIVIDED.get(peer.kind.name)
    allocatable = (node.get("status") or {}).get("allocatable") or {}
    count = whole_units(allocatable.get("aliyun.com/gpu-count", 0)) or len(each.gpus) or 1
    units = whole_units(allocatable.get(name, 0)) // count if name else 0
    part: int = resources.part_of(peer.kind.name, card, units)
    return part


def _mig(labels: Mapping[str, str], each: Wanted, strategy: str) -> str:
    """Return the profile of the MIG devices that are offered as GPUs; ``unknown`` where there may be some."""
    label = labels.get("nvidia.com/gpu.product", "").partition("-MIG-")[2]
    if label or strategy != "single":
        return label if strategy in ("", "single") else ""
    migs = [gpu.get("mig") for gpu in each.gpus]
    devices = [device for mig in migs if isinstance(mig, dict) for device in mig.get("devices") or ()]
    if devices:
        return str(devices[0].get("profile"))
    return "" if migs or "nvidia.com/gpu.product" in labels else resources.UNKNOWN


def _labels(peer: Peer, node: Object, mode: str) -> List[Dict[str, str]]:
    """Return what becomes of the labels by which plugins and pods find the node."""
    before, off = peers.labels_of(node), peers.labels_off(peer, node, mode)
    after: Dict[str, Optional[str]] = {**off, MODE_LABEL: mode}
    if mode == "cgpu":
        after[CGPU_LABEL] = "true"
    rows = []
    for label, value in sorted(after.items()):
        if before.get(label) != value:
            rows.append({"label": label, "before": before.get(label, ""), "after": value or "", "why": _why(label)})
    for label in (carry.CONFIG_LABEL, "nvidia.com/mig.config", *_SELECTORS):
        if label in before and label not in after:
            rows.append(
                {"label": label, "before": before[label], "after": before[label], "why": "which changes nothing"}
            )
    return rows


def _why(label: str) -> str:
    if label == peers.MARK:
        return "which keeps the other plugin off"
    if label == HELD_LABEL:
        return "kept ours off"
    return "which selects the mode" if label in (MODE_LABEL, CGPU_LABEL) else "which removes the other plugin"


def _resources(peer: Peer, node: Object, mode: str, card: resources.Card) -> List[Dict[str, Any]]:
    allocatable = (node.get("status") or {}).get("allocatable") or {}
    offered = resources.offered_by(peer.kind.name, allocatable, card.hami)
    return [
        {"resource": name, "offered": amount, "becomes": resources.becomes(peer.kind.name, mode, name, card)}
        for name, amount in sorted(offered.items())
    ]


def _pods(seen: _Seen, peer: Peer, pods: Sequence[Object], mode: str, card: resources.Card) -> List[Dict[str, Any]]:
    """Return what the containers that have GPUs of the node will have to ask for."""
    return _rows(
        pods,
        seen.asked,
        lambda limits: resources.offered_by(peer.kind.name, limits, card.hami),
        lambda limits: resources.translated(peer.kind.name, mode, limits, card),
        lambda limits: resources.granted(mode, limits, card),
    )


def _returns(
    seen: _Seen, peer: Peer, node: Object, pods: Sequence[Object], mode: str, card: resources.Card
) -> List[Dict[str, Any]]:
    """Return what the containers that have our GPUs will have to ask for once the node is given back."""
    labelled = peers.labels_of(node).get(MODE_LABEL, mode)
    mode = labelled if labelled in _OURS else mode
    there = replace(card, hami=card.hami.on((node.get("status") or {}).get("allocatable") or {}))
    return _rows(
        pods,
        seen.asked,
        lambda limits: resources.asked_of_ours(mode, limits),
        lambda limits: resources.returned(peer.kind.name, mode, limits, there),
        lambda limits: "the same as now",
    )


def _rows(
    pods: Sequence[Object],
    asked_by_claims: claims.Asked,
    asks: Callable[[Mapping[str, Any]], Mapping[str, int]],
    answers: Callable[[Mapping[str, Any]], resources.Answer],
    has: Callable[[Mapping[str, int]], str],
) -> List[Dict[str, Any]]:
    """Return a row for each container that asks."""
    rows = []
    for pod in pods:
        if (pod.get("status") or {}).get("phase") in ENDED:
            continue
        owners = pod["metadata"].get("ownerReferences") or ()
        owner = next((f"{each['kind']}/{each['name']}" for each in owners if each.get("controller")), "")
        for container, limits in claims.limits(pod, asked_by_claims):
            asked = asks(limits)
            if not asked:
                continue
            row: Dict[str, Any] = {"pod": peers.full_name(pod), "owner": owner, "container": container, "asks": asked}
            try:
                answer = answers(limits)
                row.update({"becomes": dict(answer.limits), "note": answer.note, "has": has(answer.limits)})
            except resources.Unmatched as error:
                row.update({"becomes": {}, "note": str(error), "has": ""})
            rows.append({**row, "changes": row["becomes"] != asked})
    return rows
