# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What namespaces had of GPUs in a period, from pages of the counters that plugins keep. Pure, and exact: fractions.

A page is what one plugin told at one time, all of it of the same moment. A period's amounts are the difference of two
pages, the last ones before its ends: nothing is extrapolated, and what one period leaves is in the next. The counters
count while nobody reads them, so that pages that are missing in between take nothing away.

Counters are believed as far as a node's GPUs can have given it: nothing is counted beyond GPUs times time and a lag,
and nobody is charged beyond what is counted. The rest is unknown, by cause.
"""

from __future__ import annotations

import bisect
import collections
import operator
import time
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import (
    Callable,
    Collection,
    Dict,
    FrozenSet,
    Iterable,
    Iterator,
    List,
    Mapping,
    NamedTuple,
    Optional,
    Sequence,
    Set,
    Tuple,
)

from .places import Claim, Places

GAP_SECONDS = 300
"""A node is silent when nothing was told for longer."""

LAG_SECONDS = 60
"""A page may be older than its time by this: what it tells was collected before it was asked for."""

LEDGER_LAG_SECONDS = 300
"""The same between pages that name one ledger: the longest that plugins take from one collection to the next."""

_FORGETS_SECONDS = 90 * 86400
"""For how long a ledger keeps what a namespace had that has nothing; who comes back begins at nothing."""

_SOON = 86400
"""For as long a series may be missing that is one of a ledger all the same."""

_ROUNDED = 1
"""GPU-seconds by which sums of counters may be apart."""

ALLOCATED, USED, MEMORY, SPREAD = "allocated", "used", "memory", "spread"
POLICIES = (ALLOCATED, USED, MEMORY, SPREAD)

SILENT, ANEW, REPLACED, BEYOND, DISAGREE, TWO_NODES, NO_GPUS, NO_CAPACITY = (
    "silent",
    "counters_began_anew",
    "ledger_replaced",
    "counters_beyond_gpus",
    "plugins_disagree",
    "gpus_of_two_nodes",
    "gpus_not_told",
    "capacity_not_told",
)
"""Causes for which something is unknown."""

_REMARKS = {
    ANEW: "its counters began anew {when}, and part of that is lost",
    REPLACED: "its ledger was replaced by another {when}, and part of that is lost",
    BEYOND: (
        "its counters grew by more than its GPUs can have given {when}, and nothing of that is counted; did another "
        "machine take its name, or are these two clusters? Name one by prometheus_selector"
    ),
    DISAGREE: (
        "two plugins tell different things of it {when}, and nothing of that is counted: {who}; are these two "
        "clusters? Name one by prometheus_selector"
    ),
    TWO_NODES: (
        "it has GPUs that another node has at the same time {when}, and nothing of that is counted: {who}; is that "
        "one machine with two names, or are these two clusters? Name one by prometheus_selector"
    ),
    NO_GPUS: "it does not tell which GPUs it has {when}, and nothing of that is counted; is accel_gpu_info scraped?",
    NO_CAPACITY: (
        "it charges for GPUs of which it does not tell the time {when}, and nobody is charged; is "
        "accel_node_gpu_seconds_total scraped?"
    ),
}


class Account(NamedTuple):
    """What is charged together."""

    namespace: str
    mode: str
    model: str


class Charge(NamedTuple):
    """Counted together; all grow."""

    gpu_seconds: Fraction = Fraction(0)
    busy_seconds: Fraction = Fraction(0)
    memory_byte_seconds: Fraction = Fraction(0)

    def plus(self, other: Charge) -> Charge:
        """Return the sum of two rows of one account."""
        return Charge(*map(operator.add, self, other))

    def since(self, other: Charge) -> Charge:
        """Return the charge since an earlier one. An amount that is smaller now counts as zero."""
        return Charge(*(max(grown, Fraction(0)) for grown in map(operator.sub, self, other)))


class Gpus(NamedTuple):
    """The GPUs of a model that a node has."""

    number: int
    memory_bytes: int
    """The memory of one GPU; 0 where it is not told."""


@dataclass(frozen=True)
class Page:
    """What a node's plugin told."""

    at: float
    """Seconds since 1970."""
    source: str
    """Which plugin of the node it was."""
    capacity: Mapping[str, Fraction]
    """GPU-seconds that there were, by model."""
    charges: Mapping[Account, Charge] = field(default_factory=dict)
    gpus: Mapping[str, Gpus] = field(default_factory=dict)
    """By model."""
    ledger: str = ""
    """Which ledger it was; empty where the plugin does not tell."""
    uuids: Mapping[str, str] = field(default_factory=dict)
    """Models by UUID, of GPUs that can be told apart from all others."""
    told: Mapping[Account, FrozenSet[str]] = field(default_factory=dict, compare=False)
    """Which families it tells of accounts; of one that is not there, all."""

    @property
    def counted(self) -> Fraction:
        """GPU-seconds of all models."""
        return sum(self.capacity.values(), Fraction(0))

    @property
    def number(self) -> int:
        """Return how many GPUs the node has."""
        return sum(gpus.number for gpus in self.gpus.values())

    @property
    def age(self) -> float:
        """Return for how many seconds a ledger has counted, by the GPUs that there are now; earlier ones may differ."""
        ages = (self.capacity.get(model, Fraction(0)) / gpus.number for model, gpus in self.gpus.items())
        return float(max([self.counted / max(1, self.number), *ages]))

    @property
    def lag(self) -> int:
        """GPU-seconds by which another page of the same time may differ."""
        return LAG_SECONDS * max(1, self.number)


