# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from uuid import UUID

import pytest

from kube_accel.model import Mode, Share
from kube_accel.plugin.allocation.ledger import FILE, ChargeRow, Ledger, Owner, this_machine
from kube_accel.plugin.kubelet.holdings import Holder

GIB = 1 << 30
ONE, TWO = Holder("team", "one", "main"), Holder("team", "two", "main")
HALF = Share("GPU-1", 50, 40 * GIB)
DAY = 86400


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


def test_old_entries_are_forgotten_by_a_daemon_that_runs_on(ledger: Ledger, clock: Clock) -> None:
    for day in range(0, 200, 10):
        clock.now = 1000 + day * DAY
        ledger.reconcile({Holder("team", f"day-{day}", "main"): [HALF]}, uid)
    assert [row[0] for row in rows(ledger)] == [f"day-{day}" for day in range(90, 200, 10)]


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


GPU_1, GPU_2 = Owner("gpu-1", "4c4c4544"), Owner("gpu-2", "4c4c4544")


def bound(tmp_path: Path, clock: Clock, owner: Owner) -> Ledger:
    return Ledger(tmp_path, Mode.VGPU, clock, owner)


def test_a_ledger_keeps_its_name_on_its_node(tmp_path: Path, clock: Clock) -> None:
    first = bound(tmp_path, clock, GPU_1)
    first.charge("state", [charge("team", 5.0)])
    others = [bound(tmp_path, clock, Owner("gpu-1", machine)) for machine in ("", "4c4c4544", "")]
    assert {UUID(ledger.name) for ledger in others} == {UUID(first.name)}
    assert others[-1].charges() == ("state", [charge("team", 5.0)])
    assert not list(tmp_path.glob(f"{FILE}.*-[0-9]*"))


@pytest.mark.parametrize("owner", [GPU_2, Owner("gpu-1", "5d5d5555"), Owner("gpu-2")])
def test_a_ledger_that_moved_to_another_node_begins_anew(
    tmp_path: Path, clock: Clock, caplog: pytest.LogCaptureFixture, owner: Owner
) -> None:
    first = bound(tmp_path, clock, GPU_1)
    first.record(ONE, "u", [HALF])
    first.charge("state", [charge("team", 5.0)])
    first.close()
    moved = bound(tmp_path, clock, owner)
    assert moved.charges() == ("", [])
    assert moved.allocations(running=False) == []
    assert moved.name not in ("", first.name)
    assert "made on another node or machine" in caplog.text
    (aside,) = tmp_path.glob(f"{FILE}.moved-*")
    with closing(sqlite3.connect(aside)) as kept:
        assert kept.execute("SELECT namespace FROM charges").fetchall() == [("team",)]


def test_older_releases_ledger_is_bound_to_its_node(tmp_path: Path, clock: Clock) -> None:
    with closing(sqlite3.connect(tmp_path / FILE, isolation_level=None)) as older:
        older.executescript(AS_BEFORE_PEAKS)
    Ledger(tmp_path, Mode.VGPU, clock).charge("state", [charge("team", 5.0)])
    assert bound(tmp_path, clock, GPU_1).charges() == ("state", [charge("team", 5.0)])
    assert bound(tmp_path, clock, GPU_2).charges() == ("", [])


def test_replacement_of_a_damaged_ledger_keeps_its_name(tmp_path: Path, clock: Clock) -> None:
    ledger = bound(tmp_path, clock, GPU_1)
    name = ledger.name
    ledger.close()
    (tmp_path / FILE).write_bytes(b"\0" * 8192)
    ledger.charge("state", [charge("team", 5.0)])
    assert ledger.name == name
    assert bound(tmp_path, clock, GPU_1).name == name


def test_a_machine_tells_its_uuid_or_none(tmp_path: Path) -> None:
    (tmp_path / "product_uuid").write_text("4C4C4544-0035\n")
    assert this_machine(tmp_path / "product_uuid") == "4c4c4544-0035"
    assert this_machine(tmp_path / "none") == ""


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


@pytest.mark.attack
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


def peaks(ledger: Ledger) -> dict[tuple[str, str], int | None]:
    return {(pod, uid): peak for _, _, pod, _, uid, _, peak in ledger.peaks()}


def peaked(ledger: Ledger, pod: str, peak: int) -> None:
    ledger.peaked({row[0]: peak for row in ledger.peaks() if row[2] == pod})


def test_a_peak_is_an_allocations_and_only_grows(tmp_path: Path, ledger: Ledger, clock: Clock) -> None:
    ledger.record(ONE, "first", [HALF])
    ledger.record(TWO, "u", [HALF])
    peaked(ledger, "one", 39 * GIB)
    peaked(Ledger(tmp_path, Mode.VGPU, clock), "one", 2 * GIB)
    ledger.record(ONE, "first", [HALF])
    assert peaks(ledger) == {("one", "first"): 39 * GIB, ("two", "u"): None}
    ledger.record(ONE, "second", [HALF])
    assert peaks(ledger) == {("one", "second"): None, ("two", "u"): None}


AS_BEFORE_PEAKS = """
CREATE TABLE allocations (id INTEGER PRIMARY KEY, mode TEXT NOT NULL, namespace TEXT NOT NULL, pod TEXT NOT NULL,
    uid TEXT NOT NULL, container TEXT NOT NULL, gpu TEXT NOT NULL, cores INTEGER NOT NULL,
    memory_bytes INTEGER NOT NULL, since REAL NOT NULL, until REAL);
CREATE UNIQUE INDEX running ON allocations (namespace, pod, container, gpu) WHERE until IS NULL;
"""


