# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A report of what namespaces had of GPUs: as data, table and CSV. Pure.

Figures are rounded so that the rows that are shown come to the totals that are shown.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, Callable, Dict, Iterable, List, Mapping, Optional, Sequence, Tuple

from ..shared import printable
from ..shared.columns import columns
from .accounting import Usage
from .charging import ALLOCATED, MEMORY, SPREAD, USED, Row, apportioned, rows
from .counters import GAP_SECONDS, Account, moment
from .sizing import Oversized

VERSION = 1
_GIB = 1 << 30
_HOUR = 3600
_EXACT, _SHOWN, _MONEY = 6, 3, 2
"""Decimals of GPU-hours as data and for people, and of money."""

POLICY_WORDS = {
    ALLOCATED: "what was allocated: the larger of the parts of cores and memory",
    USED: "what was used; where that is not known, what was allocated",
    MEMORY: "the part of the GPU's memory that was allocated",
    SPREAD: "what was allocated, and what was free in proportion to it",
}
CSV_COLUMNS = (
    "start",
    "end",
    "kind",
    "namespace",
    "mode",
    "model",
    "gpu_hours",
    "used_gpu_hours",
    "used_complete",
    "idle_gpu_hours",
    "memory_gib_hours",
    "charged_gpu_hours",
    "cost",
    "cause",
    "currency",
)
"""One row a part of the period, namespace, mode and model; ``kind`` is ``allocated``, ``free`` or ``unknown``.

What is unknown has a row a model and cause, of the whole period. With a label for organizational units there is a
last column, ``unit``.
"""


@dataclass(frozen=True)
class Report:
    """All that is reported."""

    usage: Usage
    source: str
    """Where it is from, in words."""
    policy: str = ALLOCATED
    prices: Mapping[str, Fraction] = field(default_factory=dict)
    """The price of a GPU-hour, by model."""
    currency: str = ""
    used_known: Mapping[Account, float] = field(default_factory=dict)
    oversized: Tuple[Oversized, ...] = ()
    unknown_pods: int = 0
    """How many pods have an unknown use."""
    ratio: float = 0.3
    """The ratio of the memory they asked for that oversized pods stayed below."""
    problems: Tuple[str, ...] = ()
    """What is not known, one sentence each."""
    notes: Tuple[str, ...] = ()
    unit_label: str = ""
    """The label of namespaces by which they are summed up; empty for no such sums."""
    units: Mapping[str, str] = field(default_factory=dict)
    """Values of that label, by namespace."""

    @property
    def complete(self) -> bool:
        """Return whether nothing is unknown."""
        return not self.problems

    @property
    def parts(self) -> range:
        """Return the numbers of the period's parts."""
        return range(len(self.usage.window.edges) - 1)


@dataclass(frozen=True)
class Figures:
    """A row in hours, as it is shown. None: not known, or no price."""

    account: Account
    allocated: Fraction
    """What was free, in a row without a namespace."""
    used: Optional[Fraction]
    idle: Optional[Fraction]
    memory: Fraction
    charged: Fraction
    price: Optional[Fraction]
    cost: Optional[Fraction]
    used_complete: bool

    @property
    def free(self) -> bool:
        """Return whether it is what no namespace had."""
        return not self.account.namespace


def figures(
    report: Report, places: int = _EXACT, parts: Optional[Iterable[int]] = None, money: int = _MONEY
) -> List[Figures]:
    """Return, by model, namespace and mode, and last what was free, the figures of these parts or of all.

    ``places`` are decimals of hours, ``money`` those of costs.
    """
    found = rows(report.usage, report.policy, report.used_known, report.parts if parts is None else parts)
    made: List[Figures] = []
    for model in dict.fromkeys(row.account.model for row in found):
        of_model = [row for row in found if row.account.model == model]
        made += _figures(of_model, report.prices.get(model), places, money)
    return made


def _figures(found: Sequence[Row], price: Optional[Fraction], places: int, money: int) -> List[Figures]:
    def hours(amount: Callable[[Row], Fraction], unit: int = 1) -> List[Fraction]:
        return apportioned([amount(row) / _HOUR / unit for row in found], places)

    allocated, charged = hours(lambda row: row.allocated), hours(lambda row: row.charged)
    used, memory = hours(lambda row: row.used or Fraction(0)), hours(lambda row: row.memory_byte_seconds, _GIB)
    costs: List[Optional[Fraction]] = [None] * len(found)
    if price is not None:
        costs = list(apportioned([row.charged / _HOUR * price for row in found], money))
    made = []
    for index, row in enumerate(found):
        known = None if row.used is None else used[index]
        idle = None if known is None or row.free else max(allocated[index] - known, Fraction(0))
        amounts = (allocated[index], None if row.free else known, idle, memory[index], charged[index])
        made.append(Figures(row.account, *amounts, price, costs[index], row.used_complete))
    return made


