# SPDX-License-Identifier: Apache-2.0
"""Reports of whole clusters in which much goes wrong, from all that a Prometheus has of them."""

from __future__ import annotations

from random import Random

import pytest
from ansible_collections.accel.kubernetes.plugins.module_utils.usage import prometheus as gpu_usage_prometheus
from ansible_collections.accel.kubernetes.plugins.module_utils.usage.accounting import Usage, usage
from ansible_collections.accel.kubernetes.plugins.module_utils.usage.charging import POLICIES, rows
from ansible_collections.accel.kubernetes.plugins.module_utils.usage.counters import Window, window
from ansible_collections.accel.kubernetes.plugins.module_utils.usage.ledgers import ANEW, REPLACED, SILENT, TWO_NODES
from ansible_collections.accel.kubernetes.plugins.module_utils.usage.pages import decode, encode
from ansible_collections.accel.kubernetes.plugins.module_utils.usage.prometheus import readable
from hypothesis import given, settings
from hypothesis import strategies as st

from kube_accel.metrics import families
from kube_accel.metrics.exposition import Family
from unit.plugins.module_utils.usage.test_bound import hours, prometheus, reported
from unit.plugins.usage_data import H100, Node, Scrapes, share
from unit.plugins.usage_histories import HOUR, LAG, LENGTH, MINUTES, START, History, uuid

PERIOD = window(START, START + LENGTH)


def check(history: History, found: Usage) -> None:
    """Nobody has more than it had, nothing is counted that was not there, and what is missing is said."""
    capacity = float(sum(found.capacity.values()))
    assert capacity <= history.most
    had: dict[str, float] = {}
    for (_, account), charge in found.charges.items():
        had[account.namespace] = had.get(account.namespace, 0.0) + float(charge.gpu_seconds)
    there = {plugin.namespace: plugin.had() for plugin in history.plugins}
    for namespace, seconds in had.items():
        assert seconds <= there[namespace] + LAG * (1 + len(history.events)), namespace
    for policy in POLICIES:
        shown = rows(found, policy, {}, range(len(PERIOD.edges) - 1))
        assert sum(row.charged for row in shown) == sum(found.capacity.values())
    unknown = float(sum(found.causes.values()))
    assert unknown == float(sum(found.unknown.values()))
    assert not unknown or found.problems
    if not any(event.startswith(("another_cluster", "family_dropped")) for event in history.events):
        assert capacity + unknown >= history.least - history.slack


@settings(max_examples=25)
@given(st.randoms(use_true_random=False))
def test_reports_of_any_history_stay_within_what_gpus_gave(random: Random) -> None:
    history = History(random)
    check(history, reported(history.scrapes, PERIOD))


def two_gpus(name: str, team: str, hours_old: int = 100, first: int = 0, **more: str) -> Node:
    """A node whose team has one of them."""
    made = Node(name, dict.fromkeys([uuid(first), uuid(first + 1)], H100), **more)
    made.at(START - hours_old * HOUR, share(uuid(first), team, "p", 1.0))
    return made


def causes(found: Usage) -> dict[str, float]:
    """Unknown hours."""
    return {cause: round(float(seconds / HOUR), 3) for (_, cause), seconds in found.causes.items()}


def test_machine_with_two_nodes_is_unknown_once() -> None:
    scrapes = Scrapes()
    nodes = [two_gpus("a", "one"), two_gpus("b", "two"), two_gpus("c", "three", first=2)]
    for minute in MINUTES:
        scrapes.take(START + 60 * minute, nodes)
    found = reported(scrapes, PERIOD)
    assert hours(found) == {"three": 3.0}
    assert sum(found.capacity.values()) == 2 * LENGTH
    assert causes(found) == {TWO_NODES: 6.0}
    first, second = found.problems
    assert first.startswith("node a: it has GPUs that another node has at the same time ")
    assert "nothing of that is counted: b. Is this one machine with two names" in first
    assert second.startswith("node b: ")


