# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which pages are believed, which node they are of, and which GPUs several nodes report."""

from __future__ import annotations

import collections
from dataclasses import replace
from typing import Dict, Iterable, Iterator, List, Mapping, Sequence, Set, Tuple

from .counters import GAP_SECONDS, Page
from .ledgers import counted_between, empty_page, is_other_ledger, most_gpus, seconds_between, since_begin, why_parted
from .places import Claim, Places

_SOON = 86400
"""For as long a series may be missing that is one of a ledger all the same."""


def one_a_ledger(pages: Mapping[str, Iterable[Page]], end: float) -> List[Tuple[List[str], List[Page]]]:
    """Return the pages up to the end in order of time, with the names that their node had, the last one first.

    A ledger is one node's. Where several report it, something renamed the node in its report.
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


def believable(pages: Sequence[Page]) -> List[Page]:
    """Return the pages but for those of a plugin that is behind another, and those that lack what comes soon again.

    While a driver is down a plugin reports no GPUs, and counts that time later: it has those it had.
    """
    last_of = {page.source: page.at for page in pages}
    kept: List[Page] = []
    for place, page in enumerate(pages):
        before = kept[-1] if kept else page
        if page.source != before.source and page.counted < before.counted and not is_other_ledger(before, page):
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
    if not (models or accounts) or more or not fits or is_other_ledger(before, page):
        return False
    for after in later:
        if after.at > page.at + _SOON or is_other_ledger(before, after):
            break
        if any(after.capacity.get(model, -1) >= before.capacity[model] for model in models):
            return True
        back = accounts.intersection(after.charges)
        if any(after.charges[account].gpu_seconds >= before.charges[account].gpu_seconds for account in back):
            return True
        models -= after.capacity.keys()
        accounts -= back
    return False


def shared_places(pages: Mapping[str, Sequence[Page]]) -> Places:
    """Return where GPUs are that several nodes report."""
    nodes: Dict[str, Set[str]] = collections.defaultdict(set)
    for name, told in pages.items():
        for page in told:
            for uuid in page.uuids:
                nodes[uuid].add(name)
    shared = {uuid for uuid, names in nodes.items() if len(names) > 1}
    return Places(shared, _claims(pages, shared))


def _claims(pages: Mapping[str, Sequence[Page]], shared: Set[str]) -> Iterator[Claim]:
    for name in {name for name, told in pages.items() if any(not shared.isdisjoint(page.uuids) for page in told)}:
        before = empty_page(pages[name][0])
        for page in pages[name]:
            yield from (Claim(uuid, name, before.at, page.at) for uuid in claimed_gpus(before, page, shared))
            before = page


def claimed_gpus(before: Page, page: Page, shared: Set[str]) -> Set[str]:
    """Return the GPUs among these that the node has counted in between.

    Nodes that are silent for long may have lost them, unless they counted more than all others can have given.
    """
    mine = {uuid: model for uuid, model in {**before.uuids, **page.uuids}.items() if uuid in shared}
    if not mine:
        return set()
    if not before.capacity:
        return set(mine)
    if before.uuids and page.at - before.at <= GAP_SECONDS:
        return {uuid for uuid in mine if uuid in before.uuids and uuid in page.uuids}
    between = counted_between(before, page)
    step = since_begin(page) if why_parted(before, page, between) else between
    numbers, of_models = most_gpus(before.gpus, page.gpus), collections.Counter(mine.values())
    others = {model: numbers.get(model, 0) - number for model, number in of_models.items()}
    seconds = seconds_between(before.at, page.at)
    grown = {model for model, number in others.items() if step.capacity.get(model, 0) > number * seconds + page.lag}
    return {uuid for uuid, model in mine.items() if model in grown}