@dataclass(frozen=True)
class Totals:
    """Sums of figures as they are shown."""

    capacity: Fraction
    allocated: Fraction
    free: Fraction
    used: Fraction
    """At least, unless ``used_complete``."""
    idle: Fraction
    """What accounts whose use is known did not use."""
    memory: Fraction
    charged: Fraction
    """To namespaces."""
    cost: Optional[Fraction]
    """To namespaces; None while a price is missing."""
    used_complete: bool


def totals(shown: Sequence[Figures]) -> Totals:
    """Return the sums of these figures."""
    had = [line for line in shown if not line.free]
    allocated = _sum(line.allocated for line in had)
    capacity = _sum(line.allocated for line in shown)
    costs = [line.cost for line in had if line.cost is not None]
    return Totals(
        capacity,
        allocated,
        capacity - allocated,
        _sum(line.used or Fraction(0) for line in had),
        _sum(line.idle or Fraction(0) for line in had),
        _sum(line.memory for line in had),
        _sum(line.charged for line in had),
        _sum(costs) if len(costs) == len(had) else None,
        all(line.used is not None and line.used_complete for line in had),
    )


def document(report: Report) -> Dict[str, Any]:
    """Return the report as JSON has it: hours, with six decimals, null for what is not known."""
    shown = figures(report)
    window = report.usage.window
    return {
        "version": VERSION,
        "source": report.source,
        "start": moment(window.start),
        "end": moment(window.end),
        "policy": report.policy,
        "currency": report.currency,
        "complete": report.complete,
        "rows": [_row_document(line) for line in shown if not line.free],
        "free": [_free_document(line) for line in shown if line.free],
        "unknown": [
            {
                "model": model,
                "gpu_hours": float(hours),
                "causes": {cause: float(part) for cause, part in _causes(report, model, _EXACT)},
            }
            for model, hours in _unknown(report, _EXACT)
        ],
        "totals": _totals_document(totals(shown), bool(report.prices)),
        "unit_label": report.unit_label,
        "units": [
            {"unit": unit, **_unit_document(totals(lines), bool(report.prices))}
            for unit, lines in by_unit(report, shown).items()
        ],
        "parts": [_part_document(report, part) for part in report.parts],
        "nodes": [
            {"name": node.name, "since": moment(node.since), "until": moment(node.until), "remark": node.remark}
            for node in report.usage.nodes
        ],
        "right_sizing": [_oversized_document(pod) for pod in report.oversized],
        "unknown_pods": report.unknown_pods,
        "problems": list(report.problems),
        "notes": list(report.notes),
    }


def _row_document(line: Figures) -> Dict[str, Any]:
    return {
        **line.account._asdict(),
        "allocated_gpu_hours": float(line.allocated),
        "used_gpu_hours": _float(line.used),
        "used_complete": line.used_complete,
        "idle_gpu_hours": _float(line.idle),
        "memory_gib_hours": float(line.memory),
        "charged_gpu_hours": float(line.charged),
        "price": _float(line.price),
        "cost": _float(line.cost),
    }


def _free_document(line: Figures) -> Dict[str, Any]:
    return {
        "model": line.account.model,
        "gpu_hours": float(line.allocated),
        "not_charged_gpu_hours": float(line.charged),
        "price": _float(line.price),
        "cost": _float(line.cost),
    }


def _totals_document(sums: Totals, priced: bool) -> Dict[str, Any]:
    return {
        "capacity_gpu_hours": float(sums.capacity),
        "allocated_gpu_hours": float(sums.allocated),
        "free_gpu_hours": float(sums.free),
        "used_gpu_hours": float(sums.used),
        "used_complete": sums.used_complete,
        "idle_gpu_hours": float(sums.idle),
        "memory_gib_hours": float(sums.memory),
        "charged_gpu_hours": float(sums.charged),
        "cost": _float(sums.cost) if priced else None,
    }


def _unit_document(sums: Totals, priced: bool) -> Dict[str, Any]:
    found = _totals_document(sums, priced)
    return {name: value for name, value in found.items() if name not in ("capacity_gpu_hours", "free_gpu_hours")}


def _oversized_document(pod: Oversized) -> Dict[str, Any]:
    return {
        "namespace": pod.namespace,
        "pod": pod.pod,
        "mode": pod.mode,
        "asked_bytes": pod.asked_bytes,
        "peak_bytes": pod.peak_bytes,
        "hours": None if pod.seconds is None else round(pod.seconds / _HOUR, 3),
        "advice": pod.advice,
    }


