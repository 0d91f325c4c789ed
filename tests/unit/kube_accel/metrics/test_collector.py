# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kube_accel.metrics import families
from kube_accel.metrics.charge import Charge, Payer, State
from kube_accel.metrics.collector import Collector, CollectorOptions
from kube_accel.metrics.containers import Kept, Key
from kube_accel.metrics.meterstate import decode, encode
from kube_accel.metrics.service import Service
from kube_accel.metrics.tenancy import Account, Charged, Container, Holding, Tenancy
from kube_accel.model import DriverState, Mode, Share
from kube_accel.plugin.allocation.ledger import Ledger
from kube_accel.plugin.kubelet.holdings import Holder
from kube_accel.plugin.tenancy.metering import LedgerBooks
from unit.kube_accel.metrics.page import Page
from unit.kube_accel.metrics.proc import ID, UID, cgroup, run
from unit.kube_accel.plugin.fakes import STARTING, FakeMonitor, ready, uuid


def entry(index: int, busy: float = 1.0, **more: Any) -> dict[str, Any]:
    """What the worker says of a GPU."""
    told = {
        "uuid": uuid(index),
        "memory": {"total": 80 << 30, "used": 1 << 30, "free": 79 << 30, "reserved": 0},
        "busy": [busy, 10.0],
        "memory_busy": None,
        "temperature": 30,
        "memory_temperature": None,
        "power": 70_000,
        "energy": 1000,
        "clocks": {"sm": 345},
        "throttled": {},
        "pcie_replays": None,
        "processes": [],
        "process_time": [],
        "mig_memory": None,
        "slow": {"power_limit": 700_000, "ecc": {}, "remapped": None},
    }
    return told | more


class Gpus(FakeMonitor):
    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.answer: Callable[[bool], Mapping[str, Any] | None] = lambda slow: {"gpus": [entry(0), entry(1)]}

    def samples(self, slow: bool, profile: bool, timeout: float) -> Mapping[str, Any] | None:
        self.profiled = profile
        return self.answer(slow)


@pytest.fixture
def gpus() -> Gpus:
    return Gpus(ready(2))


NOBODY = Tenancy(lambda: {})


class Books:
    """Keeps in memory, as text."""

    ledger = ""

    def __init__(self) -> None:
        self.text = ""
        self.charges: dict[Payer, Charge] = {}
        self.forgotten: set[Payer] = set()

    def load(self) -> tuple[State | None, Mapping[Payer, Charge]]:
        return decode(self.text), {key: replace(charge) for key, charge in self.charges.items()}

    def save(self, state: State, charges: Mapping[Payer, Charge]) -> Collection[Payer]:
        self.text = encode(state)
        self.charges = {key: replace(charge) for key, charge in charges.items() if key not in self.forgotten}
        return self.forgotten

    def peaks(self) -> Mapping[Key, Kept]:
        return {}

    def peaked(self, peaks: Mapping[int, int]) -> None:
        assert not peaks


def options(interval: float = 10, proc_root: Path = Path("/proc"), **pages: bool) -> CollectorOptions:
    return CollectorOptions("node", Mode.PGPU.value, interval, proc_root, **pages)


def collector(
    gpus: Gpus,
    interval: float = 10,
    tenancy: Tenancy = NOBODY,
    proc: Path = Path("/proc"),
    books: Books | LedgerBooks | None = None,
) -> Collector:
    services = {"nvidia.com/gpu": Service(True, True)}
    return Collector(options(interval, proc_root=proc), gpus, tenancy, books or Books(), lambda: services)


