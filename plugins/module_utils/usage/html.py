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

_NAMED = 8
"""Namespaces with a colour of their own."""
_PALETTE = ("#3f7fca", "#c8642a", "#3d9461", "#9c5bad", "#c2435b", "#2b8d94", "#8f6b3b", "#6f73d2")
_OTHERS = "#7a8494"
_BARS = 40
"""Namespaces in the chart of their use."""
_LETTER = 6.2

_WIDTH, _LEFT, _TOP, _HIGH, _LABELS = 920, 56, 10, 200, 26
"""Measures of the chart over time: all of it, the scale at the left, space above, the bars, the times below."""
_LINE, _NAME, _TEXT = 24, 210, 190
"""Measures of the chart by namespace: a row, the names, the figures."""

_STYLE = """
:root{color-scheme:light dark;--text:#1c2430;--quiet:#5c6675;--line:#d8dde4;--back:#fff;--panel:#f5f7f9;--free:#e3e7ec;
--bad:#b3261e;--bad-back:#fdeceb}
@media (prefers-color-scheme:dark){:root{--text:#e4e8ee;--quiet:#9aa5b4;--line:#39424f;--back:#14181e;--panel:#1d232b;
--free:#2c343f;--bad:#ff8a80;--bad-back:#3a1c1b}}
*{box-sizing:border-box}
body{margin:0;background:var(--back);color:var(--text);
font:15px/1.5 system-ui,'Segoe UI',Roboto,'DejaVu Sans',sans-serif}
main{max-width:980px;margin:0 auto;padding:28px 24px 48px}
h1{font-size:26px;margin:0}h2{font-size:18px;margin:34px 0 10px}
p{margin:4px 0}.quiet{color:var(--quiet)}
.tiles{display:flex;flex-wrap:wrap;gap:12px;margin:20px 0 0;padding:0;list-style:none}
.tiles li{flex:1 1 150px;background:var(--panel);border:1px solid var(--line);border-radius:8px;padding:10px 14px}
.tiles b{display:block;font-size:22px;font-variant-numeric:tabular-nums}
.bad{background:var(--bad-back);border:1px solid var(--bad);border-radius:8px;padding:10px 16px;margin:18px 0 0}
.bad h2{margin:0;color:var(--bad)}ul{margin:6px 0;padding-left:20px}
.legend{display:flex;flex-wrap:wrap;gap:4px 18px;list-style:none;padding:0;font-size:13px}
.legend i{display:inline-block;width:11px;height:11px;border-radius:2px;margin-right:6px}
.wide{overflow-x:auto}
table{border-collapse:collapse;width:100%;font-size:13px;font-variant-numeric:tabular-nums}
th,td{text-align:left;padding:5px 10px 5px 0;border-bottom:1px solid var(--line);white-space:nowrap}
th{color:var(--quiet);font-weight:600}.number{text-align:right}.words{white-space:normal}
tr.sum td{font-weight:600;border-top:2px solid var(--line)}tr.rest td{color:var(--quiet)}
svg{display:block;width:100%;height:auto}
svg text{font:11px system-ui,'Segoe UI',Roboto,'DejaVu Sans',sans-serif;fill:var(--quiet)}
svg .name{font-size:12px;fill:var(--text)}
svg line{stroke:var(--line)}
@media print{:root{color-scheme:light;--text:#000;--quiet:#444;--line:#bbb;--back:#fff;--panel:#fff;
--free:#e3e7ec;--bad:#900;--bad-back:#fff}
body{font-size:11px}main{max-width:none;padding:0}.wide{overflow:visible}h2{break-after:avoid}
tr,svg,.bad,.tiles li{break-inside:avoid}
thead{display:table-header-group}*{print-color-adjust:exact;-webkit-print-color-adjust:exact}}
"""