def test_plugin_without_peaks_uses_the_file_and_leaves_none(tmp_path: Path, clock: Clock) -> None:
    """In an upgrade both have it open, after a downgrade the older one alone."""
    with closing(sqlite3.connect(tmp_path / FILE, isolation_level=None)) as older:
        older.execute("PRAGMA journal_mode = WAL")
        older.executescript(AS_BEFORE_PEAKS)
        insert = (
            "INSERT OR IGNORE INTO allocations (mode, namespace, pod, container, uid, gpu, cores, memory_bytes, since) "
            "VALUES ('vgpu', 'team', ?, 'main', 'u', 'GPU-1', 50, ?, 1000)"
        )
        older.execute(insert, ("one", HALF.memory_bytes))
        ledger = Ledger(tmp_path, Mode.VGPU, clock)
        peaked(ledger, "one", GIB)
        assert peaks(ledger) == {("one", "u"): GIB}
        older.execute("UPDATE allocations SET until = 1010")
        older.execute("DELETE FROM allocations WHERE until < 2000")
        # SQLite gives the row's number to the next one.
        older.execute(insert, ("two", HALF.memory_bytes))
        assert peaks(ledger) == {("two", "u"): None}


def test_a_peak_that_cannot_be_written_stops_nobody(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "none", Mode.VGPU)
    ledger.peaked({1: GIB})
    assert ledger.peaks() == []


def test_a_meter_is_kept_and_counts_only_up(tmp_path: Path, ledger: Ledger, clock: Clock) -> None:
    assert ledger.charges() == ("", [])
    ledger.charge("first", [("team", "vgpu", "H100", 10.0, 2.0, 3.0), ("", "", "H100", 20.0, 0.0, 0.0)])
    successor = Ledger(tmp_path, Mode.VGPU, clock)
    successor.charge("second", [("team", "vgpu", "H100", 9.0, 4.0, 3.0)])
    assert ledger.charges() == ("second", [("", "", "H100", 20.0, 0.0, 0.0), ("team", "vgpu", "H100", 10.0, 4.0, 3.0)])


def charge(payer: str, seconds: float) -> ChargeRow:
    return (payer, "vgpu" if payer else "", "H100", seconds, 0.0, 0.0)


def payers(ledger: Ledger) -> list[str]:
    return [row[0] for row in ledger.charges()[1]]


def charge_daily(ledger: Ledger, clock: Clock, days: int, rows: Callable[[int], list[ChargeRow]]) -> set[str]:
    """Who was forgotten, which a meter then tells no more."""
    found = set[str]()
    for day in range(days):
        told = [row for row in rows(day) if row[0] not in found]
        found |= {key[0] for key in ledger.charge("state", told)}
        clock.now += DAY
    return found


def test_payer_without_a_gpu_for_90_days_is_forgotten(tmp_path: Path, ledger: Ledger, clock: Clock) -> None:
    rows = [charge("", 10.0), charge("left", 3.0)]
    assert charge_daily(ledger, clock, 90, lambda day: [*rows, charge("stays", day)]) == set()
    assert payers(ledger) == ["", "left", "stays"]
    successor = Ledger(tmp_path, Mode.VGPU, clock)
    assert charge_daily(successor, clock, 2, lambda day: [*rows, charge("stays", 100.0)]) == {"left"}
    assert payers(ledger) == ["", "stays"]
    # What comes back begins at nothing.
    ledger.charge("state", [charge("left", 1.0)])
    assert ("left", "vgpu", "H100", 1.0, 0.0, 0.0) in ledger.charges()[1]


def test_what_the_release_before_counted_is_not_old(tmp_path: Path, ledger: Ledger, clock: Clock) -> None:
    ledger.charge("state", [charge("team", 1.0)])
    clock.now += 200 * DAY
    with sqlite3.connect(tmp_path / FILE) as file:
        file.execute("UPDATE charges SET gpu_seconds = 7")
    assert charge_daily(Ledger(tmp_path, Mode.VGPU, clock), clock, 2, lambda day: [charge("team", 7.0)]) == set()


def test_wrong_clock_makes_no_payer_forgotten(ledger: Ledger, clock: Clock) -> None:
    rows = [charge("team", 1.0)]
    assert not ledger.charge("state", rows)
    for wrong in (500, -500, -500, 500):
        clock.now += wrong * DAY
        assert not ledger.charge("state", rows)
    assert charge_daily(ledger, clock, 91, lambda day: rows) == {"team"}


def test_only_what_has_changed_is_written(tmp_path: Path, ledger: Ledger) -> None:
    rows = [charge("one", 1.0), charge("two", 1.0)]
    ledger.charge("state", rows)
    with sqlite3.connect(tmp_path / FILE) as file:
        file.executescript(
            "CREATE TABLE written (namespace); CREATE TRIGGER seen AFTER UPDATE ON charges "
            "BEGIN INSERT INTO written VALUES (new.namespace); END"
        )
    ledger.charge("state", rows)
    ledger.charge("state", [rows[0], charge("two", 2.0)])
    with sqlite3.connect(tmp_path / FILE) as file:
        assert file.execute("SELECT namespace FROM written").fetchall() == [("two",)]


def test_replacement_of_a_damaged_file_gets_all_rows(tmp_path: Path, ledger: Ledger) -> None:
    rows = [charge("one", 1.0), charge("two", 1.0)]
    ledger.charge("state", rows)
    ledger.close()
    (tmp_path / FILE).write_bytes(b"\0" * 8192)
    ledger.charge("state", rows)
    assert ledger.charges()[1] == rows
