# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a ledger counted from one of its pages to the next, and whether two pages are of one ledger.

Counters are believed as far as a node's GPUs can have given it: nothing is counted beyond GPUs times time and a lag,
and no namespace is charged beyond what is counted.
"""

from __future__ import annotations

import collections
from dataclasses import replace
from fractions import Fraction
from typing import (
    Callable,
    Dict,
    Mapping,
    NamedTuple,
    Set,
    Tuple,
)

from .counters import GAP_SECONDS, LAG_SECONDS, Account, Charge, Gpus, Page, Window

LEDGER_LAG_SECONDS = 300
"""The same between pages that name one ledger: the longest that plugins take from one collection to the next."""

_FORGETS_SECONDS = 90 * 86400
"""For how long a ledger keeps what a namespace had that has nothing; who comes back begins at nothing."""

ROUNDED = 1
"""GPU-seconds by which sums of counters may be apart."""

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


class Step(NamedTuple):
    """What was counted from one page to the next."""

    at: float
    capacity: Mapping[str, Fraction]
    charges: Mapping[Account, Charge]


class Allowance:
    """What a node's GPUs can have given since its ledger was met, less what the ledger counted since."""

    def __init__(self) -> None:
        self._left: Dict[Tuple[str, ...], Fraction] = {}
        """By model, and under no model of all GPUs."""

    def takes(self, capacity: Mapping[str, Fraction], numbers: Mapping[str, int], seconds: Fraction, lag: int) -> bool:
        """Return whether so many GPUs can give this in this time plus ``lag`` seconds; if they can, take it.

        Where no GPU is reported, there is at least one of each model.
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


def seconds_between(start: float, end: float) -> Fraction:
    """Return the exact seconds from one moment to another."""
    return Fraction(end) - Fraction(start)


def began_in(page: Page, window: Window) -> bool:
    """Return whether the page's ledger can have counted all within the period, by the GPUs that there are now."""
    return page.age <= page.at - window.start + GAP_SECONDS


def follows(before: Page, page: Page) -> bool:
    """Return whether both are of one ledger whose count in between is no more than the GPUs of both can have given."""
    step = counted_between(before, page)
    return not why_parted(before, page, step) and can_be_since(before, page, step, lag_between(before, page))


def stalled(before: Page, page: Page) -> bool:
    """Return whether less was counted in between than the GPUs of both give in that time."""
    number, seconds = min(before.number, page.number), seconds_between(before.at, page.at)
    return page.counted - before.counted + page.lag < number * seconds


def can_be_since(before: Page, page: Page, step: Step, lag: int) -> bool:
    """Return whether the GPUs of both can have given in between what the step counted."""
    return Allowance().takes(step.capacity, most_gpus(before.gpus, page.gpus), seconds_between(before.at, page.at), lag)


def why_parted(before: Page, page: Page, step: Step) -> str:
    """Return why both are not of one ledger; empty where they are, as far as can be seen.

    They are not where something that was there fell, or more was charged than there was in between.
    """
    if is_other_ledger(before, page):
        return REPLACED
    slack = slack_between(before, page)
    if any(page.capacity.get(model, 0) + slack < seconds for model, seconds in before.capacity.items()):
        return ANEW
    if page.counted < before.counted:
        return ANEW
    if not is_backed(step, slack):
        return ANEW
    if not _fallen(before, page) or page.age >= _FORGETS_SECONDS:
        return ""
    return ANEW if can_be_since(before, page, since_begin(page), LAG_SECONDS) else ""


def is_other_ledger(before: Page, page: Page) -> bool:
    """Return whether both name their ledgers, and these are two."""
    return bool(before.ledger and page.ledger and before.ledger != page.ledger)


def most_gpus(before: Mapping[str, Gpus], after: Mapping[str, Gpus]) -> Dict[str, int]:
    """Return the most GPUs there were of each model, and of all under an empty name; empty where there were none."""
    sides = [{model: gpus.number for model, gpus in side.items()} for side in (before, after)]
    most = {model: max(side.get(model, 0) for side in sides) for side in sides for model in side}
    return {**most, "": max(sum(side.values()) for side in sides)} if most else {}


def lag_between(before: Page, page: Page) -> int:
    """Return by how many seconds pages of one ledger may be off from their own time."""
    return LEDGER_LAG_SECONDS if page.ledger and page.ledger == before.ledger else LAG_SECONDS


def _fallen(before: Page, page: Page) -> Set[Account]:
    """Return the accounts that have less than before: they began at nothing in between."""
    slack = slack_between(before, page)
    return {
        account
        for account, charge in page.charges.items()
        if charge.gpu_seconds + slack < before.charges.get(account, Charge()).gpu_seconds
    }


def slack_between(before: Page, page: Page) -> int:
    """Return the GPU-seconds by which two pages of one ledger may disagree."""
    return page.lag if page.source != before.source else ROUNDED


def since_begin(page: Page) -> Step:
    """Return all that a ledger counted up to its first page."""
    return Step(page.at, page.capacity, page.charges)


def empty_page(page: Page) -> Page:
    """Return the page of its ledger when that began."""
    return Page(page.at - page.age, page.source, {}, ledger=page.ledger)


def charged_beyond(step: Step, slack: int) -> Dict[str, Fraction]:
    """Return what is charged of models beyond what there was, where it is more than ``slack``.

    A ledger that began again soon after the first page of the one before looks like the same one.
    """
    had = _had(step, lambda charge: charge.gpu_seconds)
    beyond = {model: seconds - step.capacity.get(model, 0) for model, seconds in had.items()}
    return {
        model: seconds
        for model, seconds in beyond.items()
        if seconds >= slack or (seconds > 0 and model not in step.capacity)
    }


def is_backed(step: Step, slack: int) -> bool:
    """Return whether the charge of each model is at most what its GPUs gave."""
    return not any(model in step.capacity for model in charged_beyond(step, slack))


def fitted(step: Step, gpus: Mapping[str, Gpus]) -> Step:
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


def _had(step: Step, amount: Callable[[Charge], Fraction]) -> Dict[str, Fraction]:
    """Return what all accounts have together, by model."""
    had: Dict[str, Fraction] = collections.defaultdict(Fraction)
    for account, charge in step.charges.items():
        had[account.model] += amount(charge)
    return had


def _scales(step: Step, amount: Callable[[Charge], Fraction], there: Mapping[str, Fraction]) -> Dict[str, Fraction]:
    """Return, by model, the factor that brings amounts down to what there was, where they are more."""
    had = _had(step, amount)
    return {
        model: most / had[model] if had.get(model, Fraction(0)) > most else Fraction(1) for model, most in there.items()
    }


def counted_between(before: Page, page: Page) -> Step:
    """Return what was counted from one page to the next of the same ledger."""
    capacity = {
        model: max(seconds - before.capacity.get(model, 0), Fraction(0)) for model, seconds in page.capacity.items()
    }
    fallen = _fallen(before, page)
    known = {account: charge for account, charge in before.charges.items() if account not in fallen}
    charges = {account: charge.since(known.get(account, Charge())) for account, charge in page.charges.items()}
    return Step(page.at, capacity, charges)


def carried(before: Page, page: Page) -> Page:
    """Return the page with accounts of before that it lacks: a ledger goes on with them when they come back."""
    missing = {account: charge for account, charge in before.charges.items() if account not in page.charges}
    return replace(page, charges={**missing, **page.charges}) if missing else page