@dataclass(frozen=True)
class Window:
    """A period and the parts it is shown in; an edge belongs to the part that it ends. Seconds since 1970."""

    edges: Tuple[float, ...]
    """At least two, ascending."""

    @property
    def start(self) -> float:
        """Return the first edge."""
        return self.edges[0]

    @property
    def end(self) -> float:
        """Return the last edge."""
        return self.edges[-1]

    def part(self, at: float) -> int:
        """Number of the part that a moment is in."""
        return min(bisect.bisect_left(self.edges[1:], at), len(self.edges) - 2)


@dataclass(frozen=True)
class NodeUsage:
    """What is known of a node."""

    name: str
    since: float
    """When it was known for the first and the last time in the period; its ends where nothing is missing."""
    until: float
    remark: str = ""
    """What is not known of it."""


@dataclass(frozen=True)
class Usage:
    """A period's amounts, in GPU-seconds; what was free is the capacity that nobody had."""

    window: Window
    capacity: Mapping[Tuple[int, str], Fraction]
    """By part of the period and model."""
    charges: Mapping[Tuple[int, Account], Charge]
    unknown: Mapping[str, Fraction]
    """By model: what GPUs would have been there in the time that nothing is known of."""
    memory_bytes: Mapping[str, int]
    """The memory of one GPU, by model."""
    nodes: Tuple[NodeUsage, ...]
    problems: Tuple[str, ...] = ()
    causes: Mapping[Tuple[str, str], Fraction] = field(default_factory=dict)
    """What is unknown, by model and cause."""


@dataclass(frozen=True)
class Row:
    """What one account had, in seconds; without a namespace: what was free of a model."""

    account: Account
    allocated: Fraction
    used: Optional[Fraction]
    """None where nothing tells."""
    charged: Fraction
    memory_byte_seconds: Fraction
    used_complete: bool = True
    """False: it may have used more than is known."""

    def plus(self, other: Row) -> Row:
        """Return the sum of two rows of one account."""
        used = None if self.used is None or other.used is None else self.used + other.used
        return Row(
            self.account,
            self.allocated + other.allocated,
            used,
            self.charged + other.charged,
            self.memory_byte_seconds + other.memory_byte_seconds,
            self.used_complete and other.used_complete,
        )

    @property
    def idle(self) -> Optional[Fraction]:
        """Return the part of what it had that it did not use."""
        return None if self.used is None else max(self.allocated - self.used, Fraction(0))

    @property
    def free(self) -> bool:
        """Nobody had it."""
        return not self.account.namespace


