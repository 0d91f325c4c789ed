# SPDX-License-Identifier: Apache-2.0
"""What namespaces had, from pages of counters: sums that come to what there was, and what is not known."""

from __future__ import annotations

from fractions import Fraction

import pytest
from ansible_collections.accel.kubernetes.plugins.module_utils.gpu_usage import (
    ALLOCATED,
    MEMORY,
    POLICIES,
    SPREAD,
    USED,
    Account,
    Charge,
    Page,
    Usage,
    UsageError,
    Window,
    apportioned,
    rows,
    usage,
    window,
)
from hypothesis import given
from hypothesis import strategies as st

from kube_accel.metrics.charge import Model
from unit.plugins.usage_data import GIB, H100, T4, Node, Scrapes, share

HOUR = 3600
START = 1_763_769_600
"""2025-11-22, midnight."""


def had(found: Usage, policy: str = ALLOCATED, known: dict[Account, float] | None = None) -> dict[str, float]:
    """GPU-hours charged, by namespace; what was not charged under an empty name."""
    hours: dict[str, float] = {}
    for row in rows(found, policy, known or {}, range(len(found.window.edges) - 1)):
        hours[row.account.namespace] = hours.get(row.account.namespace, 0.0) + float(row.charged / HOUR)
    return {name: round(amount, 9) for name, amount in hours.items()}


def test_four_quarters_for_an_hour_are_one_gpu_hour_and_all_there_was() -> None:
    node, scrapes = Node("a", {"g": H100}), Scrapes()
    node.at(START)
    scrapes.take(START, [node])
    node.at(START, *(share("g", f"team-{number}", "p", 0.25, 20 * GIB) for number in range(4)))
    for minute in range(1, 61):
        scrapes.take(START + 60 * minute, [node])
    found = usage(scrapes.pages(), window(START, START + HOUR))
    assert had(found) == {"team-0": 0.25, "team-1": 0.25, "team-2": 0.25, "team-3": 0.25, "": 0.0}
    assert sum(found.capacity.values()) == HOUR
    assert not found.problems
    assert not found.unknown


def test_a_pod_of_five_seconds_is_charged_five_seconds_in_one_period_only() -> None:
    node, scrapes = Node("a", {"g": H100}), Scrapes()
    for moment in range(0, 2 * HOUR + 1, 30):
        if moment == HOUR + 30:
            node.at(START + moment - 20, share("g", "team", "short", 1.0))
            node.at(START + moment - 15)
        scrapes.take(START + moment, [node])
    first, second = (usage(scrapes.pages(), window(START + h * HOUR, START + (h + 1) * HOUR)) for h in (0, 1))
    assert had(first) == {"": 1.0}
    assert had(second) == {"team": round(5 / HOUR, 9), "": round(1 - 5 / HOUR, 9)}


def test_what_nobody_scraped_is_counted_all_the_same() -> None:
    node, scrapes = Node("a", {"g": H100}), Scrapes()
    node.at(START, share("g", "team", "p", 0.5, GIB))
    for moment in (0, 60, 5 * HOUR, 6 * HOUR):
        scrapes.take(START + moment, [node])
    found = usage(scrapes.pages(), window(START, START + 6 * HOUR))
    assert had(found) == {"team": 3.0, "": 3.0}
    assert not found.problems


def test_a_node_that_is_silent_at_an_end_is_said_and_what_it_would_have_had_is_unknown() -> None:
    node, scrapes = Node("a", {"g": H100, "h": H100}), Scrapes()
    node.at(START - 10 * HOUR, share("g", "team", "p", 1.0))
    for hour in (1, 2, 3):
        scrapes.take(START + hour * HOUR, [node])
    pages, whole = scrapes.pages(), window(START, START + 5 * HOUR)
    found = usage(pages, whole)
    assert had(found) == {"team": 2.0, "": 2.0}
    assert found.unknown == {H100.name: 2 * 3 * HOUR}
    assert found.problems == (
        "node a: nothing is known before 2025-11-22T01:00:00Z; nothing is known after 2025-11-22T03:00:00Z",
    )
    assert (found.nodes[0].since, found.nodes[0].until) == (START + HOUR, START + 3 * HOUR)
    left = usage(pages, whole, come_and_go=True)
    assert (left.problems, left.unknown, had(left)) == ((), {}, had(found))


def test_a_node_whose_ledger_began_in_the_period_is_counted_from_its_begin() -> None:
    node, scrapes = Node("new", {"g": T4}), Scrapes()
    node.at(START + HOUR, share("g", "team", "p", 1.0))
    for hour in (2, 3):
        scrapes.take(START + hour * HOUR, [node])
    found = usage(scrapes.pages(), window(START, START + 3 * HOUR))
    assert had(found) == {"team": 2.0, "": 0.0}
    assert not found.problems


