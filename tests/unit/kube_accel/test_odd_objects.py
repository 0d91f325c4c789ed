# SPDX-License-Identifier: Apache-2.0
"""One object of the API server is odd in any field that ``inspect`` or the plugin reads: it costs itself alone."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from kube_accel.kube.podresources import PodDevices
from kube_accel.kube.watch import passing_over
from kube_accel.model import Mode
from kube_accel.plugin.allocation.pods import NodePods, pending
from kube_accel.plugin.mig.affected import in_the_way
from kube_accel.shared.api_json import checked
from kube_accel.shared.gpu_view import document, not_ready, view
from kube_accel.shared.gpu_view_text import comma_separated, details, summary
from kube_accel.shared.plugin_pods import metrics_paths
from kube_accel.sharing.profile import PROFILES
from odd_values import Path, cases, fields_read, with_value
from unit.plugins.module_utils.shared.test_gpu_view import GIB, SHARE, TRAIN, node, plugin, pod

ODD_POD, ODD_NODE = "odd-pod", "odd-node"


def odd_pod(where: str = "") -> dict[str, Any]:
    waiting = {"name": "main", "state": {"waiting": {"reason": "ImagePullBackOff", "message": "no"}}, "restartCount": 0}
    told = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "no room"}
    item = pod(ODD_POD, SHARE, where, containerStatuses=[waiting], conditions=[told])
    item["metadata"] |= {"uid": "uid-odd", "annotations": {}, "ownerReferences": [{"kind": "Job", "controller": True}]}
    item["spec"]["initContainers"] = [{"name": "init", "resources": {"limits": SHARE}}]
    return item


def odd_plugin() -> dict[str, Any]:
    return plugin(ODD_NODE)


def odd_node() -> dict[str, Any]:
    return node(ODD_NODE, {0: ()}, conditions=[{"type": "Ready", "status": "Unknown", "message": "silent"}])


def seen(nodes: list[Any], pods: list[Any]) -> dict[str, Any]:
    """What is shown of a cluster in every form; what is returned is the document."""
    found = view(nodes, pods)
    for text in (summary(found, wide=True), details(found), comma_separated(found)):
        text.encode()
    metrics_paths(pods)
    not_ready(nodes)
    shown = document(found)
    json.dumps(shown)
    return shown


def beside(nodes: list[Any], pods: list[Any]) -> dict[str, Any]:
    """The same, where two other nodes and another pod of each kind have to be seen as they are."""
    good = [node("a", {0: (TRAIN,)}), node("b", {})]
    shown = seen(
        [good[0], *nodes, good[1]], [plugin("a"), *pods, pod("train", SHARE, "a"), pod("late", SHARE), plugin("b")]
    )
    by_name = {each["name"]: each for each in shown["nodes"]}
    assert by_name["a"]["gpus"][0]["allocated_bytes"] == 8 * GIB
    assert (by_name["a"]["problem"], by_name["b"]["problem"]) == ("", "")
    assert "late" in [each["pod"] for each in shown["waiting"]]
    return shown


@pytest.mark.parametrize(("path", "values"), cases(fields_read(odd_pod(), lambda item: beside([], [item]))))
def test_an_odd_pod_that_waits_is_shown_or_named(path: Path, values: Mapping[str, Any]) -> None:
    for name, value in values.items():
        item = with_value(odd_pod(), path, value)
        shown = beside([], [item])
        waits = len(shown["waiting"]) > 1
        asks = (
            "tencent.com" in json.dumps(item.get("spec")) and item.get("status", {}) and path[:2] != ("status", "phase")
        )
        assert waits or shown["problems"] or not asks or path[0] == "status", name


@pytest.mark.parametrize(("path", "values"), cases(fields_read(odd_plugin(), lambda item: beside([], [item]))))
def test_an_odd_plugin_costs_its_own_node_alone(path: Path, values: Mapping[str, Any]) -> None:
    for value in values.values():
        beside([odd_node()], [with_value(odd_plugin(), path, value)])


@pytest.mark.parametrize(("path", "values"), cases(fields_read(odd_node(), lambda item: beside([item], []))))
def test_an_odd_node_is_shown_or_named(path: Path, values: Mapping[str, Any]) -> None:
    for name, value in values.items():
        item = with_value(odd_node(), path, value)
        shown = beside([item], [odd_plugin()])
        metadata = item.get("metadata") if isinstance(item.get("metadata"), dict) else {}
        says_nothing = not metadata.get("annotations") and not metadata.get("labels")
        assert len(shown["nodes"]) == 3 or shown["problems"] or says_nothing, name


def kept(pods: NodePods, item: Any) -> None:
    with passing_over(item, "/api/v1/pods"):
        pods.keep(checked(item))


def local_pod(name: str) -> dict[str, Any]:
    item = {**odd_pod("node"), "status": {"phase": "Pending"}}
    item["metadata"] = {**item["metadata"], "name": name, "uid": f"uid-{name}", "resourceVersion": "5"}
    item["metadata"]["annotations"] = {
        "kube-accel.io/assignment": json.dumps({"version": 1, "node": "node", "containers": {"main": []}})
    }
    item["spec"]["containers"][0] |= {"image": "x", "command": ["a"], "args": ["b"], "env": [{"name": "c"}]}
    item["status"]["containerStatuses"] = [
        {"name": "main", "containerID": "containerd://1", "state": {}, "restartCount": 0}
    ]
    return item


def taken_in(item: Any) -> NodePods:
    pods = NodePods(PROFILES[Mode.VGPU], "node")
    kept(pods, local_pod("before"))
    kept(pods, item)
    kept(pods, local_pod("after"))
    with passing_over(item, "/api/v1/pods"):
        pods.drop(checked(item))
    return pods


@pytest.mark.parametrize(("path", "values"), cases(fields_read(local_pod(ODD_POD), taken_in)))
def test_a_node_knows_its_other_pods(path: Path, values: Mapping[str, Any]) -> None:
    for name, value in values.items():
        pods = taken_in(with_value(local_pod(ODD_POD), path, value))
        assert {"uid-before", "uid-after"} <= {each.uid for each in pending(pods.all(), set())}, name


@pytest.mark.parametrize(("path", "values"), cases(fields_read(odd_pod("n"), lambda item: in_the_way([item], [], ()))))
def test_who_is_in_the_way_of_a_cut_is_found_beside_an_odd_pod(path: Path, values: Mapping[str, Any]) -> None:
    for name, value in values.items():
        good = {**odd_pod("n"), "metadata": {"name": "good", "namespace": "team", "uid": "uid-good"}}
        held = PodDevices("team", "known", "main", "nvidia.com/gpu", ("GPU-1",))
        found = in_the_way([with_value(odd_pod("n"), path, value), good], [held], {"GPU-1"})
        assert {"good", "known"} <= {each.name for each in found}, name