def usage(
    pages: Mapping[str, Sequence[Page]],
    window: Window,
    come_and_go: bool = False,
    older: Collection[str] = frozenset(),
) -> Usage:
    """Return the amounts of a period, from pages by node, which may begin before it.

    With ``come_and_go`` a node that is silent at an end of the period was not there then. ``older`` are nodes whose
    ledgers are known to be older than the period. Nodes that tell of one ledger are one node with several names.
    """
    capacity: Dict[Tuple[int, str], Fraction] = collections.defaultdict(Fraction)
    charges: Dict[Tuple[int, Account], Charge] = collections.defaultdict(Charge)
    causes: Dict[Tuple[str, str], Fraction] = collections.defaultdict(Fraction)
    unknown: Dict[str, Fraction] = collections.defaultdict(Fraction)
    memory: Dict[str, int] = {}
    nodes = []
    of_nodes: Dict[str, List[Page]] = {}
    older_nodes: Set[str] = set()
    for names, told in _one_a_ledger(pages, window.end):
        if told and told[-1].at > window.start - GAP_SECONDS:
            of_nodes[names[0]] = told
            older_nodes.update(names[:1] if not set(names).isdisjoint(older) else ())
    believed = {name: _believed(told) for name, told in of_nodes.items()}
    places = _places(believed)
    for name, ordered in sorted(believed.items()):
        found = _Node(name, window, come_and_go, name in older_nodes, places, _Sources(of_nodes[name]))
        for step in found.steps(ordered):
            part = window.part(step.at)
            for model, seconds in step.capacity.items():
                capacity[part, model] += seconds
            for account, charge in step.charges.items():
                charges[part, account] = charges[part, account].plus(charge)
        for (model, cause), seconds in found.unknown.items():
            causes[model, cause] += seconds
            unknown[model] += seconds
        for page in ordered:
            for model, gpus in page.gpus.items():
                memory[model] = max(memory.get(model, 0), gpus.memory_bytes)
        nodes.append(NodeUsage(name, found.since, found.until, "; ".join(found.remarks)))
    charges = {key: charge for key, charge in charges.items() if any(charge)}
    return Usage(window, capacity, charges, unknown, memory, tuple(nodes), tuple(_grouped(nodes)), causes)


def rows(found: Usage, policy: str, used_known: Mapping[Account, float], parts: Iterable[int]) -> List[Row]:
    """Return, by model, what each namespace had in these parts of the period, and last what was free.

    ``used_known`` is for how much of its time an account's use is known, from 0 to 1; all where it has none.
    What is charged of a model always comes to what there was of it, in each part.
    """
    made: Dict[Account, Row] = {}
    for part in parts:
        for row in _part(found, policy, used_known, part):
            before = made.get(row.account)
            made[row.account] = row if before is None else before.plus(row)
    return sorted(made.values(), key=lambda row: (row.account.model, row.free, row.account))


def _part(found: Usage, policy: str, used_known: Mapping[Account, float], part: int) -> Iterator[Row]:
    accounts = {account: charge for (where, account), charge in found.charges.items() if where == part}
    capacity = {model: seconds for (where, model), seconds in found.capacity.items() if where == part}
    for model in {*capacity, *(account.model for account in accounts)}:
        of_model = {account: charge for account, charge in accounts.items() if account.model == model}
        there = capacity.get(model, Fraction(0))
        allocated = sum((charge.gpu_seconds for charge in of_model.values()), Fraction(0))
        spread = there / allocated if allocated else Fraction(1)
        made = []
        for account, charge in of_model.items():
            known = used_known.get(account, 1.0)
            used = charge.busy_seconds if known > 0 else None
            owed = _owed(policy, charge, used, spread, found.memory_bytes.get(model, 0))
            made.append(Row(account, charge.gpu_seconds, used, owed, charge.memory_byte_seconds, known >= _WHOLLY))
        owed = sum((row.charged for row in made), Fraction(0))
        # Some are charged what they used and others what they had: together it can be more than there was.
        charged = min(owed, there)
        yield from (replace(row, charged=row.charged * charged / owed) if owed > there else row for row in made)
        yield Row(Account("", "", model), there - allocated, Fraction(0), there - charged, Fraction(0))


def apportioned(values: Sequence[Fraction], places: int) -> List[Fraction]:
    """Rounded to so many decimals, each by less than a unit, so that they come to the rounded sum."""
    unit = 10**places
    scaled = [value * unit for value in values]
    whole = [value.__floor__() for value in scaled]
    missing = round(sum(scaled, Fraction(0))) - sum(whole)
    by_rest = sorted(range(len(values)), key=lambda index: whole[index] - scaled[index])
    for index in by_rest[: max(missing, 0)]:
        whole[index] += 1
    return [Fraction(amount, unit) for amount in whole]


_WHOLLY = 0.95
"""A container's first collections have no samples of it yet."""


