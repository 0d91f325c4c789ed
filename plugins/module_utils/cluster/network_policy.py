# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which NetworkPolicies our servers get, and what to say of those that a cluster has. Pure."""

from __future__ import annotations

import ipaddress
from dataclasses import asdict, dataclass, field
from typing import Any, Dict, Iterable, Iterator, List, Mapping, Sequence, Tuple

from ..shared.finding import Finding
from ..shared.reading import read_list, read_object

MANAGED = {"app.kubernetes.io/managed-by": "accel.kubernetes"}
CONTROL_PLANE = "node-role.kubernetes.io/control-plane"
CILIUM = "CiliumIsUp"
"""Reason of the condition NetworkUnavailable of nodes whose network is Cilium."""
TUNNELS = (
    "projectcalico.org/IPv4IPIPTunnelAddr",
    "projectcalico.org/IPv4VXLANTunnelAddr",
    "projectcalico.org/IPv6VXLANTunnelAddr",
    "projectcalico.org/IPv4WireguardInterfaceAddr",
    "projectcalico.org/IPv6WireguardInterfaceAddr",
)
"""Annotations of a node with an address from which its host speaks to pods of other nodes."""
SUBNETS = "k8s.ovn.org/node-subnets"
"""Annotation of a node with the networks of its pods, whose third address its host has with OVN-Kubernetes."""
_MOST_CHARACTERS = 4096
"""The most characters that are read of an annotation."""
TUNNEL_AGENTS = [
    {
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "kube-system"}},
        "podSelector": {"matchLabels": {label: "konnectivity-agent"}},
    }
    for label in ("k8s-app", "app")
]
"""Through whom the API server of a managed cluster reaches pods. AKS, IBM Cloud and HyperShift have the label app."""


@dataclass(frozen=True)
class Server:
    """Pods of ours that listen, and who may come to them."""

    name: str
    """The policy's name."""
    namespace: str
    selector: Mapping[str, Any]
    pods: Sequence[Mapping[str, str]]
    """Labels of the pods that ``selector`` selects, for each kind of them."""
    ports: Sequence[int]
    """TCP ports that are asked from outside of the pod. All others are closed to everybody but the pod's own node."""
    peers: Sequence[Mapping[str, Any]]
    """NetworkPolicyPeers beside the API server. Empty: they are not known, and everybody is admitted."""
    variable: str
    """Where ``peers`` come from."""
    wanted: bool = True
    labels: Mapping[str, str] = field(default_factory=dict)
    """The policy's labels."""


@dataclass(frozen=True)
class Cluster:
    """What a plan depends on."""

    ours: Mapping[str, Mapping[str, Any]]
    others: Sequence[Mapping[str, Any]]
    slices: Sequence[Mapping[str, Any]]
    nodes: Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Plan:
    """What becomes of the policy for one server."""

    policy: Mapping[str, Any] = field(default_factory=dict)
    """The object; empty where there is to be none, as policies of others hold, which ours would widen."""
    unwanted: Mapping[str, Any] = field(default_factory=dict)
    """The object of an earlier run that is to go."""
    says: str = ""
    problems: Sequence[str] = ()
    """What is wrong with the peers that were named."""
    blind: bool = False
    """Peers are named, and the cluster's network does not take nodes, and so the API server, for ``ipBlock``."""


def network_policies(
    servers: Iterable[Mapping[str, Any]],
    answers: Iterable[Mapping[str, Any]] = (),
    nodes: Sequence[Mapping[str, Any]] = (),
) -> List[Dict[str, Any]]:
    """Return a :class:`Plan` for each of ``servers``, as mappings.

    ``answers`` are results of ``kubernetes.core.k8s_info`` for NetworkPolicies and for the EndpointSlices of the
    Service ``kubernetes``; ``nodes`` are all Nodes.
    """
    cluster = Cluster(*_sorted(answers), nodes=nodes)
    # No deep copy: Ansible's containers refuse it.
    return [dict(vars(_plan(Server(**server), cluster))) for server in servers]


def network_findings(
    answers: Iterable[Mapping[str, Any]],
    plans: Iterable[Mapping[str, Any]],
    present: Iterable[Mapping[str, Any]] = (),
) -> List[Dict[str, str]]:
    """Return how the policies of a cluster differ from ``plans``, as rows; none where they do not.

    Of the policies of ``present``, plans too, it is only asked whether they are there.
    """
    ours = _sorted(answers)[0]
    found = _findings(ours, [Plan(**plan) for plan in plans], [Plan(**plan) for plan in present])
    return [asdict(finding) for finding in found]


