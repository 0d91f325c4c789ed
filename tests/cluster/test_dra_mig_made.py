# SPDX-License-Identifier: Apache-2.0
"""Whole GPUs, shares, MIG devices that are there, and MIG devices that are made for claims, of one node at once."""

from __future__ import annotations

import copy
import json
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from cluster.dra import CLAIMS, DraNode, cuda_pod, dra_node
from cluster.node import NVIDIA_MAJOR, ROOT, STATE, TOPOLOGY, GpuNode, show_to_containers
from cluster.rig import PODS, Rig, has_feature, has_shares
from cluster.test_dra import _nothing_left as _nothing_left
from cluster.test_dra import rig as rig
from sim.cluster.client import until
from sim.nvml import sysfs
from sim.nvml.topology import GpuInstance, Mig, Topology

PROC = ROOT / "gpus/proc"
OFFERS = [{"gpus": [1, 2, 3, 4, 5], "profiles": ["1g.10gb", "3g.40gb", "7g.80gb"]}]
INSTANCES = 14
"""Ids of GPU instances that a GPU can have."""


@pytest.fixture(scope="module")
def node(rig: Rig) -> Iterator[DraNode]:
    """With eight H100: MIG devices are made of five, the last one is two that are there, and two are not cut."""
    if not has_shares() or not has_feature("DRAPartitionableDevices", (1, 36)):
        pytest.skip("this cluster keeps no shares or no counters of devices")
    with GpuNode(rig, "8xh100") as gpus:
        with gpus.edit() as topology:
            topology.gpus[7].mig = 1
            for slot, profile in enumerate((14, 14)):
                topology.gpu_instances.append(GpuInstance(gpu=7, id=3 + slot, profile=profile, start=2 * slot))
                cut = {"gpu": 7, "gi": 3 + slot, "ci": 0, "profile": "2g.20gb", "mem": 20096 << 20, "sms": 32}
                topology.migs.append(Mig(**cut, uuid=f"MIG-{slot:08}-0000-0000-0000-000000000000", slot=slot))
        _write_capabilities(topology)
        (PROC / "devices").write_text(f"Character devices:\n{NVIDIA_MAJOR + 1} nvidia-caps\n")
        show_to_containers()
        made = dra_node(rig, gpus)
        made.proc_root = PROC
        made.flags = (f"--mig-offers={json.dumps(OFFERS)}",)
        yield made


def _write_capabilities(topology: Topology) -> None:
    """The driver's files of all MIG devices that there could be."""
    every = copy.deepcopy(topology)
    every.migs = [
        Mig(gpu=gpu.index, gi=gi, ci=0, profile="", mem=0, uuid="") for gpu in topology.gpus for gi in range(INSTANCES)
    ]
    sysfs.write_capabilities(every, PROC.parent)
    # The driver has not made their nodes yet.
    shutil.rmtree(ROOT / "dev/nvidia-caps", ignore_errors=True)


def test_four_kinds_run_on_one_node(rig: Rig, node: DraNode) -> None:
    before = Topology.load(TOPOLOGY).render()
    with node.driver():
        node.share("third", 30, "8Gi")
        rig.api.create(PODS, cuda_pod("third", "third"))
        rig.wait_running("third")
        node.slice("there", "2g.20gb")
        node.submit("there", "there")
        node.slice("made", "3g.40gb")
        node.submit("made", "made")
        node.slice("small", "1g.10gb")
        node.submit("small", "small")
        node.claim("whole", 2)
        node.submit("whole", "whole")
        rig.wait_running("there", "made", "small", "whole")
        assert node.seen("third") == ["nvidia0"]
        assert node.seen("there") == ["nvidia7"]
        assert node.seen("made") == node.seen("small") == ["nvidia1"]
        assert not {"nvidia0", "nvidia1", "nvidia7"} & set(node.seen("whole"))
        (mig,) = (mig for mig in Topology.load(TOPOLOGY).migs if mig.profile == "3g.40gb")
        number = 3 + mig.gpu * 135 + mig.gi * 9
        listed = rig.kubectl("exec", "made", "--", "ls", "/dev/nvidia-caps").split()
        assert set(listed) == {f"nvidia-cap{number}", f"nvidia-cap{number + 1}"}
        status = until(lambda: rig.api.get(f"{CLAIMS}/made")["status"].get("devices"), "the status to say what it got")
        assert status[0]["data"]["uuid"] == mig.uuid
        # A whole GPU is none of those that are cut or shared.
        node.claim("all", 4)
        node.submit("all", "all")
        node.slice("second", "7g.80gb")
        node.submit("second", "second")
        rig.wait_running("second")
        assert rig.phase("all") == "Pending"
        rig.kubectl("delete", "pods", "--all", "--now", "--wait=true")
        until(lambda: node.prepared() == {}, "all claims to be released")
        assert Topology.load(TOPOLOGY).render() == before