def _owed(policy: str, charge: Charge, used: Optional[Fraction], spread: Fraction, memory_bytes: int) -> Fraction:
    if policy == USED and used is not None:
        return used
    if policy == MEMORY and memory_bytes:
        return charge.memory_byte_seconds / memory_bytes
    if policy == SPREAD:
        return charge.gpu_seconds * spread
    return charge.gpu_seconds


class _Step(NamedTuple):
    """What was counted from one page to the next."""

    at: float
    capacity: Mapping[str, Fraction]
    charges: Mapping[Account, Charge]


class _Allowance:
    """What a node's GPUs can have given since its ledger was met, less what the ledger counted since."""

    def __init__(self) -> None:
        self._left: Dict[Tuple[str, ...], Fraction] = {}
        """By model, and under no model of all GPUs."""

    def takes(self, capacity: Mapping[str, Fraction], numbers: Mapping[str, int], seconds: Fraction, lag: int) -> bool:
        """Return whether so many GPUs can give this in this time plus ``lag`` seconds; if they can, take it.

        Where no GPU is told there is one at least of each model.
        """
        numbers = numbers or {**dict.fromkeys(capacity, 1), "": len(capacity)}
        counted: Dict[Tuple[str, ...], Tuple[Fraction, int]]
        counted = {(model,): (amount, numbers.get(model, 0)) for model, amount in capacity.items()}
        counted[()] = (sum(capacity.values(), Fraction(0)), numbers.get("", 0))
        after = {}
        for key, (amount, number) in counted.items():
            before = self._left.get(key, Fraction(0))
            after[key] = before + number * seconds - amount
            if after[key] < min(before, Fraction(-lag * max(1, number))):
                return False
        self._left.update(after)
        return True

    def restart(self) -> None:
        """Go on with another ledger, which cannot give what the one before did not count."""
        self._left = {key: min(left, Fraction(0)) for key, left in self._left.items()}


class _Sources:
    """From when to when each plugin told of a node."""

    def __init__(self, pages: Iterable[Page]) -> None:
        self._spans: Dict[str, Tuple[float, float]] = {}
        for page in pages:
            first, last = self._spans.get(page.source, (page.at, page.at))
            self._spans[page.source] = (min(first, page.at), max(last, page.at))

    def at_once(self, before: Page, page: Page) -> bool:
        """Return whether these come from two plugins at a time, of which neither followed the other."""
        if before.source == page.source:
            return False
        return self._spans[page.source][0] <= before.at or self._spans[before.source][1] >= page.at