def _sorted(answers: Iterable[Mapping[str, Any]]) -> Tuple[Dict[str, Any], List[Any], List[Any]]:
    """Return policies of ours by namespace and name, policies of others, and EndpointSlices."""
    objects = [item for answer in answers for item in answer.get("resources") or ()]
    policies = [item for item in objects if item.get("kind") == "NetworkPolicy"]
    return (
        {_path(item): item for item in policies if _ours(item)},
        [item for item in policies if not _ours(item)],
        [item for item in objects if item.get("kind") == "EndpointSlice"],
    )


def _findings(there: Mapping[str, Any], plans: Sequence[Plan], present: Sequence[Plan]) -> Iterator[Finding]:
    wanted = {_path(plan.policy): plan for plan in plans if plan.policy}
    expected = [*wanted, *(_path(plan.policy) for plan in present if plan.policy)]
    missing = [name for name in expected if name not in there]
    if missing:
        yield Finding(
            "unstable",
            "network",
            f"The cluster lacks NetworkPolicy {', '.join(missing)}.",
            "Run site.yml with --tags gpu_plugins,scheduler.",
        )
    differing = [
        name for name, plan in wanted.items() if name in there and there[name].get("spec") != plan.policy["spec"]
    ]
    if differing:
        yield Finding(
            "unstable",
            "network",
            f"NetworkPolicy {', '.join(differing)} differs from the inventory or the addresses of the nodes.",
            "Run site.yml with --tags gpu_plugins.",
        )
    left = [_path(plan.unwanted) for plan in plans if plan.unwanted]
    if left:
        yield Finding(
            "unstable",
            "network",
            f"NetworkPolicy {', '.join(left)} is no longer needed, but still exists.",
            "Run site.yml with --tags gpu_plugins.",
        )
    blind = [name for name, plan in wanted.items() if plan.blind]
    if blind:
        yield Finding(
            "unstable",
            "network",
            f"Cilium does not match nodes by ipBlock, so NetworkPolicy {', '.join(blind)} may block the API server,"
            " through which inspect.yml, report.yml and diagnose.yml ask for metrics, from the pods.",
            "Set policy-cidr-match-mode=nodes in Cilium, or add a CiliumNetworkPolicy that admits kube-apiserver.",
        )


def _plan(server: Server, cluster: Cluster) -> Plan:
    there = cluster.ours.get(f"{server.namespace}/{server.name}") or {}
    if not server.wanted:
        return Plan(unwanted=there)
    problems = [f"{server.variable}: {text}." for text in _of_peers(server.peers)]
    if problems:
        return Plan(problems=problems)
    holding = sorted(_path(item) for item in cluster.others if _holds(item, server))
    ports = ", ".join(map(str, server.ports))
    if holding and not server.peers:
        return Plan(unwanted=there, says=f"{server.name} is left to NetworkPolicy {', '.join(holding)}.")
    rule: Dict[str, Any] = {"ports": [{"protocol": "TCP", "port": int(port)} for port in server.ports]}
    if server.peers:
        rule["from"] = [*map(dict, server.peers), *_api_server(cluster)]
        says = f"{server.name} admits those of {server.variable} and the API server to port {ports}."
    else:
        says = f"{server.name} admits all sources to port {ports}, because {server.variable} is empty."
    policy = {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": server.name, "namespace": server.namespace, "labels": {**MANAGED, **server.labels}},
        "spec": {"podSelector": dict(server.selector), "policyTypes": ["Ingress"], "ingress": [rule]},
    }
    return Plan(policy, says=says, blind=bool(server.peers) and any(map(_is_of_cilium, cluster.nodes)))


def _api_server(cluster: Cluster) -> List[Dict[str, Any]]:
    """Return the peers as which the API server may come to a pod.

    It comes from the host of a control plane. Where no node is one, a provider runs it, and it comes by agents:
    pods, or hosts of nodes.
    """
    labelled = [node for node in cluster.nodes if CONTROL_PLANE in (node["metadata"].get("labels") or {})]
    found = {address for node in labelled or cluster.nodes for address in _of_node(node)}
    found.update(
        address
        for item in cluster.slices
        for endpoint in item.get("endpoints") or ()
        for text in endpoint.get("addresses") or ()
        for address in _networks(text)
    )
    ordered = sorted(found, key=lambda network: (network.version, network.network_address, network.prefixlen))
    return [{"ipBlock": {"cidr": str(network)}} for network in ordered] + TUNNEL_AGENTS