def test_kept_reports_of_a_two_node_machine_count_neither() -> None:
    scrapes = Scrapes()
    for minute in (0, 180):
        scrapes.take(START + 60 * minute, [two_gpus("a", "one"), two_gpus("b", "two")])
    told = scrapes.pages()
    kept = decode(encode({name: found[0] for name, found in told.items()}))
    found = usage({name: [kept[name], told[name][-1]] for name in told}, Window((START, START + LENGTH)))
    assert (hours(found), causes(found)) == ({}, {TWO_NODES: 6.0})


@pytest.mark.parametrize("at_once", [False, True])
def test_a_ledger_under_two_names_of_its_node_is_counted_once(at_once: bool) -> None:
    scrapes, node = Scrapes(), two_gpus("a", "one", ledger="first")
    for minute in MINUTES:
        for name in ("a", "a.example"):
            node.name = name
            if at_once or (name == "a") == (minute < 90):
                scrapes.take(START + 60 * minute, [node], job=f"of-{name}")
    found = reported(scrapes, PERIOD)
    assert (hours(found), sum(found.capacity.values())) == ({"one": 3.0}, 2 * LENGTH)
    assert (found.problems, causes(found)) == ((), {})
    assert [node.name for node in found.nodes] == ["a.example" if not at_once else "a"]


def test_gpus_that_moved_from_a_silent_node_are_not_unknown() -> None:
    """The machine joined anew under another name, and its ledger began anew."""
    scrapes = Scrapes()
    old = two_gpus("a", "one", ledger="first")
    for minute in MINUTES:
        if minute == 90:
            new = two_gpus("b", "one", ledger="second")
            new.begins_anew()
            new.at(START + 90 * 60, share(uuid(0), "one", "p", 1.0))
        scrapes.take(START + 60 * minute, [old if minute < 90 else new])
    found = reported(scrapes, PERIOD)
    assert hours(found) == {"one": round(3 - 1 / 60, 6)}
    assert causes(found) == {SILENT: round(2 / 60, 3)}


def test_a_gpu_that_moves_is_counted_by_both_nodes() -> None:
    scrapes = Scrapes()
    here, there = two_gpus("a", "one"), two_gpus("b", "two", first=2)
    for minute in MINUTES:
        now = START + 60 * minute
        if minute == 90:
            here.at(now, *here.held[uuid(0)])
            here.gpus = {uuid(0): H100}
            there.at(now, *there.held[uuid(2)])
            there.gpus = {**there.gpus, uuid(1): H100}
            there.at(now, *there.held[uuid(2)], share(uuid(1), "moved", "p", 1.0))
        scrapes.take(now, [here, there])
    found = reported(scrapes, PERIOD)
    assert hours(found) == {"one": 3.0, "two": 3.0, "moved": 1.5}
    assert sum(found.capacity.values()) == 4 * LENGTH
    assert not found.problems


def test_two_ledgers_of_one_age_in_a_series_are_found() -> None:
    scrapes = Scrapes()
    here, there = two_gpus("a", "one", ledger="first"), two_gpus("a", "two", first=2, ledger="second")
    for minute in MINUTES:
        scrapes.take(START + 60 * minute, [here])
        scrapes.take(START + 60 * minute + 20, [there])
    found = reported(scrapes, PERIOD)
    assert (hours(found), causes(found)) == ({}, {REPLACED: 6.0})


@pytest.mark.parametrize("ahead", [0, 40, 400, 3600])
def test_a_pair_of_prometheus_whose_clocks_differ_counts_once(ahead: float) -> None:
    scrapes, node = Scrapes(), two_gpus("a", "one", ledger="first")
    for minute in MINUTES:
        scrapes.take(START + 60 * minute, [node], replica="a")
        scrapes.take(START + 60 * minute + 15, [node], ahead, replica="b")
    found = reported(scrapes, PERIOD)
    assert (hours(found), sum(found.capacity.values())) == ({"one": 3.0}, 2 * LENGTH)
    assert not found.problems