class _Node:
    """Goes through a node's pages."""

    def __init__(
        self, name: str, window: Window, come_and_go: bool, older: bool, places: Places, sources: _Sources
    ) -> None:
        self.name = name
        self.since: float = window.start
        self.until: float = window.end
        self.unknown: Dict[Tuple[str, str], Fraction] = collections.defaultdict(Fraction)
        """By model and cause."""
        self._window = window
        self._come_and_go = come_and_go
        self._older = older
        self._places = places
        self._sources = sources
        self._allowance = _Allowance()
        self._before = self._after = ""
        self._lost_between: Dict[str, List[Tuple[float, float]]] = {}
        """By cause."""
        self._who: Dict[str, Set[str]] = collections.defaultdict(set)
        """By cause, who else tells of it."""

    @property
    def remarks(self) -> List[str]:
        """Return what is not known of the usage, a sentence each."""
        made = [self._before]
        for cause, times in self._lost_between.items():
            who = " and ".join(sorted(self._who[cause])[:_NAMED])
            if len(times) > _NAMED:
                whole = f"{len(times)} times between {moment(times[0][0])} and {moment(times[-1][1])}"
                made.append(_REMARKS[cause].format(when=whole, who=who))
            else:
                whens = (f"between {moment(start)} and {moment(end)}" for start, end in times)
                made += [_REMARKS[cause].format(when=when, who=who) for when in whens]
        return [remark for remark in (*made, self._after) if remark]

    def steps(self, pages: Sequence[Page]) -> Iterator[_Step]:
        """Yield the steps from page to page, in order of time; then the rest is known."""
        before = pages[0]
        if before.at > self._window.start:
            # Nobody told of it in the gap before the period, so that no other period has what it counted there.
            step = _begun(before)
            if not self._older and began_in(before, self._window) and _backed(step, _ROUNDED):
                yield from self._counted(step, _empty(before), before, _ROUNDED, LAG_SECONDS)
            else:
                self._late(before)
        for page in pages[1:]:
            parted = _parted(before, page, _between(before, page))
            if page.at > self._window.start:
                yield from self._step(before, page, parted)
            before = page if parted else _carried(before, page)
        if before.at < self._window.end - GAP_SECONDS:
            self._early(before)

    def _step(self, before: Page, page: Page, parted: str) -> Iterator[_Step]:
        if not parted:
            between, slack, lag = _between(before, page), _slack(before, page), _lag_seconds(before, page)
            yield from self._counted(between, before, page, slack, lag)
            return
        self._allowance.restart()
        step, seconds = _begun(page), _seconds(before.at, page.at)
        lost = parted, _rest(page, seconds, {})
        if self._elsewhere(before, page):
            lost = TWO_NODES, self._alone(before.at, page.at, page, before=True)
        elif self._sources.at_once(before, page):
            lost = self._differ(before, page), lost[1]
        elif not _unbacked(step, _ROUNDED) and self._takes(step, before, page, LAG_SECONDS):
            lost = parted, _rest(page, seconds, step.capacity)
            yield _fitted(step, page.gpus)
        self._lost(lost[0], before.at, page, lost[1])

    def _counted(self, step: _Step, before: Page, page: Page, slack: int, lag: int) -> Iterator[_Step]:
        """Yield what one ledger counted in between, as far as it can be so."""
        numbers, seconds = _numbers(before.gpus, page.gpus), _seconds(before.at, page.at)
        if self._elsewhere(before, page):
            self._allowance.restart()
            self._lost(TWO_NODES, before.at, page, self._alone(before.at, page.at, page, before=True))
            return
        if not self._takes(step, before, page, lag):
            self._allowance.restart()
            cause = self._differ(before, page) if self._sources.at_once(before, page) else BEYOND
            lost = _rest(page, seconds, {}) if numbers else _at_most(step.capacity, numbers, seconds)
            self._lost(cause if numbers else NO_GPUS, before.at, page, lost)
            return
        unbacked = _unbacked(step, slack)
        if unbacked:
            self._lost(NO_CAPACITY, before.at, page, _at_most(unbacked, numbers, seconds))
        yield _fitted(step, page.gpus)

    def _takes(self, step: _Step, before: Page, page: Page, lag: int) -> bool:
        numbers, seconds = _numbers(before.gpus, page.gpus), _seconds(before.at, page.at)
        return self._allowance.takes(step.capacity, numbers, seconds, lag)

    def _differ(self, before: Page, page: Page) -> str:
        self._who[DISAGREE] |= {before.source, page.source}
        return DISAGREE

    def _elsewhere(self, before: Page, page: Page) -> bool:
        """Return whether another node counts GPUs that this one counted in between."""
        claimed = _claimed(before, page, self._places.shared)
        others = self._places.others(self.name, claimed, before.at, page.at)
        self._who[TWO_NODES] |= others
        return bool(others)

    def _alone(self, start: float, end: float, page: Page, before: bool = False) -> Dict[str, Fraction]:
        """Return what the page's GPUs would have given in this time, but for those that another node counts then."""
        there = _rest(page, _seconds(start, end), {})
        for uuid, model in page.uuids.items():
            elsewhere = self._places.elsewhere(self.name, uuid, start, end, before)
            there[model] = max(there.get(model, Fraction(0)) - elsewhere, Fraction(0))
        return there

    def _late(self, page: Page) -> None:
        self.since = page.at
        if page.at > self._window.start + GAP_SECONDS and not self._come_and_go:
            self._before = f"nothing is known before {moment(page.at)}"
            self._unknown(SILENT, self._alone(self._window.start, page.at, page))

    def _early(self, page: Page) -> None:
        self.until = page.at
        if not self._come_and_go:
            self._after = f"nothing is known after {moment(page.at)}"
            self._unknown(SILENT, self._alone(page.at, self._window.end, page))

    def _lost(self, cause: str, since: float, page: Page, lost: Mapping[str, Fraction]) -> None:
        """Counts what was lost since then as not known."""
        self._lost_between.setdefault(cause, []).append((since, page.at))
        self._unknown(cause, lost)

    def _unknown(self, cause: str, lost: Mapping[str, Fraction]) -> None:
        for model, seconds in lost.items():
            self.unknown[model, cause] += seconds


def _seconds(start: float, end: float) -> Fraction:
    return Fraction(end) - Fraction(start)


