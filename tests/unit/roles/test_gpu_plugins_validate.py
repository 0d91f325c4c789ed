# SPDX-License-Identifier: Apache-2.0
"""What tasks_from=validate of the role gpu_plugins says, given what host and cluster may answer."""

from __future__ import annotations

from typing import Any

import pytest

from .conftest import Evaluate

GPU = {"index": 0, "health": "healthy", "reason": "", "mig": {"enabled": False}, "compute_capability": "9.0"}
GPUS = {"available": True, "reason": "", "gpus": [GPU | {"index": index} for index in range(2)]}
NODE: dict[str, Any] = {
    "metadata": {"name": "node-1", "labels": {"nvidia-device-enable": "pgpu"}, "annotations": {}},
    "spec": {},
    "status": {"allocatable": {"nvidia.com/gpu": "2"}, "conditions": [{"type": "Ready", "status": "True"}]},
}


def findings(
    evaluate: Evaluate, gpus: dict[str, Any] = GPUS, node: dict[str, Any] | None = NODE, **variables: Any
) -> list[str]:
    """Of the node: verdict, what, found and remedy in a line each."""
    picked = {"__gpu_plugins_picked": {"resources": [node] if node else []}}
    said = evaluate("gpu_plugins", "__gpu_plugins_validations", {"accel_nvml": gpus}, **picked, **variables)
    return [" ".join((one["verdict"], one["what"], one["found"], one["remedy"])) for one in said if one["found"]]


def changed(**parts: Any) -> dict[str, Any]:
    """The node with some of its parts replaced."""
    return NODE | {part: NODE[part] | value for part, value in parts.items()}


def test_nothing_is_said_of_a_node_that_serves(evaluate: Evaluate) -> None:
    assert findings(evaluate) == []


@pytest.mark.parametrize(
    ("gpus", "node", "says"),
    [
        (GPUS | {"available": False, "reason": "it hangs", "gpus": []}, NODE, "blocked driver it hangs. Run site.yml"),
        (GPUS | {"gpus": []}, NODE, "blocked driver The driver lists no GPU. See lspci"),
        (
            GPUS | {"gpus": [GPU, GPU | {"index": 1, "health": "unhealthy", "reason": "GPU is lost"}]},
            NODE,
            "unstable health Not healthy: GPU 1: GPU is lost. Reset or replace",
        ),
        (GPUS, None, "blocked node The cluster has no node node-1. Join the host"),
        (
            GPUS,
            changed(status={"conditions": [{"type": "Ready", "status": "Unknown"}]}),
            "blocked node The node is not ready. See kubectl describe node node-1",
        ),
        (
            GPUS,
            changed(spec={"unschedulable": True}),
            "unstable node The node is cordoned. Run kubectl uncordon node-1",
        ),
        (
            GPUS,
            changed(spec={"unschedulable": True}, metadata={"annotations": {"kube-accel.io/cordoned": "vgpu"}}),
            "unstable node The node is cordoned by us. Run site.yml again",
        ),
        (
            GPUS,
            changed(metadata={"labels": {"nvidia-device-enable": "vgpu"}}),
            "blocked mode The node serves vgpu and is to serve pgpu. Run site.yml",
        ),
        (
            GPUS,
            changed(status={"allocatable": {"nvidia.com/gpu": "1"}}),
            "blocked offer The node offers 1 of 2 nvidia.com/gpu. See the pod of DaemonSet kube-system/nvidia-dev",
        ),
    ],
)
def test_what_is_wrong_with_a_node_comes_with_a_remedy(
    evaluate: Evaluate, gpus: dict[str, Any], node: dict[str, Any] | None, says: str
) -> None:
    (said,) = findings(evaluate, gpus, node)
    assert said.startswith(says)


