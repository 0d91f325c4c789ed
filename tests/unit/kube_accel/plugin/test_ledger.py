# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import time
from pathlib import Path

import pytest

from kube_accel.model import Mode, Share
from kube_accel.plugin.holdings import Holder
from kube_accel.plugin.ledger import FILE, Ledger

GIB = 1 << 30
ONE, TWO = Holder("team", "one", "main"), Holder("team", "two", "main")
HALF = Share("GPU-1", 50, 40 * GIB)


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def ledger(tmp_path: Path, clock: Clock) -> Ledger:
    return Ledger(tmp_path, Mode.VGPU, clock)


def uid(holder: Holder) -> str:
    return f"uid-{holder.pod}"


def rows(ledger: Ledger) -> list[tuple[str, str, int, float, float | None]]:
    return [(a.holder.pod, a.uid, a.share.cores, a.since, a.until) for a in ledger.allocations(running=False)]


def test_a_container_that_starts_again_keeps_its_beginning(ledger: Ledger, clock: Clock) -> None:
    ledger.record(ONE, "uid-one", [HALF])
    clock.now = 1010
    ledger.record(ONE, "uid-one", [HALF])
    ledger.reconcile({ONE: [HALF]}, uid)
    assert rows(ledger) == [("one", "uid-one", 50, 1000, None)]


def test_what_kubelet_lists_no_more_has_ended(ledger: Ledger, clock: Clock) -> None:
    ledger.reconcile({ONE: [HALF], TWO: [HALF]}, uid)
    clock.now = 1010
    ledger.reconcile({TWO: [HALF]}, uid)
    assert rows(ledger) == [("one", "uid-one", 50, 1000, 1010), ("two", "uid-two", 50, 1000, None)]
    assert [entry.holder for entry in ledger.allocations()] == [TWO]


def test_what_started_after_kubelet_was_asked_goes_on(ledger: Ledger, clock: Clock) -> None:
    ledger.record(TWO, "uid-two", [HALF])
    asked_at = time.monotonic()
    ledger.record(ONE, "uid-one", [HALF])
    clock.now = 1010
    ledger.reconcile({}, uid, asked_at)
    assert rows(ledger) == [("two", "uid-two", 50, 1000, 1010), ("one", "uid-one", 50, 1000, None)]
    ledger.reconcile({}, uid, time.monotonic())
    assert ledger.allocations() == []


def test_a_pod_of_the_same_name_is_another_allocation(ledger: Ledger, clock: Clock) -> None:
    ledger.record(ONE, "first", [HALF])
    clock.now = 1010
    ledger.record(ONE, "second", [HALF])
    assert rows(ledger) == [("one", "first", 50, 1000, 1010), ("one", "second", 50, 1010, None)]


def test_a_uid_told_later_is_added(ledger: Ledger) -> None:
    ledger.record(ONE, "", [HALF])
    ledger.reconcile({ONE: [HALF]}, uid)
    assert rows(ledger) == [("one", "uid-one", 50, 1000, None)]


def test_it_outlives_its_process_and_serves_two(tmp_path: Path, ledger: Ledger, clock: Clock) -> None:
    ledger.record(ONE, "u", [HALF])
    successor = Ledger(tmp_path, Mode.VGPU, clock)
    successor.record(ONE, "u", [HALF])
    ledger.record(TWO, "u", [HALF])
    assert [entry.holder for entry in successor.allocations()] == [ONE, TWO]


def test_old_entries_are_forgotten(tmp_path: Path, ledger: Ledger, clock: Clock) -> None:
    ledger.record(ONE, "u", [HALF])
    ledger.record(TWO, "u", [HALF])
    ledger.reconcile({TWO: [HALF]}, uid)
    clock.now += 91 * 86400
    assert [row[0] for row in rows(Ledger(tmp_path, Mode.VGPU, clock))] == ["two"]


