# SPDX-License-Identifier: Apache-2.0
"""What a restart must not forget, and what it must."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from kube_accel.nvml.expected_gpus import Seen
from kube_accel.nvml.health import Condition
from kube_accel.nvml.health_store import HealthStore, Remembered

BAD = Condition(complaint="GPU is lost", incidents=("XID 48",), incident_until=500.0, good_polls=2, ecc=3)


@pytest.fixture
def memory(tmp_path: Path) -> HealthStore:
    return reopened(tmp_path)


def reopened(directory: Path, boot: str = "first") -> HealthStore:
    (directory / "boot_id").write_text(f"{boot}\n")
    return HealthStore(directory / "health.json", directory / "boot_id")


def save(memory: HealthStore, conditions: Mapping[str, Condition]) -> None:
    memory.save(Remembered(conditions))


def test_incidents_are_kept_and_what_a_poll_tells_is_not(memory: HealthStore, tmp_path: Path) -> None:
    save(memory, {"bad": BAD, "good": Condition(ecc=0), "once": Condition(ecc=2)})
    kept = Condition(incidents=("XID 48",), incident_until=500.0, ecc=3)
    assert reopened(tmp_path).load().conditions == {"bad": kept, "once": Condition(ecc=2)}


def test_a_reboot_ends_what_was_and_not_what_is_counted(memory: HealthStore, tmp_path: Path) -> None:
    xids, seen = {("bad", 79): (3, 100.5)}, {"bad": Seen("0000:10:00.0", 7.5, 6.5), "good": Seen("slot", 1.0)}
    memory.save(Remembered({"bad": BAD}, xids, seen))
    assert reopened(tmp_path, "second").load() == Remembered({}, xids, seen)


def test_counts_of_two_daemons_do_not_decrease(memory: HealthStore, tmp_path: Path) -> None:
    seen, both = {"bad": Seen("slot", 1.0)}, ("bad", 79)
    successor = reopened(tmp_path)
    memory.save(Remembered({}, {both: (4, 9.0), ("bad", 48): (1, 1.0)}, seen))
    successor.save(Remembered({}, {both: (3, 8.0), ("bad", 31): (1, 2.0)}, seen))
    assert reopened(tmp_path).load().xids == {both: (4, 9.0), ("bad", 48): (1, 1.0), ("bad", 31): (1, 2.0)}


def test_counts_of_a_gpu_that_is_not_missed_are_forgotten(memory: HealthStore, tmp_path: Path) -> None:
    memory.save(Remembered({}, {("bad", 79): (4, 9.0)}, {}))
    assert reopened(tmp_path).load().xids == {}


def test_a_file_of_a_version_that_kept_less_is_read(memory: HealthStore, tmp_path: Path) -> None:
    text = '{"version": 1, "boot": "first", "gpus": {"bad": {"incidents": [], "until": 0, "ecc": 3}}}'
    (tmp_path / "health.json").write_text(text)
    assert memory.load() == Remembered({"bad": Condition(ecc=3)})


def test_time_that_passes_is_not_written_at_each_answer(memory: HealthStore, tmp_path: Path) -> None:
    file = tmp_path / "health.json"

    def wrote(seen: Seen) -> bool:
        before = file.stat().st_ino if file.exists() else 0
        memory.save(Remembered(seen={"gpu": seen}))
        return file.stat().st_ino != before

    assert wrote(Seen("slot", 10.0, 10.0))
    assert not wrote(Seen("slot", 1000.0, 1000.0))
    assert wrote(Seen("slot", 1002.0, 1000.0))
    assert not wrote(Seen("slot", 2000.0, 1000.0))
    assert wrote(Seen("slot", 2002.0, 2002.0))
    assert wrote(Seen("slot", 9000.0, 9000.0))


def test_nothing_is_written_but_news(memory: HealthStore, tmp_path: Path) -> None:
    save(memory, {"good": Condition(ecc=0)})
    assert not (tmp_path / "health.json").exists()
    save(memory, {"bad": BAD})
    written = (tmp_path / "health.json").stat().st_ino
    save(memory, {"bad": replace(BAD, good_polls=0, incident_until=BAD.incident_until + 5)})
    assert (tmp_path / "health.json").stat().st_ino == written
    save(memory, {"bad": Condition(ecc=3)})
    assert reopened(tmp_path).load().conditions == {"bad": Condition(ecc=3)}
    assert {path.name for path in tmp_path.iterdir()} == {"health.json", "boot_id"}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"version": 1, "boot": "first", "gpus": {"GPU-1": {}}}',
        '{"version": 1, "boot": "first", "gpus": {}, "xids": [1]}',
        "\x00",
    ],
)
def test_a_file_that_makes_no_sense_is_said_and_left(
    memory: HealthStore, tmp_path: Path, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "health.json").write_text(text)
    assert memory.load() == Remembered()
    assert "what was known of the GPUs is lost" in caplog.text
    save(memory, {"bad": BAD})
    assert set(reopened(tmp_path).load().conditions) == {"bad"}


def test_a_directory_that_cannot_be_written_is_said_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "boot_id").write_text("first")
    memory = HealthStore(tmp_path / "absent/health.json", tmp_path / "boot_id")
    save(memory, {"bad": BAD})
    save(memory, {"bad": BAD})
    assert caplog.text.count("a restart will forget") == 1


def test_without_a_file_nothing_is_remembered() -> None:
    memory = HealthStore(None)
    save(memory, {"bad": BAD})
    assert memory.load() == Remembered()
