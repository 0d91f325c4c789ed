# SPDX-License-Identifier: Apache-2.0
"""The file that says what is prepared."""

from __future__ import annotations

import errno
import json
from pathlib import Path

import pytest

from kube_accel.dra.checkpoint import Checkpoint, CheckpointError, PreparedClaim, PreparedDevice
from kube_accel.dra.partitions import Placement
from kube_accel.dra.portions import Portion

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


def test_instances_see_what_others_saved(checkpoint: Checkpoint, tmp_path: Path) -> None:
    other = Checkpoint(tmp_path, tmp_path / "boot")
    for number in range(3):
        save(checkpoint, f"mine-{number}", CLAIM)
        save(other, f"others-{number}", CLAIM)
        assert claims(checkpoint) == claims(other)
    assert len(claims(checkpoint)) == 6
    (tmp_path / "claims.json").unlink()
    assert claims(checkpoint) == {}


def test_changes_that_could_not_be_written_are_not_known(
    checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "no room")

    save(checkpoint, "u", CLAIM)
    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", full)
        with pytest.raises(OSError, match="no room"):
            save(checkpoint, "v", CLAIM)
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
    (tmp_path / "claims.json").write_text('{"version": 5}')
    with pytest.raises(CheckpointError, match="has version 5, and this program reads 4"):
        claims(checkpoint)
    assert (tmp_path / "claims.json").read_text() == '{"version": 5}'


def test_parts_are_kept_from_who_would_make_whole_gpus_of_them(checkpoint: Checkpoint, tmp_path: Path) -> None:
    portion = Portion(30, 8 << 30)
    share = PreparedClaim("team", "b", (PreparedDevice("r", "gpu-00", "GPU-0", share_id="1", portion=portion),))

    def version() -> int:
        return int(json.loads((tmp_path / "claims.json").read_text())["version"])

    save(checkpoint, "u", CLAIM)
    assert version() == 1
    save(checkpoint, "v", share)
    assert (version(), claims(checkpoint)) == (2, {"u": CLAIM, "v": share})
    mig = PreparedClaim("team", "c", (PreparedDevice("r", "gpu-01-mig-1g10gb-0", "MIG-0", parent="GPU-1"),))
    save(checkpoint, "w", mig)
    assert (version(), claims(checkpoint)) == (3, {"u": CLAIM, "v": share, "w": mig})
    place = Placement("1g.10gb", 4, 1)
    made = PreparedClaim(
        "team", "d", (PreparedDevice("r", "gpu-02-mig-1g10gb-at-4", "", parent="GPU-2", placement=place),)
    )
    save(checkpoint, "x", made)
    assert (version(), claims(checkpoint)["x"]) == (4, made)


def test_gpus_put_into_mig_mode_are_known_after_a_reboot(checkpoint: Checkpoint, tmp_path: Path) -> None:
    with checkpoint.locked() as prepared:
        prepared.switched.add("GPU-2")
        prepared.save()
    (tmp_path / "boot_id").write_text("second\n")
    save(checkpoint, "u", CLAIM)
    with checkpoint.locked() as prepared:
        assert prepared.holdings.switched == {"GPU-2"}


def made(gpu: str, start: int, size: int) -> PreparedDevice:
    """A device that is to be made."""
    return PreparedDevice("r", f"{gpu}-at-{start}", "", parent=gpu, placement=Placement(f"{size}g", start, size))


@pytest.mark.parametrize(
    ("held", "wanted", "takes"),
    [
        (PreparedDevice("r", "gpu-00", "GPU-0"), PreparedDevice("r", "gpu-00", "GPU-0"), True),
        (PreparedDevice("r", "gpu-01", "GPU-0"), PreparedDevice("r", "gpu-00", "GPU-0"), True),
        (PreparedDevice("r", "gpu-01", "GPU-1"), PreparedDevice("r", "gpu-00", "GPU-0"), False),
        (PreparedDevice("r", "gpu-00-mig-0", "MIG-0", parent="GPU-0"), PreparedDevice("r", "gpu-00", "GPU-0"), True),
        (PreparedDevice("r", "gpu-00", "GPU-0"), PreparedDevice("r", "gpu-00-mig-0", "MIG-0", parent="GPU-0"), True),
        (
            PreparedDevice("r", "gpu-00-mig-0", "MIG-0", parent="GPU-0"),
            PreparedDevice("r", "gpu-00-mig-1", "MIG-1", parent="GPU-0"),
            False,
        ),
        (PreparedDevice("r", "gpu-00", "GPU-0", admin=True), PreparedDevice("r", "gpu-00", "GPU-0"), False),
        (made("GPU-0", 0, 4), made("GPU-0", 4, 1), False),
        (made("GPU-0", 0, 4), made("GPU-0", 3, 1), True),
        (made("GPU-0", 0, 4), made("GPU-1", 0, 4), False),
        (made("GPU-0", 0, 4), PreparedDevice("r", "gpu-00", "GPU-0"), True),
        (PreparedDevice("r", "gpu-01", "GPU-1"), made("GPU-0", 0, 4), False),
    ],
)
def test_taker_is_known_by_device_and_gpu(held: PreparedDevice, wanted: PreparedDevice, takes: bool) -> None:
    assert held.takes_of(wanted) is takes
