# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which nodes count a GPU at the same time. Pure.

A GPU is of one node at a time. Nodes that report the same one at the same time are two names of one machine.
"""

from __future__ import annotations

import bisect
import re
from fractions import Fraction
from typing import Collection, Dict, Iterable, Iterator, List, NamedTuple, Set, Tuple

_UNIQUE = re.compile(r"GPU-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.ASCII | re.IGNORECASE)


def unique(uuid: str) -> bool:
    """Return whether it is a UUID as drivers give them, which no other GPU has."""
    return _UNIQUE.fullmatch(uuid) is not None


class Claim(NamedTuple):
    """A node counts a GPU for a time."""

    uuid: str
    node: str
    start: float
    end: float


class Places:
    """Where GPUs were that several nodes report. Times are seconds since 1970."""

    def __init__(self, shared: Set[str], claims: Iterable[Claim]) -> None:
        self.shared = shared
        """GPUs that several nodes report at any time."""
        self._spans: Dict[str, Dict[str, List[List[float]]]] = {}
        """By GPU and node, in order of time; those that meet are one."""
        for claim in sorted(claims):
            spans = self._spans.setdefault(claim.uuid, {}).setdefault(claim.node, [])
            if spans and claim.start <= spans[-1][1]:
                spans[-1][1] = max(spans[-1][1], claim.end)
            else:
                spans.append([claim.start, claim.end])

    def others(self, node: str, uuids: Collection[str], start: float, end: float) -> Set[str]:
        """Return the nodes that count one of these GPUs too, in a part of this time."""
        return {overlap[2] for uuid in uuids for overlap in self._overlaps(node, uuid, start, end)}

    def elsewhere(self, node: str, uuid: str, start: float, end: float, before: bool = False) -> Fraction:
        """Return for how much of this time another node counts the GPU; with ``before`` one whose name comes before."""
        met, seen = Fraction(0), start
        for since, until, other in sorted(self._overlaps(node, uuid, start, end)):
            if not before or other < node:
                met += max(Fraction(until) - Fraction(max(seen, since)), Fraction(0))
                seen = max(seen, until)
        return met

    def _overlaps(self, node: str, uuid: str, start: float, end: float) -> Iterator[Tuple[float, float, str]]:
        """Yield from when to when each other node counts it."""
        for other, spans in self._spans.get(uuid, {}).items():
            if other == node:
                continue
            first = bisect.bisect_right([span[1] for span in spans], start)
            for since, until in spans[first:]:
                if since >= end:
                    break
                yield max(since, start), min(until, end), other
