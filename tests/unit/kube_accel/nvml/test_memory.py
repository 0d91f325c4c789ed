# SPDX-License-Identifier: Apache-2.0
"""What a restart must not forget, and what it must."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from kube_accel.nvml.health import Condition
from kube_accel.nvml.memory import Memory

BAD = Condition(complaint="GPU is lost", incidents=("XID 48",), incident_until=500.0, good_polls=2, ecc=3)


@pytest.fixture
def memory(tmp_path: Path) -> Memory:
    return reopened(tmp_path)


def reopened(directory: Path, boot: str = "first") -> Memory:
    (directory / "boot_id").write_text(f"{boot}\n")
    return Memory(directory / "health.json", directory / "boot_id")


def test_incidents_are_kept_and_what_a_poll_tells_is_not(memory: Memory, tmp_path: Path) -> None:
    memory.save({"bad": BAD, "good": Condition(ecc=0), "once": Condition(ecc=2)})
    kept = Condition(incidents=("XID 48",), incident_until=500.0, ecc=3)
    assert reopened(tmp_path).load() == {"bad": kept, "once": Condition(ecc=2)}


def test_a_reboot_ends_what_was(memory: Memory, tmp_path: Path) -> None:
    memory.save({"bad": BAD})
    assert reopened(tmp_path, "second").load() == {}


def test_nothing_is_written_but_news(memory: Memory, tmp_path: Path) -> None:
    memory.save({"good": Condition(ecc=0)})
    assert not (tmp_path / "health.json").exists()
    memory.save({"bad": BAD})
    written = (tmp_path / "health.json").stat().st_ino
    memory.save({"bad": replace(BAD, good_polls=0, incident_until=BAD.incident_until + 5)})
    assert (tmp_path / "health.json").stat().st_ino == written
    memory.save({"bad": Condition(ecc=3)})
    assert reopened(tmp_path).load() == {"bad": Condition(ecc=3)}
    assert {path.name for path in tmp_path.iterdir()} == {"health.json", "boot_id"}


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"version": 1, "boot": "first", "gpus": {"GPU-1": {}}}', "\x00"])
def test_a_file_that_makes_no_sense_is_said_and_left(
    memory: Memory, tmp_path: Path, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "health.json").write_text(text)
    assert memory.load() == {}
    assert "what was known of the GPUs is lost" in caplog.text
    memory.save({"bad": BAD})
    assert set(reopened(tmp_path).load()) == {"bad"}


def test_a_directory_that_cannot_be_written_is_said_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "boot_id").write_text("first")
    memory = Memory(tmp_path / "absent/health.json", tmp_path / "boot_id")
    memory.save({"bad": BAD})
    memory.save({"bad": BAD})
    assert caplog.text.count("a restart will forget") == 1


def test_without_a_file_nothing_is_remembered() -> None:
    memory = Memory(None)
    memory.save({"bad": BAD})
    assert memory.load() == {}
