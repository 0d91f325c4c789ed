# SPDX-License-Identifier: Apache-2.0
"""Which NetworkPolicies our servers get, and what validate says of those that are there."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.accel.kubernetes.plugins.module_utils.cluster.network_policy import (
    network_findings,
    network_policies,
)

MONITORING = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}
SERVER: dict[str, Any] = {
    "name": "kube-accel-plugin",
    "namespace": "gpu",
    "selector": {"matchLabels": {"managed": "us"}},
    "pods": [{"managed": "us", "mode": "pgpu"}, {"managed": "us", "mode": "vgpu"}],
    "ports": [9445],
    "peers": [],
    "variable": "who_may",
}


def policy(name: str, spec: dict[str, Any], namespace: str = "gpu", **labels: str) -> dict[str, Any]:
    metadata = {"name": name, "namespace": namespace, "labels": labels}
    return {"kind": "NetworkPolicy", "metadata": metadata, "spec": spec}


def answers(*objects: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"resources": list(objects)}, {"msg": "no such kind"}]


def plan(*objects: dict[str, Any], nodes: list[dict[str, Any]] | None = None, **server: Any) -> dict[str, Any]:
    (made,) = network_policies([SERVER | server], answers(*objects), nodes or [])
    return made


def node(name: str, *addresses: str, control_plane: bool = False, **parts: Any) -> dict[str, Any]:
    labels = {"node-role.kubernetes.io/control-plane": ""} if control_plane else {}
    told = [{"type": "InternalIP", "address": address} for address in addresses]
    told.append({"type": "Hostname", "address": name})
    return {
        "metadata": {"name": name, "labels": labels, "annotations": parts.get("annotations")},
        "spec": parts.get("spec", {}),
        "status": {"addresses": told, "conditions": parts.get("conditions", [])},
    }


def blocks(made: dict[str, Any]) -> list[str]:
    """The networks that the one rule of a plan's policy admits."""
    (rule,) = made["policy"]["spec"]["ingress"]
    return [peer["ipBlock"]["cidr"] for peer in rule["from"] if "ipBlock" in peer]


def test_unknown_peers_leave_the_port_open_and_close_all_others() -> None:
    made = plan(ports=["9445"], labels={"component": "x"})
    assert made["policy"]["spec"] == {
        "podSelector": SERVER["selector"],
        "policyTypes": ["Ingress"],
        "ingress": [{"ports": [{"protocol": "TCP", "port": 9445}]}],
    }
    assert made["policy"]["metadata"] == {
        "name": "kube-accel-plugin",
        "namespace": "gpu",
        "labels": {"app.kubernetes.io/managed-by": "accel.kubernetes", "component": "x"},
    }
    assert made["says"] == "kube-accel-plugin admits all sources to port 9445, because who_may is empty."


def test_only_named_peers_and_api_server_hosts_are_admitted() -> None:
    nodes = [
        node(
            "c1",
            "10.0.0.11",
            "fd00::11",
            control_plane=True,
            spec={"podCIDR": "10.244.0.0/24", "podCIDRs": ["10.244.0.0/24", "fd01::/64"]},
            annotations={"projectcalico.org/IPv4IPIPTunnelAddr": "10.244.7.1", "projectcalico.org/other": "1.1.1.1"},
        ),
        node("w1", "10.0.0.21"),
    ]
    endpoints = {"kind": "EndpointSlice", "endpoints": [{"addresses": ["10.0.0.11", "172.16.0.5"]}]}
    made = plan(endpoints, nodes=nodes, peers=[MONITORING])
    (rule,) = made["policy"]["spec"]["ingress"]
    assert rule["from"][0] == MONITORING
    labels = [peer["podSelector"]["matchLabels"] for peer in rule["from"][1:] if "podSelector" in peer]
    assert labels == [{"k8s-app": "konnectivity-agent"}, {"app": "konnectivity-agent"}]
    (namespace,) = {str(peer["namespaceSelector"]) for peer in rule["from"][1:] if "podSelector" in peer}
    assert namespace == "{'matchLabels': {'kubernetes.io/metadata.name': 'kube-system'}}"
    assert blocks(made) == [
        "10.0.0.11/32",
        "10.244.0.0/31",
        "10.244.7.1/32",
        "172.16.0.5/32",
        "fd00::11/128",
        "fd01::/127",
    ]
    assert made["says"] == "kube-accel-plugin admits those of who_may and the API server to port 9445."