def test_counters_that_begin_anew_take_nothing_back() -> None:
    node, scrapes = Node("a", {"g": H100}), Scrapes()
    tenant = share("g", "team", "p", 0.5, GIB)
    node.at(START, tenant)
    for hour in (0, 1, 2):
        scrapes.take(START + hour * HOUR, [node])
    node.begins_anew()
    node.at(START + 2 * HOUR + 1800, tenant)
    for hour in (3, 4):
        scrapes.take(START + hour * HOUR, [node])
    found = usage(scrapes.pages(), window(START, START + 4 * HOUR))
    assert had(found) == {"team": 1.75, "": 1.75}
    assert found.unknown == {H100.name: HOUR / 2}
    assert "began anew between 2025-11-22T02:00:00Z and 2025-11-22T03:00:00Z" in found.problems[0]


def test_counters_that_begin_anew_unnoticed_charge_no_more_than_there_was() -> None:
    node, scrapes = Node("a", {"g": H100}), Scrapes()
    node.at(START - 600)
    scrapes.take(START - 599, [node])
    node.begins_anew()
    node.at(START - 1, share("g", "team", "p", 1.0), share("g", "other", "p", 1.0))
    node.at(START, share("g", "team", "p", 0.5))
    scrapes.take(START + 1, [node])
    found = usage(scrapes.pages(), window(START, START + 60))
    (there,) = found.capacity.values()
    amounts = {account.namespace: charge.gpu_seconds for (_, account), charge in found.charges.items()}
    assert amounts == {"team": there * Fraction(2, 3), "other": there * Fraction(1, 3)}
    assert had(found)[""] == 0.0


def test_two_plugins_of_an_upgrade_are_one() -> None:
    scrapes = Scrapes()
    old, new = Node("a", {"g": H100}, instance="192.0.2.1:9445"), Node("a", {"g": H100}, instance="192.0.2.2:9445")
    for plugin, late in ((old, 0), (new, 20)):
        plugin.at(START - 10 * HOUR + late, share("g", "team", "p", 0.5, GIB))
    for minute in range(0, 121):
        scrapes.take(START + 60 * minute, [old] if minute < 60 else [old, new] if minute < 65 else [new])
    found = usage(scrapes.pages(), window(START, START + 2 * HOUR))
    assert not found.problems
    assert sum(had(found).values()) == pytest.approx(2.0, abs=30 / HOUR)


def test_two_clusters_with_nodes_of_one_name_are_refused() -> None:
    scrapes = Scrapes()
    here, there = (
        Node("a", {"g": H100}, instance="192.0.2.1:9445"),
        Node("a", {"g": H100}, instance="198.51.100.1:9445"),
    )
    here.at(START - 1000 * HOUR)
    there.at(START - 10 * HOUR)
    for hour in range(4):
        scrapes.take(START + hour * HOUR, [here, there])
    with pytest.raises(UsageError, match=r"node a: .*instance=192.0.2.1:9445.*prometheus_selector"):
        usage(scrapes.pages(), window(START, START + 3 * HOUR))


def test_capacity_that_nobody_scraped_is_said() -> None:
    account = Account("team", "vgpu", "T4")
    told = [Page(START + at, "", {}, {account: Charge(Fraction(at))}) for at in (0, HOUR)]
    found = usage({"a": told}, window(START, START + HOUR))
    assert "T4: 1.000 GPU-hours are charged and 0.000 were there" in found.problems[0]
    assert had(found) == {"team": 1.0, "": -1.0}


def test_unlike_nodes_with_the_same_to_say_are_one_sentence() -> None:
    nodes = [Node(f"n{number}", {"g": T4}) for number in range(8)]
    scrapes = Scrapes()
    for node in nodes:
        node.at(START)
    for hour in (0, 1):
        scrapes.take(START + hour * HOUR, nodes)
    found = usage(scrapes.pages(), window(START, START + 4 * HOUR))
    assert found.problems == ("nodes n0, n1, n2, n3, n4 and 3 more: nothing is known after 2025-11-22T01:00:00Z",)


@pytest.fixture
def two() -> Usage:
    """Of two hours: a has half a GPU by its memory and uses a quarter; b a quarter, and what it uses is not known."""
    node, scrapes = Node("n", {"g": H100}), Scrapes()
    node.at(START, share("g", "a", "p", 0.5, 20 * GIB), share("g", "b", "p", 0.25, 20 * GIB))
    scrapes.take(START, [node])
    node.busy("a", HOUR / 2)
    scrapes.take(START + 2 * HOUR, [node])
    return usage(scrapes.pages(), window(START, START + 2 * HOUR))


