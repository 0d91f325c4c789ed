# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A report as one HTML document, with charts in it and nothing outside of it. Pure.

Names come from tenants: every one is escaped, and the document allows no script.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Dict, Iterable, Iterator, List, Optional, Sequence, Tuple

from ..shared.printable import html as _text
from .counters import moment
from .look import FREE, OTHERS, SERIES, STYLE
from .text import (
    POLICY_WORDS,
    Figures,
    Report,
    by_namespace,
    cells,
    decimal,
    figures,
    head,
    shown_figures,
    sized,
    total_cells,
    totals,
    unit_cells,
    unknown_cells,
)

_BARS = 40
"""Namespaces in the chart of their use."""
_LABEL, _WIDE, _NARROW = 46, 860, 300
"""Pixels of a time below the chart, and of the chart on a screen and on a phone."""


def page(report: Report) -> str:
    """Return the document."""
    shown = shown_figures(report)
    window = report.usage.window
    period = f"{moment(window.start)} to {moment(window.end)}"
    classes = _classes(shown)
    body = [
        "<h1>GPU-hours</h1>",
        f"<p>{period}, by {_text(report.source)}</p>",
        f'<p class="quiet">Charged is {_text(POLICY_WORDS[report.policy])}.</p>',
        *_problems(report),
        *_tiles(report, shown),
        "<h2>Over time</h2>",
        _over_time(report, classes),
        _legend(classes),
        "<h2>Allocated and used, by namespace</h2>",
        *_by_namespace(shown, classes),
        "<h2>Namespaces, modes and models</h2>",
        _amounts(report, shown),
        *_units(report),
        *_sizing(report),
        *_nodes(report),
        *(f'<p class="quiet">{_text(note)}</p>' for note in report.notes),
    ]
    return "\n".join(
        [
            '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">',
            "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">",
            '<meta name="viewport" content="width=device-width,initial-scale=1">',
            f"<title>GPU-hours, {period}</title>",
            f"<style>{STYLE}</style></head><body><main>",
            *body,
            "</main></body></html>\n",
        ]
    )


def _problems(report: Report) -> Iterator[str]:
    if report.problems:
        yield '<section class="bad"><h2>Not complete</h2><ul>'
        yield from (f"<li>{_text(problem)}</li>" for problem in report.problems)
        yield "</ul></section>"


def _tiles(report: Report, shown: Sequence[Figures]) -> Iterator[str]:
    sums = totals(shown)
    tiles = [
        ("capacity", decimal(sums.capacity), "GPU-hours"),
        ("allocated", decimal(sums.allocated), _percent(sums.allocated, sums.capacity)),
        ("used", ("" if sums.used_complete else "≥ ") + decimal(sums.used), _percent(sums.used, sums.capacity)),
        ("free", decimal(sums.free), _percent(sums.free, sums.capacity)),
    ]
    if report.prices:
        missing = "a price is missing" if sums.cost is None else "of namespaces"
        tiles.append((f"cost {report.currency}".strip(), decimal(sums.cost, 2, "unknown"), missing))
    yield '<ul class="tiles">'
    for name, amount, remark in tiles:
        below = f'<span class="quiet">{_text(remark)}</span>'
        yield f'<li><span class="quiet">{_text(name)}</span><b>{amount}</b>{below}</li>'
    yield "</ul>"


def _percent(part: Fraction, whole: Fraction) -> str:
    return f"{float(100 * part / whole):.1f} %" if whole else ""


def _classes(shown: Sequence[Figures]) -> Dict[str, str]:
    """Return the largest namespaces first, each with the class of its color and pattern."""
    amounts = by_namespace(shown)
    largest = sorted(amounts, key=lambda name: (-amounts[name], name))
    classes = {name: SERIES[number] for number, name in enumerate(largest[: len(SERIES)])}
    if len(amounts) > len(SERIES):
        classes[""] = OTHERS
    return classes


def _legend(classes: Dict[str, str]) -> str:
    entries = [(name or "others", kind) for name, kind in classes.items()] + [("free", FREE)]
    items = (f'<li><i class="{kind}"></i>{_text(name)}</li>' for name, kind in entries)
    return f'<ul class="legend">{"".join(items)}</ul>'


def _over_time(report: Report, classes: Dict[str, str]) -> str:
    """Return a bar for each part of the period: who had how much, and what was free, on top of each other."""
    edges = report.usage.window.edges
    parts = [figures(report, parts=[part]) for part in report.parts]
    most = max((float(sum(line.allocated for line in shown)) for shown in parts), default=0.0)
    step = _step(most)
    lines = max(1, math.ceil(most / step - 1e-9))
    hourly = edges[-1] - edges[0] <= 2 * 86400
    label = f"GPU-hours {'over the day' if hourly else 'by day'}, by namespace"
    made = [f'<div class="plot" role="img" aria-label="{label}">']
    for number in range(lines + 1):
        made.append(f'<div class="grid" style="bottom:{100 * number / lines:.2f}%"><b>{number * step:g}</b></div>')
    made.append('<div class="bars">')
    every = math.ceil(len(parts) * _LABEL / _WIDE)
    seldom = every * math.ceil(len(parts) * _LABEL / _NARROW / every)
    for index, shown in enumerate(parts):
        made.append('<div class="bar">')
        for name, kind, hours in _layers(shown, classes):
            title = _text(f"{moment(edges[index])}: {name} {decimal(hours)} GPU-hours")
            high = 100 * float(hours) / (lines * step)
            made.append(f'<i class="{kind}" style="height:{high:.2f}%" title="{title}"></i>')
        if index % every == 0:
            words = moment(edges[index])[11:16] if hourly else moment(edges[index])[5:10]
            made.append(f'<span class="{"sparse" if index % seldom else "time"}">{words}</span>')
        made.append("</div>")
    return "\n".join([*made, "</div></div>"])