def test_control_plane_of_somebody_else_comes_by_any_node() -> None:
    assert blocks(plan(nodes=[node("w2", "10.0.0.22"), node("w1", "10.0.0.21")], peers=[MONITORING])) == [
        "10.0.0.21/32",
        "10.0.0.22/32",
    ]


@pytest.mark.attack
@pytest.mark.parametrize("told", ["0.0.0.0/0", "10.0.0.0/8", "", "x", None, ["10.0.0.1"]])
def test_what_a_node_tells_of_itself_admits_no_network(told: Any) -> None:
    stolen = node("w1", "10.0.0.21", annotations={"projectcalico.org/IPv4VXLANTunnelAddr": told})
    stolen["status"]["addresses"].append({"type": "ExternalIP", "address": told})
    assert blocks(plan(nodes=[stolen], peers=[MONITORING])) == ["10.0.0.21/32"]


@pytest.mark.parametrize(
    ("told", "admitted"),
    [
        ('{"default":["10.128.2.0/23","fd01:0:0:2::/64"]}', ["10.0.0.21/32", "10.128.2.2/32", "fd01:0:0:2::2/128"]),
        ('{"default":"10.128.2.0/23","blue":["10.9.0.0/16"]}', ["10.0.0.21/32", "10.128.2.2/32"]),
    ],
)
def test_ovn_kubernetes_hosts_use_the_third_pod_address(told: str, admitted: list[str]) -> None:
    host = node("w1", "10.0.0.21", annotations={"k8s.ovn.org/node-subnets": told})
    assert blocks(plan(nodes=[host], peers=[MONITORING])) == admitted


@pytest.mark.attack
@pytest.mark.parametrize(
    "told",
    [
        None,
        ["10.9.0.0/16"],
        "",
        "10.9.0.0/16",
        "[" * 100_000,
        '{"default":' + "[" * 4000,
        '["10.9.0.0/16"]',
        '{"default":{"10.9.0.0/16":1}}',
        '{"default":["10.9.0.0/16"],"default":["10.8.0.0/16"]}',
        '{"default":["10.9.0.0/16","10.8.0.0/16","10.7.0.0/16"]}',
        '{"default":["10.9.0.1/16",168361984]}',
        '{"default":["10.9.0.0/31","10.9.0.0"]}',
        '{"default":[null,["10.9.0.0/16"]]}',
    ],
)
def test_subnets_in_another_form_than_ovns_admit_no_host(told: Any) -> None:
    hostile = node("w1", "10.0.0.21", annotations={"k8s.ovn.org/node-subnets": told})
    assert blocks(plan(nodes=[hostile], peers=[MONITORING])) == ["10.0.0.21/32"]


@pytest.mark.parametrize(
    ("spec", "holds"),
    [
        ({"podSelector": {}}, True),
        ({"podSelector": {}, "policyTypes": ["Egress"]}, False),
        ({"podSelector": {"matchLabels": {"mode": "vgpu"}}, "policyTypes": ["Egress", "Ingress"]}, True),
        ({"podSelector": {"matchLabels": {"mode": "mps"}}}, False),
        ({"podSelector": {"matchExpressions": [{"key": "mode", "operator": "In", "values": ["pgpu"]}]}}, True),
        ({"podSelector": {"matchExpressions": [{"key": "managed", "operator": "NotIn", "values": ["us"]}]}}, False),
        ({"podSelector": {"matchExpressions": [{"key": "managed", "operator": "Exists"}]}}, True),
        ({"podSelector": {"matchExpressions": [{"key": "managed", "operator": "DoesNotExist"}]}}, False),
    ],
)
def test_policy_of_somebody_else_is_not_widened(spec: dict[str, Any], holds: bool) -> None:
    ours = policy("kube-accel-plugin", {}, **{"app.kubernetes.io/managed-by": "accel.kubernetes"})
    made = plan(policy("theirs", spec), ours)
    assert bool(made["policy"]) is not holds
    assert bool(made["unwanted"]) is holds
    if holds:
        assert made["says"] == "kube-accel-plugin is left to NetworkPolicy gpu/theirs."
    assert plan(policy("theirs", spec, namespace="other"))["policy"]
    assert plan(policy("theirs", spec), peers=[MONITORING])["policy"], "who is named is to come"


