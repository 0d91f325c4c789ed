# SPDX-License-Identifier: Apache-2.0
"""Shares of claims: their files, and what a GPU has room for, whichever instance is asked."""

from __future__ import annotations

import itertools
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kube_accel.dra.claims import ClaimError
from kube_accel.dra.preparer import Preparer
from kube_accel.dra.shares import Shares
from kube_accel.enforce.containers import Containers, key_of
from kube_accel.enforce.policy import Limit
from unit.kube_accel.dra.node import ClaimNode
from unit.kube_accel.plugin.fakes import inventory, ready, uuid

GIB = 1 << 30
Results = list[tuple[str, str, int, int]]
"""Request, device, cores, GiB."""


@pytest.fixture
def node(tmp_path: Path) -> ClaimNode:
    return ClaimNode(tmp_path)


def share(node: ClaimNode, name: str, results: Results) -> None:
    """Have a claim with these shares."""
    node.api.claim(name, *(device for _, device, _, _ in results))
    claim = node.api.claims[name]
    told = claim["status"]["allocation"]["devices"]["results"]
    for number, (result, (request, _, cores, memory)) in enumerate(zip(told, results, strict=True)):
        consumed = {"cores": str(cores), "memory": f"{memory}Gi", "gpu.nvidia.com/memory": "0"}
        result |= {"request": request, "shareID": f"share-{number}", "consumedCapacity": consumed}
    asked = {"deviceClassName": "share.kube-accel.io", "capacity": {"requests": {"cores": "1", "memory": "1Gi"}}}
    requests = [{"name": request, "exactly": asked} for request in dict.fromkeys(each[0] for each in results)]
    claim["spec"] = {"devices": {"requests": requests}}


def prepare(preparer: Preparer, name: str) -> list[str]:
    return [each.device for each in preparer.prepare(f"uid-{name}", "team", name)]


def limits(node: ClaimNode, name: str, request: str) -> tuple[Limit, ...] | None:
    policy = Containers(node.state, node.root / "sys").policy(key_of((f"uid-{name}", request)))
    return None if policy is None else policy.limits


def edits(node: ClaimNode, name: str) -> dict[str, Any]:
    document = node.specification(f"uid-{name}.shares")
    return {each["name"]: each["containerEdits"] for each in document["devices"]}


def test_each_request_has_a_policy_and_a_device_of_its_own(node: ClaimNode) -> None:
    results = [("big", "gpu-00", 30, 8), ("big", "gpu-01", 30, 8), ("small", "gpu-00", 10, 2)]
    share(node, "a", results)
    preparer = node.preparer(node.shares())
    assert prepare(preparer, "a") == ["gpu-00", "gpu-01", "gpu-00"]
    assert limits(node, "a", "big") == (Limit(uuid(0), 8 * GIB, 30), Limit(uuid(1), 8 * GIB, 30))
    assert limits(node, "a", "small") == (Limit(uuid(0), 2 * GIB, 10),)
    found = edits(node, "a")
    assert [*found] == ["uid-a-share-big", "uid-a-share-small"]
    mounts = {each["containerPath"]: each for each in found["uid-a-share-small"]["mounts"]}
    policy = f"{node.state}/containers/{key_of(('uid-a', 'small'))}/policy"
    assert mounts["/etc/kube-accel/policy"]["hostPath"] == policy
    assert "ro" in mounts["/etc/kube-accel/policy"]["options"]
    assert "rw" in mounts["/run/kube-accel/state"]["options"]
    (hook,) = found["uid-a-share-small"]["hooks"]
    assert hook["args"][:3] == ["ldcache", "--only", policy]
    assert "NVIDIA_VISIBLE_DEVICES=void" in found["uid-a-share-small"]["env"]
    assert found["uid-a-share-small"]["deviceNodes"][0] == {"path": "/dev/nvidia3"}


def test_share_of_all_cores_has_its_memory_limited(node: ClaimNode) -> None:
    share(node, "a", [("r", "gpu-00", 100, 8)])
    prepare(node.preparer(node.shares()), "a")
    assert limits(node, "a", "r") == (Limit(uuid(0), 8 * GIB, 100),)


def test_prepared_again_leaves_policy_and_account_as_they_are(node: ClaimNode) -> None:
    share(node, "a", [("r", "gpu-00", 30, 8)])
    prepare(node.preparer(node.shares()), "a")
    files = [node.state / "containers" / key_of(("uid-a", "r")) / name for name in ("policy", "state")]
    before = [path.stat().st_ino for path in files]
    (node.cdi / "kube-accel.io-claim-uid-a.shares.json").unlink()
    # By another instance, with another overhead: what runs was charged by the first.
    shares = node.shares()
    shares._overhead = 64 << 20
    preparer = node.preparer(shares)
    prepare(preparer, "a")
    preparer.look_after_files()
    assert [path.stat().st_ino for path in files] == before
    assert node.files() == ["kube-accel.io-claim-uid-a.shares.json"]
    files[1].unlink()
    prepare(preparer, "a")
    assert files[1].exists()


