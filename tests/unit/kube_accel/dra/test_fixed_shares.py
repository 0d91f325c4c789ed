# SPDX-License-Identifier: Apache-2.0
"""GPUs that a node's label has cut into equal shares, each a device of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from kube_accel.dra import slices
from kube_accel.dra.claims import ClaimError
from kube_accel.dra.preparer import Preparer
from kube_accel.enforce.containers import Containers, key_of
from kube_accel.enforce.policy import Limit
from kube_accel.shared.label_names import FIXED_SHARES
from unit.kube_accel.dra.api import FakeApi
from unit.kube_accel.dra.node import ClaimNode
from unit.kube_accel.dra.test_publisher import ALL, Node
from unit.kube_accel.plugin.fakes import inventory, uuid
from waiting import wait

GIB = 1 << 30


def halves(*gpus: str) -> list[str]:
    return [f"{gpu}-{place}of2" for gpu in gpus for place in (1, 2)]


@pytest.fixture
def node(tmp_path: Path) -> Node:
    """Of which each GPU is to be cut in two."""
    made = Node(FakeApi(unknown=["taints"]), tmp_path)
    made.api.node["metadata"]["labels"] = {FIXED_SHARES: "2"}
    return made


@pytest.fixture
def claims(tmp_path: Path) -> ClaimNode:
    return ClaimNode(tmp_path)


def prepare(preparer: Preparer, name: str) -> list[str]:
    return [each.device for each in preparer.prepare(f"uid-{name}", "team", name)]


def limits(claims: ClaimNode, name: str) -> tuple[Limit, ...] | None:
    policy = Containers(claims.state, claims.root / "sys").policy(key_of((f"uid-{name}", "gpus")))
    return None if policy is None else policy.limits


def test_share_has_its_part_of_the_gpu_and_is_no_gpu() -> None:
    found = slices.devices(inventory(2), {uuid(0), uuid(1)}, {}, fixed={"gpu-00": 3})
    assert [each["name"] for each in found] == ["gpu-00-1of3", "gpu-00-2of3", "gpu-00-3of3", "gpu-01"]
    share, whole = found[0], found[3]
    memory = {"value": "27306Mi"}
    assert share["capacity"] == {"cores": {"value": "33"}, "memory": memory, "gpu.nvidia.com/memory": memory}
    attributes = share["attributes"]
    # Whoever selects GPUs, also by the names of NVIDIA's driver, does not get a share.
    assert attributes["type"] == attributes["gpu.nvidia.com/type"] == {"string": "share"}
    assert (attributes["uuid"], attributes["shares"]) == ({"string": uuid(0)}, {"int": 3})
    assert whole["attributes"]["type"] == {"string": "gpu"}
    # Nothing of it that clusters before 1.36 would not keep.
    assert not {slices.SHARED, "taints"} & share.keys()


def test_label_cuts_gpus_and_mends_them_once_they_are_free(node: Node) -> None:
    node.prepared = {"gpu-01"}
    with node.running():
        node.wait(*halves("gpu-00"), "gpu-01", *halves("gpu-02"))
        assert node.devices.waiting
        node.prepared = {"gpu-02-2of2"}
        node.publisher.wake()
        node.wait(*halves("gpu-00", "gpu-01", "gpu-02"))
        assert not node.devices.waiting
        node.api.node["metadata"]["labels"] = {}
        node.publisher.wake()
        node.wait("gpu-00", "gpu-01", *halves("gpu-02"))
        node.prepared = set()
        node.publisher.wake()
        node.wait(*ALL)


def test_shares_of_a_sick_gpu_are_left_out_unless_they_are_held(node: Node) -> None:
    node.prepared = {"gpu-02-2of2"}
    with node.running():
        node.wait(*halves("gpu-00", "gpu-01", "gpu-02"))
        node.see(1, 2)
        node.wait(*halves("gpu-00"), "gpu-02-2of2")


@pytest.mark.parametrize("text", ["101", "-2", "many", "²"])
def test_label_that_says_no_number_withholds_gpus(tmp_path: Path, text: str) -> None:
    node = Node(FakeApi(), tmp_path)
    with node.running():
        node.wait(*ALL)
        node.api.node["metadata"]["labels"] = {FIXED_SHARES: text}
        node.publisher.wake()
        wait(lambda: f"{FIXED_SHARES} of the node is {text!r}" in node.publisher.problem)
        wait(lambda: all("taints" in device for device in node.api.devices().values()))


def test_claim_of_shares_has_one_limit_for_each_gpu(claims: ClaimNode) -> None:
    claims.api.claim("a", "gpu-00-2of4", "gpu-00-3of4", "gpu-01-1of2")
    preparer = claims.preparer(claims.shares())
    assert prepare(preparer, "a") == ["gpu-00-2of4", "gpu-00-3of4", "gpu-01-1of2"]
    assert limits(claims, "a") == (Limit(uuid(0), 40 * GIB, 50), Limit(uuid(1), 40 * GIB, 50))
    assert claims.files() == ["kube-accel.io-claim-uid-a.shares.json"]
    before = claims.checkpoint()
    assert prepare(claims.preparer(claims.shares()), "a") == ["gpu-00-2of4", "gpu-00-3of4", "gpu-01-1of2"]
    assert claims.checkpoint() == before


@pytest.mark.parametrize("other", ["gpu-00-1of4", "gpu-00", "gpu-00-1of3"])
def test_share_that_is_held_or_has_no_room_is_refused(claims: ClaimNode, other: str) -> None:
    preparer = claims.preparer(claims.shares())
    for number in range(1, 5):
        claims.api.claim(f"quarter-{number}", f"gpu-00-{number}of4")
    claims.api.claim("other", other)
    prepare(preparer, "quarter-1")
    if other == "gpu-00-1of3":
        for number in range(2, 5):
            prepare(preparer, f"quarter-{number}")
    with pytest.raises(ClaimError, match=r"is still prepared for claim team/quarter-1 \(uid-quarter-1\)"):
        prepare(preparer, "other")


def test_claim_of_a_size_may_be_given_a_fixed_share(claims: ClaimNode) -> None:
    claims.api.claim("a", "gpu-00-1of4")
    asked = {"deviceClassName": "fixed-share.kube-accel.io", "capacity": {"requests": {"memory": "16Gi"}}}
    claims.api.claims["a"]["spec"] = {"devices": {"requests": [{"name": "gpus", "exactly": asked}]}}
    prepare(claims.preparer(claims.shares()), "a")
    assert limits(claims, "a") == (Limit(uuid(0), 20 * GIB, 25),)


def test_fixed_share_is_refused_where_nothing_enforces_it(claims: ClaimNode) -> None:
    claims.api.claim("a", "gpu-00-1of4")
    with pytest.raises(ClaimError, match="shares cannot be given on this node: shares are off"):
        prepare(claims.preparer(), "a")
