# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Who is charged for what, by a policy, and who had it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from typing import (
    Dict,
    Iterable,
    Iterator,
    List,
    Mapping,
    Optional,
    Sequence,
)

from .accounting import Usage
from .counters import Account, Charge

ALLOCATED, USED, MEMORY, SPREAD = "allocated", "used", "memory", "spread"
POLICIES = (ALLOCATED, USED, MEMORY, SPREAD)


@dataclass(frozen=True)
class Row:
    """What one account had, in seconds; without a namespace: what was free of a model."""

    account: Account
    allocated: Fraction
    used: Optional[Fraction]
    """None where it is not known."""
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
        """Return whether it is what no namespace had."""
        return not self.account.namespace


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