def _rest(page: Page, seconds: Fraction, counted: Mapping[str, Fraction]) -> Dict[str, Fraction]:
    """Return what the page's GPUs would have given in this time, without what was counted."""
    there = {model: gpus.number * seconds for model, gpus in page.gpus.items()}
    return {model: max(whole - counted.get(model, 0), Fraction(0)) for model, whole in there.items()}


def _at_most(told: Mapping[str, Fraction], numbers: Mapping[str, int], seconds: Fraction) -> Dict[str, Fraction]:
    """Return amounts of models, at most what their GPUs can give; a model of which none is told has one GPU."""
    return {model: min(more, seconds * max(1, numbers.get(model, 0))) for model, more in told.items() if more}


def began_in(page: Page, window: Window) -> bool:
    """Return whether the page's ledger can have counted all within the period, by the GPUs that there are now."""
    return page.age <= page.at - window.start + GAP_SECONDS


def follows(before: Page, page: Page) -> bool:
    """Return whether both are of one ledger whose count in between is no more than the GPUs of both can have given."""
    step = _between(before, page)
    return not _parted(before, page, step) and _can_be_since(before, page, step, _lag_seconds(before, page))


def stalled(before: Page, page: Page) -> bool:
    """Return whether less was counted in between than the GPUs of both give in that time."""
    number, seconds = min(before.number, page.number), _seconds(before.at, page.at)
    return page.counted - before.counted + page.lag < number * seconds


def _can_be_since(before: Page, page: Page, step: _Step, lag: int) -> bool:
    """Return whether the GPUs of both can have given in between what the step counted."""
    return _Allowance().takes(step.capacity, _numbers(before.gpus, page.gpus), _seconds(before.at, page.at), lag)


def _parted(before: Page, page: Page, step: _Step) -> str:
    """Return why both are not of one ledger; empty where they are, as far as can be seen.

    They are not where something that was there fell, or more was charged than there was in between.
    """
    if _other_ledger(before, page):
        return REPLACED
    slack = _slack(before, page)
    if any(page.capacity.get(model, 0) + slack < seconds for model, seconds in before.capacity.items()):
        return ANEW
    if page.counted < before.counted:
        return ANEW
    if not _backed(step, slack):
        return ANEW
    if not _fallen(before, page) or page.age >= _FORGETS_SECONDS:
        return ""
    return ANEW if _can_be_since(before, page, _begun(page), LAG_SECONDS) else ""


def _other_ledger(before: Page, page: Page) -> bool:
    """Return whether both name their ledgers, and these are two."""
    return bool(before.ledger and page.ledger and before.ledger != page.ledger)


def _numbers(before: Mapping[str, Gpus], after: Mapping[str, Gpus]) -> Dict[str, int]:
    """Return the most GPUs there were of each model, and of all under an empty name; empty where there were none."""
    sides = [{model: gpus.number for model, gpus in side.items()} for side in (before, after)]
    most = {model: max(side.get(model, 0) for side in sides) for side in sides for model in side}
    return {**most, "": max(sum(side.values()) for side in sides)} if most else {}


def _lag_seconds(before: Page, page: Page) -> int:
    """Return by how many seconds pages of one ledger may be off from their own time."""
    return LEDGER_LAG_SECONDS if page.ledger and page.ledger == before.ledger else LAG_SECONDS


def _fallen(before: Page, page: Page) -> Set[Account]:
    """Return the accounts that have less than before: they began at nothing in between."""
    slack = _slack(before, page)
    return {
        account
        for account, charge in page.charges.items()
        if charge.gpu_seconds + slack < before.charges.get(account, Charge()).gpu_seconds
    }


def _slack(before: Page, page: Page) -> int:
    """GPU-seconds by which two pages of one ledger may disagree."""
    return page.lag if page.source != before.source else _ROUNDED


def _begun(page: Page) -> _Step:
    """Return all that a ledger counted up to its first page."""
    return _Step(page.at, page.capacity, page.charges)


def _empty(page: Page) -> Page:
    """Return the page of its ledger when that began."""
    return Page(page.at - page.age, page.source, {}, ledger=page.ledger)


def _unbacked(step: _Step, slack: int) -> Dict[str, Fraction]:
    """Return what is charged of models beyond what there was, where it is more than ``slack``.

    A ledger that began anew soon after the first page of the one before looks like the same one.
    """
    had = _had(step, lambda charge: charge.gpu_seconds)
    beyond = {model: seconds - step.capacity.get(model, 0) for model, seconds in had.items()}
    return {
        model: seconds
        for model, seconds in beyond.items()
        if seconds >= slack or (seconds > 0 and model not in step.capacity)
    }