def test_other_exporters_pages_are_served_if_asked_for(gpus: Gpus) -> None:
    assert set(collector(gpus).pages) == {"/metrics"}
    tenancy = Tenancy(lambda: {uuid(0): (Holding(A, uuid(0), 1.0, 1.0, 80 << 30),)})
    made = Collector(options(aliases=True), gpus, tenancy, Books(), dict)
    assert set(made.pages) == {"/metrics", "/metrics/dcgm", "/metrics/gpu-manager"}
    made.collect()
    pages = {path: Page(page()).families for path, page in made.pages.items()}
    assert len(pages["/metrics/dcgm"]["DCGM_FI_DEV_FB_USED"]) == 2
    assert len(pages["/metrics/gpu-manager"]["container_gpu_memory_total"]) == 2
    assert not any(name.startswith(("DCGM", "container")) for name in pages["/metrics"])


def collected(made: Collector) -> Page:
    made.collect()
    return Page(made.page())


def test_a_page_is_there_before_anything_was_collected(gpus: Gpus) -> None:
    page = Page(collector(gpus).page())
    assert page.value(families.BUILD_INFO, mode="pgpu") == 1
    assert page.value(families.PLUGIN_REGISTERED, resource="nvidia.com/gpu") == 1
    assert not page.of(families.COLLECTOR_SUCCESS)


