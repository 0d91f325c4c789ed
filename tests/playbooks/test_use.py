# SPDX-License-Identifier: Apache-2.0
"""What metrics, inspect.yml and report.yml say of pods that share a GPU: who uses it, and for how much of the time."""

from __future__ import annotations

import re
from collections.abc import Mapping

import pytest

from sim.cluster import NodeSpec, Spec
from sim.cluster.client import Api, pod, until
from sim.inventory import write_inventory

from .conftest import REPOSITORY, Playbooks, Start

PODS = "/api/v1/namespaces/default/pods"
PLUGINS = "/api/v1/namespaces/kube-system/pods"
GIB = 1 << 30
SHARE = {"tencent.com/vcuda-core": "30", "tencent.com/vcuda-memory": "16"}
WORK = f"PYTHONPATH={REPOSITORY}/tests exec python3 {REPOSITORY}/tests/demo/work.py"


@pytest.fixture(scope="module")
def books(start: Start) -> Playbooks:
    """A node that shares its GPU. One GPU needs no extender."""
    books = start(Spec("control", (NodeSpec("gpu-a", "t4"),)))
    write_inventory(books.cluster.root, {"gpu-a": "vgpu"}, scheduler_layout="none", gpu_plugins_metrics_interval=1)
    done = books.run("accel.kubernetes.site")
    assert done.code == 0, done.output
    return books


def figures(api: Api, name: str, label: str) -> Mapping[str, float]:
    """A family of the plugin's page, by one of its labels."""
    (plugin,) = (item["metadata"]["name"] for item in api.get(PLUGINS)["items"] if "gpu-manager" in str(item))
    page = str(api.call("GET", f"{PLUGINS}/{plugin}:9445/proxy/metrics")[1])
    rows = re.findall(rf"^{name}{{(.*)}} (\S+)$", page, re.MULTILINE)
    return {re.search(rf'\b{label}="(.*?)"', labels)[1]: float(value) for labels, value in rows}  # type: ignore[index]


@pytest.mark.full
def test_pods_that_use_a_gpu_are_told_from_one_that_does_not(books: Playbooks, api: Api) -> None:
    for name, script in (("more", f"{WORK} 3 20"), ("less", f"{WORK} 1 10"), ("idle", "sleep 1000")):
        container = {"command": ["sh", "-c", script], "resources": {"limits": SHARE}}
        api.create(PODS, pod(name, container=container, runtimeClassName="nvidia"))
    busy = until(
        lambda: (
            len(found := figures(api, "accel_container_gpu_busy_seconds_total", "pod")) == 3
            and min(found["more"], found["less"]) > 1
            and found
        ),
        "work to be measured",
    )
    assert busy["more"] > busy["less"] > busy["idle"] == 0
    used = figures(api, "accel_container_gpu_memory_used_bytes", "pod")
    assert {pod: int(amount) // GIB for pod, amount in used.items()} == {"more": 3, "less": 1, "idle": 0}
    nobodys = figures(api, "accel_gpu_memory_unattributed_bytes", "reason")
    assert (nobodys["host"], nobodys["unknown"]) == (0, 0)
    total = figures(api, "accel_gpu_memory_used_bytes", "node")["gpu-a"]
    assert sum(used.values()) + sum(nobodys.values()) == total
    processes = figures(api, "accel_container_gpu_processes", "pod")
    assert processes == {"more": 1, "less": 1, "idle": 0}

    shown = books.run("accel.kubernetes.inspect", inspect_details=True)
    assert shown.code == 0, shown.output
    for name, gib in (("more", 3), ("less", 1), ("idle", 0)):
        assert re.search(rf'"{name} +default .* {gib}(\.\d+)? *"', shown.output), shown.output


@pytest.mark.full
def test_pods_that_no_extender_places_are_counted_while_pending(books: Playbooks, api: Api) -> None:
    for name in ("first", "second"):
        container = {"command": ["sleep", "1000"], "resources": {"limits": {"nvidia.com/gpu": "1"}}}
        api.create(PODS, pod(name, container=container))
    until(lambda: figures(api, "accel_pending_gpu_pods", "mode") == {"pgpu": 2}, "the count")
    assert figures(api, "accel_collector_success", "collector")["pending"] == 1