def _layers(shown: Sequence[Figures], classes: Dict[str, str]) -> Iterator[Tuple[str, str, Fraction]]:
    """Yield name, class and hours of each layer, from below."""
    amounts = by_namespace(shown)
    for name, kind in classes.items():
        hours = amounts.pop(name, Fraction(0)) if name else Fraction(0)
        if hours > 0:
            yield name, kind, hours
    rest = sum(amounts.values(), Fraction(0))
    if rest > 0:
        yield "others", OTHERS, rest
    free = sum((line.allocated for line in shown if line.free), Fraction(0))
    if free > 0:
        yield "free", FREE, free


def _by_namespace(shown: Sequence[Figures], classes: Dict[str, str]) -> Iterator[str]:
    """Yield a bar for each namespace, as long as what it had, and filled as far as it used that."""
    amounts = by_namespace(shown)
    ordered = sorted(amounts, key=lambda name: (-amounts[name], name))
    most = max(amounts.values(), default=Fraction(0)) or Fraction(1)
    yield '<ul class="uses">'
    for name in ordered[:_BARS]:
        used = _used(shown, name)
        kind, words = classes.get(name, OTHERS), "use not known" if used is None else f"{decimal(used)} used"
        part = min(used or Fraction(0), amounts[name]) / amounts[name] if amounts[name] else Fraction(0)
        wide, full = (f"{float(100 * share):.2f}%" for share in (amounts[name] / most, part))
        drawn = f'<div class="had {kind}" style="width:{wide}"><i class="{kind}" style="width:{full}"></i></div>'
        label = f'<b title="{_text(name)}">{_text(name)}</b>'
        yield f"<li>{label}{drawn}<span>{decimal(amounts[name])}, {words}</span></li>"
    yield "</ul>"
    yield '<p class="quiet">The filled part of a bar was used. The empty part was idle.</p>'
    if len(ordered) > _BARS:
        yield f'<p class="quiet">and {len(ordered) - _BARS} more</p>'


def _used(shown: Sequence[Figures], namespace: str) -> Optional[Fraction]:
    """Return what was used as far as it is known; None where none of it is."""
    known = [line.used for line in shown if line.account.namespace == namespace and line.used is not None]
    return sum(known, Fraction(0)) if known else None


def _amounts(report: Report, shown: Sequence[Figures]) -> str:
    rows: List[Tuple[str, Sequence[str]]] = [("rest" if line.free else "", cells(report, line)) for line in shown]
    rows.append(("sum", total_cells(report, shown)))
    rows += [("rest", line) for line in unknown_cells(report)]
    return _table(head(report), rows, range(3, len(head(report))))


def _units(report: Report) -> Iterator[str]:
    if report.unit_label:
        names, *lines = unit_cells(report)
        yield f"<h2>By {_text(report.unit_label)}</h2>"
        yield _table(names, [("", line) for line in lines], range(1, len(names)))


def _sizing(report: Report) -> Iterator[str]:
    if report.oversized:
        percent = f"{100 * report.ratio:g}"
        yield f"<h2>Right-sizing: pods that never used {percent} % of the memory they asked for</h2>"
        names = ["NAMESPACE", "POD", "MODE", "ASKED(GiB)", "PEAK(GiB)", "SEEN(h)", "ADVICE"]
        yield _table(names, [("", [*sized(pod), pod.advice]) for pod in report.oversized], range(3, 6))
    if report.unknown_pods:
        yield f'<p class="quiet">It is not known what {report.unknown_pods} further pod(s) used.</p>'


def _nodes(report: Report) -> Iterator[str]:
    partly = [node for node in report.usage.nodes if node.remark]
    if partly:
        yield "<h2>Nodes of which something is not known</h2>"
        rows = [("", (node.name, moment(node.since), moment(node.until), node.remark)) for node in partly]
        yield _table(["NODE", "KNOWN FROM", "UNTIL", "NOT KNOWN"], rows, range(0))


def _table(names: Sequence[str], rows: Iterable[Tuple[str, Sequence[str]]], numbers: range) -> str:
    def kind(column: int) -> str:
        if column in numbers:
            return ' class="number"'
        return ' class="words"' if column > 2 else ""

    # A keyboard scrolls what has the focus.
    lines = ['<div class="wide" tabindex="0"><table><thead><tr>']
    lines += [f"<th{kind(column)}>{_text(name)}</th>" for column, name in enumerate(names)]
    lines.append("</tr></thead><tbody>")
    for role, texts in rows:
        inside = "".join(f"<td{kind(column)}>{_text(text)}</td>" for column, text in enumerate(texts))
        lines.append(f'<tr class="{role}">{inside}</tr>' if role else f"<tr>{inside}</tr>")
    return "\n".join([*lines, "</tbody></table></div>"])


def _step(most: float) -> float:
    """Return the step between lines of a scale: 1, 2 or 5 times a power of ten, for four or five lines."""
    if most <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(most / 4))
    return next(power * factor for factor in (1, 2, 5, 10) if power * factor * 5 >= most)