def test_released_claim_leaves_nothing(node: ClaimNode) -> None:
    share(node, "a", [("r", "gpu-00", 30, 8)])
    first, second = node.preparer(node.shares()), node.preparer(node.shares())
    prepare(first, "a")
    second.release("uid-a")
    assert node.files() == []
    assert limits(node, "a", "r") is None
    prepare(first, "a")
    assert limits(node, "a", "r") == (Limit(uuid(0), 8 * GIB, 30),)


def test_whole_gpu_and_share_of_it_are_refused(node: ClaimNode) -> None:
    share(node, "a", [("r", "gpu-00", 30, 8)])
    node.api.claim("whole", "gpu-00")
    preparer = node.preparer(node.shares())
    prepare(preparer, "a")
    with pytest.raises(ClaimError, match=r"is still prepared for claim team/a \(uid-a\)"):
        prepare(preparer, "whole")
    preparer.release("uid-a")
    prepare(preparer, "whole")
    with pytest.raises(ClaimError, match="is still prepared for claim team/whole"):
        prepare(preparer, "a")


def test_claim_with_whole_gpu_and_share_has_files_of_both(node: ClaimNode) -> None:
    share(node, "a", [("r", "gpu-00", 30, 8), ("whole", "gpu-01", 100, 80)])
    request = node.api.claims["a"]["spec"]["devices"]["requests"][1]
    request["exactly"] = {"deviceClassName": "gpu.kube-accel.io"}
    prepare(node.preparer(node.shares()), "a")
    assert node.files() == ["kube-accel.io-claim-uid-a.json", "kube-accel.io-claim-uid-a.shares.json"]
    assert [*edits(node, "a")] == ["uid-a-share-r"]
    document = node.specification("uid-a")
    assert [each["name"] for each in document["devices"]] == ["uid-a-gpu-01"]
    assert "/etc/kube-accel/whole" in {each["containerPath"] for each in document["containerEdits"]["mounts"]}


def test_share_is_refused_where_nothing_enforces_it(node: ClaimNode) -> None:
    share(node, "a", [("r", "gpu-00", 30, 8)])
    with pytest.raises(ClaimError, match="shares cannot be given on this node: shares are off"):
        prepare(node.preparer(), "a")
    shares = node.shares()
    for path in (node.root / "usr/lib").glob("libnvidia-ml*"):
        path.unlink()
    shares.see(inventory(4))
    with pytest.raises(ClaimError, match=r"the driver's library libnvidia-ml.so.580.159.04 is not below"):
        prepare(node.preparer(shares), "a")


def test_more_gpus_than_a_policy_has_are_refused(node: ClaimNode) -> None:
    node.devices.see(ready(17))
    share(node, "a", [("r", f"gpu-{index:02}", 1, 1) for index in range(17)])
    with pytest.raises(ClaimError, match=r"request r: .*a policy is for 1 to 16 GPUs"):
        prepare(node.preparer(node.shares()), "a")


def test_account_that_a_container_changed_is_put_right(node: ClaimNode) -> None:
    share(node, "a", [("r", "gpu-00", 30, 8)])
    shares: Shares = node.shares()
    prepare(node.preparer(shares), "a")
    state = node.state / "containers" / key_of(("uid-a", "r")) / "state"
    size = state.stat().st_size
    with state.open("ab") as file:
        file.write(bytes(1 << 20))
    for _ in range(20):
        shares.mend()
        if state.stat().st_size == size:
            return
    assert state.stat().st_size == size


STEPS = st.lists(
    st.tuples(st.integers(0, 5), st.sampled_from(["gpu-00", "gpu-01"]), st.integers(1, 100), st.integers(1, 80)),
    min_size=1,
    max_size=25,
)


@given(STEPS)
@settings(max_examples=15, deadline=None)
def test_node_never_prepares_more_than_a_gpu_has(steps: list[tuple[int, str, int, int]]) -> None:
    with tempfile.TemporaryDirectory() as root:
        node = ClaimNode(Path(root))
        shares = node.shares()
        instances = itertools.cycle([node.preparer(shares), node.preparer(shares)])
        for number, device, cores, memory in steps:
            name, preparer = f"c{number}", next(instances)
            if f"uid-{name}" in preparer.claims():
                preparer.release(f"uid-{name}")
                continue
            if cores == 100:
                node.api.claim(name, device)
            else:
                share(node, name, [("r", device, cores, memory)])
            try:
                prepare(preparer, name)
            except ClaimError as error:
                assert "is still prepared for" in str(error)  # noqa: PT017
            held = [each for claim in preparer.claims().values() for each in claim.devices]
            for gpu in {each.uuid for each in held}:
                portions = [each.portion for each in held if each.uuid == gpu]
                assert len(portions) == 1 or None not in portions
                assert sum(each.cores for each in portions if each) <= 100
                assert sum(each.memory_bytes for each in portions if each) <= 80 * GIB