def test_raced_claims_never_share_what_is_one_claims(rig: Rig, node: DraNode) -> None:
    """More of each kind than fit, with a driver that is killed while it makes what they get."""
    before = Topology.load(TOPOLOGY).render()
    names = [f"{kind}-{number}" for number in range(9) for kind in ("whole", "share", "small", "half")]

    def submit(name: str) -> None:
        kind = name.partition("-")[0]
        if kind == "whole":
            node.claim(name)
        elif kind == "share":
            node.share(name, 40, "8Gi")
        else:
            node.slice(name, "1g.10gb" if kind == "small" else "3g.40gb")
        body = cuda_pod(name, name)
        body["spec"]["terminationGracePeriodSeconds"] = 0
        rig.api.create(PODS, body)

    with ThreadPoolExecutor(8) as pool:
        racing = pool.map(submit, names)
        for least in (1, 4, 8):
            with node.driver() as driver:
                until(lambda: _checked() >= least, f"{least} claims to be prepared")  # noqa: B023
                driver.kill()
        list(racing)
    with node.driver():
        until(lambda: _checked() and _settled(rig, node), "no more pods to start")
        running = sorted(rig.running())
        assert {name.partition("-")[0] for name in running} >= {"share"}
        gone = running[::2]
        rig.kubectl("delete", "pod", "--now", "--wait=true", *gone)
        rig.kubectl("delete", "resourceclaim", "--wait=true", *gone)
        until(lambda: _checked() and set(rig.running()) - set(running), "others to run")
        rig.kubectl("delete", "pods", "--all", "--now", "--wait=true")
        rig.kubectl("delete", "resourceclaims", "--all", "--wait=true")
        until(lambda: node.prepared() == {}, "all claims to be released")
        until(lambda: Topology.load(TOPOLOGY).render() == before, "all GPUs to be as before")


def _settled(rig: Rig, node: DraNode) -> bool:
    """Whether as many pods run as have a prepared claim, and those that have one run."""
    return bool(rig.running()) and set(rig.running()) == set(node.prepared())


def _checked() -> int:
    """The number of prepared claims, which have no part of a GPU in common."""
    file = STATE / "claims.json"
    claims: dict[str, Any] = json.loads(file.read_text())["claims"] if file.exists() else {}
    topology = Topology.load(TOPOLOGY)
    held: dict[str, list[dict[str, Any]]] = {}
    for claim in claims.values():
        for device in claim["devices"]:
            held.setdefault(device.get("parentUuid") or device["uuid"], []).append(device)
    for uuid, devices in held.items():
        kinds = {"mig" if "parentUuid" in each else "share" if "share" in each else "whole" for each in devices}
        assert len(kinds) == 1, (uuid, devices)
        if kinds == {"whole"}:
            assert len(devices) == 1, (uuid, devices)
        elif kinds == {"share"}:
            assert sum(each["share"]["cores"] for each in devices) <= 100, (uuid, devices)
        places = [each["placement"] for each in devices if "placement" in each]
        taken = [place["start"] + slice_ for place in places for slice_ in range(place["size"])]
        assert len(taken) == len(set(taken)), (uuid, devices)
    assert len(topology.migs) <= 2 + sum("placement" in each for devices in held.values() for each in devices) + 1
    return len(claims)