def cluster(evaluate: Evaluate, **variables: Any) -> list[str]:
    """Of the cluster, the same."""
    answers = {
        "__gpu_plugins_resource_quotas": {"resources": []},
        "__gpu_plugins_definitions_found": {"problems": {}},
        "__gpu_plugins_definitions_planned": {"skipped": True},
    }
    said = evaluate("gpu_plugins", "__gpu_plugins_cluster_validations", {"accel_nvml": GPUS}, **answers | variables)
    return [" ".join((one["verdict"], one["what"], one["found"], one["remedy"])) for one in said if one["found"]]


def quota(namespace: str, hard: dict[str, str], used: dict[str, str]) -> dict[str, Any]:
    return {"metadata": {"name": "q", "namespace": namespace}, "status": {"hard": hard, "used": used}}


def test_quotas_of_our_resources_are_listed_and_those_that_are_spent_told(evaluate: Evaluate) -> None:
    quotas = {
        "resources": [
            quota(
                "team-a", {"requests.nvidia.com/gpu": "2", "pods": "9"}, {"requests.nvidia.com/gpu": "2", "pods": "9"}
            ),
            quota("team-b", {"requests.tencent.com/vcuda-core": "50"}, {"requests.tencent.com/vcuda-core": "30"}),
            quota("team-c", {"requests.nvidia.com/gpu": "0"}, {}),
            {"metadata": {"name": "new", "namespace": "team-d"}},
        ]
    }
    rows = evaluate("gpu_plugins", "__gpu_plugins_quotas", {}, __gpu_plugins_resource_quotas=quotas)
    assert [(row["namespace"], row["resource"], row["used"], row["hard"]) for row in rows] == [
        ("team-a", "requests.nvidia.com/gpu", 2, 2),
        ("team-b", "requests.tencent.com/vcuda-core", 30, 50),
        ("team-c", "requests.nvidia.com/gpu", 0, 0),
    ]
    (said,) = cluster(evaluate, __gpu_plugins_resource_quotas=quotas)
    assert said.startswith(
        "unstable quota Used up: team-a: requests.nvidia.com/gpu. Raise the namespace's ResourceQuota"
    )


def test_definitions_that_differ_or_are_wrong_are_told(evaluate: Evaluate) -> None:
    assert cluster(evaluate) == []
    planned = {"written": ["cf-crl-nvidia-gpu", "cf-crl-cgpu-gpu-mem"]}
    (missing,) = cluster(evaluate, gpu_plugins_cf_crl_enabled=True, __gpu_plugins_definitions_planned=planned)
    assert missing.startswith(
        "blocked cf-crl Not as gpu_plugins_cf_crl_definitions has it: cf-crl-nvidia-gpu, cf-crl-cgpu"
    )
    wrong = {"problems": {"cf-crl-x": ["x: group is to be a word", "x: limits is wrong"]}}
    for enabled, verdict in ((True, "blocked"), (False, "unstable")):
        (said,) = cluster(evaluate, gpu_plugins_cf_crl_enabled=enabled, __gpu_plugins_definitions_found=wrong)
        assert said == (
            f"{verdict} cf-crl x: group is to be a word. x: limits is wrong. Correct or remove cf-crl-x in kube-public."
        )


def test_programs_that_do_not_run_there_are_told_and_only_the_blocked_ones_refused(evaluate: Evaluate) -> None:
    def answer(name: str, verdict: str) -> dict[str, Any]:
        return {"item": {"name": name}, "verdict": verdict, "rule": "dtype", "reason": "too old", "remedy": "Use half."}

    answers = {"results": [answer("a", "ok"), answer("b", "unstable"), answer("c", "blocked")]}
    found = evaluate("gpu_plugins", "__gpu_plugins_cuda_findings", {}, __gpu_plugins_cuda=answers)
    assert [(one["verdict"], one["remedy"]) for one in found] == [("unstable", "Use half."), ("blocked", "Use half.")]
    refused = evaluate("gpu_plugins", "__gpu_plugins_cuda_blocked", {}, __gpu_plugins_cuda=answers)
    assert [one["found"] for one in refused] == [
        "Program c is blocked on node-1 (dtype): too old. Use half.",
    ]
    assert evaluate("gpu_plugins", "__gpu_plugins_cuda_findings", {}) == []
