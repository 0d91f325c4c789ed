# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.accel.kubernetes.plugins.module_utils.gpu_plugins.trial import Seen, Trial, trial
from ansible_collections.accel.kubernetes.plugins.module_utils.shared.quantity import parse_quantity

NODE: dict[str, Any] = {
    "metadata": {"name": "node-1", "labels": {"nvidia-device-enable": "pgpu"}},
    "status": {"allocatable": {"nvidia.com/gpu": "2"}},
}


def changed(**parts: Any) -> dict[str, Any]:
    return NODE | parts


TOLD = '{"checks": [{"status": "ok", "name": "nvml", "detail": "answers, 1 GPUs", "remedy": ""}, %s]}'
WELL = '{"status": "ok", "name": "cuda", "detail": "CUDA 13.0", "remedy": ""}'
ILL = '{"status": "fail", "name": "limit", "detail": "not held", "remedy": "see there"}'


def tried(node: dict[str, Any], **more: Any) -> Trial:
    """A trial on a node where nobody has a GPU."""
    offered = {name: parse_quantity(amount) for name, amount in node["status"]["allocatable"].items()}
    seen = {"node": node, "pods": [], "name": "kube-accel-validate-node-1", "mode": "pgpu", "serves": "pgpu"}
    return trial(Seen(**{**seen, "offered": offered, "daemonsets": [{}], **more}))


# As an API server writes 1000.
THOUSAND = changed(status={"allocatable": {"nvidia.com/gpu": "1k"}})


def holder(limits: dict[str, str], phase: str = "Running") -> dict[str, Any]:
    container = {"name": "main", "resources": {"limits": limits}}
    return {"metadata": {"name": "p"}, "spec": {"containers": [container, {"name": "x"}]}, "status": {"phase": phase}}


@pytest.mark.parametrize(
    ("node", "pods", "variables", "says"),
    [
        (NODE, [], {}, ""),
        (NODE, [holder({"nvidia.com/gpu": "1"}), holder({"nvidia.com/gpu": "1"}, "Failed")], {}, ""),
        (NODE, [holder({"nvidia.com/gpu": "2"})], {}, "The node is full: too little nvidia.com/gpu is left"),
        (THOUSAND, [holder({"nvidia.com/gpu": "999"})], {}, ""),
        (THOUSAND, [holder({"nvidia.com/gpu": "1k"})], {}, "The node is full: too little nvidia.com/gpu is left"),
        (NODE, [], {"check_mode": True}, "Check mode starts no pod"),
        (NODE, [], {"daemonsets": []}, "does not serve mode pgpu"),
        (NODE, [], {"mode": "mps"}, "The node does not serve mode mps"),
        (changed(spec={"unschedulable": True}), [], {}, "The node is cordoned"),
    ],
)
def test_what_keeps_a_pod_from_being_tried(
    node: dict[str, Any], pods: list[Any], variables: dict[str, Any], says: str
) -> None:
    found = tried(node, pods=pods, **variables).obstacle
    assert says in found
    assert bool(says) == bool(found)


@pytest.mark.parametrize(
    ("mode", "allocatable", "enforcement", "asks", "memory"),
    [
        ("pgpu", {"nvidia.com/gpu": "0", "nvidia.com/mig-1g.10gb": "2"}, "", {"nvidia.com/mig-1g.10gb": 1}, 0),
        ("vgpu", {}, "interposer", {"tencent.com/vcuda-core": 5, "tencent.com/vcuda-memory": 4}, 1 << 30),
        ("mps", {}, "mps-interposer", {"nvidia.com/mps-core": 5, "nvidia.com/mps-memory": 1}, 1 << 30),
        ("mps", {}, "mps", {"nvidia.com/mps-core": 5, "nvidia.com/mps-memory": 1}, 0),
        ("cgpu", {}, "interposer", {"aliyun.com/gpu-mem": 1}, 1 << 30),
    ],
)
def test_a_pod_asks_for_little_and_knows_what_is_to_hold(
    mode: str,
    allocatable: dict[str, str],
    enforcement: str,
    asks: dict[str, int],
    memory: int,
) -> None:
    labels = {"nvidia-device-enable": mode, "kube-accel.io/enforcement": enforcement}
    node = changed(
        metadata={"labels": labels | {"cgpu": str(mode == "cgpu").lower()}}, status={"allocatable": allocatable}
    )
    found = tried(node, mode=mode, serves=mode)
    assert (found.asks, found.memory_bytes) == (asks, memory)