def _of_node(node: Mapping[str, Any]) -> Iterator[Any]:
    for address in (node.get("status") or {}).get("addresses") or ():
        if address.get("type") in ("InternalIP", "ExternalIP"):
            yield from _networks(address.get("address"))
    annotations = node["metadata"].get("annotations") or {}
    for name in TUNNELS:
        yield from _networks(annotations.get(name))
    spec = node.get("spec") or {}
    for text in spec.get("podCIDRs") or [spec.get("podCIDR")]:
        yield from _first_two(text)
    for text in _subnets(annotations.get(SUBNETS)):
        yield from _third(text)


def _networks(text: object) -> Iterator[Any]:
    """Yield the address in ``text`` as a network of it alone; nothing of what is no address, which a node may tell."""
    try:
        yield ipaddress.ip_network(str(ipaddress.ip_address(str(text))))
    except ValueError:
        return


def _first_two(text: object) -> Iterator[Any]:
    """Yield the two first addresses of a node's pods, which its host has: flannel's tunnel, and the bridge."""
    try:
        pods = ipaddress.ip_network(str(text))
    except ValueError:
        return
    if pods.num_addresses >= 4:
        yield ipaddress.ip_network((pods.network_address, pods.max_prefixlen - 1))


def _subnets(text: object) -> Iterator[object]:
    """Yield the networks of a node's pods that OVN-Kubernetes reports: one, or one of each version of IP."""
    try:
        told = read_object(text, _MOST_CHARACTERS).get("default")
        yield from read_list([told] if isinstance(told, str) else told, "default", 2)
    except ValueError:
        return


def _third(text: object) -> Iterator[Any]:
    """Yield the third address of a node's pods, which its host has: OVN-Kubernetes."""
    try:
        pods = ipaddress.ip_network(text if isinstance(text, str) else "")
    except ValueError:
        return
    if pods.num_addresses >= 4:
        yield ipaddress.ip_network(pods.network_address + 2)


def _is_of_cilium(node: Mapping[str, Any]) -> bool:
    conditions = (node.get("status") or {}).get("conditions") or ()
    return any(item.get("type") == "NetworkUnavailable" and item.get("reason") == CILIUM for item in conditions)


def _of_peers(peers: object) -> Iterator[str]:
    """Yield what is wrong with values that are to be NetworkPolicyPeers."""
    if not isinstance(peers, (list, tuple)):
        yield f"it is {peers!r}, and has to be a list"
        return
    for position, peer in enumerate(peers, 1):
        yield from _of_peer(f"peer {position}", peer)


def _of_peer(name: str, peer: object) -> Iterator[str]:
    if not isinstance(peer, Mapping) or not peer or set(peer) - {"podSelector", "namespaceSelector", "ipBlock"}:
        yield f"{name} is {peer!r}; it must have only podSelector, namespaceSelector, or ipBlock"
        return
    unlike = [key for key, value in peer.items() if not isinstance(value, Mapping)]
    if unlike:
        yield f"{unlike[0]} of {name} is {peer[unlike[0]]!r}; it must be a mapping"
    elif "ipBlock" in peer and len(peer) > 1:
        yield f"{name} has ipBlock beside a selector; make two peers of it"
    elif "ipBlock" in peer:
        for text in [peer["ipBlock"].get("cidr"), *(peer["ipBlock"].get("except") or ())]:
            if not _is_network(text):
                yield f"{text!r} in ipBlock of {name} is not a network such as 10.0.0.0/8"


def _is_network(text: object) -> bool:
    try:
        ipaddress.ip_network(str(text))
    except ValueError:
        return False
    return "/" in str(text)


def _ours(item: Mapping[str, Any]) -> bool:
    labels = item["metadata"].get("labels") or {}
    return all(labels.get(key) == value for key, value in MANAGED.items())


def _path(item: Mapping[str, Any]) -> str:
    return f"{item['metadata']['namespace']}/{item['metadata']['name']}"


def _holds(policy: Mapping[str, Any], server: Server) -> bool:
    """Return whether a policy says who may come to one of the server's pods."""
    spec = policy.get("spec") or {}
    return (
        policy["metadata"].get("namespace") == server.namespace
        and "Ingress" in (spec.get("policyTypes") or ["Ingress"])
        and any(_selects(spec.get("podSelector") or {}, labels) for labels in server.pods)
    )


def _selects(selector: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    return all(labels.get(key) == value for key, value in (selector.get("matchLabels") or {}).items()) and all(
        _meets(term, labels) for term in selector.get("matchExpressions") or ()
    )


def _meets(term: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    key, operator = term["key"], term["operator"]
    values: Sequence[Any] = term.get("values") or ()
    if operator == "In":
        return labels.get(key) in values
    if operator == "NotIn":
        return labels.get(key) not in values
    return (key in labels) is (operator == "Exists")