def _backed(step: _Step, slack: int) -> bool:
    """Return whether the charge of each model is at most what its GPUs gave."""
    return not any(model in step.capacity for model in _unbacked(step, slack))


def _fitted(step: _Step, gpus: Mapping[str, Gpus]) -> _Step:
    """Return the step without what is charged, used or kept of memory beyond what there was."""
    seconds = _scales(step, lambda charge: charge.gpu_seconds, step.capacity)
    busy = _scales(step, lambda charge: charge.busy_seconds, step.capacity)
    sizes = {model: step.capacity.get(model, 0) * Fraction(of.memory_bytes) for model, of in gpus.items()}
    known = {model: size for model, size in sizes.items() if gpus[model].memory_bytes}
    memory = _scales(step, lambda charge: charge.memory_byte_seconds, known)
    charges = {
        account: Charge(
            charge.gpu_seconds * seconds.get(account.model, 0),
            charge.busy_seconds * busy.get(account.model, 0),
            charge.memory_byte_seconds * memory.get(account.model, int(account.model in step.capacity)),
        )
        for account, charge in step.charges.items()
    }
    return step._replace(charges=charges)


def _had(step: _Step, amount: Callable[[Charge], Fraction]) -> Dict[str, Fraction]:
    """Return what all accounts have together, by model."""
    had: Dict[str, Fraction] = collections.defaultdict(Fraction)
    for account, charge in step.charges.items():
        had[account.model] += amount(charge)
    return had


def _scales(step: _Step, amount: Callable[[Charge], Fraction], there: Mapping[str, Fraction]) -> Dict[str, Fraction]:
    """Return, by model, the factor that brings amounts down to what there was, where they are more."""
    had = _had(step, amount)
    return {
        model: most / had[model] if had.get(model, Fraction(0)) > most else Fraction(1) for model, most in there.items()
    }


def _between(before: Page, page: Page) -> _Step:
    capacity = {
        model: max(seconds - before.capacity.get(model, 0), Fraction(0)) for model, seconds in page.capacity.items()
    }
    fallen = _fallen(before, page)
    known = {account: charge for account, charge in before.charges.items() if account not in fallen}
    charges = {account: charge.since(known.get(account, Charge())) for account, charge in page.charges.items()}
    return _Step(page.at, capacity, charges)


def _one_a_ledger(pages: Mapping[str, Iterable[Page]], end: float) -> List[Tuple[List[str], List[Page]]]:
    """Pages up to the end in order of time, with the names that their node had, the last one first.

    A ledger is one node's. Where several tell of it, something renamed the node in what it told.
    """
    found: List[Tuple[List[str], List[Page]]] = []
    of_ledger: Dict[str, int] = {}
    for name, told in sorted(pages.items()):
        names, mine = [name], [page for page in told if page.at <= end]
        ledgers = {page.ledger for page in mine if page.ledger}
        for place in sorted({of_ledger[ledger] for ledger in ledgers if ledger in of_ledger}):
            names += found[place][0]
            mine += found[place][1]
            found[place] = [], []
        of_ledger.update(dict.fromkeys((page.ledger for page in mine if page.ledger), len(found)))
        last = {other: max((page.at for page in pages[other] if page.at <= end), default=0.0) for other in names}
        names.sort(key=lambda other: (-last[other], other))
        found.append((names, sorted(mine, key=lambda page: (page.at, page.source, page.counted))))
    return [each for each in found if each[1]]


def _believed(pages: Sequence[Page]) -> List[Page]:
    """Return the pages but for those of a plugin that is behind another, and those that lack what comes soon again.

    While a driver is down a plugin tells no GPUs, and counts that time later: it has those it had.
    """
    last_of = {page.source: page.at for page in pages}
    kept: List[Page] = []
    for place, page in enumerate(pages):
        before = kept[-1] if kept else page
        if page.source != before.source and page.counted < before.counted and not _other_ledger(before, page):
            # Clocks of two Prometheus may differ by more than plugins do.
            goes_on = bool(page.ledger and page.ledger == before.ledger and last_of[before.source] > page.at)
            if goes_on or before.counted - page.lag <= page.counted:
                continue
        if _lacks(before, page, (pages[other] for other in range(place + 1, len(pages)))):
            continue
        kept.append(page if page.gpus else replace(page, gpus=before.gpus, uuids=before.uuids))
    return kept


