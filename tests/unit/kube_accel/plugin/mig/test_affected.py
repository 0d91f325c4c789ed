# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from typing import Any

import pytest

from kube_accel.kube.podresources import PodDevices
from kube_accel.plugin.mig.affected import CORDON, hold, in_the_way, leaving, not_to_be_evicted, release
from kube_accel.shared.holders import Pod

OURS, PAUSED = "kube-accel.io/dcgm-exporter", "paused-for-mig-change"
EXPORTER, DCGM = "nvidia.com/gpu.deploy.dcgm-exporter", "nvidia.com/gpu.deploy.dcgm"
GPU = "nvidia.com/gpu"


def pod(name: str, phase: str = "Running", resource: str = GPU, count: str = "1", **metadata: Any) -> dict[str, Any]:
    containers = [{"resources": {"limits": {resource: count}}}]
    return {
        "metadata": {"namespace": "a", "name": name, "uid": f"uid-{name}"} | metadata,
        "spec": {"containers": containers},
        "status": {"phase": phase},
    }


def holds(name: str, *devices: str, resource: str = GPU) -> PodDevices:
    return PodDevices("a", name, "main", resource, devices)


def names(pods: tuple[Pod, ...]) -> list[str]:
    return [pod.name for pod in pods]


def test_who_holds_what_goes_is_in_the_way() -> None:
    items = [pod("goes"), pod("stays"), pod("shared"), pod("other", resource="cpu")]
    listed = [holds("goes", "MIG-1"), holds("stays", "MIG-2"), holds("shared", "GPU-1::3", resource="nvidia.com/x")]
    assert names(in_the_way(items, listed, {"MIG-1", "GPU-1"})) == ["goes", "shared"]


def test_who_holds_it_in_another_mode_is_too() -> None:
    listed = [holds("share", "GPU-1::c1", resource="tencent.com/vcuda-core"), holds("nic", "GPU-1", resource="x.com/y")]
    assert names(in_the_way([pod("share"), pod("nic")], listed, {"GPU-1"})) == ["nic", "share"]


def test_whom_kubelet_does_not_list_yet_may_get_it() -> None:
    items = [
        pod("coming", phase="Pending"),
        pod("ended", phase="Succeeded"),
        *(pod("none", count=zero) for zero in ("0", "0m")),
    ]
    assert names(in_the_way(items, [], {"GPU-1"})) == ["coming"]


def test_whom_only_kubelet_knows_still_holds_it() -> None:
    assert in_the_way([], [holds("gone", "GPU-1"), holds("else", "GPU-2")], {"GPU-1"}) == (Pod("a", "gone", bare=True),)
    assert in_the_way([pod("ended", phase="Failed")], [holds("ended", "GPU-1")], {"GPU-1"}) == ()


@pytest.mark.parametrize(
    ("metadata", "force", "problem"),
    [
        ({"ownerReferences": [{"kind": "ReplicaSet", "controller": True}]}, False, ""),
        ({"ownerReferences": [{"kind": "DaemonSet", "controller": True}]}, True, "would return: a/it"),
        ({"annotations": {"kubernetes.io/config.mirror": "1"}}, True, "would return: a/it"),
        ({}, False, "these pods have no controller: a/it"),
        ({}, True, ""),
    ],
)
def test_eviction_helps_where_the_pod_is_made_anew_elsewhere(
    metadata: dict[str, Any], force: bool, problem: str
) -> None:
    said = not_to_be_evicted(in_the_way([pod("it", **metadata)], [], ()), force)
    assert problem in said
    assert bool(said) == bool(problem)


def test_what_is_done_to_the_node_is_undone() -> None:
    node: dict[str, Any] = {"metadata": {"labels": {EXPORTER: "true", DCGM: "false"}}, "spec": {}}
    patch = hold(node, "large")
    assert patch == {
        "metadata": {"labels": {EXPORTER: PAUSED, OURS: PAUSED}, "annotations": {CORDON: "large"}},
        "spec": {"unschedulable": True},
    }
    held = {"metadata": {"labels": node["metadata"]["labels"] | patch["metadata"]["labels"]}, "spec": patch["spec"]}
    held["metadata"]["annotations"] = patch["metadata"]["annotations"]
    assert hold(held, "large") == {}
    exporters = [pod("x", labels={"app": "nvidia-dcgm-exporter"}), pod("z", labels={"app": "kube-accel-dcgm-exporter"})]
    assert names(leaving(held, [*exporters, pod("y")])) == ["x", "z"]
    assert release(held) == {
        "metadata": {"labels": {EXPORTER: "true", OURS: None}, "annotations": {CORDON: None}},
        "spec": {"unschedulable": False},
    }
    assert release(node) == {}


def test_a_cordon_of_somebody_else_stays() -> None:
    node: dict[str, Any] = {"metadata": {"labels": {OURS: "false"}}, "spec": {"unschedulable": True}}
    assert hold(node, "large") == {}
    assert release(node) == {}
    del node["metadata"]["labels"]
    assert hold(node, "large") == {"metadata": {"labels": {OURS: PAUSED}}}