@pytest.mark.parametrize("content", [b"no database" * 1000, b""])
def test_a_damaged_file_is_kept_aside_and_a_new_one_filled(tmp_path: Path, clock: Clock, content: bytes) -> None:
    (tmp_path / FILE).write_bytes(content)
    ledger = Ledger(tmp_path, Mode.VGPU, clock)
    ledger.reconcile({ONE: [HALF]}, uid)
    assert [entry.holder for entry in ledger.allocations()] == [ONE]
    aside = [path.read_bytes() for path in tmp_path.glob(f"{FILE}.damaged-*")]
    assert aside == ([content] if content else [])


def test_damage_while_running_is_noticed(tmp_path: Path, ledger: Ledger) -> None:
    ledger.record(ONE, "u", [HALF])
    ledger.close()
    (tmp_path / FILE).write_bytes(b"\0" * 8192)
    ledger.reconcile({ONE: [HALF]}, uid)
    assert [entry.holder for entry in ledger.allocations()] == [ONE]
    assert list(tmp_path.glob(f"{FILE}.damaged-*"))


def test_a_directory_that_cannot_be_written_is_said_and_survived(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ledger = Ledger(tmp_path / "none", Mode.VGPU)
    ledger.record(ONE, "u", [HALF])
    assert ledger.allocations() == []
    assert "the ledger cannot be used" in caplog.text


def counted(ledger: Ledger, running: bool = True) -> dict[tuple[str, str], int]:
    return {(row.allocation.holder.pod, row.reason): row.count for row in ledger.refusals(running)}


def test_refusals_add_up_over_the_starts_of_a_container(ledger: Ledger) -> None:
    ledger.record(ONE, "u", [HALF])
    assert ledger.refused(ONE, "GPU-1", {"limit": 3, "device": 0}) == {"limit"}
    assert ledger.refused(ONE, "GPU-1", {"limit": 3, "device": 0}) == set()
    assert ledger.refused(ONE, "GPU-1", {"limit": 5, "device": 1}) == {"limit", "device"}
    ledger.restarted(ONE)
    ledger.record(ONE, "u", [HALF])
    assert ledger.refused(ONE, "GPU-1", {"limit": 0, "device": 0}) == set()
    assert ledger.refused(ONE, "GPU-1", {"limit": 5, "device": 0}) == {"limit"}
    assert counted(ledger) == {("one", "limit"): 10, ("one", "device"): 1}


def test_what_a_tenant_makes_of_its_counters_stays_a_number(ledger: Ledger) -> None:
    ledger.record(ONE, "u", [HALF])
    for value in (2**53, 0, 2**53, 1) * 600:
        ledger.refused(ONE, "GPU-1", {"limit": value})
    assert counted(ledger)["one", "limit"] == 2**62
    assert ledger.refused(TWO, "GPU-1", {"limit": 4}) == set()


def test_refusals_of_what_ended_are_remembered_as_long_as_it_is(tmp_path: Path, ledger: Ledger, clock: Clock) -> None:
    ledger.record(ONE, "u", [HALF])
    ledger.refused(ONE, "GPU-1", {"policy": 2})
    ledger.reconcile({}, uid)
    assert counted(ledger) == {}
    assert counted(ledger, running=False) == {("one", "policy"): 2}
    clock.now += 100 * 86400
    assert counted(Ledger(tmp_path, Mode.VGPU, clock), running=False) == {}
    ledger.record(TWO, "u", [HALF])
    assert counted(ledger, running=False) == {}


def test_a_meter_is_kept_and_counts_only_up(tmp_path: Path, ledger: Ledger, clock: Clock) -> None:
    assert ledger.charges() == ("", [])
    ledger.charge("first", [("team", "vgpu", "H100", 10.0, 2.0, 3.0), ("", "", "H100", 20.0, 0.0, 0.0)])
    successor = Ledger(tmp_path, Mode.VGPU, clock)
    successor.charge("second", [("team", "vgpu", "H100", 9.0, 4.0, 3.0)])
    assert ledger.charges() == ("second", [("", "", "H100", 20.0, 0.0, 0.0), ("team", "vgpu", "H100", 10.0, 4.0, 3.0)])