@pytest.mark.parametrize(
    ("policy", "hours"),
    [
        (ALLOCATED, {"a": 1.0, "b": 0.5, "": 0.5}),
        (USED, {"a": 0.5, "b": 0.5, "": 1.0}),
        (MEMORY, {"a": 0.5, "b": 0.5, "": 1.0}),
        (SPREAD, {"a": round(4 / 3, 9), "b": round(2 / 3, 9), "": 0.0}),
    ],
)
def test_policies_divide_all_there_was(two: Usage, policy: str, hours: dict[str, float]) -> None:
    assert had(two, policy, {Account("b", "vgpu", H100.name): 0.0}) == hours


def test_use_that_is_not_known_is_not_none(two: Usage) -> None:
    known = {Account("b", "vgpu", H100.name): 0.0, Account("a", "vgpu", H100.name): 0.5}
    a, b, free = rows(two, ALLOCATED, known, range(2))
    assert (a.used, a.used_complete) == (HOUR / 2, False)
    assert (b.used, b.idle) == (None, None)
    assert free.free


def test_periods_are_cut_at_hours_or_days() -> None:
    assert window(START + 1800, START + 2 * HOUR).edges == (START + 1800, START + HOUR, START + 2 * HOUR)
    days = window(START + HOUR, START + 3 * 86400)
    assert days.edges == (START + HOUR, START + 86400, START + 2 * 86400, START + 3 * 86400)
    assert [days.part(START + at) for at in (HOUR, 86400, 86401, 3 * 86400)] == [0, 0, 1, 2]


@given(st.lists(st.fractions(min_value=-10, max_value=10**9, max_denominator=10**6), max_size=12), st.integers(0, 6))
def test_rounded_amounts_come_to_the_rounded_sum(values: list[Fraction], places: int) -> None:
    shown = apportioned(values, places)
    unit = Fraction(1, 10**places)
    assert sum(shown) == round(sum(values) / unit) * unit
    assert all(abs(there - value) < unit for there, value in zip(shown, values, strict=True))


NAMESPACES = st.sampled_from(["a", "b", "c"])
SHARES = st.builds(
    lambda uuid, namespace, pod, part, memory: share(uuid, namespace, pod, part, round(memory * GIB)),
    st.sampled_from(["g0", "g1"]),
    NAMESPACES,
    st.sampled_from(["p", "q"]),
    st.floats(0.01, 1.0),
    st.floats(0, 16),
)
EVENTS = st.lists(
    st.tuples(st.sampled_from(["hold", "scrape", "lost"]), st.floats(1, 4000), st.lists(SHARES, max_size=4)),
    min_size=1,
    max_size=25,
)


@given(st.lists(EVENTS, min_size=1, max_size=3), st.sampled_from(POLICIES), st.data())
def test_charged_and_not_charged_come_to_what_there_was(nodes: list[list], policy: str, data: st.DataObject) -> None:
    """Whatever the tenants did, and wherever scrapes are missing and ledgers lost; and periods add up."""
    scrapes, ends = Scrapes(), []
    for index, events in enumerate(nodes):
        node = Node(f"n{index}", {"g0": T4, "g1": Model("A30", 24 * GIB)})
        now = float(START - 600)
        node.at(now)
        scrapes.take(now + 1, [node])
        for what, seconds, held in events:
            now += seconds
            if what == "hold":
                node.at(now, *held)
            elif what == "lost":
                node.begins_anew()
                node.at(now, *(holding for held in node.held.values() for holding in held))
            else:
                scrapes.take(now, [node])
        scrapes.take(now + 1, [node])
        ends.append(now + 1)
    end = max(START + 60, int(max(ends)) + 1)
    middle = data.draw(st.integers(START + 1, end - 1))
    pages = scrapes.pages()
    found = usage(pages, window(START, end))
    models = ("A30", "Tesla T4")
    known = {Account(n, "vgpu", model): data.draw(st.sampled_from([0.0, 1.0])) for n in "abc" for model in models}
    shown = rows(found, policy, known, range(len(found.window.edges) - 1))
    for model in {row.account.model for row in shown}:
        mine = [row for row in shown if row.account.model == model]
        there = sum(seconds for (_, name), seconds in found.capacity.items() if name == model)
        assert sum(row.charged for row in mine) == there
        assert sum(row.allocated for row in mine) == there
        assert sum(row.allocated for row in mine if not row.free) <= there
    halves = [usage(pages, Window((START, middle)), True), usage(pages, Window((middle, end)), True)]
    both = usage(pages, Window((START, end)), True)
    for name in ("A30", "Tesla T4"):
        amounts = [sum(s for (_, model), s in part.capacity.items() if model == name) for part in (*halves, both)]
        assert amounts[0] + amounts[1] == amounts[2]
