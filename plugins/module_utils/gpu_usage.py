# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What namespaces had of GPUs in a period, from pages of the counters that plugins keep. Pure, and exact: fractions.

A page is what one plugin told at one time, all of it of the same moment. A period's amounts are the difference of two
pages, the last ones before its ends: nothing is extrapolated, and what one period leaves is in the next. The counters
count while nobody reads them, so that pages that are missing in between take nothing away.
"""

from __future__ import annotations

import bisect
import collections
import operator
import time
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Collection, Dict, Iterable, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Set, Tuple

GAP_SECONDS = 300
"""A node is silent when nothing was told for longer."""

_LAG_SECONDS = 60
"""Two plugins of an upgrade tell of one node, one behind the other by no more than this."""

_FORGETS_SECONDS = 90 * 86400
"""For how long a ledger keeps what a namespace had that has nothing; who comes back begins at nothing."""

_ROUNDED = 1
"""GPU-seconds by which sums of counters may be apart."""

ALLOCATED, USED, MEMORY, SPREAD = "allocated", "used", "memory", "spread"
POLICIES = (ALLOCATED, USED, MEMORY, SPREAD)


class UsageError(ValueError):
    """What was read cannot be one cluster's. Says why, and what to do."""


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
        """Both."""
        return Charge(*map(operator.add, self, other))

    def since(self, other: Charge) -> Charge:
        """What came since; nothing counts down."""
        return Charge(*(max(grown, Fraction(0)) for grown in map(operator.sub, self, other)))


class Gpus(NamedTuple):
    """The GPUs of a model that a node has."""

    number: int
    memory_bytes: int
    """Of one; 0 where it is not told."""


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

    @property
    def counted(self) -> Fraction:
        """GPU-seconds of all models."""
        return sum(self.capacity.values(), Fraction(0))

    @property
    def number(self) -> int:
        """Of GPUs that the node has."""
        return sum(gpus.number for gpus in self.gpus.values())

    @property
    def age(self) -> float:
        """For how many seconds a ledger has counted, by the GPUs that there are now; those before may be others."""
        ages = (self.capacity.get(model, Fraction(0)) / gpus.number for model, gpus in self.gpus.items())
        return float(max([self.counted / max(1, self.number), *ages]))

    @property
    def lag(self) -> int:
        """GPU-seconds by which another page of the same time may differ."""
        return _LAG_SECONDS * max(1, self.number)


@dataclass(frozen=True)
class Window:
    """A period and the parts it is shown in; an edge belongs to the part that it ends. Seconds since 1970."""

    edges: Tuple[float, ...]
    """At least two, ascending."""

    @property
    def start(self) -> float:
        """The first edge."""
        return self.edges[0]

    @property
    def end(self) -> float:
        """The last edge."""
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
    """Of one GPU, by model."""
    nodes: Tuple[NodeUsage, ...]
    problems: Tuple[str, ...] = ()


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
        """The same account, in both."""
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
        """What it had and did not use."""
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
    """The amounts of a period, from pages by node, which may begin before it.

    With ``come_and_go`` a node that is silent at an end of the period was not there then. ``older`` are nodes whose
    ledgers are known to be older than the period. Raises UsageError where two clusters tell of nodes of the same name.
    """
    capacity: Dict[Tuple[int, str], Fraction] = collections.defaultdict(Fraction)
    charges: Dict[Tuple[int, Account], Charge] = collections.defaultdict(Charge)
    unknown: Dict[str, Fraction] = collections.defaultdict(Fraction)
    memory: Dict[str, int] = {}
    nodes = []
    for name, told in sorted(pages.items()):
        ordered = _believed(name, sorted((page for page in told if page.at <= window.end), key=lambda page: page.at))
        if not ordered or ordered[-1].at <= window.start - GAP_SECONDS:
            continue
        found = _Node(name, window, come_and_go, name in older)
        for step in found.steps(ordered):
            part = window.part(step.at)
            for model, seconds in step.capacity.items():
                capacity[part, model] += seconds
            for account, charge in step.charges.items():
                charges[part, account] = charges[part, account].plus(charge)
        for model, seconds in found.unknown.items():
            unknown[model] += seconds
        for page in ordered:
            for model, gpus in page.gpus.items():
                memory[model] = max(memory.get(model, 0), gpus.memory_bytes)
        nodes.append(NodeUsage(name, found.since, found.until, "; ".join(found.remarks)))
    charges = {key: charge for key, charge in charges.items() if any(charge)}
    problems = [*_grouped(nodes), *_overdrawn(capacity, charges)]
    return Usage(window, capacity, charges, unknown, memory, tuple(nodes), tuple(problems))