def _lacks(before: Page, page: Page, later: Iterable[Page]) -> bool:
    """Return whether the page lacks series of its ledger that have not fallen; they return within a day."""
    models, accounts = before.capacity.keys() - page.capacity.keys(), before.charges.keys() - page.charges.keys()
    fits = all(page.capacity.get(model, most) + page.lag >= most for model, most in before.capacity.items())
    more = page.capacity.keys() - before.capacity.keys() or page.charges.keys() - before.charges.keys()
    if not (models or accounts) or more or not fits or _other_ledger(before, page):
        return False
    for after in later:
        if after.at > page.at + _SOON or _other_ledger(before, after):
            break
        if any(after.capacity.get(model, -1) >= before.capacity[model] for model in models):
            return True
        back = accounts.intersection(after.charges)
        if any(after.charges[account].gpu_seconds >= before.charges[account].gpu_seconds for account in back):
            return True
        models -= after.capacity.keys()
        accounts -= back
    return False


def _carried(before: Page, page: Page) -> Page:
    """Return the page with accounts of before that it lacks: a ledger goes on with them when they come back."""
    missing = {account: charge for account, charge in before.charges.items() if account not in page.charges}
    return replace(page, charges={**missing, **page.charges}) if missing else page


def _places(pages: Mapping[str, Sequence[Page]]) -> Places:
    """Finds the GPUs that several nodes tell of."""
    nodes: Dict[str, Set[str]] = collections.defaultdict(set)
    for name, told in pages.items():
        for page in told:
            for uuid in page.uuids:
                nodes[uuid].add(name)
    shared = {uuid for uuid, names in nodes.items() if len(names) > 1}
    return Places(shared, _claims(pages, shared))


def _claims(pages: Mapping[str, Sequence[Page]], shared: Set[str]) -> Iterator[Claim]:
    for name in {name for name, told in pages.items() if any(not shared.isdisjoint(page.uuids) for page in told)}:
        before = _empty(pages[name][0])
        for page in pages[name]:
            yield from (Claim(uuid, name, before.at, page.at) for uuid in _claimed(before, page, shared))
            before = page


def _claimed(before: Page, page: Page, shared: Set[str]) -> Set[str]:
    """Return the GPUs among these that the node has counted in between.

    Nodes that nobody hears of for long may have lost them, unless they counted more than all others can have given.
    """
    mine = {uuid: model for uuid, model in {**before.uuids, **page.uuids}.items() if uuid in shared}
    if not mine:
        return set()
    if not before.capacity:
        return set(mine)
    if before.uuids and page.at - before.at <= GAP_SECONDS:
        return {uuid for uuid in mine if uuid in before.uuids and uuid in page.uuids}
    between = _between(before, page)
    step = _begun(page) if _parted(before, page, between) else between
    numbers, of_models = _numbers(before.gpus, page.gpus), collections.Counter(mine.values())
    others = {model: numbers.get(model, 0) - number for model, number in of_models.items()}
    seconds = _seconds(before.at, page.at)
    grown = {model for model, number in others.items() if step.capacity.get(model, 0) > number * seconds + page.lag}
    return {uuid for uuid, model in mine.items() if model in grown}


def _grouped(nodes: Iterable[NodeUsage]) -> Iterator[str]:
    """Yield a sentence for all nodes of which the same is not known."""
    names: Dict[str, List[str]] = {}
    for node in nodes:
        if node.remark:
            names.setdefault(node.remark, []).append(node.name)
    for remark, same in names.items():
        more = f" and {len(same) - _NAMED} more" if len(same) > _NAMED else ""
        yield f"node{'s' if len(same) > 1 else ''} {', '.join(same[:_NAMED])}{more}: {remark}"


_NAMED = 5


def window(start: int, end: int) -> Window:
    """Return a period in days of UTC; in hours where it is two days at most, and in minutes in a quarter of an hour."""
    unit = 60 if end - start <= 900 else 3600 if end - start <= 2 * 86400 else 86400
    inside = range(start - start % unit + unit, end, unit)
    return Window((start, *inside, end))


def moment(at: float) -> str:
    """Return a time as people and machines read it, in UTC."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(at))