@pytest.mark.parametrize("instance", ["192.0.2.1:9445", "198.51.100.7:9445"])
def test_a_ledger_put_back_to_just_after_a_part_began_is_found(instance: str) -> None:
    scrapes, node = Scrapes(), two_gpus("a", "one", ledger="first")
    for minute in MINUTES:
        now = START + 60 * minute
        if minute == 62:
            kept = node.kept()
        if minute == 110:
            node.put_back(kept)
            node.at(now - 30, *node.held[uuid(0)])
            node.instance = instance
        scrapes.take(now, [node])
    found = reported(scrapes, PERIOD)
    assert hours(found) == {"one": round(3 - 1 / 60, 6)}
    assert causes(found) == {ANEW: round(2 / 60, 3)}


@pytest.mark.parametrize("family", [families.NAMESPACE_GPU, families.NODE_SECONDS, families.GPU_INFO])
@pytest.mark.parametrize("missing", [range(55, 65), range(61, 64), range(-6, 5)])
@pytest.mark.parametrize("as_nan", [False, True])
def test_series_that_are_missing_for_a_while_cost_nothing(family: Family, missing: range, as_nan: bool) -> None:
    """The namespace had a GPU for an hour and a half, long ago, and has one now."""
    scrapes, node = Scrapes(), Node("a", dict.fromkeys([uuid(0), uuid(1)], H100))
    node.at(START - 1000 * HOUR, share(uuid(0), "one", "p", 1.0))
    node.at(START - 1000 * HOUR + 90 * 60)
    for minute in MINUTES:
        if minute == 30:
            node.at(START + 30 * 60, share(uuid(0), "one", "p", 1.0))
        scrapes.take(START + 60 * minute, [node], without=[family] if minute in missing and not as_nan else ())
    if as_nan:
        scrapes.spoil(family, [START + 60 * minute for minute in missing])
    problems: list[str] = []
    ask = prometheus(scrapes)
    pages = gpu_usage_prometheus.gather(lambda text, at: readable(ask(text, at), problems), PERIOD, "")
    found = usage(pages, PERIOD)
    assert all("NaN is no amount" in problem for problem in problems)
    had = hours(found)["one"]
    assert had <= 2.5
    if START + 60 * missing[0] > START:
        assert (had, sum(found.capacity.values())) == (2.5, 2 * LENGTH)
        assert not found.problems
    else:
        assert had >= 2.5 - 0.2


@pytest.mark.parametrize("family", [families.NAMESPACE_MEMORY, families.NAMESPACE_BUSY])
@pytest.mark.parametrize("missing", [range(-6, 5), range(115, 130), range(-120, LENGTH // 60 + 1)])
def test_no_policy_charges_what_was_before_a_gap_of_one_family(family: Family, missing: range) -> None:
    """The namespace has had half of a GPU for weeks, and uses it."""
    scrapes, node = Scrapes(), Node("a", dict.fromkeys([uuid(0), uuid(1)], H100))
    node.at(START - 1000 * HOUR, share(uuid(0), "one", "p", 0.5))
    node.busy("one", 400 * HOUR)
    for minute in MINUTES:
        node.busy("one", 30.0)
        scrapes.take(START + 60 * minute, [node], without=[family] if minute in missing else ())
    period = window(START, START + LENGTH)
    pages = gpu_usage_prometheus.gather(prometheus(scrapes), period, "")
    found = usage(pages, period)
    for policy in ("memory", "used"):
        charged = [
            sum(row.charged for row in rows(found, policy, {}, [part]) if not row.free)
            for part in range(len(period.edges) - 1)
        ]
        # Over an edge the time of the gap is in the later part.
        assert all(seconds <= HOUR / 2 + 15 * 60 for seconds in charged), policy
        assert sum(charged) <= LENGTH / 2 + 60, policy
