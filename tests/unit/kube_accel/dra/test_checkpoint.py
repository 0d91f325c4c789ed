# SPDX-License-Identifier: Apache-2.0
"""The file that says what is prepared."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kube_accel.dra.checkpoint import Checkpoint, CheckpointError, PreparedClaim, PreparedDevice

CLAIM = PreparedClaim("team", "a", (PreparedDevice("gpus", "gpu-00", "GPU-0"),))


@pytest.fixture
def checkpoint(tmp_path: Path) -> Checkpoint:
    (tmp_path / "boot").write_text("first\n")
    return Checkpoint(tmp_path, tmp_path / "boot")


def save(checkpoint: Checkpoint, uid: str, claim: PreparedClaim) -> None:
    with checkpoint.locked() as prepared:
        prepared.claims[uid] = claim
        prepared.save()


def claims(checkpoint: Checkpoint) -> dict[str, PreparedClaim]:
    with checkpoint.locked() as prepared:
        return prepared.claims


def test_claims_are_what_was_saved(checkpoint: Checkpoint) -> None:
    assert claims(checkpoint) == {}
    save(checkpoint, "u", CLAIM)
    assert claims(checkpoint) == {"u": CLAIM}


def test_unsaved_changes_are_lost(checkpoint: Checkpoint) -> None:
    with checkpoint.locked() as prepared:
        prepared.claims["u"] = CLAIM
    assert claims(checkpoint) == {}


def test_claims_of_another_boot_are_not_prepared(checkpoint: Checkpoint, tmp_path: Path) -> None:
    save(checkpoint, "u", CLAIM)
    (tmp_path / "boot").write_text("second\n")
    assert claims(checkpoint) == {}
    document = json.loads((tmp_path / "claims.json").read_text())
    assert (document["bootId"], document["claims"]) == ("second", {})


def test_unknown_keys_of_file_and_claims_are_kept(checkpoint: Checkpoint, tmp_path: Path) -> None:
    save(checkpoint, "u", CLAIM)
    file = tmp_path / "claims.json"
    document = json.loads(file.read_text())
    document["later"] = [1]
    document["claims"]["u"]["later"] = {"a": 2}
    file.write_text(json.dumps(document))
    save(checkpoint, "v", CLAIM)
    kept = json.loads(file.read_text())
    assert (kept["later"], kept["claims"]["u"]["later"]) == ([1], {"a": 2})


@pytest.mark.parametrize("text", ["", "{", "[]", '{"version": 1, "bootId": "first", "claims": {"u": {"name": 7}}}'])
def test_damaged_file_is_set_aside(checkpoint: Checkpoint, tmp_path: Path, text: str) -> None:
    (tmp_path / "claims.json").write_text(text)
    assert claims(checkpoint) == {}
    assert (tmp_path / "claims.damaged").read_text() == text
    save(checkpoint, "u", CLAIM)
    assert claims(checkpoint) == {"u": CLAIM}


def test_file_of_a_later_version_is_left_alone(checkpoint: Checkpoint, tmp_path: Path) -> None:
    (tmp_path / "claims.json").write_text('{"version": 2}')
    with pytest.raises(CheckpointError, match="has version 2, and this program reads 1"):
        claims(checkpoint)
    assert (tmp_path / "claims.json").read_text() == '{"version": 2}'


@pytest.mark.parametrize(
    ("held", "wanted", "refused"),
    [
        (PreparedDevice("r", "gpu-00", "GPU-0"), PreparedDevice("r", "gpu-00", "GPU-0"), True),
        (PreparedDevice("r", "gpu-01", "GPU-0"), PreparedDevice("r", "gpu-00", "GPU-0"), True),
        (PreparedDevice("r", "gpu-01", "GPU-1"), PreparedDevice("r", "gpu-00", "GPU-0"), False),
        (PreparedDevice("r", "gpu-00", "GPU-0", admin=True), PreparedDevice("r", "gpu-00", "GPU-0"), False),
    ],
)
def test_holder_is_found_by_device_and_gpu(
    checkpoint: Checkpoint, held: PreparedDevice, wanted: PreparedDevice, refused: bool
) -> None:
    other = PreparedClaim("team", "a", (held,))
    save(checkpoint, "u", other)
    with checkpoint.locked() as prepared:
        assert prepared.holder(wanted, "v") == (("u", other) if refused else None)
        assert prepared.holder(wanted, "u") is None
