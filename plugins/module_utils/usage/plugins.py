# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A report where there is no Prometheus: from what plugins report now and what was kept of them earlier. Pure."""

from __future__ import annotations

import collections
from typing import Dict, Iterable, List, Mapping, Optional, Sequence

from .counters import Account, Page, Window
from .pages import ALLOCATED_GPUS, BUSY, INFO, PEAK, REQUEST, SIZE, UTILIZATION, Place, Sample, number, own, place
from .sizing import Holding


def period(told: Mapping[str, Page], kept: Optional[Mapping[str, Page]], at: float) -> Window:
    """Return the window from when pages were kept, or the first ledger began, until now."""
    if kept:
        start = max(page.at for page in kept.values())
    else:
        start = max(0.0, min((page.at - page.age for page in told.values()), default=at))
    return Window((start, max(start, at)))


def together(told: Mapping[str, Page], kept: Optional[Mapping[str, Page]]) -> Dict[str, List[Page]]:
    """Return, by node, the pages that were kept and those of now."""
    found: Dict[str, List[Page]] = {}
    for pages in (kept or {}, told):
        for node, page in pages.items():
            found.setdefault(node, []).append(page)
    return found


def to_keep(told: Mapping[str, Page], kept: Optional[Mapping[str, Page]]) -> Dict[str, Page]:
    """Return the pages for the next report. A silent node's time is counted when it answers again."""
    return {**(kept or {}), **told}


def used_known(samples: Sequence[Sample]) -> Dict[Account, float]:
    """Returns how many of an account's present containers have a known use, where the account used nothing."""
    used = {
        Account(own(sample.labels, "namespace"), sample.labels.get("mode", ""), sample.labels.get("model", ""))
        for sample in samples
        if sample.name == BUSY and number(sample.value)
    }
    models = {
        sample.labels.get("uuid", ""): sample.labels.get("model", "") for sample in samples if sample.name == INFO
    }
    places = {name: set(_by_place(samples, name)) for name in (ALLOCATED_GPUS, UTILIZATION)}
    counts: Dict[Account, List[int]] = collections.defaultdict(lambda: [0, 0])
    for where in places[ALLOCATED_GPUS]:
        count = counts[Account(where.namespace, where.mode, models.get(where.uuid, ""))]
        count[0] += 1
        count[1] += where in places[UTILIZATION]
    return {payer: known / there for payer, (there, known) in counts.items() if payer not in used}


def holdings(samples: Sequence[Sample]) -> List[Holding]:
    """Return what containers of now asked for of GPUs' memory, and the most they used since they got it."""
    asked, peaks = _by_place(samples, REQUEST), _by_place(samples, PEAK)
    sizes = {
        sample.labels.get("uuid", ""): float(number(sample.value) or 0) for sample in samples if sample.name == SIZE
    }
    return [
        Holding(
            where,
            asked.get(where, share * sizes.get(where.uuid, 0.0)),
            peaks.get(where),
            None,
            whole=where not in asked,
        )
        for where, share in sorted(_by_place(samples, ALLOCATED_GPUS).items())
    ]


def _by_place(samples: Iterable[Sample], name: str) -> Dict[Place, float]:
    found = {}
    for sample in samples:
        value = number(sample.value)
        if sample.name == name and value is not None:
            found[place(sample.labels)] = float(value)
    return found