def test_series_are_counted_and_many_are_said_once(
    gpus: Gpus, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def said() -> list[str]:
        return [record.message for record in caplog.records if "many series" in record.message]

    made = collector(gpus)
    made.collect()
    lines = made.page().decode().splitlines()
    number = sum(not line.startswith("#") for line in lines)
    assert Page(made.page()).value(families.COLLECTOR_SERIES) == number
    assert not said()
    for most, times in ((number - 1, 1), (number - 1, 1), (10 * number, 1), (number - 1, 2)):
        monkeypatch.setattr("kube_accel.metrics.collector._MANY_SERIES", most)
        made.collect()
        assert len(said()) == times


def test_who_the_books_forget_is_told_of_no_more(gpus: Gpus) -> None:
    books = Books()
    books.charges = {Payer(name, "pgpu", "H100"): Charge(1.0) for name in ("left", "stays")}
    made = collector(gpus, books=books)
    books.forgotten = {Payer("left", "pgpu", "H100")}
    assert [labels["namespace"] for labels in collected(made).of(families.NAMESPACE_GPU)] == ["stays"]


def test_seconds_busy_add_up(gpus: Gpus) -> None:
    made = collector(gpus)
    before = time.time()
    for seconds in (1.0, 2.0, 3.0):
        page = collected(made)
        assert page.value(families.GPU_BUSY, uuid=uuid(0)) == seconds
    assert page.value(families.COLLECTOR_SUCCESS, collector="nvml") == 1
    assert before <= page.value(families.COLLECTOR_AT, collector="nvml") <= time.time()


@pytest.mark.parametrize("silent", [[{"uuid": uuid(1), "error": {"code": 15, "text": "lost"}}], []])
def test_a_gpu_that_does_not_answer_is_absent_and_counted(gpus: Gpus, silent: list[dict[str, Any]]) -> None:
    made = collector(gpus)
    collected(made)
    gpus.answer = lambda slow: {"gpus": [entry(0), {"uuid": uuid(1), "error": {"code": 15, "text": "lost"}}]}
    page = collected(made)
    assert [labels["uuid"] for labels in page.of(families.GPU_USED)] == [uuid(0)]
    assert [labels["uuid"] for labels in page.of(families.GPU_POWER_LIMIT)] == [uuid(0)]
    assert page.value(families.COLLECTOR_FAILURES, collector="nvml", reason="gpu") == 1
    assert page.value(families.GPU_BUSY, uuid=uuid(1)) == 1


def test_a_value_that_the_driver_errs_for_is_absent_and_counted(gpus: Gpus) -> None:
    fault = {"code": 999, "text": "Unknown Error", "function": "nvmlDeviceGetPowerUsage"}
    gpus.answer = lambda slow: {"gpus": [entry(0), entry(1, power=None, faults=[fault])]}
    page = collected(collector(gpus))
    assert page.value(families.COLLECTOR_FAILURES, collector="nvml", reason="value") == 1
    assert len(page.of(families.GPU_POWER)) == 1
    assert len(page.of(families.GPU_USED)) == 2


@pytest.mark.parametrize(
    ("state", "reason"),
    [
        (DriverState.READY, "no_answer"),
        (DriverState.WEDGED, "wedged"),
        (DriverState.UNAVAILABLE, "unavailable"),
        (DriverState.QUIESCED, "quiesced"),
    ],
)
def test_a_driver_that_does_not_answer_is_absent_and_counted(gpus: Gpus, state: DriverState, reason: str) -> None:
    made = collector(gpus)
    collected(made)
    gpus.set(replace(gpus.snapshot(), driver_state=state))
    gpus.answer = lambda slow: None
    at = Page(made.page()).value(families.COLLECTOR_AT, collector="nvml")
    page = collected(made)
    assert not page.of(families.GPU_USED)
    assert not page.of(families.GPU_UTILIZATION)
    assert page.value(families.COLLECTOR_SUCCESS, collector="nvml") == 0
    assert page.value(families.COLLECTOR_AT, collector="nvml") == at
    assert page.value(families.COLLECTOR_FAILURES, collector="nvml", reason=reason) == 1
    assert page.value(families.GPU_BUSY, uuid=uuid(0)) == 1


def test_gpu_that_is_left_alone_has_no_busy_time(gpus: Gpus) -> None:
    made, both = collector(gpus), gpus.snapshot()
    collected(made)
    assert both.inventory is not None
    gpus.set(replace(both, inventory=replace(both.inventory, gpus=both.inventory.gpus[:1])))
    gpus.answer = lambda slow: {"gpus": [entry(0)]}
    page = collected(made)
    assert page.value(families.GPU_BUSY) == 2
    gpus.set(both)
    gpus.answer = lambda slow: {"gpus": [entry(0), entry(1)]}
    assert collected(made).value(families.GPU_BUSY, uuid=uuid(1)) == 2


def test_counters_are_read_if_asked_for_and_absence_counts(gpus: Gpus) -> None:
    counters = {"sm": 40.0, "tensor": 12.5, "pcie_tx": 3.0}
    gpus.answer = lambda slow: {"gpus": [entry(0, profile={"gpu": counters}), entry(1, profile={"gpu": None})]}
    made = Collector(options(profiling=True), gpus, NOBODY, Books(), dict)
    page = collected(made)
    page.lint()
    assert gpus.profiled
    assert page.value(families.GPU_SM_ACTIVE) == 0.4
    assert page.value(families.GPU_PIPES, uuid=uuid(0), pipe="tensor") == 0.125
    assert page.value(families.GPU_PCIE, direction="tx") == 3 << 20
    assert not page.of(families.GPU_DRAM)
    assert page.value(families.COLLECTOR_FAILURES, collector="nvml", reason="profiling") == 1
    assert not collected(collector(gpus)).values(families.COLLECTOR_FAILURES, reason="profiling")
    assert not gpus.profiled


def test_what_changes_rarely_is_asked_for_rarely_and_kept(gpus: Gpus) -> None:
    asked = []

    def answer(slow: bool) -> Mapping[str, Any]:
        asked.append(slow)
        told = entry(0)
        if not slow:
            del told["slow"]
        return {"gpus": [told]}

    gpus.answer = answer
    made = collector(gpus)
    for _ in range(3):
        assert collected(made).value(families.GPU_POWER_LIMIT, uuid=uuid(0)) == 700
    assert asked == [True, False, False]


def test_first_answer_of_the_driver_is_collected_at_once() -> None:
    gpus = Gpus(STARTING)
    made = collector(gpus, interval=300)
    stop = threading.Event()
    thread = threading.Thread(target=made.run, args=(stop,), daemon=True)
    thread.start()
    gpus.set(ready(2))
    deadline = time.monotonic() + 30
    while not Page(made.page()).of(families.GPU_USED):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    stop.set()
    thread.join(30)
    assert not thread.is_alive()


A, B = Container("team", "a", "main"), Container("team", "b", "main")
HELD = {uuid(0): (Holding(A, uuid(0), 0.5), Holding(B, uuid(0), 0.5))}


def test_processes_find_their_containers(gpus: Gpus, tmp_path: Path) -> None:
    run(tmp_path, 17, cgroup(UID, ID))
    gpus.answer = lambda slow: {"gpus": [entry(0, processes=[[17, 1 << 20]], process_time=[[17, 5, 40]]), entry(1)]}
    page = collected(collector(gpus, tenancy=Tenancy(lambda: HELD, lambda place: A), proc=tmp_path))
    page.lint()
    assert page.value(families.CONTAINER_USED, pod="a", uuid=uuid(0)) == 1 << 20
    assert page.value(families.CONTAINER_USED, pod="b") == 0
    assert page.value(families.CONTAINER_UTILIZATION, pod="a") == 0.1
    assert page.value(families.ATTRIBUTION, method="cgroup", outcome="container") == 1
    assert page.value(families.GPU_UNATTRIBUTED, uuid=uuid(0), reason="driver") == (1 << 30) - (1 << 20)


def test_a_proc_of_another_namespace_is_absent_and_counted(gpus: Gpus, tmp_path: Path) -> None:
    (tmp_path / "self").symlink_to("1")
    page = collected(collector(gpus, tenancy=Tenancy(lambda: HELD, lambda place: A), proc=tmp_path))
    assert len(page.of(families.CONTAINER_ALLOCATED)) == 2
    assert not page.of(families.CONTAINER_USED)
    assert not page.of(families.CONTAINER_BUSY)
    assert page.value(families.COLLECTOR_FAILURES, collector="containers", reason="namespace") == 1
    assert page.value(families.ATTRIBUTION, method="sole", outcome="not_visible") == 2


def test_a_kubelet_that_has_not_told_is_absent_and_counted(gpus: Gpus) -> None:
    page = collected(collector(gpus, tenancy=Tenancy(lambda: None)))
    assert page.value(families.COLLECTOR_FAILURES, collector="containers", reason="kubelet") == 1
    assert page.of(families.GPU_USED)
    assert not page.of(families.GPU_UNALLOCATED)


def test_accounts_tell_what_nvml_does_not(gpus: Gpus, tmp_path: Path) -> None:
    run(tmp_path, 17, cgroup(UID, ID))
    run(tmp_path, 18, "0::/system.slice/odd.service")
    busy_ns = iter((5 * 10**9, 7 * 10**9))

    def accounts() -> dict[Account, Charged]:
        return {Account(A, uuid(0)): Charged(7, 100, 0), Account(B, uuid(0)): Charged(1000, 90, next(busy_ns))}

    made = collector(gpus, tenancy=Tenancy(lambda: HELD, lambda place: A, accounts), proc=tmp_path)
    gpus.answer = lambda slow: {"gpus": [entry(0, 4.0, processes=[[17, None], [18, 200]])]}
    page = collected(made)
    assert page.value(families.CONTAINER_USED, pod="a") == 7
    assert page.value(families.CONTAINER_USED, pod="b") == 90, "no more than its limit"
    assert not page.of(families.CONTAINER_BUSY), "no account has been read before"
    assert page.value(families.GPU_UNATTRIBUTED, reason="host") == 200
    page = collected(made)
    assert page.value(families.CONTAINER_BUSY, pod="b") == 2.0
    assert len(page.of(families.CONTAINER_BUSY)) == 1


def test_a_driver_that_hangs_leaves_what_containers_have(gpus: Gpus) -> None:
    made = collector(gpus, tenancy=Tenancy(lambda: HELD))
    collected(made)
    gpus.answer = lambda slow: None
    page = collected(made)
    assert len(page.of(families.CONTAINER_ALLOCATED)) == 2
    assert not page.of(families.GPU_UNATTRIBUTED)


class Clock:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        monkeypatch.setattr(time, "clock_gettime", lambda clock: self.now)


def test_changes_between_collections_are_charged_and_survive(gpus: Gpus, monkeypatch: pytest.MonkeyPatch) -> None:
    clock, books = Clock(monkeypatch), Books()
    held: dict[str, tuple[Holding, ...]] = {}
    tenancy = Tenancy(lambda: held)
    made = collector(gpus, tenancy=tenancy, books=books)
    collected(made)
    clock.now += 1
    held = {uuid(0): (Holding(A, uuid(0), 1.0),)}
    made.changed()
    clock.now += 5
    held = {}
    made.changed()
    clock.now += 4
    page = collected(made)
    page.lint()
    assert page.value(families.NAMESPACE_GPU, namespace="team", mode="pgpu", model="NVIDIA H100") == 5
    assert page.value(families.NODE_SECONDS, model="NVIDIA H100") == 20
    held = {uuid(0): (Holding(A, uuid(0), 1.0),)}
    made.changed()
    clock.now += 2
    made.close()
    clock.now += 3
    after = collected(collector(gpus, tenancy=tenancy, books=books))
    assert after.value(families.NAMESPACE_GPU, namespace="team") == 10
    assert after.value(families.NODE_SECONDS, model="NVIDIA H100") == 30


def test_a_daemon_that_is_killed_takes_nothing_back(gpus: Gpus, monkeypatch: pytest.MonkeyPatch) -> None:
    clock, books = Clock(monkeypatch), Books()
    tenancy = Tenancy(lambda: HELD)
    made = collector(gpus, tenancy=tenancy, books=books)
    shown = 0.0
    for _ in range(5):
        clock.now += 7
        shown = sum(collected(made).values(families.NAMESPACE_GPU))
    successor = collector(gpus, tenancy=Tenancy(lambda: {}), books=books)
    assert sum(Page(successor.page()).values(families.NAMESPACE_GPU)) == shown == 28


def test_a_peak_outlives_the_daemon_that_saw_it_and_not_the_pod(gpus: Gpus, tmp_path: Path) -> None:
    used = 39 << 30
    gpus.answer = lambda slow: {"gpus": [entry(0, memory=entry(0)["memory"] | {"used": used})]}

    def peak() -> float:
        held = {uuid(0): (Holding(A, uuid(0), 1.0),)}
        books = LedgerBooks(Ledger(tmp_path, Mode.PGPU))
        return collected(collector(gpus, tenancy=Tenancy(lambda: held), books=books)).value(families.CONTAINER_PEAK)

    ledger, whole = Ledger(tmp_path, Mode.PGPU), Share(uuid(0), 100, 80 << 30)
    ledger.record(Holder(*A), "first", [whole])
    assert peak() == used
    used = 2 << 30
    assert peak() == 39 << 30
    ledger.record(Holder(*A), "second", [whole])
    assert peak() == used


class Pending:
    """Counts as a test says."""

    asked = False
    counts: Mapping[tuple[str, str], int] | None = None


def test_pending_pods_are_told_once_they_are_known(gpus: Gpus) -> None:
    pending = Pending()
    made = Collector(options(), gpus, NOBODY, Books(), dict, pending)

    def told() -> tuple[dict[str, float], float | None]:
        made.collect()
        page = Page(made.page()).families
        found = {labels["namespace"]: value for labels, value in page.get("accel_pending_gpu_pods", ())}
        success = [value for labels, value in page["accel_collector_success"] if labels["collector"] == "pending"]
        return found, next(iter(success), None)

    assert told() == ({}, None)
    pending.asked, pending.counts = True, {("team", "pgpu"): 2}
    assert told() == ({"team": 2}, 1)
    pending.counts = None
    assert told() == ({}, 0)
