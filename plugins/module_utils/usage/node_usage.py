# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What one node's GPUs gave in a period, and what of that is not known, by cause."""

from __future__ import annotations

import collections
from fractions import Fraction
from typing import Dict, Iterable, Iterator, List, Mapping, Sequence, Set, Tuple

from .counters import GAP_SECONDS, LAG_SECONDS, Page, Window, moment
from .ledgers import (
    ANEW,
    BEYOND,
    DISAGREE,
    NO_CAPACITY,
    NO_GPUS,
    REPLACED,
    ROUNDED,
    SILENT,
    TWO_NODES,
    Allowance,
    Step,
    began_in,
    carried,
    charged_beyond,
    counted_between,
    empty_page,
    fitted,
    is_backed,
    lag_between,
    most_gpus,
    seconds_between,
    since_begin,
    slack_between,
    why_parted,
)
from .nodes import claimed_gpus
from .places import Places

_REMARKS = {
    ANEW: "its counters were reset {when}, and part of that time is lost",
    REPLACED: "its ledger was replaced by another {when}, and part of that time is lost",
    BEYOND: (
        "its counters grew by more than its GPUs can have given {when}, and nothing of that is counted. Did another "
        "machine take its name, or are these two clusters? Name one by prometheus_selector"
    ),
    DISAGREE: (
        "two plugins report different values of it {when}, and nothing of that is counted: {who}. Are these two "
        "clusters? Name one by prometheus_selector"
    ),
    TWO_NODES: (
        "it has GPUs that another node has at the same time {when}, and nothing of that is counted: {who}. Is this "
        "one machine with two names, or are these two clusters? Name one by prometheus_selector"
    ),
    NO_GPUS: "it does not report which GPUs it has {when}, and nothing of that is counted; is accel_gpu_info scraped?",
    NO_CAPACITY: (
        "it charges for GPUs but does not report their time {when}, and no namespace is charged; is "
        "accel_node_gpu_seconds_total scraped?"
    ),
}


class Sources:
    """The times from when to when each plugin reported a node."""

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


class Node:
    """The way through a node's pages in a period, and what was found not to be known."""

    def __init__(
        self, name: str, window: Window, come_and_go: bool, older: bool, places: Places, sources: Sources
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
        self._allowance = Allowance()
        self._before = self._after = ""
        self._lost_between: Dict[str, List[Tuple[float, float]]] = {}
        """By cause."""
        self._who: Dict[str, Set[str]] = collections.defaultdict(set)
        """By cause, which other node reports it."""

    @property
    def remarks(self) -> List[str]:
        """Return what is not known of the usage, a sentence each."""
        made = [self._before]
        for cause, times in self._lost_between.items():
            who = " and ".join(sorted(self._who[cause])[:NAMED])
            if len(times) > NAMED:
                whole = f"{len(times)} times between {moment(times[0][0])} and {moment(times[-1][1])}"
                made.append(_REMARKS[cause].format(when=whole, who=who))
            else:
                whens = (f"between {moment(start)} and {moment(end)}" for start, end in times)
                made += [_REMARKS[cause].format(when=when, who=who) for when in whens]
        return [remark for remark in (*made, self._after) if remark]

    def steps(self, pages: Sequence[Page]) -> Iterator[Step]:
        """Yield the steps from page to page, in order of time; then the rest is known."""
        before = pages[0]
        if before.at > self._window.start:
            # No plugin reported it in the gap before the period, so that no other period has what it counted there.
            step = since_begin(before)
            if not self._older and began_in(before, self._window) and is_backed(step, ROUNDED):
                yield from self._counted(step, empty_page(before), before, ROUNDED, LAG_SECONDS)
            else:
                self._late(before)
        for page in pages[1:]:
            parted = why_parted(before, page, counted_between(before, page))
            if page.at > self._window.start:
                yield from self._step(before, page, parted)
            before = page if parted else carried(before, page)
        if before.at < self._window.end - GAP_SECONDS:
            self._early(before)

    def _step(self, before: Page, page: Page, parted: str) -> Iterator[Step]:
        if not parted:
            between, slack, lag = counted_between(before, page), slack_between(before, page), lag_between(before, page)
            yield from self._counted(between, before, page, slack, lag)
            return
        self._allowance.restart()
        step, seconds = since_begin(page), seconds_between(before.at, page.at)
        lost = parted, _rest(page, seconds, {})
        if self._elsewhere(before, page):
            lost = TWO_NODES, self._alone(before.at, page.at, page, before=True)
        elif self._sources.at_once(before, page):
            lost = self._differ(before, page), lost[1]
        elif not charged_beyond(step, ROUNDED) and self._takes(step, before, page, LAG_SECONDS):
            lost = parted, _rest(page, seconds, step.capacity)
            yield fitted(step, page.gpus)
        self._lost(lost[0], before.at, page, lost[1])

    def _counted(self, step: Step, before: Page, page: Page, slack: int, lag: int) -> Iterator[Step]:
        """Yield what one ledger counted in between, as far as it can be so."""
        numbers, seconds = most_gpus(before.gpus, page.gpus), seconds_between(before.at, page.at)
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
        unbacked = charged_beyond(step, slack)
        if unbacked:
            self._lost(NO_CAPACITY, before.at, page, _at_most(unbacked, numbers, seconds))
        yield fitted(step, page.gpus)

    def _takes(self, step: Step, before: Page, page: Page, lag: int) -> bool:
        numbers, seconds = most_gpus(before.gpus, page.gpus), seconds_between(before.at, page.at)
        return self._allowance.takes(step.capacity, numbers, seconds, lag)

    def _differ(self, before: Page, page: Page) -> str:
        self._who[DISAGREE] |= {before.source, page.source}
        return DISAGREE

    def _elsewhere(self, before: Page, page: Page) -> bool:
        """Return whether another node counts GPUs that this one counted in between."""
        claimed = claimed_gpus(before, page, self._places.shared)
        others = self._places.others(self.name, claimed, before.at, page.at)
        self._who[TWO_NODES] |= others
        return bool(others)

    def _alone(self, start: float, end: float, page: Page, before: bool = False) -> Dict[str, Fraction]:
        """Return what the page's GPUs would have given in this time, but for those that another node counts then."""
        there = _rest(page, seconds_between(start, end), {})
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


def _rest(page: Page, seconds: Fraction, counted: Mapping[str, Fraction]) -> Dict[str, Fraction]:
    """Return what the page's GPUs would have given in this time, without what was counted."""
    there = {model: gpus.number * seconds for model, gpus in page.gpus.items()}
    return {model: max(whole - counted.get(model, 0), Fraction(0)) for model, whole in there.items()}


def _at_most(told: Mapping[str, Fraction], numbers: Mapping[str, int], seconds: Fraction) -> Dict[str, Fraction]:
    """Return amounts of models, at most what their GPUs can give; a model without reported GPUs has one."""
    return {model: min(more, seconds * max(1, numbers.get(model, 0))) for model, more in told.items() if more}


NAMED = 5