@pytest.mark.parametrize(
    ("peers", "says"),
    [
        ("monitoring", "who_may: it is 'monitoring', and has to be a list."),
        (
            ["monitoring"],
            "who_may: peer 1 is 'monitoring'; it must have only podSelector, namespaceSelector",
        ),
        ([{}], "who_may: peer 1 is {}; it must have only podSelector"),
        ([MONITORING, {"namespace": "x"}], "who_may: peer 2 is {'namespace': 'x'}; it must have only podSelector"),
        ([{"podSelector": None}], "who_may: podSelector of peer 1 is None; it must be a mapping."),
        ([{"podSelector": {}, "ipBlock": {"cidr": "10.0.0.0/8"}}], "who_may: peer 1 has ipBlock beside a selector;"),
        (
            [{"ipBlock": {"cidr": "10.0.0.1"}}],
            "who_may: '10.0.0.1' in ipBlock of peer 1 is not a network such as 10.0.0.0/8",
        ),
        ([{"ipBlock": {"cidr": "10.0.0.0/8", "except": ["10.0.0.1/8"]}}], "who_may: '10.0.0.1/8' in ipBlock"),
        ([{"ipBlock": {}}], "who_may: None in ipBlock of peer 1 is not a netw"),
    ],
)
def test_peer_that_is_none_is_told_and_plans_nothing(peers: Any, says: str) -> None:
    made = plan(peers=peers)
    assert not made["policy"]
    assert [text[: len(says)] for text in made["problems"]] == [says]


def test_unwanted_policy_goes_and_a_foreign_one_stays() -> None:
    ours = policy("kube-accel-plugin", {}, **{"app.kubernetes.io/managed-by": "accel.kubernetes"})
    assert plan(ours, wanted=False, peers="wrong")["unwanted"] == ours
    assert not plan(policy("kube-accel-plugin", {}), wanted=False)["unwanted"]
    assert not plan(wanted=False)["policy"]


def rows(*objects: dict[str, Any], **server: Any) -> list[str]:
    nodes = server.pop("nodes", [])
    plans = network_policies([SERVER | server], answers(*objects), nodes)
    present = network_policies([SERVER | {"name": "other", "wanted": "other" in server.get("labels", {})}])
    found = network_findings(answers(*objects), plans, present)
    assert {row["what"] for row in found} <= {"network"}
    return [" ".join((row["verdict"], row["found"], row["remedy"])) for row in found]


def test_policies_as_planned_give_no_row() -> None:
    assert rows(plan()["policy"]) == []
    assert rows(policy("theirs", {"podSelector": {}})) == []
    assert rows(wanted=False) == []


def test_policy_that_does_not_hold_is_named() -> None:
    there = plan()["policy"]
    narrowed = plan(peers=[MONITORING])["policy"]
    (row,) = rows()
    assert row.startswith("unstable The cluster lacks NetworkPolicy gpu/kube-accel-plugin. Run site.yml with --tags")
    assert rows(there, labels={"other": ""})[0].startswith("unstable The cluster lacks NetworkPolicy gpu/other.")
    (row,) = rows(there, peers=[MONITORING])
    assert row.startswith("unstable NetworkPolicy gpu/kube-accel-plugin differs from the inventory or the addresses")
    (row,) = rows(narrowed, peers=[MONITORING], nodes=[node("c1", "10.0.0.11")])
    assert row.startswith("unstable NetworkPolicy gpu/kube-accel-plugin differs from the inventory")
    (row,) = rows(there, wanted=False)
    assert row.startswith("unstable NetworkPolicy gpu/kube-accel-plugin is no longer needed, but still exists.")


def test_cilium_is_told_where_peers_are_named() -> None:
    nodes = [node("c1", "10.0.0.1", conditions=[{"type": "NetworkUnavailable", "reason": "CiliumIsUp"}])]
    (made,) = network_policies([SERVER | {"peers": [MONITORING]}], [], nodes)
    (row,) = rows(made["policy"], peers=[MONITORING], nodes=nodes)
    assert row.startswith(
        "unstable Cilium does not match nodes by ipBlock, so NetworkPolicy gpu/kube-accel-plugin may block"
    )
    assert rows(plan()["policy"], nodes=nodes) == []
