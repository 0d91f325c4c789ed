# SPDX-License-Identifier: Apache-2.0
"""What namespaces had, from pages of counters: sums that come to what there was, and what is not known."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from fractions import Fraction

import pytest
from ansible_collections.accel.kubernetes.plugins.module_utils.usage import prometheus as gpu_usage_prometheus
from ansible_collections.accel.kubernetes.plugins.module_utils.usage.accounting import Usage, usage
from ansible_collections.accel.kubernetes.plugins.module_utils.usage.charging import (
    ALLOCATED,
    MEMORY,
    POLICIES,
    SPREAD,
    USED,
    apportioned,
    rows,
)
from ansible_collections.accel.kubernetes.plugins.module_utils.usage.counters import (
    Account,
    Charge,
    Gpus,
    Page,
    Window,
    window,
)
from ansible_collections.accel.kubernetes.plugins.module_utils.usage.ledgers import DISAGREE
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


def test_four_quarter_shares_for_an_hour_are_one_gpu_hour() -> None:
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


def test_five_second_pod_is_charged_once_for_five_seconds() -> None:
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


def test_silent_node_at_an_end_is_named_and_unknown() -> None:
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


def test_ledger_begun_in_the_period_counts_from_its_begin() -> None:
    node, scrapes = Node("new", {"g": T4}), Scrapes()
    node.at(START + HOUR, share("g", "team", "p", 1.0))
    for hour in (2, 3):
        scrapes.take(START + hour * HOUR, [node])
    found = usage(scrapes.pages(), window(START, START + 3 * HOUR))
    assert had(found) == {"team": 2.0, "": 0.0}
    assert not found.problems


YEAR = 365 * 24 * HOUR
A100 = Model("NVIDIA A100-SXM4-80GB", 80 * GIB)


def gpus(model: Model, number: int) -> dict[str, Model]:
    return {f"{model.name}-{index}": model for index in range(number)}


@pytest.mark.parametrize("now", [gpus(A100, 8), gpus(T4, 4) | gpus(A100, 4), {}], ids=["all", "half", "none"])
def test_a_ledger_is_as_old_with_other_gpus(now: dict[str, Model]) -> None:
    node, scrapes = Node("old", gpus(T4, 8)), Scrapes()
    node.at(START - YEAR, *(share(uuid, "team", uuid, 1.0) for uuid in node.gpus))
    node.at(START - HOUR)
    node.gpus = now
    for hour in (1, 2, 47, 48):
        scrapes.take(START + hour * HOUR, [node])
    found = usage(scrapes.pages(), window(START, START + 48 * HOUR))
    assert had(found) == {"": 47.0 * len(now)}
    assert found.problems == ("node old: nothing is known before 2025-11-22T01:00:00Z",)
    (page, *_) = scrapes.pages()["old"]
    assert page.age >= YEAR


def test_ledger_stays_old_when_its_node_gets_more_gpus() -> None:
    node, scrapes = Node("grown", gpus(T4, 1)), Scrapes()
    node.at(START - 10 * 24 * HOUR, share(f"{T4.name}-0", "team", "p", 1.0))
    node.at(START - HOUR)
    node.gpus = gpus(T4, 8)
    for hour in (1, 48):
        scrapes.take(START + hour * HOUR, [node])
    found = usage(scrapes.pages(), window(START, START + 48 * HOUR), older={"grown"})
    assert had(found) == {"": 8 * 47.0}
    assert found.problems == ("node grown: nothing is known before 2025-11-22T01:00:00Z",)


def test_forgotten_namespace_that_returns_keeps_its_charges() -> None:
    day = 24 * HOUR
    whole = {0: 0, 1: 5, 2: 5, 3: None, 4: None, 5: 2}
    pages = []
    for number, hours in whole.items():
        charges = {} if hours is None else {Account("team", "vgpu", T4.name): Charge(*[Fraction(hours * HOUR)] * 3)}
        capacity = {T4.name: Fraction((100 + number) * day)}
        pages.append(Page(START + number * day, "plugin", capacity, charges, {T4.name: Gpus(1, 16 * GIB)}))
    found = usage({"a": pages}, window(START, START + 5 * day))
    assert had(found) == {"team": 7.0, "": 5 * 24 - 7.0}
    assert not found.problems


@pytest.mark.parametrize("days", [1, 30, 200])
def test_returning_namespace_is_not_charged_twice(days: int) -> None:
    """Page by page of a Prometheus, and since a report that was kept long ago."""
    end = START + days * 24 * HOUR
    node, scrapes = Node("a", {"g": T4}), Scrapes()
    node.at(START - YEAR, share("g", "gone", "p", 0.5, GIB), share("g", "stays", "p", 0.5, GIB))
    node.at(START - HOUR, share("g", "stays", "p", 0.5, GIB))
    scrapes.take(START, [node])
    node.forgets("gone")
    node.at(end - 2 * HOUR, share("g", "stays", "p", 0.5, GIB), share("g", "gone", "p", 0.5, GIB))
    scrapes.take(end, [node])
    found = usage(scrapes.pages(), Window((START, end)))
    assert had(found) == {"gone": 1.0, "stays": days * 12.0, "": days * 12.0 - 1.0}
    assert {account.namespace: charge.memory_byte_seconds for (_, account), charge in found.charges.items()} == {
        "gone": 2 * HOUR * GIB,
        "stays": days * 24 * HOUR * GIB,
    }
    assert not found.problems


def test_restored_older_ledger_is_not_billed_whole() -> None:
    account = Account("team", "vgpu", T4.name)
    pages = [
        Page(START + at * HOUR, "", {T4.name: counted}, {account: Charge(counted / 2)}, {T4.name: Gpus(1, 16 * GIB)})
        for at, counted in [(0, Fraction(YEAR)), (1, Fraction(YEAR - 48 * HOUR)), (2, Fraction(YEAR - 47 * HOUR))]
    ]
    found = usage({"a": pages}, window(START, START + 2 * HOUR))
    assert had(found) == {"team": 0.5, "": 0.5}
    assert found.unknown == {T4.name: HOUR}
    assert "node a: its counters were reset between 2025-11-22T00:00:00Z and" in found.problems[0]


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
    assert "were reset between 2025-11-22T02:00:00Z and 2025-11-22T03:00:00Z" in found.problems[0]


def test_unnoticed_counter_reset_charges_at_most_the_capacity() -> None:
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


def test_same_named_nodes_of_two_clusters_are_unknown() -> None:
    scrapes = Scrapes()
    other = Node("b", {"h": H100}, instance="192.0.2.2:9445")
    other.at(START, share("h", "team", "p", 1.0))
    here, there = (
        Node("a", {"g": H100}, instance="192.0.2.1:9445"),
        Node("a", {"g": H100}, instance="198.51.100.1:9445"),
    )
    here.at(START - 1000 * HOUR)
    there.at(START - 10 * HOUR)
    for hour in range(4):
        scrapes.take(START + hour * HOUR, [here, there, other])
    found = usage(scrapes.pages(), window(START, START + 3 * HOUR))
    assert had(found) == {"team": 3.0, "": 0.0}
    assert found.causes == {(H100.name, DISAGREE): 3 * HOUR}
    (problem,) = found.problems
    assert problem.startswith("node a: two plugins report different values of it 6 times between 2025-11-22T00:00:00Z")
    assert "instance=192.0.2.1:9445" in problem
    assert "instance=198.51.100.1:9445" in problem
    assert "prometheus_selector" in problem


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
    """In two hours a has half a GPU by its memory and uses a quarter; b has a quarter, and its use is not known."""
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
A30 = Model("A30", 24 * GIB)
SHARES = st.builds(
    lambda uuid, namespace, pod, part, memory: share(uuid, namespace, pod, part, round(memory * GIB)),
    st.sampled_from(["g0", "g1", "g2"]),
    NAMESPACES,
    st.sampled_from(["p", "q"]),
    st.floats(0.01, 1.0),
    st.floats(0, 16),
)
GPUS = st.sampled_from([{"g0": T4, "g1": A30}, {"g0": A30, "g1": A30}, {"g0": T4}, {"g0": T4, "g1": A30, "g2": T4}])
"""Some are taken away, added, or swapped for others."""
DAY = 24 * HOUR
FORGOTTEN = 90 * DAY
EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["hold", "hold", "scrape", "scrape", "lost", "gpus"]),
        st.floats(1, 4000) | st.floats(DAY, 100 * DAY),
        st.lists(SHARES, max_size=4),
        GPUS,
    ),
    min_size=1,
    max_size=25,
)


class Lives:
    """What nodes told that lost their ledgers, had other GPUs and forgot namespaces, and what all of it was."""

    def __init__(self, nodes: list[list]) -> None:
        self.told, self.true = Scrapes(), Scrapes()
        self.lost: dict[str, int] = {}
        self.forgot: set[str] = set()
        self.untold = False
        """Whether there were GPUs for some time that were gone when the node told of itself again."""
        self.end = START + 60
        for index, events in enumerate(nodes):
            self._live(f"n{index}", events)

    def _live(self, name: str, events: list) -> None:
        node, twin = (Node(name, {"g0": T4, "g1": A30}) for _ in range(2))
        now = float(START - 600)
        begun, seen, held, there = now, dict.fromkeys("abc", now), [], [node.gpus]
        node.at(now)
        twin.at(now)
        self._scrape(now + 1, node, twin)
        for what, seconds, wanted, gpus in events:
            now += seconds
            seen.update(dict.fromkeys((holding.container.namespace for holding in held), now))
            quiet = [namespace for namespace, last in seen.items() if now - max(last, begun) >= FORGOTTEN]
            node.forgets(*quiet)
            self.forgot |= {name for _ in quiet}
            if what == "scrape":
                self._scrape(now, node, twin)
                self.untold |= beyond(there)
                there = [node.gpus]
                continue
            if what == "lost":
                node.begins_anew()
                begun, self.lost[name] = now, self.lost.get(name, 0) + 1
            else:
                there.append(node.gpus if what == "hold" else gpus)
                held = [holding for holding in (wanted if what == "hold" else held) if holding.uuid in there[-1]]
            for each in (node, twin):
                each.at(now, *held)
                if what == "gpus":
                    each.gpus = gpus
                    each.at(now, *held)
        self._scrape(now + 1, node, twin)
        self.untold |= beyond(there)
        self.end = max(self.end, int(now + 1) + 1)

    def _scrape(self, now: float, node: Node, twin: Node) -> None:
        self.told.take(now, [node])
        self.true.take(now, [twin])


def beyond(there: list[dict[str, Model]]) -> bool:
    """Whether there were more GPUs in between than at both ends, of a model or in all."""
    counts = [Counter({**Counter(gpus.values()), None: len(gpus)}) for gpus in there]
    ends = counts[0] | counts[-1]
    return any(count - ends for count in counts)


@given(st.lists(EVENTS, min_size=1, max_size=3), st.sampled_from(POLICIES), st.data())
def test_charged_and_not_charged_come_to_what_there_was(nodes: list[list], policy: str, data: st.DataObject) -> None:
    """Whatever the tenants did, and wherever scrapes are missing and ledgers lost; and periods add up."""
    lives = Lives(nodes)
    pages, end = lives.told.pages(), lives.end
    middle = data.draw(st.integers(START + 1, end - 1))
    found = usage(pages, Window((START, middle, end)))
    models = ("A30", "Tesla T4")
    known = {Account(n, "vgpu", model): data.draw(st.sampled_from([0.0, 1.0])) for n in "abc" for model in models}
    shown = rows(found, policy, known, range(len(found.window.edges) - 1))
    for model in {row.account.model for row in shown}:
        mine = [row for row in shown if row.account.model == model]
        there = sum(seconds for (_, name), seconds in found.capacity.items() if name == model)
        assert sum(row.charged for row in mine) == there
        assert sum(row.allocated for row in mine) == there
        assert sum(row.allocated for row in mine if not row.free) <= there
    if lives.untold:
        return
    halves = [usage(pages, Window((START, middle)), True), usage(pages, Window((middle, end)), True)]
    both = usage(pages, Window((START, end)), True)
    for name in ("A30", "Tesla T4"):
        amounts = [sum(s for (_, model), s in part.capacity.items() if model == name) for part in (*halves, both)]
        assert amounts[0] + amounts[1] == amounts[2]


@given(EVENTS, st.booleans(), st.data())
def test_nobody_is_charged_more_than_it_had(events: list, prometheus: bool, data: st.DataObject) -> None:
    """Whatever became of the node; and all of it, where no ledger was lost and nobody forgotten."""
    lives = Lives([events])
    (told,), (true,) = lives.told.pages().values(), lives.true.pages().values()
    start = data.draw(st.integers(START, lives.end - 1))
    seen = [page for page in told if not prometheus or page.at > start - 300]
    older = gpu_usage_prometheus.older(asked(lives.told), {"n0": seen}, Window((start, lives.end)), "")
    found = usage({"n0": seen}, Window((start, lives.end)), True, older)
    before = [page for page in true if page.at <= start][-1]
    lag = 60 * 3 * (1 + lives.lost.get("n0", 0))
    there = {model: true[-1].capacity[model] - before.capacity.get(model, 0) for model in true[-1].capacity}
    assert sum(found.capacity.values()) <= 3 * Fraction(lives.end - before.at) + lag
    if "".join(found.problems).count("were reset") > lives.lost.get("n0", 0):
        return
    charged = {account: charge.gpu_seconds for (_, account), charge in found.charges.items()}
    for model, seconds in found.capacity.items():
        assert seconds <= there[model[1]] + lag
    for account, charge in true[-1].charges.items():
        had_then = charge.since(before.charges.get(account, Charge())).gpu_seconds
        assert charged.get(account, 0) <= had_then + lag
        if not lives.lost and not lives.forgot and not lives.untold and before in true[-len(seen) :]:
            assert charged.get(account, 0) == pytest.approx(float(had_then), abs=2)


def asked(scrapes: Scrapes) -> Callable[[str, float], list[dict]]:
    """A Prometheus that was there all the time."""
    return lambda expression, at: [
        {"metric": {"__name__": sample.name, **sample.labels}, "values": [(sample.at, sample.value)]}
        for sample in scrapes.samples()
        if sample.at <= at and sample.name == "accel_node_gpu_seconds_total"
    ]