def rows(found: Usage, policy: str, used_known: Mapping[Account, float], parts: Iterable[int]) -> List[Row]:
    """By model: what each namespace had in these parts of the period, and last what was free.

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
        there, charged = capacity.get(model, Fraction(0)), Fraction(0)
        allocated = sum((charge.gpu_seconds for charge in of_model.values()), Fraction(0))
        for account, charge in of_model.items():
            known = used_known.get(account, 1.0)
            used = charge.busy_seconds if known > 0 else None
            spread = there / allocated if allocated else Fraction(1)
            owed = _owed(policy, charge, used, spread, found.memory_bytes.get(model, 0))
            charged += owed
            yield Row(account, charge.gpu_seconds, used, owed, charge.memory_byte_seconds, known >= _WHOLLY)
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


class _Node:
    """Goes through a node's pages."""

    def __init__(self, name: str, window: Window, come_and_go: bool, older: bool) -> None:
        self.name = name
        self.since: float = window.start
        self.until: float = window.end
        self.remarks: List[str] = []
        self.unknown: Dict[str, Fraction] = collections.defaultdict(Fraction)
        self._window = window
        self._come_and_go = come_and_go
        self._older = older

    def steps(self, pages: Sequence[Page]) -> Iterator[_Step]:
        """From page to page, in order of time; then the rest is known."""
        before = pages[0]
        if before.at > self._window.start:
            # Nobody told of it in the gap before the period, so that no other period has what it counted there.
            if not self._older and began_in(before, self._window):
                yield _begun(before)
            else:
                self._late(before)
        for page in pages[1:]:
            if page.at <= self._window.start:
                before = page
                continue
            if _follows(before, page):
                yield _reconciled(_between(before, page), _slack(before, page))
            elif _begun_between(before, page):
                yield _begun(page)
                self._reset(before, page, page.capacity)
            else:
                self._reset(before, page, {})
            before = page
        if before.at < self._window.end - GAP_SECONDS:
            self._early(before)

    def _late(self, page: Page) -> None:
        self.since = page.at
        if page.at > self._window.start + GAP_SECONDS and not self._come_and_go:
            self.remarks.append(f"nothing is known before {moment(page.at)}")
            self._lost(page, page.at - self._window.start)

    def _early(self, page: Page) -> None:
        self.until = page.at
        if not self._come_and_go:
            self.remarks.append(f"nothing is known after {moment(page.at)}")
            self._lost(page, self._window.end - page.at)

    def _reset(self, before: Page, page: Page, counted: Mapping[str, Fraction]) -> None:
        """Its ledger began anew; of what was since the page before, no more is known."""
        self.remarks.append(
            f"its counters began anew between {moment(before.at)} and {moment(page.at)}, and part of that is lost"
        )
        self._lost(page, page.at - before.at, counted)

    def _lost(self, page: Page, seconds: float, counted: Optional[Mapping[str, Fraction]] = None) -> None:
        for model, gpus in page.gpus.items():
            lost = gpus.number * Fraction(seconds) - (counted or {}).get(model, 0)
            self.unknown[model] += max(lost, Fraction(0))


def began_in(page: Page, window: Window) -> bool:
    """Whether the page's ledger can have counted all of it in the period so far, by the GPUs that there are now."""
    return page.age <= page.at - window.start + GAP_SECONDS


def _follows(before: Page, page: Page) -> bool:
    """Whether both are of one ledger: nothing there was fell, and no more was charged than there was in between."""
    slack = _slack(before, page)
    if any(page.capacity.get(model, 0) + slack < seconds for model, seconds in before.capacity.items()):
        return False
    if page.counted < before.counted:
        return False
    step = _between(before, page)
    free = collections.defaultdict(Fraction, step.capacity)
    for account, charge in step.charges.items():
        free[account.model] -= charge.gpu_seconds
    if any(seconds <= -slack for model, seconds in free.items() if model in page.capacity):
        return False
    return not _fallen(before, page) or page.age >= _FORGETS_SECONDS or not _begun_between(before, page)