def pod(phase: str, waits: str = "", **status: Any) -> dict[str, Any]:
    conditions = [{"type": "PodScheduled", "status": "False", "message": waits}] if waits else []
    return {"resources": [{"status": {"phase": phase, "conditions": conditions, **status}}]}


@pytest.mark.parametrize(
    ("seen", "lines", "verdict", "says"),
    [
        (pod("Succeeded"), ["SIMULATOR: x", TOLD % WELL, ""], "ok", "answers, 1 GPUs; CUDA 13.0"),
        (pod("Failed"), [TOLD % ILL], "blocked", "A pod with 1 nvidia.com/gpu is Failed: limit: not held."),
        (
            pod("Failed", reason="UnexpectedAdmissionError", message="no"),
            [],
            "blocked",
            "UnexpectedAdmissionError: no.",
        ),
        (pod("Succeeded"), [], "blocked", "is Succeeded: no reason given."),
        (pod("Failed"), ["Traceback", "KeyError"], "blocked", "is Failed: Traceback | KeyError."),
        ({}, [], "blocked", "is gone: no reason given."),
        (
            pod("Pending", "0/2 nodes are available: 1 Insufficient nvidia.com/gpu."),
            [],
            "unknown",
            "No room for a pod: 0/2",
        ),
        (pod("Pending", "needs 5 % of one GPU; best has 2 % free (GPU 1)"), [], "unknown", "No room for a pod: needs"),
        (
            pod("Pending", "Post https://127.0.0.1:9446: refused"),
            [],
            "blocked",
            "is Pending: Post https://127.0.0.1:9446",
        ),
        (
            pod("Pending", containerStatuses=[{"state": {"waiting": {"reason": "x", "message": "no handler"}}}]),
            [],
            "blocked",
            "is Pending: no handler.",
        ),
    ],
)
def test_what_came_of_a_pod_is_one_row(seen: dict[str, Any], lines: list[str], verdict: str, says: str) -> None:
    row = tried(NODE, trials=seen.get("resources", []), log=lines).row
    assert (row.verdict, row.what) == (verdict, "pod")
    assert says in row.found


@pytest.mark.parametrize(
    ("classes", "asks", "claim", "memory"),
    [
        (
            ("gpu.kube-accel.io", "share.kube-accel.io"),
            {"share.kube-accel.io": 1},
            {"capacity": {"requests": {"cores": "5", "memory": "1073741824"}}},
            1 << 30,
        ),
        (("gpu.kube-accel.io",), {"gpu.kube-accel.io": 1}, {}, 0),
    ],
)
def test_pod_of_mode_dra_has_a_claim_for_little(
    classes: tuple[str, ...], asks: dict[str, int], claim: dict[str, Any], memory: int
) -> None:
    found_classes = {"resources": [{"metadata": {"name": name}} for name in classes]}
    modes = {"mode": "dra", "serves": "dra", "device_classes": found_classes}
    found = tried(changed(status={"allocatable": {}}), **modes)
    assert (found.obstacle, found.asks, found.memory_bytes) == ("", asks, memory)
    assert found.claim == {"deviceClassName": next(iter(asks)), **claim}
    says = {
        "type": "PodScheduled",
        "status": "False",
        "message": "0/1 nodes are available: cannot allocate all claims.",
    }
    pending = {"metadata": {"name": "p"}, "status": {"phase": "Pending", "conditions": [says]}}
    waiting = tried(changed(status={"allocatable": {}}), trials=[pending], **modes)
    assert (waiting.over, waiting.row.code) == (True, "no_room")
