# SPDX-License-Identifier: Apache-2.0
"""The NetworkPolicies of both roles: which pods they select, which ports they leave open, and when there is none."""

from __future__ import annotations

from typing import Any

import pytest

from unit.plugins.scheduler_asked import answered

from .conftest import Evaluate, rendered
from .test_security import LAYOUTS, MODES, SECONDARY

PEER = {"podSelector": {"matchLabels": {"app": "prometheus"}}}
THEIRS = {
    "kind": "NetworkPolicy",
    "metadata": {"name": "theirs", "namespace": "kube-system"},
    "spec": {"podSelector": {}, "policyTypes": ["Ingress"]},
}
OURS = {
    "kind": "NetworkPolicy",
    "metadata": {
        "name": "kube-accel-plugin",
        "namespace": "kube-system",
        "labels": {"app.kubernetes.io/managed-by": "accel.kubernetes"},
    },
}
DCGM = {"dcgm_exporter_enabled": True}


def found(*objects: dict[str, Any]) -> dict[str, Any]:
    """The register of a task that asks for what a NetworkPolicy depends on."""
    item = {"subject": "network"}
    return {"results": [{"item": item, "resources": list(objects)}, {"item": item, "resources": []}]}


def plugin(**variables: Any) -> list[dict[str, Any]]:
    given = {"__gpu_plugins_runtime_classes": {}, **variables}
    objects = rendered("gpu_plugins", "objects.yml.j2", **given)
    policies, nodes = (variables.get(f"__gpu_plugins_{name}", {}) for name in ("network", "nodes"))
    known = {"results": [*policies.get("results", []), nodes]}
    return objects + rendered("dcgm_exporter", "objects.yml.j2", __dcgm_exporter_seen=known, **variables)


def scheduler(layout: str, **variables: Any) -> list[dict[str, Any]]:
    given = {"scheduler_layout": layout, "scheduler_image": "i"}
    return rendered("scheduler", "objects.yml.j2", **SECONDARY, **(given | variables))


