# SPDX-License-Identifier: Apache-2.0
"""Files of claims from one look to the next."""

from __future__ import annotations

from pathlib import Path

import pytest

from kube_accel.dra.checkpoint import PreparedDevice
from kube_accel.dra.portions import Portion
from kube_accel.dra.preparer import Preparer
from kube_accel.dra.specifications import ClaimSpecifications, device_ids
from unit.kube_accel.dra.node import ClaimNode
from unit.kube_accel.dra.test_shares import prepare, share


@pytest.fixture
def node(tmp_path: Path) -> ClaimNode:
    return ClaimNode(tmp_path)


@pytest.fixture
def preparer(node: ClaimNode) -> Preparer:
    """Of claim a for a GPU and b for a share, whose files were looked at."""
    node.api.claim("a", "gpu-00")
    share(node, "b", [("r", "gpu-01", 30, 8)])
    made = node.preparer(node.shares())
    for claim in ("a", "b"):
        prepare(made, claim)
    made.look_after_files()
    return made


@pytest.mark.parametrize("name", ["uid-a", "uid-b.shares"])
def test_file_that_was_right_at_the_last_look_is_put_right_again(
    node: ClaimNode, preparer: Preparer, name: str
) -> None:
    file = node.cdi / f"kube-accel.io-claim-{name}.json"
    right = file.read_text()
    for spoil in (file.unlink, lambda: file.write_text("{}"), lambda: file.write_text(right.replace("gpu", "gpx"))):
        spoil()
        preparer.look_after_files()
        assert file.read_text() == right
    (node.root / "dev/nvidia-uvm-tools").touch()
    preparer.look_after_files()
    assert "/dev/nvidia-uvm-tools" in file.read_text()


def test_files_that_are_right_are_left_alone(preparer: Preparer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ClaimSpecifications, "write", None)
    preparer.look_after_files()


def test_each_request_for_a_gpu_brings_it() -> None:
    both = [PreparedDevice(request, "gpu-00", "GPU-0", admin=True) for request in ("gpus", "second")]
    assert device_ids("uid", both) == [["kube-accel.io/claim=uid-gpu-00"]] * 2


def test_shares_of_a_request_are_one_device() -> None:
    both = [PreparedDevice("r", f"gpu-0{number}", f"GPU-{number}", portion=Portion(30, 1)) for number in range(2)]
    assert device_ids("uid", both) == [["kube-accel.io/claim=uid-share-r"], []]
