# SPDX-License-Identifier: Apache-2.0
"""Nothing is counted, and nobody charged, beyond what GPUs can have given in the time, whatever the series say."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any

import pytest
from ansible_collections.accel.kubernetes.plugins.module_utils.usage import (
    prometheus as gpu_usage_prometheus,
)
from ansible_collections.accel.kubernetes.plugins.module_utils.usage import (
    text as gpu_usage_text,
)
from ansible_collections.accel.kubernetes.plugins.module_utils.usage.accounting import Usage, usage
from ansible_collections.accel.kubernetes.plugins.module_utils.usage.charging import POLICIES, rows
from ansible_collections.accel.kubernetes.plugins.module_utils.usage.counters import (
    GAP_SECONDS,
    Account,
    Charge,
    Gpus,
    Page,
    Window,
    window,
)
from ansible_collections.accel.kubernetes.plugins.module_utils.usage.ledgers import (
    ANEW,
    BEYOND,
    LEDGER_LAG_SECONDS,
    NO_CAPACITY,
    NO_GPUS,
    REPLACED,
    SILENT,
)
from ansible_collections.accel.kubernetes.plugins.module_utils.usage.pages import Sample, decode, encode
from hypothesis import given
from hypothesis import strategies as st

from unit.plugins.usage_data import H100, Node, Scrapes, share

HOUR, DAY = 3600, 86400
START = 1_763_769_600
MODEL, GIB = "H100", 1 << 30
TEAMS = ("a", "b")


@dataclass
class Machine:
    """Has GPUs, and counts who has them."""

    gpus: int = 8
    counted: Fraction = Fraction(0)
    charges: dict[str, Charge] = field(default_factory=dict)
    source: str = "one"
    ledger: str = ""

    def run(self, seconds: Fraction, shares: Sequence[Fraction]) -> None:
        """For so long teams have these parts of all GPUs."""
        self.counted += self.gpus * seconds
        for team, part in zip(TEAMS, shares, strict=True):
            had = self.gpus * seconds * part
            self.charges[team] = self.charges.get(team, Charge()).plus(Charge(had, had / 2, had * GIB))

    def page(self, at: float) -> Page:
        """What it tells."""
        charges = {Account(team, "vgpu", MODEL): charge for team, charge in self.charges.items()}
        return Page(at, self.source, {MODEL: self.counted}, charges, {MODEL: Gpus(self.gpus, GIB)}, self.ledger)


def older(gpus: int, seconds: int, part: Fraction) -> Machine:
    """One that counted for long, elsewhere."""
    made = Machine(gpus)
    made.run(Fraction(seconds), (part, 1 - part))
    return made


SECONDS = st.integers(1, 2000) | st.integers(DAY, 40 * DAY)
PARTS = st.sampled_from([Fraction(0), Fraction(1, 4), Fraction(1, 2)])
AMOUNTS = st.integers(0, 10**9).map(Fraction)
PAGES = {
    "gpus": lambda page: replace(page, gpus={}),
    "capacity": lambda page: replace(page, capacity={}),
    "charges": lambda page: replace(page, charges={}),
}
HISTORY = st.lists(
    st.one_of(
        st.tuples(st.just("run"), st.integers(1, 600), st.tuples(PARTS, PARTS)),
        st.tuples(st.just("run"), SECONDS, st.tuples(PARTS, PARTS)),
        st.tuples(st.just("another"), st.integers(1, 8), SECONDS, PARTS),
        st.tuples(st.just("merged"), st.integers(1, 8), SECONDS, PARTS),
        st.tuples(st.just("anew")),
        st.tuples(st.just("ledger"), st.sampled_from(["", "first", "second"])),
        st.tuples(st.just("back")),
        st.tuples(st.just("clock"), st.integers(-2 * DAY, 2 * DAY)),
        st.tuples(st.just("source"), st.sampled_from(["one", "two", "three"])),
        st.tuples(st.just("twice"), st.integers(0, 30)),
        st.tuples(st.just("without"), st.sampled_from(sorted(PAGES))),
        st.tuples(st.just("capacity"), AMOUNTS),
        st.tuples(st.just("charge"), st.sampled_from(TEAMS), st.tuples(AMOUNTS, AMOUNTS, AMOUNTS)),
    ),
    min_size=1,
    max_size=20,
).map(lambda events: [("run", 700, (Fraction(1, 2), Fraction(0))), *events, ("run", 60, (Fraction(1), Fraction(0)))])


def told(name: str, events: Iterable[tuple]) -> list[Page]:
    """The pages of a node to which these things happen; its ledgers are its own."""
    machine, first, merged = Machine(), Machine(), None
    at, wrong = Fraction(START - 600), 0
    pages = [machine.page(float(at))]
    for what, *more in events:
        last = machine.page(float(at + wrong))
        if what == "run":
            for each in (machine, merged):
                if each is not None:
                    each.run(Fraction(more[0]), more[1])
            at += more[0]
            if merged is not None:
                pages.append(merged.page(float(at + wrong) - 0.5))
            pages.append(machine.page(float(at + wrong)))
        elif what == "another":
            machine = older(*more)
        elif what == "merged":
            merged = older(*more)
        elif what == "anew":
            machine = Machine(machine.gpus, source=machine.source)
        elif what == "ledger":
            machine.ledger = more[0] and f"{more[0]} of {name}"
        elif what == "back":
            machine = replace(first, charges=dict(first.charges))
        elif what == "clock":
            wrong = more[0]
        elif what == "source":
            machine.source = more[0]
        elif what == "twice":
            pages.append(replace(last, at=last.at + more[0], source="again"))
        elif what == "without":
            pages.append(PAGES[more[0]](last))
        elif what == "capacity":
            machine.counted = more[0]
        else:
            machine.charges[more[0]] = Charge(*more[1])
    return pages


def given_most(pages: Sequence[Page], period: Window) -> Fraction:
    """What eight GPUs can have given since the node told of itself before the period, with the lag."""
    since = max((page.at for page in pages if page.at <= period.start), default=period.start)
    return 8 * (Fraction(period.end) - Fraction(min(since, period.start - GAP_SECONDS)) + LEDGER_LAG_SECONDS)


def bounded(found: Usage, most: Fraction) -> None:
    """No more was counted than GPUs can have given, and no more charged than was counted."""
    assert sum(found.capacity.values()) <= most
    parts = range(len(found.window.edges) - 1)
    for policy in POLICIES:
        for part in parts:
            shown = rows(found, policy, {Account("b", "vgpu", MODEL): 0.0}, [part])
            there = found.capacity.get((part, MODEL), 0)
            assert sum(row.charged for row in shown) == there
            assert all(row.charged >= 0 and row.allocated >= 0 for row in shown)
    for amount in Charge._fields:
        had = sum(getattr(charge, amount) for charge in found.charges.values())
        assert had <= sum(found.capacity.values()) * (GIB if amount == "memory_byte_seconds" else 1)
    by_model = sum(found.causes.values())
    assert by_model == sum(found.unknown.values())
    assert not by_model or found.problems


@given(
    st.lists(HISTORY, min_size=1, max_size=3),
    st.sampled_from([0, 0, 600, DAY]),
    st.sampled_from([HOUR, DAY, 30 * DAY]),
    st.booleans(),
)
def test_nothing_is_counted_beyond_what_gpus_gave(
    nodes: list[list[tuple]], begin: int, length: int, come_and_go: bool
) -> None:
    pages = {f"n{number}": told(f"n{number}", events) for number, events in enumerate(nodes)}
    period = window(START + begin, START + begin + length)
    each = [usage({name: found}, period, come_and_go) for name, found in pages.items()]
    most = [given_most(found, period) for found in pages.values()]
    for found, gave in zip(each, most, strict=True):
        bounded(found, gave)
    together = usage(pages, period, come_and_go)
    bounded(together, sum(most, Fraction(0)))
    assert sum(together.capacity.values()) == sum(sum(found.capacity.values()) for found in each)


@given(
    st.lists(st.tuples(st.integers(1, 4000), st.tuples(PARTS, PARTS)), min_size=1, max_size=30),
    st.integers(0, 10**7),
    st.data(),
)
def test_a_clean_history_is_charged_exactly(
    lives: list[tuple[int, tuple[Fraction, Fraction]]], age: int, data: st.DataObject
) -> None:
    machine = older(8, age, Fraction(1, 2)) if age else Machine()
    at, pages, owed = START, [machine.page(START)], dict.fromkeys(TEAMS, Fraction(0))
    for seconds, shares in lives:
        machine.run(Fraction(seconds), shares)
        at += seconds
        for team, part in zip(TEAMS, shares, strict=True):
            owed[team] += 8 * seconds * part
        if data.draw(st.booleans()) or at - pages[-1].at > GAP_SECONDS:
            pages.append(machine.page(at))
    pages.append(machine.page(at))
    found = usage({"n": pages}, Window((START, at)))
    charged = {account.namespace: charge.gpu_seconds for (_, account), charge in found.charges.items()}
    assert charged == {team: seconds for team, seconds in owed.items() if seconds}
    assert sum(found.capacity.values()) == 8 * (at - START)
    assert (found.problems, found.unknown, found.causes) == ((), {}, {})


def prometheus(scrapes: Scrapes) -> Callable[[str, float], list[dict[str, Any]]]:
    """Answers what a report asks of counters, from what was scraped."""
    found: dict[tuple[tuple[str, str], ...], list[Sample]] = {}
    for sample in sorted(scrapes.samples(), key=lambda sample: sample.at):
        key = tuple(sorted({"__name__": sample.name, **sample.labels}.items()))
        found.setdefault(key, []).append(sample)

    def ask(expression: str, at: float) -> list[dict[str, Any]]:
        (span,) = (int(text) for text in re.findall(r"\[(\d+)[sd]", expression))
        names = re.findall(r"accel_[a-z_]+", expression)
        nodes = re.findall(r'[{ ]node="([^"]+)"', expression)
        answer = []
        lowest: dict[tuple[tuple[str, str], ...], list[list[Any]]] = {}
        for key, samples in found.items():
            labels = dict(key)
            seen = [[sample.at, sample.value] for sample in samples if at - span < sample.at <= at]
            if not seen or labels["__name__"] not in names or (nodes and labels["node"] not in nodes):
                continue
            if expression.startswith("min by"):
                by = re.split(", ", expression[len("min by (") : expression.index(")")])
                group = tuple((name, labels[name]) for name in by if name in labels)
                lowest.setdefault(group, []).extend(point for point in seen if point[1] != "NaN")
            else:
                answer.append({"metric": labels, "values": seen})
        for group, seen in lowest.items():
            if seen:
                answer.append({"metric": dict(group), "value": min(seen, key=lambda point: float(point[1]))})
        return answer

    return ask


def reported(scrapes: Scrapes, period: Window) -> Usage:
    """As the module makes it of a Prometheus."""
    ask = prometheus(scrapes)
    pages = gpu_usage_prometheus.gather(ask, period, "")
    return usage(pages, period, False, gpu_usage_prometheus.older(ask, pages, period, ""))


def hours(found: Usage) -> dict[str, float]:
    """The GPU-hours by namespace."""
    had: dict[str, Fraction] = {}
    for (_, account), charge in found.charges.items():
        had[account.namespace] = had.get(account.namespace, Fraction(0)) + charge.gpu_seconds
    return {name: round(float(seconds / HOUR), 6) for name, seconds in had.items()}


def node_of(team: str, begun: int, gpus: int = 8) -> Node:
    """Whose ledger began then; the team has had a GPU of it since."""
    made = Node("a", {f"{team}{number}": H100 for number in range(gpus)})
    made.at(begun, share(f"{team}0", team, "p", 1.0))
    return made


@pytest.mark.parametrize("instance", ["192.0.2.1:9445", "198.51.100.7:9445"])
def test_older_ledger_under_a_nodes_name_is_not_charged_whole(instance: str) -> None:
    here, other = node_of("one", START - 100 * HOUR), node_of("two", START - 5000 * HOUR)
    other.instance, scrapes = instance, Scrapes()
    for minute in range(24 * 60 + 1):
        scrapes.take(START + 60 * minute, [here if minute <= 12 * 60 else other])
    found = reported(scrapes, Window((START, START + DAY)))
    assert hours(found) == {"one": 12.0, "two": round(12 - 1 / 60, 6)}
    assert sum(found.capacity.values()) == 8 * (DAY - 60)
    assert found.causes == {(H100.name, BEYOND): 8 * 60}
    told = gpu_usage_text.Report(found, "Prometheus", problems=found.problems)
    assert gpu_usage_text.document(told)["unknown"] == [
        {"model": H100.name, "gpu_hours": 0.133333, "causes": {"counters_beyond_gpus": 0.133333}}
    ]
    assert f"UNKNOWN HOURS of {H100.name}: 0.133 counters beyond gpus" in gpu_usage_text.table(told).splitlines()
    (problem,) = found.problems
    assert problem.startswith("node a: its counters grew by more than its GPUs can have given between 2025-11-22T12:00")


def test_clusters_in_one_series_are_charged_only_known_time() -> None:
    here, other = node_of("one", START - 100 * HOUR), node_of("two", START - 5000 * HOUR)
    scrapes = Scrapes()
    for minute in range(24 * 60 + 1):
        scrapes.take(START + 60 * minute, [here if minute % 2 else other])
    found = reported(scrapes, window(START, START + DAY))
    assert hours(found) == {}
    assert sum(found.unknown.values()) == 8 * DAY
    assert {cause for _, cause in found.causes} == {BEYOND, ANEW}
    assert len(found.problems) == 1
    assert len(found.problems[0]) < 700


def test_counters_that_paused_with_the_driver_charge_whole() -> None:
    node, scrapes = node_of("one", START - HOUR), Scrapes()
    pages = {}
    for minute in range(61):
        scrapes.take(START + 60 * minute, [node])
    (pages["a"],) = scrapes.pages().values()
    down = range(20, 30)
    pages["a"] = [
        replace(page, capacity=pages["a"][20].capacity, charges=pages["a"][20].charges, gpus={})
        if number in down
        else page
        for number, page in enumerate(pages["a"])
    ]
    found = usage(pages, Window((START, START + HOUR)))
    assert hours(found) == {"one": 1.0}
    assert not found.problems


@pytest.mark.parametrize(("part", "cause"), [("gpus", NO_GPUS), ("capacity", NO_CAPACITY)])
def test_what_is_not_scraped_is_unknown_by_cause(part: str, cause: str) -> None:
    machine, pages = Machine(), []
    for minute in range(61):
        pages.append(PAGES[part](machine.page(START + 60 * minute)))
        machine.run(Fraction(60), (Fraction(1, 2), Fraction(0)))
    found = usage({"n": pages}, Window((START, START + HOUR)))
    assert sum(hours(found).values()) <= 60 / HOUR
    assert {key[1] for key in found.causes} == {cause}
    assert found.problems[0].startswith("node n: it ")


def test_ledgers_that_name_themselves_are_told_apart() -> None:
    """Though the counters of the other are just a little ahead."""
    here, other = node_of("one", START - 100 * HOUR), node_of("one", START - 100 * HOUR - 1800)
    here.ledger, other.ledger, scrapes = "first", "second", Scrapes()
    for minute in range(24 * 60 + 1):
        if minute % 120 == 0 or 700 < minute < 780:
            scrapes.take(START + 60 * minute, [here if minute <= 12 * 60 else other])
    found = reported(scrapes, window(START, START + DAY))
    assert hours(found) == {"one": round(24 - 1 / 60, 6)}
    assert found.causes == {(H100.name, REPLACED): 8 * 60}
    (problem,) = found.problems
    assert "its ledger was replaced by another between 2025-11-22T12:00:00Z and 2025-11-22T12:01:00Z" in problem


def test_the_ledgers_name_is_kept_for_the_next_report() -> None:
    node, scrapes = node_of("one", START - HOUR), Scrapes()
    node.ledger = "first"
    scrapes.take(START, [node])
    (page,) = scrapes.pages()["a"]
    assert page.ledger == "first"
    assert decode(encode({"a": page}))["a"].ledger == "first"
    older = json.loads(encode({"a": page}))
    del older["nodes"]["a"]["ledger"]
    assert decode(json.dumps(older))["a"].ledger == ""


def test_collections_five_minutes_apart_are_of_one_ledger() -> None:
    machine, pages = Machine(ledger="first"), []
    for second in range(0, 2 * HOUR + 1, 30):
        if second % 300 == 30:
            machine.run(Fraction(300), (Fraction(1, 2), Fraction(0)))
        pages.append(machine.page(START + second))
    found = usage({"n": pages}, Window((START, START + 2 * HOUR)))
    assert sum(found.capacity.values()) == 8 * 2 * HOUR
    assert not found.problems


def test_silence_is_a_cause() -> None:
    machine = Machine()
    machine.run(Fraction(HOUR), (Fraction(1, 2), Fraction(0)))
    found = usage({"n": [machine.page(START)]}, Window((START, START + HOUR)))
    assert found.causes == {(MODEL, SILENT): 8 * HOUR}