def page(report: Report) -> str:
    """Return the document."""
    shown = shown_figures(report)
    window = report.usage.window
    period = f"{moment(window.start)} to {moment(window.end)}"
    colours = _colours(shown)
    body = [
        "<h1>GPU-hours</h1>",
        f"<p>{period}, by {_text(report.source)}</p>",
        f'<p class="quiet">Charged is {_text(POLICY_WORDS[report.policy])}.</p>',
        *_problems(report),
        *_tiles(report, shown),
        "<h2>Over time</h2>",
        _over_time(report, colours),
        _legend(colours),
        "<h2>Allocated and used, by namespace</h2>",
        _by_namespace(shown, colours),
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
            f"<style>{_STYLE}</style></head><body><main>",
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


def _colours(shown: Sequence[Figures]) -> Dict[str, str]:
    """Return the largest namespaces first, each with its colour."""
    amounts = by_namespace(shown)
    largest = sorted(amounts, key=lambda name: (-amounts[name], name))[:_NAMED]
    colours = {name: _PALETTE[number] for number, name in enumerate(largest)}
    if len(amounts) > _NAMED:
        colours[""] = _OTHERS
    return colours


def _legend(colours: Dict[str, str]) -> str:
    entries = [(name or "others", colour) for name, colour in colours.items()] + [("free", "var(--free)")]
    items = (f'<li><i style="background:{colour}"></i>{_text(name)}</li>' for name, colour in entries)
    return f'<ul class="legend">{"".join(items)}</ul>'


def _over_time(report: Report, colours: Dict[str, str]) -> str:
    """Return a bar for each part of the period: who had how much, and what was free, on top of each other."""
    edges = report.usage.window.edges
    parts = [figures(report, parts=[part]) for part in report.parts]
    most = max((float(sum(line.allocated for line in shown)) for shown in parts), default=0.0)
    step = _step(most)
    lines = max(1, math.ceil(most / step - 1e-9))
    scale = _HIGH / (lines * step)
    shapes = []
    for number in range(lines + 1):
        y = _TOP + _HIGH - number * step * scale
        shapes.append(f'<line x1="{_LEFT}" x2="{_WIDTH}" y1="{y:.1f}" y2="{y:.1f}"/>')
        shapes.append(f'<text x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{number * step:g}</text>')
    slot = (_WIDTH - _LEFT) / len(parts)
    wide = max(1.0, min(slot * 0.8, 60.0))
    every = math.ceil(48 / slot)
    hourly = edges[-1] - edges[0] <= 2 * 86400
    for index, shown in enumerate(parts):
        x, y = _LEFT + index * slot + (slot - wide) / 2, float(_TOP + _HIGH)
        for name, colour, hours in _layers(shown, colours):
            high = float(hours) * scale
            y -= high
            title = _text(f"{moment(edges[index])}: {name} {decimal(hours)} GPU-hours")
            shapes.append(
                f'<rect x="{x:.1f}" y="{y:.1f}" width="{wide:.1f}" height="{high:.1f}" fill="{colour}">'
                f"<title>{title}</title></rect>"
            )
        if index % every == 0:
            label = moment(edges[index])[11:16] if hourly else moment(edges[index])[5:10]
            middle, bottom = x + wide / 2, _TOP + _HIGH + 17
            shapes.append(f'<text x="{middle:.1f}" y="{bottom}" text-anchor="middle">{label}</text>')
    high = _TOP + _HIGH + _LABELS
    return _svg(high, f"GPU-hours {'over the day' if hourly else 'by day'}, by namespace", shapes)


def _layers(shown: Sequence[Figures], colours: Dict[str, str]) -> Iterator[Tuple[str, str, Fraction]]:
    """Yield name, colour and hours of each layer, from below."""
    amounts = by_namespace(shown)
    for name, colour in colours.items():
        hours = amounts.pop(name, Fraction(0)) if name else Fraction(0)
        if hours > 0:
            yield name, colour, hours
    rest = sum(amounts.values(), Fraction(0))
    if rest > 0:
        yield "others", _OTHERS, rest
    free = sum((line.allocated for line in shown if line.free), Fraction(0))
    if free > 0:
        yield "free", "var(--free)", free


def _by_namespace(shown: Sequence[Figures], colours: Dict[str, str]) -> str:
    """Return a bar a namespace, as long as what it had; the full colour is what it used."""
    amounts = by_namespace(shown)
    ordered = sorted(amounts, key=lambda name: (-amounts[name], name))
    shapes = []
    most = float(max(amounts.values(), default=Fraction(0))) or 1.0
    room = _WIDTH - _NAME - _TEXT
    for row, name in enumerate(ordered[:_BARS]):
        y = row * _LINE
        used = _used(shown, name)
        colour = colours.get(name, _OTHERS)
        wide, full = (room * float(hours) / most for hours in (amounts[name], min(used or Fraction(0), amounts[name])))
        words = "use not known" if used is None else f"{decimal(used)} used"
        label = _text(_short(name))
        shapes += [
            f'<text x="{_NAME - 10}" y="{y + 16}" class="name" text-anchor="end">'
            f"{label}<title>{_text(name)}</title></text>",
            f'<rect x="{_NAME}" y="{y + 4}" width="{wide:.1f}" height="16" rx="2" fill="{colour}" fill-opacity=".35"/>',
            f'<rect x="{_NAME}" y="{y + 4}" width="{full:.1f}" height="16" rx="2" fill="{colour}"/>',
            f'<text x="{_NAME + wide + 8:.1f}" y="{y + 16}">{decimal(amounts[name])}, {words}</text>',
        ]
    svg = _svg(max(1, len(ordered[:_BARS])) * _LINE, "GPU-hours allocated and used, by namespace", shapes)
    more = f'<p class="quiet">and {len(ordered) - _BARS} more</p>' if len(ordered) > _BARS else ""
    return svg + '\n<p class="quiet">Full colour is what was used, the rest was idle.</p>' + more


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
        names = ["NAMESPACE", "POD", "MODE", "ASKED(GiB)", "PEAK(GiB)", "SEEN(h)", "WHAT WOULD DO"]
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

    lines = ['<div class="wide"><table><thead><tr>']
    lines += [f"<th{kind(column)}>{_text(name)}</th>" for column, name in enumerate(names)]
    lines.append("</tr></thead><tbody>")
    for role, texts in rows:
        inside = "".join(f"<td{kind(column)}>{_text(text)}</td>" for column, text in enumerate(texts))
        lines.append(f'<tr class="{role}">{inside}</tr>' if role else f"<tr>{inside}</tr>")
    return "\n".join([*lines, "</tbody></table></div>"])


def _svg(high: int, label: str, shapes: Iterable[str]) -> str:
    box = f'viewBox="0 0 {_WIDTH} {high}"'
    return "\n".join([f'<svg {box} role="img" aria-label="{_text(label)}">', *shapes, "</svg>"])


def _step(most: float) -> float:
    """Return the step between lines of a scale: 1, 2 or 5 times a power of ten, for four or five lines."""
    if most <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(most / 4))
    return next(power * factor for factor in (1, 2, 5, 10) if power * factor * 5 >= most)


def _short(name: str) -> str:
    room = int((_NAME - 10) / _LETTER)
    return name if len(name) <= room else f"{name[: room - 1]}…"
