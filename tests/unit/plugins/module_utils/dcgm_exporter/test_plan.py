# SPDX-License-Identifier: Apache-2.0
"""Whether a cluster gets dcgm-exporter, and who may reach it."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from ansible_collections.accel.kubernetes.plugins.module_utils.dcgm_exporter.plan import Plan, Seen, plan

from unit.roles.conftest import ROLES, Evaluate, evaluate

__all__ = ["evaluate"]

OPTIONS = {
    "dcgm_exporter_enabled": True,
    "dcgm_exporter_fields": ["A", "B"],
    "dcgm_exporter_port": 9400,
    "gpu_plugins_namespace": "gpus",
    "gpu_plugins_network_policy_enabled": True,
    "gpu_plugins_network_policy_from": [],
}
NAME = "kube-accel-dcgm-exporter"
PEER = {"podSelector": {"matchLabels": {"app": "prometheus"}}}
CONTROL = {
    "kind": "Node",
    "metadata": {"name": "c1", "labels": {"node-role.kubernetes.io/control-plane": ""}},
    "status": {"addresses": [{"type": "InternalIP", "address": "10.0.0.11"}]},
}


def policy(name: str, ours: bool = True) -> dict[str, Any]:
    labels = {"app.kubernetes.io/managed-by": "accel.kubernetes"} if ours else {}
    head = {"name": name, "namespace": "gpus", "labels": labels}
    return {"kind": "NetworkPolicy", "metadata": head, "spec": {"podSelector": {}}}


def planned(*objects: dict[str, Any], removed: bool = False, **given: object) -> Plan:
    return plan(Seen({**OPTIONS, **given}, {"results": [{"resources": list(objects)}]}, removed))


def test_an_exporter_that_is_wanted_has_its_port_open() -> None:
    found = planned(dcgm_exporter_port="9401", dcgm_exporter_enabled="yes")
    assert (found.wanted, found.port, found.fields) == (True, 9401, ("A", "B"))
    (made,) = found.policies
    assert made["metadata"]["name"] == NAME
    assert made["metadata"]["namespace"] == "gpus"
    assert made["spec"]["ingress"] == [{"ports": [{"protocol": "TCP", "port": 9401}]}]


def test_named_peers_reach_the_exporter() -> None:
    (made,) = planned(CONTROL, gpu_plugins_network_policy_from=[PEER]).policies
    (rule,) = made["spec"]["ingress"]
    assert rule["from"][:2] == [PEER, {"ipBlock": {"cidr": "10.0.0.11/32"}}]


@pytest.mark.parametrize(
    ("there", "given", "made", "unwanted"),
    [
        ((), {}, 1, 0),
        ((policy(NAME),), {}, 1, 0),
        ((policy("theirs", ours=False),), {}, 0, 0),
        ((policy(NAME), policy("theirs", ours=False)), {}, 0, 1),
        ((policy(NAME),), {"gpu_plugins_network_policy_enabled": False}, 0, 1),
        ((policy(NAME),), {"dcgm_exporter_enabled": False}, 0, 1),
        ((policy(NAME),), {"removed": True}, 0, 1),
        ((policy(NAME, ours=False),), {"removed": True}, 0, 0),
    ],
)
def test_policies_of_others_are_never_widened_or_removed(
    there: tuple[dict[str, Any], ...], given: dict[str, Any], made: int, unwanted: int
) -> None:
    found = planned(*there, **given)
    assert (len(found.policies), len(found.unwanted)) == (made, unwanted)


@pytest.mark.parametrize(
    ("name", "value", "code", "says"),
    [
        ("dcgm_exporter_enabled", "maybe", "option_type", "dcgm_exporter_enabled is 'maybe'"),
        ("dcgm_exporter_port", 0, "option_type", "dcgm_exporter_port is 0"),
        ("dcgm_exporter_fields", {"A": 1}, "option_type", "dcgm_exporter_fields is {'A': 1}"),
        ("gpu_plugins_network_policy_from", "x", "network_policy_peers", "gpu_plugins_network_policy_from: it is 'x'"),
    ],
)
def test_values_that_cannot_work_are_refused_by_name(name: str, value: object, code: str, says: str) -> None:
    found = planned(**{name: value})
    assert [refusal.code for refusal in found.refusals] == [code]
    assert found.words.startswith(says)


def test_values_in_common_are_the_defaults_of_the_plugins(evaluate: Evaluate) -> None:
    defaults = yaml.safe_load((ROLES / "gpu_plugins/defaults/main.yml").read_text())
    options = evaluate("dcgm_exporter", "__dcgm_exporter_options", {})
    common = {name: value for name, value in options.items() if name in defaults}
    assert len(common) > 5
    assert common == {name: defaults[name] for name in common}
