# SPDX-License-Identifier: Apache-2.0
"""What the DRA driver gives in clusters that do not keep sizes of shares and taints, and refuses there.

Kubernetes 1.34 and 1.35 are so, and 1.36 with these gates off, which ``RIG_GATES`` may name.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from cluster.dra import CLAIMS, DRIVER, FIXED, GROUP, SHARES, DraNode, cuda_pod
from cluster.node import GpuNode
from cluster.rig import NODE, PODS, Rig, has_feature, has_shares
from cluster.test_dra import _nothing_left as _nothing_left
from cluster.test_dra import node as node
from cluster.test_dra import rig as rig
from sim.cluster.client import until

LABEL = "kube-accel.io/fixed-shares"
POLICY = "kube-accel-plugin-claims"
QUARTERS = [f"gpu-{index:02}-{place}of4" for index in range(8) for place in range(1, 5)]


@pytest.fixture
def cut(rig: Rig, node: DraNode, files: None) -> Iterator[DraNode]:
    """The node with its GPUs in quarters."""
    rig.kubectl("label", "node", NODE, f"{LABEL}=4")
    with node.driver():
        until(lambda: sorted(node.devices()) == QUARTERS, "the GPUs to be cut")
        yield node
    rig.kubectl("label", "node", NODE, f"{LABEL}-")


@pytest.fixture
def old(rig: Rig) -> None:
    if has_shares():
        pytest.skip("the cluster keeps sizes of shares; see RIG_GATES")


def test_fixed_share_is_refused_the_next_mebibyte(rig: Rig, cut: DraNode) -> None:
    cut.claim("quarter", kind=FIXED)
    rig.api.create(PODS, cuda_pod("quarter", "quarter"))
    cut.claim("two", 2, kind=FIXED)
    rig.api.create(PODS, cuda_pod("two", "two"))
    cut.claim("whole")
    cut.submit("whole", "whole")
    rig.wait_running("quarter", "two")
    assert rig.kubectl("exec", "quarter", "--", "take", "20388", "20390") == "0 2 20389\n"
    # Two of one GPU are a half of it.
    assert rig.kubectl("exec", "two", "--", "take", "40778", "40779") == "0 2 40778\n"
    assert cut.seen("quarter") == cut.seen("two") == ["nvidia0"]
    # A share is no GPU.
    assert rig.phase("whole") == "Pending"


def test_gpu_is_cut_otherwise_once_its_claims_are_gone(rig: Rig, cut: DraNode) -> None:
    cut.claim("quarter", kind=FIXED)
    cut.submit("quarter", "quarter")
    rig.wait_running("quarter")
    rig.kubectl("label", "node", NODE, f"{LABEL}=0", "--overwrite")
    rest = [f"gpu-{index:02}" for index in range(1, 8)]
    until(lambda: sorted(cut.devices()) == QUARTERS[:4] + rest, "the other GPUs to be whole")
    rig.kubectl("delete", "pod", "quarter", "--now", "--wait=true")
    rig.kubectl("delete", "resourceclaim", "quarter", "--wait=true")
    until(lambda: sorted(cut.devices()) == ["gpu-00", *rest], "all GPUs to be whole")


@pytest.mark.usefixtures("old")
def test_share_by_size_is_refused_when_it_is_asked_for(rig: Rig, node: DraNode) -> None:
    asked = {"deviceClassName": SHARES, "capacity": {"requests": {"cores": "30", "memory": "8Gi"}}}
    spec = {"devices": {"requests": [{"name": "share", "exactly": asked}]}}
    body = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": "share"}, "spec": spec}

    def refusal() -> str:
        code, answer = rig.api.call("POST", f"{CLAIMS}?dryRun=All", body)
        return str(answer["message"]) if code == 422 else ""

    told = until(refusal, "the policy to refuse it")
    assert "this cluster has none: its feature gate DRAConsumableCapacity" in told
    assert f"for one of equal shares by class {FIXED}" in told


@pytest.mark.usefixtures("old")
def test_share_that_became_a_whole_gpu_is_refused(rig: Rig, node: DraNode) -> None:
    # As before the gate was turned off: the class is there, and nobody refused the claim.
    rig.kubectl("delete", "validatingadmissionpolicybinding", POLICY)
    selector = {"cel": {"expression": f"device.driver == '{DRIVER}'"}}
    kind = {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": SHARES}}
    rig.api.create(f"{GROUP}/deviceclasses", {**kind, "spec": {"selectors": [selector]}})
    with node.driver():
        until(lambda: _created(node), "the claim to be allowed")
        node.submit("share", "share")
        until(lambda: "the cluster gave it all of gpu-00" in rig.kubectl("describe", "pod", "share"), "the refusal")
        assert rig.phase("share") == "Pending"
        assert node.prepared() == {}
    rig.kubectl("delete", "deviceclass", SHARES)
    rig.kubectl("apply", f"--filename={rig.plane.root}/classes.yml")


def _created(node: DraNode) -> bool:
    try:
        node.share("share", 30, "8Gi")
    except AssertionError:
        return False
    return True


@pytest.mark.usefixtures("old")
def test_driver_that_is_to_give_shares_says_why_it_cannot(rig: Rig, node: DraNode) -> None:
    with node.driver(wait=False, sized=True):
        until(lambda: "does not keep allowMultipleAllocations" in node.obstacle(), "the driver to tell of it")
        assert "feature gate DRAConsumableCapacity" in node.obstacle()
        # Whole GPUs are given all the same.
        node.claim("whole")
        node.submit("whole", "whole")
        rig.wait_running("whole")


def test_sick_gpu_goes_from_the_slice_where_no_taint_is_kept(rig: Rig, node: DraNode, h100: GpuNode) -> None:
    if has_feature("DRADeviceTaints", (1, 36)):
        pytest.skip("the cluster keeps taints of devices; see RIG_GATES")
    with node.driver():
        node.claim("held", 4)
        node.submit("held", "held")
        rig.wait_running("held")
        with h100.edit() as topology:
            topology.set_health(3, "lost")
            topology.set_health(7, "lost")
        # What a claim has stays to be seen, or its room would look free.
        until(lambda: sorted(node.devices()) == [f"gpu-{index:02}" for index in range(7)], "the lost GPU to go")
        rig.kubectl("delete", "pod", "held", "--now", "--wait=true")
        rig.kubectl("delete", "resourceclaim", "held", "--wait=true")
        until(lambda: len(node.devices()) == 6, "the other to go once it is free")
        with h100.edit() as topology:
            topology.set_health(3, "ok")
            topology.set_health(7, "ok")
        until(lambda: len(node.devices()) == 8, "both to come back")
