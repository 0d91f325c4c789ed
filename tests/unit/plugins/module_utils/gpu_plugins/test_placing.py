# SPDX-License-Identifier: Apache-2.0
"""What validate says of NUMA nodes and runtime classes."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.accel.kubernetes.plugins.module_utils.gpu_plugins.placing import (
    PlacingSeen,
    runtime_class,
    topology,
)

GPU = {"nvidia.com/gpu": "1"}
RUNC, NVIDIA = {"default_runtime": "runc"}, {"default_runtime": "nvidia"}


def kubelet(policy: str) -> dict[str, Any]:
    settings = {"topology_manager_policy": policy, "topology_manager_scope": "container", "cpu_manager_policy": "none"}
    return {"settings": settings, "reason": ""}


def pod(name: str, limits: dict[str, str], phase: str = "Running", **spec: Any) -> dict[str, Any]:
    containers = [{"name": "main", "resources": {"limits": limits}}]
    return {
        "metadata": {"namespace": "team", "name": name},
        "spec": {"containers": containers, **spec},
        "status": {"phase": phase},
    }


@pytest.mark.parametrize(
    ("seen", "verdict", "words"),
    [
        ({"settings": {}, "reason": "status 403."}, "unknown", "is not known: status 403."),
        ({}, "unknown", "it was not asked"),
        (
            kubelet("none"),
            "ok",
            "none: kubelet ignores the NUMA nodes that the plugin reports. GPUs are on the NUMA nodes 0, 1.",
        ),
        (kubelet("best-effort"), "ok", "is best-effort, by container; its cpuManagerPolicy is none. GPUs are on"),
    ],
)
def test_kubelets_policy_is_told(seen: dict[str, Any], verdict: str, words: str) -> None:
    finding = topology(PlacingSeen(kubelet=seen), [{"numa_node": 1}, {"numa_node": 0}, {"numa_node": None}])
    assert finding.verdict == verdict
    assert words in finding.found
    assert bool(finding.remedy) == (verdict != "ok")


@pytest.mark.parametrize(
    ("seen", "verdict", "words"),
    [
        ({"by_cdi": True}, "ok", "get GPUs by CDI"),
        ({"runtime": NVIDIA}, "ok", "is the default"),
        (
            {"runtime": RUNC},
            "ok",
            "have to name runtimeClassName: nvidia, since GPUs do not come by CDI and the default",
        ),
        ({"runtime": {}}, "ok", "is not known to be the default"),
    ],
)
def test_whether_pods_need_a_runtime_class_is_told(seen: dict[str, Any], verdict: str, words: str) -> None:
    finding = runtime_class(PlacingSeen(**seen))
    assert (finding.verdict, words in finding.found) == (verdict, True), finding


def test_pods_that_find_no_driver_are_named() -> None:
    fine = [
        pod("classed", GPU, runtimeClassName="nvidia"),
        pod("done", GPU, phase="Succeeded"),
        pod("plain", {"cpu": "1"}),
        pod("none", {"nvidia.com/gpu": "0"}),
        pod("share", {"nvidia.com/mps-core": "30"}),
        {"metadata": {"name": "odd"}, "spec": {"containers": [{"resources": []}]}},
    ]
    pods = {"resources": [*fine, pod("tf", GPU), pod("mig", {"nvidia.com/mig-1g.5gb": "1"})]}
    found = runtime_class(PlacingSeen(runtime=RUNC, pods=pods))
    assert (found.verdict, found.found.rpartition(": ")[2]) == ("unstable", "team/tf, team/mig.")
    assert "runtimeClassName: nvidia" in found.remedy
    assert runtime_class(PlacingSeen(pods=pods)).verdict == "unknown"
    assert runtime_class(PlacingSeen(runtime=NVIDIA, pods=pods)).verdict == "ok"
    many = {"resources": [pod(f"p{number}", GPU) for number in range(9)]}
    assert "team/p4 and 4 more." in runtime_class(PlacingSeen(runtime=RUNC, pods=many)).found