def policies(objects: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {item["metadata"]["name"]: item["spec"] for item in objects if item["kind"] == "NetworkPolicy"}


def templates(objects: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [item["spec"]["template"] for item in objects if item["kind"] in ("DaemonSet", "Deployment")]


def selects(spec: dict[str, Any], labels: dict[str, str]) -> bool:
    selector = spec["podSelector"]
    excluded = [term for term in selector.get("matchExpressions", ()) if labels.get(term["key"]) in term["values"]]
    return selector["matchLabels"].items() <= labels.items() and not excluded


def listened(template: dict[str, Any]) -> set[int]:
    """The ports that a template declares, which are those asked from outside."""
    containers = template["spec"]["containers"]
    return {port["containerPort"] for container in containers for port in container.get("ports", ())}


def opened(spec: dict[str, Any]) -> set[int]:
    assert spec["policyTypes"] == ["Ingress"]
    return {port["port"] for rule in spec["ingress"] for port in rule["ports"] if port["protocol"] == "TCP"}


@pytest.mark.attack
def test_every_plugin_has_its_port_open_and_no_other() -> None:
    objects = plugin(**DCGM, gpu_plugins_metrics_port="9555", dcgm_exporter_port=9401)
    made = policies(objects)
    assert set(made) == {"kube-accel-plugin", "kube-accel-dcgm-exporter"}
    assert len(templates(objects)) == len(MODES) + 1
    for template in templates(objects):
        (spec,) = (spec for spec in made.values() if selects(spec, template["metadata"]["labels"]))
        assert opened(spec) == listened(template)
        assert not any("from" in rule for rule in spec["ingress"])


def test_plugin_in_a_rollout_keeps_its_network_policy() -> None:
    labels = {"app.kubernetes.io/managed-by": "accel.kubernetes", "kube-accel.io/released": "x"}
    spec = policies(plugin())["kube-accel-plugin"]
    assert selects(spec, labels)
    assert not selects(spec, labels | {"app.kubernetes.io/component": "extender"})


@pytest.mark.attack
@pytest.mark.parametrize(("port", "layout"), [(port, layout) for port in (0, 9447) for layout in LAYOUTS])
def test_extender_has_open_what_is_asked_from_outside(port: int, layout: str) -> None:
    objects = scheduler(layout, scheduler_metrics_port=port)
    made = policies(objects)
    if layout == "local":
        assert made == {}
        return
    (template,) = templates(objects)
    spec = made["kube-accel-extender"]
    assert selects(spec, template["metadata"]["labels"])
    assert opened(spec) == listened(template) | ({10259} if layout == "secondary" else set())
    assert (9446 in opened(spec)) is (layout == "proxied")


def test_extender_of_the_layout_before_is_left_alone() -> None:
    """Until the sweep kube-scheduler asks it."""
    (before,) = templates(scheduler("proxied"))
    assert not selects(policies(scheduler("secondary"))["kube-accel-extender"], before["metadata"]["labels"])


@pytest.mark.attack
def test_named_peers_come_with_the_api_server() -> None:
    node = {
        "kind": "Node",
        "metadata": {"name": "c1", "labels": {"node-role.kubernetes.io/control-plane": ""}},
        "status": {"addresses": [{"type": "InternalIP", "address": "10.0.0.11"}]},
    }
    nodes = {"__gpu_plugins_nodes": {"resources": [node]}}
    sets = [
        policies(plugin(gpu_plugins_network_policy_from=[PEER], **DCGM, **nodes)),
        policies(scheduler("proxied", scheduler_network_policy_from=[PEER], __scheduler_cluster=found(node))),
        policies(scheduler("secondary", scheduler_network_policy_from=[PEER], __scheduler_cluster=found(node))),
    ]
    rules = [rule for made in sets for spec in made.values() for rule in spec["ingress"]]
    assert len(rules) == 4
    for rule in rules:
        assert rule["from"][:2] == [PEER, {"ipBlock": {"cidr": "10.0.0.11/32"}}]


def test_each_is_turned_off_by_its_variable() -> None:
    assert policies(plugin(gpu_plugins_network_policy_enabled="false", **DCGM)) == {}
    assert policies(scheduler("proxied", scheduler_network_policy_enabled="false")) == {}


def test_policy_of_somebody_else_for_our_pods_is_not_widened() -> None:
    assert policies(plugin(__gpu_plugins_network=found(THEIRS), **DCGM)) == {}
    assert policies(scheduler("proxied", __scheduler_cluster=found(THEIRS))) == {}
    assert policies(scheduler("secondary", __scheduler_cluster=answered("network", msg="not reached")))


def test_policy_that_is_not_wanted_is_removed(evaluate: Evaluate) -> None:
    def removed(**variables: Any) -> list[str]:
        plan = evaluate("gpu_plugins", "__gpu_plugins_network_plan", {}, **variables)
        return [item["metadata"]["name"] for item in plan["unwanted"]]

    there = {"__gpu_plugins_network": found(OURS)}
    assert removed(**there) == []
    assert removed(**there, gpu_plugins_network_policy_enabled=False) == ["kube-accel-plugin"]
    # Uninstall, whatever the inventory says.
    assert removed(**there, __gpu_plugins_removed=True, gpu_plugins_network_policy_from="text") == ["kube-accel-plugin"]
    assert removed(__gpu_plugins_network=found(OURS, THEIRS)) == ["kube-accel-plugin"]
    assert removed(__gpu_plugins_network=found(THEIRS | {"metadata": OURS["metadata"] | {"labels": {}}})) == []


def test_peers_that_are_none_are_refused(evaluate: Evaluate) -> None:
    bad = [{"namespace": "monitoring"}]
    plan = evaluate("gpu_plugins", "__gpu_plugins_network_plan", {}, gpu_plugins_network_policy_from=bad)
    (said,) = plan["problems"]
    assert said.startswith("gpu_plugins_network_policy_from: peer 1 is ")


def test_validate_says_what_the_policies_do(evaluate: Evaluate) -> None:
    def said(**variables: Any) -> list[str]:
        plan = evaluate("gpu_plugins", "__gpu_plugins_network_plan", {}, **{"groups": {}} | variables)
        return [row["found"] for row in plan["findings"]]

    made = [item for item in plugin() if item["kind"] == "NetworkPolicy"]
    extender = [item for item in scheduler("proxied") if item["kind"] == "NetworkPolicy"]
    labels = {"app.kubernetes.io/component": "extender"}
    proxied = {"results": [{"resources": [{"kind": "Deployment", "metadata": {"labels": labels}}]}]}
    assert said(__gpu_plugins_network=found()) == ["The cluster lacks NetworkPolicy kube-system/kube-accel-plugin."]
    assert said(__gpu_plugins_network=found(*made)) == []
    assert said(__gpu_plugins_network=found(*made), __gpu_plugins_workloads=proxied) == [
        "The cluster lacks NetworkPolicy kube-system/kube-accel-extender."
    ]
    assert said(__gpu_plugins_network=found(*made, *extender), __gpu_plugins_workloads=proxied) == []
    off = {"c": {"scheduler_network_policy_enabled": False}}
    given = {"groups": {"kube_control_plane": ["c"]}, "hostvars": off, "__gpu_plugins_workloads": proxied}
    assert said(__gpu_plugins_network=found(*made), **given) == []
