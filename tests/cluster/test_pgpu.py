# SPDX-License-Identifier: Apache-2.0
"""Whole GPUs on a real kubelet, through a real scheduler and API server."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from cluster.node import GpuNode, gpu_pod
from cluster.rig import NODE, PODS, Rig
from sim.cluster.client import until

pytestmark = pytest.mark.usefixtures("no_pods_left")


@pytest.fixture(scope="module")
def rig(bare_rig: Rig) -> Iterator[Rig]:
    with bare_rig.plane.scheduler():
        yield bare_rig


@pytest.fixture(scope="module")
def node(h100: GpuNode) -> GpuNode:
    return h100


def submit(rig: Rig, name: str, gpus: int) -> None:
    rig.api.create(PODS, gpu_pod(name, gpus))


def visible(rig: Rig, name: str) -> list[str]:
    environment = rig.kubectl("exec", name, "--", "env")
    found = re.search(r"^NVIDIA_VISIBLE_DEVICES=(.*)$", environment, re.MULTILINE)
    assert found, environment
    return found[1].split(",")


def test_pods_get_their_gpus_and_no_other(rig: Rig, node: GpuNode) -> None:
    with node.plugin():
        node.wait_allocatable(8)
        submit(rig, "one", 1)
        submit(rig, "four", 4)
        submit(rig, "nine", 9)
        rig.wait_running("one", "four")
        seen = {name: visible(rig, name) for name in ("one", "four")}
        assert [len(seen["one"]), len(seen["four"])] == [1, 4]
        assert not set(seen["one"]) & set(seen["four"])
        nodes = rig.kubectl("exec", "four", "--", "ls", "/dev").split()
        assert len([name for name in nodes if re.fullmatch(r"nvidia\d+", name)]) == 4
        assert "nvidiactl" in nodes
        until(
            lambda: node.holders() == {uuid: name for name, uuids in seen.items() for uuid in uuids},
            "the annotation to say who holds what",
        )
        assert rig.phase("nine") == "Pending"
        assert "Insufficient nvidia.com/gpu" in rig.kubectl("describe", "pod", "nine")


def test_a_lost_gpu_is_withdrawn_and_comes_back(rig: Rig, node: GpuNode) -> None:
    with node.plugin():
        node.wait_allocatable(8)
        with node.edit() as topology:
            topology.set_health(3, "lost")
        node.wait_allocatable(7)
        assert rig.node()["status"]["capacity"]["nvidia.com/gpu"] == "8"
        with node.edit() as topology:
            topology.set_health(3, "ok")
        node.wait_allocatable(8)


def test_allocations_survive_the_death_of_plugin_and_kubelet(rig: Rig, node: GpuNode) -> None:
    with node.plugin() as first:
        node.wait_allocatable(8)
        submit(rig, "before", 2)
        rig.wait_running("before")
        held = set(visible(rig, "before"))
        first.kill()
    node.wait_allocatable(0)
    with node.plugin():
        node.wait_allocatable(8)
        submit(rig, "between", 2)
        rig.wait_running("between")

        rig.restart("kubelet")
        node.wait_allocatable(8)
        submit(rig, "after", 4)
        rig.wait_running("after")
        assert rig.phase("before") == "Running"
        assert set(visible(rig, "before")) == held
        handed_out = [uuid for name in ("before", "between", "after") for uuid in visible(rig, name)]
        assert len(set(handed_out)) == 8


def test_more_pods_than_gpus_wait_and_run_when_room_appears(rig: Rig, node: GpuNode) -> None:
    with node.plugin():
        node.wait_allocatable(8)
        names = [f"crowd-{number}" for number in range(12)]
        for name in names:
            submit(rig, name, 1)
        running = sorted(until(lambda: len(found := rig.running()) == 8 and found, "8 pods to run"))
        rig.kubectl("delete", "pod", "--now", *running[:4])
        rest = [name for name in names if name not in running[:4]]
        rig.wait_running(*rest)
        assert len({uuid for name in rest for uuid in visible(rig, name)}) == 8


def test_a_successor_takes_over(rig: Rig, node: GpuNode) -> None:
    with node.plugin() as old:
        node.wait_allocatable(8)
        submit(rig, "before", 1)
        rig.wait_running("before")
        # The successor of a DaemonSet's pod has an address of its own; here it has a port.
        with node.plugin(port=9447):
            names = [f"during-{number}" for number in range(7)]
            for name in names[:3]:
                submit(rig, name, 1)
            old.process.terminate()
            for name in names[3:]:
                submit(rig, name, 1)
            old.process.wait(300)
            # Had the stream not been handed over, kubelet 1.36 would drop the successor with it, and fail pods.
            rig.wait_running("before", *names)
            assert len({uuid for name in ("before", *names) for uuid in visible(rig, name)}) == 8


def test_kubelet_measures_the_allocations(rig: Rig, node: GpuNode) -> None:
    with node.plugin():
        node.wait_allocatable(8)
        submit(rig, "measured", 1)
        rig.wait_running("measured")
        metrics = rig.kubectl("get", "--raw", f"/api/v1/nodes/{NODE}/proxy/metrics")
        count = re.search(
            r'^kubelet_device_plugin_alloc_duration_seconds_count\{resource_name="nvidia.com/gpu"\} (\d+)$',
            metrics,
            re.MULTILINE,
        )
        assert count, "kubelet exports no count of allocations"
        assert int(count[1]) >= 1