def _part_document(report: Report, part: int) -> Dict[str, Any]:
    shown = figures(report, _EXACT, [part])
    edges = report.usage.window.edges
    sums = totals(shown)
    return {
        "start": moment(edges[part]),
        "end": moment(edges[part + 1]),
        "capacity_gpu_hours": float(sums.capacity),
        "free_gpu_hours": float(sums.free),
        "used_gpu_hours": float(sums.used),
        "namespaces": {name: float(hours) for name, hours in by_namespace(shown).items()},
    }


def by_namespace(shown: Iterable[Figures]) -> Dict[str, Fraction]:
    """Return what each namespace had, in the order of names."""
    found: Dict[str, Fraction] = {}
    for line in shown:
        if not line.free:
            name = line.account.namespace
            found[name] = found.get(name, Fraction(0)) + line.allocated
    return dict(sorted(found.items()))


def by_unit(report: Report, shown: Iterable[Figures]) -> Dict[str, List[Figures]]:
    """Return the rows of each organizational unit, by name; last, as ``""``, those of namespaces without one."""
    found: Dict[str, List[Figures]] = {}
    for line in shown if report.unit_label else ():
        if not line.free:
            found.setdefault(report.units.get(line.account.namespace, ""), []).append(line)
    return dict(sorted(found.items(), key=lambda entry: (not entry[0], entry[0])))


def comma_separated(report: Report) -> str:
    """``CSV_COLUMNS``; hours and costs with six decimals, what is not known is empty."""
    with_units = bool(report.unit_label)
    made: List[Sequence[object]] = [(*CSV_COLUMNS, *["unit"] * with_units)]
    edges = report.usage.window.edges
    for part in report.parts:
        period = moment(edges[part]), moment(edges[part + 1])
        for line in figures(report, _EXACT, [part], _EXACT):
            kind = "free" if line.free else "allocated"
            complete = "" if line.used is None else str(line.used_complete).lower()
            hours = (line.allocated, line.used, complete, line.idle, line.memory, line.charged)
            cells = [cell if isinstance(cell, str) else decimal(cell, _EXACT, "") for cell in hours]
            cost = decimal(line.cost, _EXACT, "")
            unit = [report.units.get(line.account.namespace, "")] * with_units
            made.append((*period, kind, *line.account, *cells, cost, "", report.currency, *unit))
    whole = moment(edges[0]), moment(edges[-1])
    for model, whole_model in _unknown(report, _EXACT):
        for cause, unknown in _causes(report, model, _EXACT) or [("", whole_model)]:
            made.append(
                (*whole, "unknown", "", "", model, decimal(unknown, _EXACT), *[""] * 6, cause, "", *[""] * with_units)
            )
    return printable.comma_separated(made)


def table(report: Report) -> str:
    """Return a terminal's table: namespaces, what was free, totals, pods that asked for too much, and gaps."""
    start, end = report.usage.window.start, report.usage.window.end
    lines = [
        printable.line(f"GPU-hours from {moment(start)} to {moment(end)}, by {report.source}"),
        f"Charged is {POLICY_WORDS[report.policy]}",
        "",
        *columns(_amounts(report), right=range(3, len(head(report)))),
    ]
    if report.unit_label:
        lines += ["", printable.line(f"BY {report.unit_label}"), *columns(unit_cells(report), right=range(1, 7))]
    if report.oversized:
        percent = f"{100 * report.ratio:g}"
        lines += ["", f"RIGHT-SIZING: pods that never used {percent} % of the memory they asked for"]
        names = ["NAMESPACE", "POD", "MODE", "ASKED(GiB)", "PEAK(GiB)", "SEEN(h)", "ADVICE"]
        lines += columns([names, *([*sized(pod), pod.advice] for pod in report.oversized)], right=(3, 4, 5))
    if report.unknown_pods:
        lines += ["", f"It is not known what {report.unknown_pods} further pod(s) used."]
    lines += [f"NOTE: {printable.line(note)}" for note in report.notes]
    for model in dict(_unknown(report, _SHOWN)):
        whys = (f"{decimal(hours)} {cause.replace('_', ' ')}" for cause, hours in _causes(report, model, _SHOWN))
        because = ", ".join(whys)
        lines += [printable.line(f"UNKNOWN HOURS of {model}: {because}")] if because else []
    lines += [f"NOT KNOWN: {printable.line(problem)}" for problem in report.problems]
    return "\n".join(lines) + "\n"


def sized(pod: Oversized) -> List[str]:
    """Return the pod, and its figures for people."""
    seen = "-" if pod.seconds is None else f"{pod.seconds / _HOUR:.1f}"
    amounts = (f"{pod.asked_bytes / _GIB:.2f}", f"{pod.peak_bytes / _GIB:.2f}", seen)
    return [pod.namespace, pod.pod, pod.mode, *amounts]


