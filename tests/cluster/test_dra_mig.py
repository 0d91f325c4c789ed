# SPDX-License-Identifier: Apache-2.0
"""Whole GPUs, shares, and MIG devices of one node at once, by claims."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from cluster.dra import CLAIMS, DraNode, cuda_pod, dra_node
from cluster.node import NVIDIA_MAJOR, ROOT, GpuNode, show_to_containers
from cluster.rig import PODS, Rig, has_shares
from cluster.test_dra import _nothing_left as _nothing_left
from cluster.test_dra import rig as rig
from sim.cluster.client import until
from sim.nvml import sysfs
from sim.nvml.topology import Topology

PROC = ROOT / "gpus/proc"


@pytest.fixture(scope="module")
def node(rig: Rig) -> Iterator[DraNode]:
    """With four A100: two are whole, one is seven MIG devices, and the last one is three."""
    with GpuNode(rig, "4xa100-mig") as gpus:
        with gpus.edit() as topology:
            # A container's simulated driver begins with the first GPU, which thus may have a share.
            for number, gpu in enumerate(topology.gpus):
                gpu.mig = int(number >= 2)
            for record in (*topology.gpu_instances, *topology.migs):
                record.gpu += 2
        sysfs.write_capabilities(topology, PROC.parent)
        shutil.rmtree(ROOT / "dev/nvidia-caps", ignore_errors=True)
        (PROC / "devices").write_text(f"Character devices:\n{NVIDIA_MAJOR + 1} nvidia-caps\n")
        show_to_containers()
        made = dra_node(rig, gpus)
        made.proc_root = PROC
        yield made


def test_three_kinds_run_on_one_node(rig: Rig, node: DraNode) -> None:
    if not has_shares():
        pytest.skip("this cluster keeps no shares of devices")
    with node.driver():
        node.share("third", 30, "8Gi")
        rig.api.create(PODS, cuda_pod("third", "third"))
        rig.wait_running("third")
        node.claim("whole")
        node.submit("whole", "whole")
        node.slice("cut", "3g.20gb")
        node.submit("cut", "cut")
        rig.wait_running("whole", "cut")
        assert (node.seen("third"), node.seen("whole")) == (["nvidia0"], ["nvidia1"])
        assert rig.kubectl("exec", "third", "--", "take", "8193") == "2 8192\n"
        # The device node of its GPU, and those of its own two capabilities.
        assert node.seen("cut") == ["nvidia3"]
        (mig,) = (mig for mig in Topology.load(ROOT / "gpusim.conf").migs if mig.profile == "3g.20gb")
        access = PROC / f"driver/nvidia/capabilities/gpu{mig.gpu}/mig/gi{mig.gi}"
        caps = {int(path.read_text().split()[1]) for path in access.rglob("access")}
        listed = rig.kubectl("exec", "cut", "--", "ls", "/dev/nvidia-caps").split()
        assert set(listed) == {f"nvidia-cap{number}" for number in caps}
        status = until(lambda: rig.api.get(f"{CLAIMS}/cut")["status"].get("devices"), "the status to say what it got")
        assert status[0]["data"]["uuid"] == mig.uuid


def test_eight_of_twenty_claims_get_a_mig_device_each(rig: Rig, node: DraNode) -> None:
    names = [f"crowd-{number}" for number in range(20)]

    def submit(name: str) -> None:
        node.slice(name, "1g.5gb")
        node.submit(name, name)

    with node.driver() as driver:
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(submit, names))
        driver.kill()
    with node.driver():
        first = until(lambda: len(found := rig.running()) == 8 and found, "eight pods to run")
        devices = [device for held in node.prepared().values() for device in held]
        assert len(devices) == len(set(devices)) == 8
        gone = sorted(first)[:3]
        rig.kubectl("delete", "pod", "--now", "--wait=true", *gone)
        rig.kubectl("delete", "resourceclaim", "--wait=true", *gone)
        until(lambda: len(rig.running()) == 8 and rig.running() - first, "three others to run")


def test_mig_devices_are_no_whole_gpus(rig: Rig, node: DraNode) -> None:
    with node.driver():
        node.claim("all", 3)
        node.submit("all", "all")
        node.claim("two", 2)
        node.submit("two", "two")
        rig.wait_running("two")
        assert node.seen("two") == ["nvidia0", "nvidia1"]
        assert rig.phase("all") == "Pending"
