# SPDX-License-Identifier: Apache-2.0
"""Shares of GPUs on a real kubelet, placed by our extender beside a real scheduler, in the local layout."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from cluster.control_plane import entry, extender_beside, free_port
from cluster.node import GpuNode, pod
from cluster.rig import PODS, Rig
from sim.cluster.client import until

CORES = "tencent.com/vcuda-core"
GIB = 1 << 30
pytestmark = pytest.mark.usefixtures("no_pods_left")


def vgpu(cores: int, blocks: int) -> dict[str, str]:
    return {CORES: str(cores), "tencent.com/vcuda-memory": str(blocks)}


@pytest.fixture(scope="module")
def rig(bare_rig: Rig) -> Iterator[Rig]:
    port = free_port()
    with extender_beside(bare_rig.plane, port), bare_rig.plane.scheduler([entry(bare_rig.plane, port)]):
        yield bare_rig


def never_twice(node: GpuNode) -> None:
    assert all(cores <= 100 and memory <= 80 * GIB for cores, memory in node.sums().values()), node.held()


def held_pods(node: GpuNode) -> int:
    return sum(len(pods) for pods in node.held().values())


def test_vgpu_shares_are_placed_held_and_never_overcommitted(rig: Rig, h100: GpuNode) -> None:
    with h100.plugin("vgpu"):
        h100.wait_allocatable(800, CORES)
        rig.api.create(PODS, pod("pair", vgpu(30, 32), vgpu(30, 32)))
        rig.api.create(PODS, pod("whole", vgpu(100, 4)))
        rig.api.create(PODS, pod("bad", vgpu(150, 4)))
        rig.wait_running("pair", "whole")
        until(lambda: any("pair" in pods for pods in h100.held().values()), "who holds what")
        assert "pair" in h100.held()[h100.limited("pair")]
        assert rig.phase("bad") == "Pending"
        until(lambda: "150" in rig.kubectl("describe", "pod", "bad"), "the reason")

        names = [f"half-{number}" for number in range(16)]
        for name in names:
            rig.api.create(PODS, pod(name, vgpu(50, 100)))
        # Seven GPUs are left for halves: one is whole, and one has 40 % left.
        until(lambda: len(rig.running() & set(names)) == 12, "12 halves to run")
        until(lambda: held_pods(h100) >= 14, "the node to say so")
        never_twice(h100)
        assert len([name for name in names if rig.phase(name) == "Pending"]) == 4
        rig.kubectl("delete", "pod", "--now", "whole", "pair")
        rig.wait_running(*names)


def test_fifty_pods_at_once_for_sixteen_slots(rig: Rig, h100: GpuNode) -> None:
    with h100.plugin("vgpu"):
        h100.wait_allocatable(800, CORES)
        names = {f"crowd-{number}" for number in range(50)}
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda name: rig.api.create(PODS, pod(name, vgpu(50, 150))), names))
        first = until(lambda: len(found := rig.running()) == 16 and found, "16 pods to run")
        until(lambda: held_pods(h100) == 16, "the node to say who holds what")
        assert set(h100.sums().values()) == {(100, 75 * GIB)}

        def reasons() -> list[str]:
            waiting = [item for item in rig.api.get(PODS)["items"] if item["status"]["phase"] == "Pending"]
            told = [condition.get("message", "") for item in waiting for condition in item["status"]["conditions"]]
            return [message for message in told if f"Insufficient {CORES}" in message]

        until(lambda: len(reasons()) == 34, "34 pods to be told why they wait")
        gone = sorted(first)[:5]
        rig.kubectl("delete", "pod", "--now", *gone)
        until(lambda: len(rig.running()) == 16 and rig.running() - first, "five others to run")
        until(lambda: {p for pods in h100.held().values() for p in pods} == rig.running(), "who holds what now")
        never_twice(h100)
        assert all(item["status"]["phase"] in ("Running", "Pending") for item in rig.api.get(PODS)["items"])


def test_shares_survive_the_death_of_plugin_and_kubelet(rig: Rig, h100: GpuNode) -> None:
    with h100.plugin("vgpu") as first:
        h100.wait_allocatable(800, CORES)
        rig.api.create(PODS, pod("before", vgpu(70, 100)))
        rig.wait_running("before")
        held = until(h100.held, "the node to say who holds what")
        first.kill()
    with h100.plugin("vgpu"):
        h100.wait_allocatable(800, CORES)
        rig.restart("kubelet")
        h100.wait_allocatable(800, CORES)
        rig.api.create(PODS, pod("after", vgpu(70, 100)))
        rig.wait_running("before", "after")
        until(lambda: len(h100.held()) == 2, "both shares")
        assert {uuid: pods for uuid, pods in h100.held().items() if "before" in pods} == held


def test_running_and_waiting_shares_survive_api_server_restart(rig: Rig, h100: GpuNode) -> None:
    with h100.plugin("vgpu"):
        h100.wait_allocatable(800, CORES)
        rig.api.create(PODS, pod("before", vgpu(70, 100)))
        rig.wait_running("before")
        rig.plane.programs["kube-apiserver"].kill()
        rig.plane.programs["kube-apiserver"].start()
        until(rig.api_answers, "the API server")
        rig.api.create(PODS, pod("after", vgpu(70, 100)))
        rig.api.create(PODS, pod("plain", {"cpu": "10m"}))
        rig.wait_running("before", "after", "plain")
        until(lambda: held_pods(h100) == 2, "both shares")
        never_twice(h100)


def test_cgpu_memory_is_shared(rig: Rig, h100: GpuNode) -> None:
    resource = "aliyun.com/gpu-mem"
    with h100.plugin("cgpu"):
        until(lambda: h100.allocatable(resource) >= 8 * 79, "the GPUs' memory in GiB")
        for name in "abc":
            rig.api.create(PODS, pod(name, {resource: "30"}))
        rig.wait_running(*"abc")
        until(lambda: held_pods(h100) == 3, "the node to say so")
        assert sorted(memory for _, memory in h100.sums().values()) == [30 * GIB, 60 * GIB]
