# SPDX-License-Identifier: Apache-2.0
"""Claims are prepared and released, by whichever instance of the driver kubelet calls."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from kube_accel.dra.claims import ClaimError
from kube_accel.dra.preparer import Preparer
from kube_accel.kube.api import ApiError
from kube_accel.model import MigDevice
from unit.kube_accel.dra.node import ClaimNode
from unit.kube_accel.dra.test_shares import share
from unit.kube_accel.plugin.fakes import LOST, inventory, uuid


@pytest.fixture
def node(tmp_path: Path) -> ClaimNode:
    return ClaimNode(tmp_path)


def prepare(preparer: Preparer, name: str, uid: str = "") -> list[str]:
    return [each.device for each in preparer.prepare(uid or f"uid-{name}", "team", name)]


def test_prepared_claim_has_a_specification_of_its_own(node: ClaimNode) -> None:
    node.api.claim("a", "gpu-00", "gpu-02")
    assert prepare(node.preparer(), "a") == ["gpu-00", "gpu-02"]
    document = node.specification("uid-a")
    assert document["kind"] == "kube-accel.io/claim"
    nodes = {each["name"]: each["containerEdits"]["deviceNodes"] for each in document["devices"]}
    # Minor numbers of the GPUs differ from their indices.
    assert nodes == {"uid-a-gpu-00": [{"path": "/dev/nvidia3"}], "uid-a-gpu-02": [{"path": "/dev/nvidia1"}]}
    assert document["containerEdits"]["env"] == ["NVIDIA_VISIBLE_DEVICES=void"]
    assert {each["path"] for each in document["containerEdits"]["deviceNodes"]} == {"/dev/nvidiactl", "/dev/nvidia-uvm"}


def test_prepared_again_is_the_same_and_brings_the_file_back(node: ClaimNode) -> None:
    node.api.claim("a", "gpu-00")
    prepare(node.preparer(), "a")
    before = node.checkpoint()
    (node.cdi / "kube-accel.io-claim-uid-a.json").unlink()
    assert prepare(node.preparer(), "a") == ["gpu-00"]
    assert node.files() == ["kube-accel.io-claim-uid-a.json"]
    assert node.checkpoint() == before


def test_device_of_another_claim_is_refused_until_it_is_released(node: ClaimNode) -> None:
    node.api.claim("a", "gpu-00")
    node.api.claim("b", "gpu-00")
    first, second = node.preparer(), node.preparer()
    prepare(first, "a")
    with pytest.raises(ClaimError, match=r"gpu-00 \(GPU-.*\) is still prepared for claim team/a \(uid-a\)"):
        prepare(second, "b")
    second.release("uid-a")
    assert prepare(first, "b") == ["gpu-00"]
    assert node.files() == ["kube-accel.io-claim-uid-b.json"]


def test_administrators_claim_sees_a_gpu_that_another_has(node: ClaimNode) -> None:
    node.api.claim("a", "gpu-00")
    node.api.claim("admin", "gpu-00", adminAccess=True)
    preparer = node.preparer()
    assert prepare(preparer, "admin") == prepare(preparer, "a") == ["gpu-00"]


def test_mig_device_comes_with_its_capabilities_alone(node: ClaimNode) -> None:
    gpu = inventory(4).gpus[2]
    cut = (MigDevice("MIG-0", 0, "3g.40gb", 40 << 30, (12, 13)), MigDevice("MIG-1", 1, "3g.40gb", 40 << 30, (21, 22)))
    for number in (12, 13, 21, 22):
        (node.root / f"dev/nvidia-caps/nvidia-cap{number}").parent.mkdir(exist_ok=True)
        (node.root / f"dev/nvidia-caps/nvidia-cap{number}").touch()
    node.api.claim("whole", "gpu-02")
    prepare(node.preparer(), "whole")
    node.see(gpus={2: replace(gpu, mig_enabled=True, mig_devices=cut)})
    node.api.claim("a", "gpu-02-mig-3g40gb-1")
    node.api.claim("b", "gpu-02-mig-3g40gb-0")
    # Its GPU was cut under a claim.
    with pytest.raises(ClaimError, match="is still prepared for claim team/whole"):
        prepare(node.preparer(), "a")
    node.preparer().release("uid-whole")
    assert prepare(node.preparer(), "a") == ["gpu-02-mig-3g40gb-1"]
    assert prepare(node.preparer(), "b") == ["gpu-02-mig-3g40gb-0"]
    (device,) = node.specification("uid-a")["devices"]
    nodes = [each["path"] for each in device["containerEdits"]["deviceNodes"]]
    assert nodes == ["/dev/nvidia1", "/dev/nvidia-caps/nvidia-cap21", "/dev/nvidia-caps/nvidia-cap22"]
    (held,) = node.checkpoint()["claims"]["uid-a"]["devices"]
    assert (held["uuid"], held["parentUuid"]) == ("MIG-1", gpu.uuid)
    node.api.claim("c", "gpu-02-mig-3g40gb-1")
    with pytest.raises(ClaimError, match=r"\(MIG-1\) is still prepared for claim team/a"):
        prepare(node.preparer(), "c")


def test_gpu_that_was_cut_anew_under_a_claim_is_not_given(node: ClaimNode) -> None:
    """Numbers of capabilities follow the instances: the old container may open the new device."""
    gpu = inventory(4).gpus[2]

    def cut(uuid: str, profile: str) -> None:
        device = MigDevice(uuid, 0, profile, 40 << 30, (12, 13))
        node.see(gpus={2: replace(gpu, mig_enabled=True, mig_devices=(device,))})

    for number in (12, 13):
        (node.root / f"dev/nvidia-caps/nvidia-cap{number}").parent.mkdir(exist_ok=True)
        (node.root / f"dev/nvidia-caps/nvidia-cap{number}").touch()
    cut("MIG-0", "1g.10gb")
    node.api.claim("a", "gpu-02-mig-1g10gb-0")
    preparer = node.preparer()
    prepare(preparer, "a")
    cut("MIG-1", "3g.40gb")
    node.api.claim("b", "gpu-02-mig-3g40gb-0")
    with pytest.raises(ClaimError, match="is still prepared for claim team/a"):
        prepare(preparer, "b")
    with pytest.raises(ClaimError, match=r"was cut again since gpu-02-mig-1g10gb-0 \(MIG-0\) was prepared; delete"):
        prepare(preparer, "a")
    preparer.release("uid-a")
    assert prepare(preparer, "b") == ["gpu-02-mig-3g40gb-0"]


def test_gpus_that_others_give_away_go_to_no_new_claim(node: ClaimNode) -> None:
    node.api.claim("before", "gpu-01")
    node.api.claim("new", "gpu-00", tolerations=[{"operator": "Exists"}])
    node.api.claim("admin", "gpu-00", adminAccess=True)
    preparer = node.preparer()
    prepare(preparer, "before")
    preparer.obstacle = lambda: "a device plugin offers nvidia.com/gpu on this node; remove that plugin"
    with pytest.raises(ClaimError, match=r"by claims no more: a device plugin offers nvidia\.com/gpu"):
        prepare(preparer, "new")
    assert prepare(preparer, "before") == ["gpu-01"]
    assert prepare(preparer, "admin") == ["gpu-00"]


def test_claim_that_kubelet_gave_up_is_not_prepared(node: ClaimNode) -> None:
    node.api.claim("a", "gpu-00")
    preparer = node.preparer()
    with pytest.raises(ClaimError, match="waits for it no more"):
        preparer.prepare("uid-a", "team", "a", lambda: False)
    assert (node.files(), preparer.claims()) == ([], {})


def test_share_larger_than_its_gpu_is_refused(node: ClaimNode) -> None:
    share(node, "a", [("r", "gpu-00", 30, 81)])
    with pytest.raises(ClaimError, match="smaller than the share"):
        prepare(node.preparer(node.shares()), "a")


def test_released_twice_is_no_error(node: ClaimNode) -> None:
    node.api.claim("a", "gpu-00")
    preparer = node.preparer()
    prepare(preparer, "a")
    for uid in ("uid-a", "uid-a", "never", "../../odd"):
        preparer.release(uid)
    assert (node.files(), preparer.claims()) == ([], {})


def test_sick_gpu_is_refused_unless_that_is_tolerated(node: ClaimNode) -> None:
    node.see({1: LOST})
    node.api.claim("a", "gpu-01")
    node.api.claim("b", "gpu-01", tolerations=[{"operator": "Exists"}])
    preparer = node.preparer()
    with pytest.raises(ClaimError, match="cannot be used: the GPU is lost; delete the pod"):
        prepare(preparer, "a")
    assert prepare(preparer, "b") == ["gpu-01"]
    # One that fell sick afterwards goes on.
    node.api.claim("c", "gpu-02")
    prepare(preparer, "c")
    node.see({2: LOST})
    assert prepare(preparer, "c") == ["gpu-02"]


def test_device_that_is_not_there_is_refused(node: ClaimNode) -> None:
    node.api.claim("a", "gpu-09")
    with pytest.raises(ClaimError, match="gpu-09 is not on this node; it has gpu-00, gpu-01, gpu-02, gpu-03"):
        prepare(node.preparer(), "a")


def test_gpu_without_a_device_node_is_refused(node: ClaimNode) -> None:
    (node.root / "dev/nvidia3").unlink()
    node.api.claim("a", "gpu-00")
    with pytest.raises(ClaimError, match=f"no device node of {uuid(0)}"):
        prepare(node.preparer(), "a")


@pytest.mark.parametrize("uid", ["../a", "", "a/b"])
def test_uid_that_is_no_file_name_is_refused(node: ClaimNode, uid: str) -> None:
    node.api.claim("a", "gpu-00", uid=uid)
    with pytest.raises(ClaimError, match="no UID that can be used"):
        node.preparer().prepare(uid, "team", "a")


def test_claim_that_was_allocated_anew_gets_its_new_device(node: ClaimNode) -> None:
    node.api.claim("a", "gpu-00")
    prepare(node.preparer(), "a")
    node.api.claim("a", "gpu-03")
    assert prepare(node.preparer(), "a") == ["gpu-03"]
    node.api.claim("b", "gpu-00")
    assert prepare(node.preparer(), "b") == ["gpu-00"]


def test_reboot_forgets_what_was_prepared(node: ClaimNode) -> None:
    node.api.claim("a", "gpu-00")
    prepare(node.preparer(), "a")
    node.boot_id.write_text("second\n")
    node.preparer().look_after_files()
    assert node.files() == []
    node.api.claim("b", "gpu-00")
    assert prepare(node.preparer(), "b") == ["gpu-00"]


def test_files_follow_the_driver_and_the_claims(node: ClaimNode) -> None:
    node.api.claim("a", "gpu-00")
    prepare(node.preparer(), "a")
    (node.cdi / "kube-accel.io-claim-uid-old.json").write_text("{}")
    (node.cdi / "others.json").write_text("{}")
    (node.root / "dev/nvidia-uvm-tools").touch()
    node.preparer().look_after_files()
    assert node.files() == ["kube-accel.io-claim-uid-a.json", "others.json"]
    assert {"path": "/dev/nvidia-uvm-tools"} in node.specification("uid-a")["containerEdits"]["deviceNodes"]


def test_claim_that_stays_gone_is_released_at_the_second_look(node: ClaimNode) -> None:
    for name, device in (("a", "gpu-00"), ("b", "gpu-01"), ("c", "gpu-02")):
        node.api.claim(name, device)
        prepare(node.preparer(), name)
    node.api.claim("d", "gpu-03")
    prepare(node.preparer(), "d")
    del node.api.claims["a"]
    node.api.claim("b", "gpu-01", uid="uid-new")
    node.api.claim("d")  # its allocation was taken back
    preparer = node.preparer()
    preparer.release_gone()
    assert preparer.claims().keys() == {"uid-a", "uid-b", "uid-c", "uid-d"}
    preparer.release_gone()
    assert preparer.claims().keys() == {"uid-c"}


def test_nothing_is_released_while_the_api_server_is_away(node: ClaimNode) -> None:
    node.api.claim("a", "gpu-00")
    preparer = node.preparer()
    prepare(preparer, "a")
    node.api.away = True
    for _ in range(3):
        with pytest.raises(ApiError):
            preparer.release_gone()
    assert preparer.claims().keys() == {"uid-a"}
