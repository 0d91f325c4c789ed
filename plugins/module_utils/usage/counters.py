# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What plugins count of GPUs, in pages: what one plugin reported at one time, all of it of the same moment."""

from __future__ import annotations

import bisect
import operator
import time
from dataclasses import dataclass, field
from fractions import Fraction
from typing import (
    FrozenSet,
    Mapping,
    NamedTuple,
    Tuple,
)

GAP_SECONDS = 300
"""A node is silent when nothing was reported for longer."""

LAG_SECONDS = 60
"""A page may be older than its time by this: its numbers were collected before they were asked for."""


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
        """Return the sum of two charges."""
        return Charge(*map(operator.add, self, other))

    def since(self, other: Charge) -> Charge:
        """Return the charge since an earlier one. An amount that is smaller now counts as zero."""
        return Charge(*(max(grown, Fraction(0)) for grown in map(operator.sub, self, other)))


class Gpus(NamedTuple):
    """The GPUs of a model that a node has."""

    number: int
    memory_bytes: int
    """The memory of one GPU; 0 where it is not known."""


@dataclass(frozen=True)
class Page:
    """What a node's plugin reported."""

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
    """Which ledger it was; empty where the plugin does not report it."""
    uuids: Mapping[str, str] = field(default_factory=dict)
    """Models by UUID, of GPUs with a UUID that no other has."""
    told: Mapping[Account, FrozenSet[str]] = field(default_factory=dict, compare=False)
    """Which families it reports for accounts; all of them for an account that is not there."""

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


def window(start: int, end: int) -> Window:
    """Return a period in days of UTC; in hours where it is two days at most, and in minutes in a quarter of an hour."""
    unit = 60 if end - start <= 900 else 3600 if end - start <= 2 * 86400 else 86400
    inside = range(start - start % unit + unit, end, unit)
    return Window((start, *inside, end))


def moment(at: float) -> str:
    """Return a time as people and machines read it, in UTC."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(at))
