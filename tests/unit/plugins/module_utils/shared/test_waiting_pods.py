# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.accel.kubernetes.plugins.module_utils.shared.waiting_pods import REFUSED, unplaced

Object = dict[str, Any]


def pod(*limits: Object, phase: str = "Pending", **spec: Any) -> Object:
    containers = [{"name": f"c{number}", "resources": {"limits": each}} for number, each in enumerate(limits)]
    metadata = {"namespace": "team", "name": "train", "uid": "u"}
    return {"metadata": metadata, "spec": {"containers": containers, **spec}, "status": {"phase": phase}}


@pytest.mark.parametrize(
    ("resource", "mode"),
    [
        ("nvidia.com/gpu", "pgpu"),
        ("nvidia.com/gpu.shared", "pgpu"),
        ("nvidia.com/mig-1g.5gb", "pgpu"),
        ("tencent.com/vcuda-core", "vgpu"),
        ("nvidia.com/mps-core", "mps"),
        ("aliyun.com/gpu-mem", "cgpu"),
    ],
)
def test_a_pod_without_a_node_counts_for_its_mode(resource: str, mode: str) -> None:
    assert unplaced(pod({"cpu": "1"}, {resource: "1"})) == ("team", mode)
    assert unplaced(pod({"cpu": "1"}, initContainers=[{"name": "i", "resources": {"limits": {resource: "1"}}}])) == (
        "team",
        mode,
    )


@pytest.mark.parametrize(
    "item",
    [
        pod({"cpu": "1"}),
        pod({"nvidia.com/gpu": "0"}),
        pod({"nvidia.com/gpu": "1"}, nodeName="gpu-1"),
        pod({"nvidia.com/gpu": "1"}, phase="Failed"),
        {"metadata": {"namespace": "team"}, "spec": None},
    ],
)
def test_no_other_pod_counts(item: Object) -> None:
    assert unplaced(item) is None


def test_a_pod_that_asks_for_two_modes_is_refused() -> None:
    assert unplaced(pod({"nvidia.com/gpu": "1"}, {"aliyun.com/gpu-mem": "4"})) == ("team", REFUSED)