def head(report: Report) -> List[str]:
    """Returns the heads of the columns of ``cells``."""
    names = ["NAMESPACE", "MODE", "MODEL", "GPU-HOURS", "USED", "IDLE", "MEMORY(GiB-h)"]
    if report.policy != ALLOCATED:
        names.append("CHARGED")
    if report.prices:
        names.append(f"COST({report.currency})" if report.currency else "COST")
    return names


def cells(report: Report, line: Figures) -> List[str]:
    """Return a row for people."""
    names = list(line.account)
    if line.free:
        names[:2] = ["(free)", "-"]
        texts = [decimal(line.allocated), "-", "-", "-"]
    else:
        more, less = ("", "") if line.used_complete else ("≥ ", "≤ ")
        used, idle = decimal(line.used, missing="unknown"), decimal(line.idle, missing="unknown")
        texts = [decimal(line.allocated), *((more + used, less + idle) if line.used is not None else (used, idle))]
        texts.append(decimal(line.memory))
    return [*names, *texts, *_paid(report, line.charged, line.cost)]


def total_cells(report: Report, shown: Sequence[Figures]) -> List[str]:
    """Return the last row for people: all there was, and what of it was used and paid."""
    sums = totals(shown)
    more = "" if sums.used_complete else "≥ "
    texts = [decimal(sums.capacity), more + decimal(sums.used), decimal(sums.idle), decimal(sums.memory)]
    return ["TOTAL", "", "", *texts, *_paid(report, _sum(line.charged for line in shown), _all_costs(shown))]


def unit_cells(report: Report) -> List[List[str]]:
    """Return a row for people for each organizational unit, below the heads of the columns."""
    names = head(report)
    made = [["UNIT", *names[3:]]]
    for unit, lines in by_unit(report, shown_figures(report)).items():
        sums = totals(lines)
        more = "" if sums.used_complete else "≥ "
        texts = [decimal(sums.allocated), more + decimal(sums.used), decimal(sums.idle), decimal(sums.memory)]
        made.append([unit or "(none)", *texts, *_paid(report, sums.charged, sums.cost)])
    return made


def shown_figures(report: Report) -> List[Figures]:
    """Return the figures for people, with three decimals."""
    return figures(report, _SHOWN)


def unknown_cells(report: Report) -> List[List[str]]:
    """Return the cells for what no plugin counted, which is in no total."""
    width = len(head(report)) - 4
    return [
        ["(unknown)", "-", model, f"about {decimal(hours)}", *["-"] * width]
        for model, hours in _unknown(report, _SHOWN)
    ]


def decimal(amount: Optional[Fraction], places: int = _SHOWN, missing: str = "-") -> str:
    """Return the number with all its decimals."""
    return missing if amount is None else f"{float(amount):.{places}f}"


def _amounts(report: Report) -> List[List[str]]:
    shown = shown_figures(report)
    made = [head(report), *(cells(report, line) for line in shown), total_cells(report, shown)]
    return made + unknown_cells(report)


def _paid(report: Report, charged: Fraction, cost: Optional[Fraction]) -> List[str]:
    paid = [decimal(charged)] if report.policy != ALLOCATED else []
    return [*paid, decimal(cost, _MONEY)] if report.prices else paid


def _all_costs(shown: Sequence[Figures]) -> Optional[Fraction]:
    costs = [line.cost for line in shown if line.cost is not None]
    return _sum(costs) if len(costs) == len(shown) else None


def _unknown(report: Report, places: int) -> List[Tuple[str, Fraction]]:
    """Return the unknown hours of models. Silence of less than a gap does not count."""
    return [
        (model, Fraction(round(seconds / _HOUR * 10**places), 10**places))
        for model, seconds in sorted(report.usage.unknown.items())
        if seconds >= GAP_SECONDS or (seconds and report.usage.problems)
    ]


def _causes(report: Report, model: str, places: int) -> List[Tuple[str, Fraction]]:
    """Return why hours of a model are unknown, and how many; they come to what is shown of it."""
    found = sorted((cause, seconds) for (of, cause), seconds in report.usage.causes.items() if of == model and seconds)
    hours = apportioned([seconds / _HOUR for unused, seconds in found], places)
    return [(found[index][0], amount) for index, amount in enumerate(hours)]


def _sum(amounts: Iterable[Fraction]) -> Fraction:
    return sum(amounts, Fraction(0))


def _float(amount: Optional[Fraction]) -> Optional[float]:
    return None if amount is None else float(amount)
