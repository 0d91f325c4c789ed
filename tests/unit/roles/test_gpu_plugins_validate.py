# SPDX-License-Identifier: Apache-2.0
"""What tasks_from=validate of the role gpu_plugins says, given what host and cluster may answer."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.accel.kubernetes.plugins.module_utils.gpu_plugins.quotas import quotas as planned_quotas

from .conftest import Evaluate, rendered
from .test_gpu_plugins_checks import problems
from .test_security import rights

GPU = {"index": 0, "health": "healthy", "reason": "", "mig": {"enabled": False}, "compute_capability": "9.0"}
GPUS = {"available": True, "reason": "", "gpus": [GPU | {"index": index} for index in range(2)]}
NODE: dict[str, Any] = {
    "metadata": {"name": "node-1", "labels": {"nvidia-device-enable": "pgpu"}, "annotations": {}},
    "spec": {},
    "status": {"allocatable": {"nvidia.com/gpu": "2"}, "conditions": [{"type": "Ready", "status": "True"}]},
}

NODE_INFO = {"kubeletVersion": "v1.33.2", "containerRuntimeVersion": "containerd://2.1.4"}
ELSEWHERE = {"ansible_play_hosts": ["another"]}
"""Another host tells of the cluster."""


def findings(
    evaluate: Evaluate, gpus: dict[str, Any] = GPUS, node: dict[str, Any] | None = NODE, **variables: Any
) -> list[str]:
    """The checks of the node: verdict, what, found and remedy in a line each."""
    picked = {"__gpu_plugins_picked": {"resources": [node] if node else []}}
    said = evaluate("gpu_plugins", "__gpu_plugins_findings", {"accel_nvml": gpus}, **ELSEWHERE, **picked, **variables)
    return [" ".join((one["verdict"], one["what"], one["found"], one["remedy"])) for one in said["wrong"]]


def changed(**parts: Any) -> dict[str, Any]:
    """The node with some of its parts replaced."""
    return NODE | {part: NODE[part] | value for part, value in parts.items()}


def test_nothing_is_said_of_a_node_that_serves(evaluate: Evaluate) -> None:
    assert findings(evaluate) == []


@pytest.mark.parametrize(
    ("gpus", "node", "says"),
    [
        (GPUS | {"available": False, "reason": "it hangs", "gpus": []}, NODE, "blocked driver it hangs. Run site.yml"),
        (GPUS | {"gpus": []}, NODE, "blocked driver The driver lists no GPU. Check lspci"),
        (
            GPUS | {"gpus": [GPU, GPU | {"index": 1, "health": "unhealthy", "reason": "GPU is lost"}]},
            NODE,
            "unstable health Unhealthy GPUs: GPU 1: GPU is lost. Reset or replace",
        ),
        (
            GPUS,
            changed(metadata={"annotations": {"kube-accel.io/benchmark": "x"}}),
            "unstable node A benchmark switches the node, or was killed meanwhile. Once none runs, run benchmark.yml",
        ),
        (
            GPUS,
            changed(status={"nodeInfo": {"kubeletVersion": "v1.24.17+k3s1"}}),
            "blocked versions Kubernetes is 1.24.17+k3s1; 1.25 or newer is needed. Upgrade the control planes",
        ),
        (
            GPUS,
            changed(status={"nodeInfo": {"containerRuntimeVersion": "docker://19.3.15"}}),
            "blocked versions Docker is 19.3.15; 20.10 or newer is needed. Drain the node, and run apt-get",
        ),
        (
            GPUS | {"driver_version": "460.91.03"},
            NODE,
            "blocked versions NVIDIA driver is 460.91.03; 470 or newer is needed. Run "
            "ansible-playbook -i INVENTORY accel.kubernetes.upgrade_driver.",
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
            "unstable node The node is cordoned. When the node may have pods again, run kubectl uncordon node-1",
        ),
        (
            GPUS,
            changed(spec={"unschedulable": True}, metadata={"annotations": {"kube-accel.io/cordoned": "vgpu"}}),
            "unstable node The node is cordoned by us, to become vgpu. To continue, run switch_mode.yml with gpu_mode="
            "vgpu again. Or run site.yml, which returns the node to pgpu.",
        ),
        (
            GPUS,
            changed(spec={"unschedulable": True}, metadata={"annotations": {"kube-accel.io/cordoned": "pgpu"}}),
            "unstable node The node is cordoned by us. To continue, run the playbook that stopped there again (upgrade",
        ),
        (
            GPUS,
            changed(metadata={"labels": {"nvidia-device-enable": "vgpu"}}),
            "blocked mode The node serves vgpu, but should serve pgpu. Run site.yml",
        ),
        (
            GPUS,
            changed(status={"allocatable": {"nvidia.com/gpu": "1"}}),
            "blocked offer The node offers 1 of 2 nvidia.com/gpu. See the pod of DaemonSet kube-system/nvidia-dev",
        ),
        (
            GPUS | {"gpus": [GPU] * 1001},
            changed(status={"allocatable": {"nvidia.com/gpu": "1k"}}),
            "blocked offer The node offers 1000 of 1001 nvidia.com/gpu. See the pod",
        ),
    ],
)
def test_what_is_wrong_with_a_node_comes_with_a_remedy(
    evaluate: Evaluate, gpus: dict[str, Any], node: dict[str, Any] | None, says: str
) -> None:
    (said,) = findings(evaluate, gpus, node)
    assert said.startswith(says)


@pytest.mark.parametrize(
    ("toolkit", "variables", "told"),
    [
        ({"toolkit_version": "1.18.1", "toolkit_mode": "auto"}, {"gpu_plugins_mig_strategy": "mixed"}, True),
        ({"toolkit_version": "1.19.0", "toolkit_mode": ""}, {"gpu_plugins_mig_label": "yes"}, True),
        ({"toolkit_version": "1.19.0", "toolkit_mode": "legacy"}, {"gpu_plugins_mig_strategy": "mixed"}, False),
        ({"toolkit_version": "1.20.0", "toolkit_mode": "auto"}, {"gpu_plugins_mig_strategy": "mixed"}, False),
        ({"toolkit_version": "1.18.1", "toolkit_mode": "auto"}, {}, False),
        ({}, {"gpu_plugins_mig_strategy": "mixed"}, False),
    ],
)
def test_a_toolkit_that_keeps_mig_from_being_cut_is_told(
    evaluate: Evaluate, toolkit: dict[str, str], variables: dict[str, Any], told: bool
) -> None:
    said = findings(evaluate, container_runtime_looked=toolkit, **variables)
    assert [
        f"unstable versions NVIDIA Container Toolkit is {toolkit.get('toolkit_version')}" in one for one in said
    ] == [True] * told


@pytest.mark.parametrize(
    ("driver", "mode", "offers", "says"),
    [
        ("gpu.kube-accel.io", "pgpu", "2", "is not of mode dra, and DRA driver gpu.kube-accel.io has ResourceSlices"),
        ("gpu.nvidia.com", "pgpu", "2", "DRA driver gpu.nvidia.com has ResourceSlices with GPUs of node 'node-1'"),
        ("compute-domain.nvidia.com", "pgpu", "2", ""),
        ("gpu.kube-accel.io", "dra", "2", "offers nvidia.com/gpu by a device plugin, and two would give away its GPUs"),
        ("gpu.kube-accel.io", "dra", "0", ""),
    ],
)
def test_gpus_that_two_give_away_are_reported(
    evaluate: Evaluate, driver: str, mode: str, offers: str, says: str
) -> None:
    devices = [{"name": f"gpu-0{each}"} for each in range(2)]
    spec = {"driver": driver, "nodeName": "node-1", "devices": devices, "pool": {"resourceSliceCount": 1}}
    slices = {"item": {"subject": "slices"}, "resources": [{"spec": spec}]}
    node = changed(
        metadata={"labels": {"nvidia-device-enable": mode}}, status={"allocatable": {"nvidia.com/gpu": offers}}
    )
    said = findings(evaluate, node=node, gpu_plugins_mode=mode, __gpu_plugins_read={"results": [slices]})
    assert [says in one and one.startswith("blocked offer ") for one in said] == ([True] if says else [])


def test_node_taken_from_cgpu_by_kubectl_is_reported(evaluate: Evaluate) -> None:
    labels = {"nvidia-device-enable": "cgpu", "cgpu": "false"}
    node = changed(metadata={"labels": labels}, status={"allocatable": {"nvidia.com/gpu": "1", "cpu": "8"}})
    (said,) = findings(evaluate, node=node, gpu_plugins_mode="cgpu")
    assert said == (
        "unstable mode The node serves pgpu, but should serve cgpu. The label cgpu of the node was cleared. "
        "Run kubectl label node node-1 --overwrite cgpu=true, or set gpu_mode to pgpu: site.yml sets the label again."
    )
    picked = {"__gpu_plugins_picked": {"resources": [node]}}
    found = evaluate(
        "gpu_plugins", "__gpu_plugins_findings", {"accel_nvml": GPUS}, gpu_plugins_mode="cgpu", **ELSEWHERE, **picked
    )
    assert {row["what"]: row["found"] for row in found["passed"]}["offer"] == "1 nvidia.com/gpu"


@pytest.mark.parametrize(
    ("accounts", "says"),
    [
        ({"action": "none", "waits": False, "says": "It is bounded."}, []),
        (
            {"action": "start", "waits": False, "says": "No."},
            ["unstable accounts No. Run site.yml with --tags gpu_plugins."],
        ),
        ({"action": "none", "waits": True, "says": "Later."}, ["unstable accounts Later. "]),
    ],
)
def test_accounts_that_nothing_bounds_are_told(evaluate: Evaluate, accounts: dict[str, Any], says: list[str]) -> None:
    assert findings(evaluate, __gpu_plugins_accounts=accounts) == says


def cluster(evaluate: Evaluate, **variables: Any) -> list[str]:
    """The checks of the cluster, likewise."""
    answers = {
        "ansible_play_hosts": ["node-1"],
        "__gpu_plugins_picked": {"resources": [NODE]},
        "gpu_plugins_admission_enabled": False,
        "gpu_plugins_network_policy_enabled": False,
        "__gpu_plugins_resource_quotas": {"resources": []},
        "__gpu_plugins_definitions_found": {"problems": {}},
        "__gpu_plugins_definitions_planned": {"skipped": True},
        "__gpu_plugins_workloads": {"results": [{"resources": []}, {"resources": []}]},
        "__gpu_plugins_rollout_pods": {"skipped": True},
    }
    said = evaluate("gpu_plugins", "__gpu_plugins_findings", {"accel_nvml": GPUS}, **answers | variables)
    return [" ".join((one["verdict"], one["what"], one["found"], one["remedy"])) for one in said["wrong"]]


def quota(namespace: str, hard: dict[str, str], used: dict[str, str]) -> dict[str, Any]:
    return {"metadata": {"name": "q", "namespace": namespace}, "status": {"hard": hard, "used": used}}


def test_quotas_of_our_resources_are_listed_and_full_ones_named(evaluate: Evaluate) -> None:
    quotas = {
        "resources": [
            quota(
                "team-a", {"requests.nvidia.com/gpu": "2", "pods": "9"}, {"requests.nvidia.com/gpu": "2", "pods": "9"}
            ),
            quota("team-b", {"requests.tencent.com/vcuda-core": "50"}, {"requests.tencent.com/vcuda-core": "30"}),
            quota("team-c", {"requests.nvidia.com/gpu": "0"}, {}),
            quota("team-r", {"requests.nvidia.com/t4-shared": "4"}, {"requests.nvidia.com/t4-shared": "1"}),
            quota("team-k", {"requests.nvidia.com/mps-core": "1k"}, {"requests.nvidia.com/mps-core": "1k"}),
            quota("team-m", {"requests.nvidia.com/gpu": "1500m"}, {"requests.nvidia.com/gpu": "1"}),
            {"metadata": {"name": "new", "namespace": "team-d"}},
        ]
    }
    assert [(row.namespace, row.resource, row.used, row.hard) for row in planned_quotas(quotas)] == [
        ("team-a", "requests.nvidia.com/gpu", 2, 2),
        ("team-b", "requests.tencent.com/vcuda-core", 30, 50),
        ("team-c", "requests.nvidia.com/gpu", 0, 0),
        ("team-r", "requests.nvidia.com/t4-shared", 1, 4),
        ("team-k", "requests.nvidia.com/mps-core", 1000, 1000),
        ("team-m", "requests.nvidia.com/gpu", 1, 1),
    ]
    (said,) = cluster(evaluate, __gpu_plugins_resource_quotas=quotas)
    assert said.startswith(
        "unstable quota Used up: team-a: requests.nvidia.com/gpu, team-k: requests.nvidia.com/mps-core, "
        "team-m: requests.nvidia.com/gpu. Raise the namespace's ResourceQuota"
    )


def test_a_rollout_that_was_stopped_has_a_row(evaluate: Evaluate) -> None:
    template = {"spec": {"containers": [{"image": "accel:1"}]}}
    held = {
        "kind": "DaemonSet",
        "metadata": {"namespace": "kube-system", "name": "gpu-manager-daemonset"},
        "spec": {"template": template, "updateStrategy": {"type": "OnDelete"}},
    }
    said = cluster(evaluate, __gpu_plugins_workloads={"results": [{"resources": [held]}, {"resources": []}]})
    assert said == [
        "unstable rollout Running or interrupted: DaemonSet kube-system/gpu-manager-daemonset "
        "(image accel:1; held, OnDelete). If no rollout runs, run rollout.yml again. With the same image and settings, "
        "it continues. With the previous ones, it rolls back."
    ]


def test_definitions_that_differ_or_are_wrong_are_told(evaluate: Evaluate) -> None:
    assert cluster(evaluate) == []
    planned = {"written": ["cf-crl-nvidia-gpu", "cf-crl-cgpu-gpu-mem"]}
    (missing,) = cluster(evaluate, gpu_plugins_cf_crl_enabled=True, __gpu_plugins_definitions_planned=planned)
    assert missing.startswith(
        "blocked cf-crl Definitions differ from gpu_plugins_cf_crl_definitions: cf-crl-nvidia-gpu, cf-crl-cgpu"
    )
    wrong = {"problems": {"cf-crl-x": ["x: group must be a word", "x: limits is wrong"]}}
    for enabled, verdict in ((True, "blocked"), (False, "unstable")):
        (said,) = cluster(evaluate, gpu_plugins_cf_crl_enabled=enabled, __gpu_plugins_definitions_found=wrong)
        assert said == (
            f"{verdict} cf-crl x: group must be a word. x: limits is wrong. Correct or remove cf-crl-x in kube-public."
        )


def test_unfit_programs_are_named_and_only_blocked_refused(evaluate: Evaluate) -> None:
    def answer(name: str, verdict: str) -> dict[str, Any]:
        return {"item": {"name": name}, "verdict": verdict, "rule": "dtype", "reason": "too old", "remedy": "Use half."}

    answers = {"results": [answer("a", "ok"), answer("b", "unstable"), answer("c", "blocked")]}
    assert [said.split(" on node-1")[0] for said in findings(evaluate, __gpu_plugins_cuda=answers)] == [
        "unstable cuda Program b is unstable",
        "blocked cuda Program c is blocked",
    ]
    assert problems(evaluate, __gpu_plugins_cuda=answers) == [
        "Program c is blocked on node-1 (dtype): too old. Use half.",
    ]


def test_what_is_well_is_a_row_each_and_what_is_not_is_none(evaluate: Evaluate) -> None:
    facts = {"accel_nvml": GPUS | {"driver_version": "580.95.05", "cuda_version": "13.0"}}
    found: dict[str, Any] = {
        "__gpu_plugins_resource_quotas": {},
        "__gpu_plugins_picked": {"resources": [changed(status={"nodeInfo": NODE_INFO})]},
        "container_runtime_looked": {"toolkit_version": "1.17.8"},
        "ansible_play_hosts": ["node-1"],
    }
    found |= {"__gpu_plugins_definitions_found": {"problems": {}}, "__gpu_plugins_definitions_planned": {}}
    found |= {"__gpu_plugins_workloads": {"results": []}, "groups": {}}
    found["__gpu_plugins_admission_plan"] = {
        "findings": [],
        "expected": ["kube-accel-plugin-nodes", "kube-accel-shares"],
    }
    found["__gpu_plugins_network_plan"] = {"findings": [], "says": ["kube-accel-plugin admits everybody."]}
    rows = evaluate("gpu_plugins", "__gpu_plugins_findings", facts, **found)["passed"]
    assert {row["what"]: row["found"] for row in rows} == {
        "driver": "580.95.05, CUDA 13.0",
        "versions": "Kubernetes 1.33.2, NVIDIA driver 580.95.05, NVIDIA Container Toolkit 1.17.8, containerd 2.1.4.",
        "health": "All 2 GPUs are healthy.",
        "node": "The node is ready.",
        "mode": "pgpu",
        "accounts": "Whole GPUs need none.",
        "capabilities": "Whole GPUs have all of the driver.",
        "offer": "2 nvidia.com/gpu",
        "rollout": "None was left unfinished.",
        "quota": "None is used up.",
        "cf-crl": "The definitions can be read.",
        "admission": "The API server denies by kube-accel-plugin-nodes, kube-accel-shares.",
        "network": "kube-accel-plugin admits everybody.",
    }
    facts["accel_nvml"] |= {"gpus": [GPU, GPU | {"index": 1, "health": "unhealthy"}]}
    elsewhere = found | {"ansible_play_hosts": ["node-0", "node-1"]}
    rows = evaluate("gpu_plugins", "__gpu_plugins_findings", facts, **elsewhere)["passed"]
    assert [row["what"] for row in rows] == ["driver", "versions", "node", "mode", "offer", "accounts", "capabilities"]


@pytest.mark.parametrize(
    ("given", "enforcement", "says"),
    [
        (
            ["compute", "utility"],
            "interposer",
            "Shares have CUDA and NVML, which are limited. They do not have OpenCL,",
        ),
        (
            ["compute", "utility"],
            "mps",
            "NVIDIA's runtime brings what NVIDIA_DRIVER_CAPABILITIES of a container names.",
        ),
        (
            ["video", "compute", "graphics"],
            "interposer",
            "Shares have video, graphics of the driver. Nothing limits their memory and GPU",
        ),
        (["all"], "interposer", "Shares have all of the driver."),
    ],
)
def test_what_a_share_does_not_limit_is_told(evaluate: Evaluate, given: list[str], enforcement: str, says: str) -> None:
    labels = {"nvidia-device-enable": "vgpu", "kube-accel.io/enforcement": enforcement}
    variables = {
        "__gpu_plugins_picked": {"resources": [changed(metadata={"labels": labels})]},
        "__gpu_plugins_accounts": {"action": "none", "waits": False, "says": ""},
        "gpu_mode": "vgpu",
        "gpu_plugins_share_capabilities": given,
        "ansible_play_hosts": ["another"],
        "inventory_hostname": "node-1",
    }
    facts = {"accel_nvml": GPUS | {"gpus": [GPU | {"memory_bytes": 80 << 30}]}}
    found = evaluate("gpu_plugins", "__gpu_plugins_findings", facts, **variables)
    rows = {row["what"]: (row["verdict"], row["found"]) for row in (*found["passed"], *found["wrong"])}
    verdict, words = rows["capabilities"]
    assert words.startswith(says)
    assert verdict == ("ok" if given == ["compute", "utility"] else "unstable")


PLUGIN = {"spec": {"template": {"spec": {"containers": [{"image": "registry.example/kube-accel:1"}]}}}}


def test_the_pod_has_no_more_rights_than_a_tenants() -> None:
    seen = {
        "__gpu_plugins_picked": {"resources": [NODE]},
        "__gpu_plugins_pods": {"resources": []},
        "ansible_check_mode": False,
    }
    (made,) = rendered("gpu_plugins", "trial.yml.j2", __gpu_plugins_trial_daemonset={"resources": [PLUGIN]}, **seen)
    assert list(rights(made["spec"])) == []
    assert not made["spec"]["automountServiceAccountToken"]
    (container,) = made["spec"]["containers"]
    assert container["image"] == "registry.example/kube-accel:1"
    assert container["resources"]["limits"] == {"nvidia.com/gpu": 1}
    assert "--memory=0" in container["command"]