def _fallen(before: Page, page: Page) -> Set[Account]:
    """Who has less than before, and so began at nothing in between."""
    slack = _slack(before, page)
    return {
        account
        for account, charge in page.charges.items()
        if charge.gpu_seconds + slack < before.charges.get(account, Charge()).gpu_seconds
    }


def _begun_between(before: Page, page: Page) -> bool:
    """Whether all that the later one counted can have been counted since the other."""
    number = max(before.number, page.number)
    return not number or page.counted <= number * Fraction(page.at - before.at) + page.lag


def _slack(before: Page, page: Page) -> int:
    """GPU-seconds by which two pages of one ledger may disagree."""
    return page.lag if page.source != before.source else _ROUNDED


def _begun(page: Page) -> _Step:
    """All that a ledger counted up to its first page."""
    return _reconciled(_Step(page.at, page.capacity, page.charges), _ROUNDED)


def _reconciled(step: _Step, slack: int) -> _Step:
    """Without what is charged beyond what there was, where it is within ``slack``.

    A ledger that began anew soon after the first page of the one before looks like the same one.
    """
    had: Dict[str, Fraction] = collections.defaultdict(Fraction)
    for account, charge in step.charges.items():
        had[account.model] += charge.gpu_seconds
    scale = {model: there / had[model] for model, there in step.capacity.items() if there < had[model] <= there + slack}
    charges = {
        account: charge._replace(gpu_seconds=charge.gpu_seconds * scale.get(account.model, 1))
        for account, charge in step.charges.items()
    }
    return step._replace(charges=charges)


def _between(before: Page, page: Page) -> _Step:
    capacity = {
        model: max(seconds - before.capacity.get(model, 0), Fraction(0)) for model, seconds in page.capacity.items()
    }
    fallen = _fallen(before, page)
    known = {account: charge for account, charge in before.charges.items() if account not in fallen}
    charges = {account: charge.since(known.get(account, Charge())) for account, charge in page.charges.items()}
    return _Step(page.at, capacity, charges)


def _believed(name: str, pages: Sequence[Page]) -> List[Page]:
    """Without those of a plugin that is behind another of the same node."""
    kept: List[Page] = []
    left: set[str] = set()
    for page in pages:
        before = kept[-1] if kept else page
        if page.source != before.source and before.counted - page.lag <= page.counted < before.counted:
            continue
        if page.source != before.source:
            left.add(before.source)
            if page.source in left and page.counted < before.counted:
                raise UsageError(
                    f"node {name}: {before.source} and {page.source} tell different things of it at the same time; are "
                    f"these two clusters? Name one by prometheus_selector"
                )
        kept.append(page)
    return kept


def _grouped(nodes: Iterable[NodeUsage]) -> Iterator[str]:
    """A sentence for all nodes of which the same is not known."""
    names: Dict[str, List[str]] = {}
    for node in nodes:
        if node.remark:
            names.setdefault(node.remark, []).append(node.name)
    for remark, same in names.items():
        more = f" and {len(same) - _NAMED} more" if len(same) > _NAMED else ""
        yield f"node{'s' if len(same) > 1 else ''} {', '.join(same[:_NAMED])}{more}: {remark}"


_NAMED = 5


def _overdrawn(
    capacity: Mapping[Tuple[int, str], Fraction], charges: Mapping[Tuple[int, Account], Charge]
) -> Iterator[str]:
    """Models of which more was charged than there was, by more than what floating point leaves."""
    there: Dict[str, Fraction] = collections.defaultdict(Fraction)
    had: Dict[str, Fraction] = collections.defaultdict(Fraction)
    for (_at, model), seconds in capacity.items():
        there[model] += seconds
    for (_at, account), charge in charges.items():
        had[account.model] += charge.gpu_seconds
    for model, seconds in sorted(had.items()):
        if seconds > there[model] + 1 + there[model] / 10**6:
            yield (
                f"{model}: {float(seconds / 3600):.3f} GPU-hours are charged and {float(there[model] / 3600):.3f} were "
                f"there; is accel_node_gpu_seconds_total of some node not scraped?"
            )


def window(start: int, end: int) -> Window:
    """A period in days of UTC; in hours where it is two days at most, and in minutes in a quarter of an hour."""
    unit = 60 if end - start <= 900 else 3600 if end - start <= 2 * 86400 else 86400
    inside = range(start - start % unit + unit, end, unit)
    return Window((start, *inside, end))


def moment(at: float) -> str:
    """As people and machines read it, in UTC."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(at))
