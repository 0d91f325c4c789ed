# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What namespaces had of GPUs in a period, from pages of the counters that plugins keep. Pure, and exact: fractions.

A page is what one plugin told at one time, all of it of the same moment. A period's amounts are the difference of two
pages, the last ones before its ends: nothing is extrapolated, and what one period leaves is in the next. The counters
count while they are not read, so that pages that are missing in between take nothing away.

Counters are believed as far as a node's GPUs can have given it: nothing is counted beyond GPUs times time and a lag,
and no namespace is charged beyond what is counted. The rest is unknown, by cause.
"""

from __future__ import annotations

import collections
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Collection, Dict, Iterable, Iterator, List, Mapping, Sequence, Set, Tuple

from .counters import GAP_SECONDS, Account, Charge, Page, Window
from .node_usage import NAMED, Node, Sources
from .nodes import believable, one_a_ledger, shared_places


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
    """A period's amounts, in GPU-seconds; what was free is the capacity that no pod had."""

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


def usage(
    pages: Mapping[str, Sequence[Page]],
    window: Window,
    come_and_go: bool = False,
    older: Collection[str] = frozenset(),
) -> Usage:
    """Return the amounts of a period, from pages by node, which may begin before it.

    With ``come_and_go`` a node that is silent at an end of the period was not there then. ``older`` are nodes whose
    ledgers are known to be older than the period. Nodes that report one ledger are one node with several names.
    """
    capacity: Dict[Tuple[int, str], Fraction] = collections.defaultdict(Fraction)
    charges: Dict[Tuple[int, Account], Charge] = collections.defaultdict(Charge)
    causes: Dict[Tuple[str, str], Fraction] = collections.defaultdict(Fraction)
    unknown: Dict[str, Fraction] = collections.defaultdict(Fraction)
    memory: Dict[str, int] = {}
    nodes = []
    of_nodes: Dict[str, List[Page]] = {}
    older_nodes: Set[str] = set()
    for names, told in one_a_ledger(pages, window.end):
        if told and told[-1].at > window.start - GAP_SECONDS:
            of_nodes[names[0]] = told
            older_nodes.update(names[:1] if not set(names).isdisjoint(older) else ())
    believed = {name: believable(told) for name, told in of_nodes.items()}
    places = shared_places(believed)
    for name, ordered in sorted(believed.items()):
        found = Node(name, window, come_and_go, name in older_nodes, places, Sources(of_nodes[name]))
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


def _grouped(nodes: Iterable[NodeUsage]) -> Iterator[str]:
    """Yield a sentence for all nodes of which the same is not known."""
    names: Dict[str, List[str]] = {}
    for node in nodes:
        if node.remark:
            names.setdefault(node.remark, []).append(node.name)
    for remark, same in names.items():
        more = f" and {len(same) - NAMED} more" if len(same) > NAMED else ""
        yield f"node{'s' if len(same) > 1 else ''} {', '.join(same[:NAMED])}{more}: {remark}"
