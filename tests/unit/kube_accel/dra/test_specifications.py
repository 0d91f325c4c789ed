# SPDX-License-Identifier: Apache-2.0
"""Files of claims from one look to the next."""

from __future__ import annotations

from pathlib import Path

import pytest

from kube_accel.dra.specifications import ClaimSpecifications
from unit.kube_accel.dra.node import ClaimNode
from unit.kube_accel.dra.test_shares import prepare, share


@pytest.fixture
def node(tmp_path: Path) -> ClaimNode:
    return ClaimNode(tmp_path)


@pytest.mark.parametrize("name", ["uid-a", "uid-b.shares"])
def test_file_that_was_right_at_the_last_look_is_put_right_again(node: ClaimNode, name: str) -> None:
    node.api.claim("a", "gpu-00")
    share(node, "b", [("r", "gpu-01", 30, 8)])
    preparer = node.preparer(node.shares())
    for claim in ("a", "b"):
        prepare(preparer, claim)
    preparer.look_after_files()
    file = node.cdi / f"kube-accel.io-claim-{name}.json"
    right = file.read_text()
    for spoil in (file.unlink, lambda: file.write_text("{}"), lambda: file.write_text(right.replace("gpu", "gpx"))):
        spoil()
        preparer.look_after_files()
        assert file.read_text() == right
    (node.root / "dev/nvidia-uvm-tools").touch()
    preparer.look_after_files()
    assert "/dev/nvidia-uvm-tools" in file.read_text()


def test_files_that_are_right_are_left_alone(node: ClaimNode, monkeypatch: pytest.MonkeyPatch) -> None:
    node.api.claim("a", "gpu-00")
    share(node, "b", [("r", "gpu-01", 30, 8)])
    preparer = node.preparer(node.shares())
    for claim in ("a", "b"):
        prepare(preparer, claim)
    preparer.look_after_files()
    monkeypatch.setattr(ClaimSpecifications, "write", None)
    preparer.look_after_files()
