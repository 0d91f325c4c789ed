# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which pods asked for more of a GPU's memory than they ever used, and how much is enough. Pure."""

from __future__ import annotations

import collections
import math
from dataclasses import dataclass
from typing import Dict, Iterable, List, NamedTuple, Optional, Tuple

from ..shared.modes import BY_MODE, GIB
from .pages import Place

HEADROOM = 1.2
"""What is advised, of the peak."""


class Holding(NamedTuple):
    """What a container had of a GPU."""

    place: Place
    asked_bytes: float
    peak_bytes: Optional[float]
    """None where it is not known."""
    seconds: Optional[float]
    """For how long it was seen; None where it is not known."""
    whole: bool
    """It did not ask for memory, but for a GPU or a part of it as such."""
    until: float = 0.0
    """When it was seen last, in seconds since 1970; 0 where it is not known."""


@dataclass(frozen=True)
class Oversized:
    """A pod that asked for more than it used."""

    namespace: str
    pod: str
    mode: str
    asked_bytes: int
    peak_bytes: int
    seconds: Optional[float]
    advice: str


def oversized(holdings: Iterable[Holding], ratio: float, seconds: float) -> Tuple[List[Oversized], int]:
    """Pods whose peak was below ``ratio`` of what they asked for, those that waste most first; and of how many pods it
    is not known. Pods that were there for less than ``seconds`` are in neither.
    """
    pods: Dict[Tuple[str, str, str], List[Holding]] = collections.defaultdict(list)
    for holding in holdings:
        pods[holding.place.namespace, holding.place.pod, holding.place.mode].append(holding)
    found, unknown = [], 0
    for (namespace, pod, mode), held in pods.items():
        times = [holding.seconds for holding in held if holding.seconds is not None]
        seen = max(times, default=None)
        if seen is not None and seen < seconds:
            continue
        parts = _at_the_end(held)
        asked = int(sum(holding.asked_bytes for holding, peak in parts))
        used = sum(peak for holding, peak in parts)
        if not asked or any(holding.peak_bytes is None for holding, peak in parts):
            unknown += 1
        elif used < ratio * asked:
            found.append(Oversized(namespace, pod, mode, asked, used, seen, _advice(mode, parts)))
    found.sort(key=lambda pod: (pod.peak_bytes - pod.asked_bytes, pod.namespace, pod.pod))
    return found, unknown


def _at_the_end(held: List[Holding]) -> List[Tuple[Holding, int]]:
    """Return what a pod had last, with peaks. A container's are the largest that it had on any GPU: a pod that restarts
    elsewhere asks for no more, and what it needs may be what it used before.
    """
    last = max(holding.until for holding in held)
    peaks: Dict[str, List[float]] = collections.defaultdict(list)
    for holding in held:
        peaks[holding.place.container].append(holding.peak_bytes or 0)
    for of_container in peaks.values():
        of_container.sort()
    return [(holding, int(peaks[holding.place.container].pop())) for holding in held if holding.until == last]


def _advice(mode: str, parts: List[Tuple[Holding, int]]) -> str:
    """Return what the pod can ask for instead, from the part that used most."""
    peaks = [peak for holding, peak in parts]
    most = max(peaks)
    if not most:
        return "No memory was used. Delete the pod, or start it only when it is needed."
    enough = HEADROOM * most
    if any(holding.whole for holding, peak in parts) or mode not in BY_MODE:
        spare = peaks.count(0)
        unused = f"{spare} of {len(parts)} GPUs were not used. " if spare else ""
        return f"{unused}Ask for a share of {math.ceil(enough / GIB)} GiB of one GPU, or a MIG device of that size."
    _cores, resource, unit = BY_MODE[mode]
    return f"Ask for {resource}: {math.ceil(enough / unit)} ({math.ceil(enough / unit) * unit / GIB:g} GiB)."
