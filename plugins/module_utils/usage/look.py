# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Colors, patterns, and style of a report's page, for light and dark screens and for paper. Pure.

Each namespace of a chart has a color and a pattern, so that the chart can be read without color. Nothing here asks for
a file or a font of elsewhere.
"""

from __future__ import annotations

from typing import Dict, Mapping

LIGHT: Dict[str, str] = {
    "text": "#1c2430",
    "quiet": "#566070",
    "line": "#d8dde4",
    "edge": "#7d8796",
    "back": "#ffffff",
    "panel": "#f5f7f9",
    "free": "#edf0f3",
    "bad": "#b3261e",
    "bad-back": "#fdeceb",
    "s0": "#2f6fc0",
    "s1": "#b8551d",
    "s2": "#2c7d50",
    "s3": "#8a48a8",
    "s4": "#b5344d",
    "s5": "#1d7b82",
    "s6": "#7d5a2b",
    "s7": "#5b5fc7",
    "others": "#667080",
}
"""Colors on a light screen and on paper, by name."""

DARK: Dict[str, str] = {
    "text": "#e4e8ee",
    "quiet": "#a3adbb",
    "line": "#39424f",
    "edge": "#7d8998",
    "back": "#14181e",
    "panel": "#1d232b",
    "free": "#222933",
    "bad": "#ff8a80",
    "bad-back": "#3a1c1b",
    "s0": "#6aa7f0",
    "s1": "#f0935a",
    "s2": "#63bd8a",
    "s3": "#c58be0",
    "s4": "#f27d91",
    "s5": "#55bcc4",
    "s6": "#cda56c",
    "s7": "#a0a3f5",
    "others": "#98a3b3",
}
"""Colors on a dark screen, by the same names."""

OTHERS, FREE = "others", "free"
SERIES = tuple(name for name in LIGHT if name[0] == "s")
"""Classes of the namespaces with a color of their own; all other namespaces are ``OTHERS``."""

_LINES = "repeating-linear-gradient({angle}deg,transparent 0 {gap}px,var(--back) {gap}px {end}px)"


def _lines(angle: int, gap: int = 6, width: int = 2) -> str:
    return _LINES.format(angle=angle, gap=gap, end=gap + width)


PATTERNS: Dict[str, str] = {
    "s0": "none",
    "s1": _lines(45),
    "s2": "radial-gradient(var(--back) 1.6px,transparent 2px) 0 0/8px 8px",
    "s3": _lines(0, 4),
    "s4": _lines(-45),
    "s5": _lines(90, 4),
    "s6": f"{_lines(0, 7)},{_lines(90, 7)}",
    "s7": f"{_lines(45, 8)},{_lines(-45, 8)}",
    "others": _lines(0, 2, 1),
}
"""Marks in the color of the background on each color, no two alike."""


def _variables(palette: Mapping[str, str]) -> str:
    return ";".join(f"--{name}:{color}" for name, color in palette.items())


def _fills() -> str:
    return "\n".join(
        f".{name}{{--own:var(--{name})}}i.{name}{{background:{pattern + ',' if pattern != 'none' else ''}var(--own)}}"
        for name, pattern in PATTERNS.items()
    )


STYLE = f"""
:root{{color-scheme:light;{_variables(LIGHT)}}}
@media screen and (prefers-color-scheme:dark){{:root{{color-scheme:dark;{_variables(DARK)}}}}}
*{{box-sizing:border-box}}
body{{margin:0;background:var(--back);color:var(--text);
font:15px/1.5 system-ui,'Segoe UI',Roboto,'DejaVu Sans',sans-serif}}
main{{max-width:980px;margin:0 auto;padding:28px 24px 48px}}
h1{{font-size:26px;margin:0}}h2{{font-size:18px;margin:34px 0 10px}}
p{{margin:4px 0}}.quiet{{color:var(--quiet)}}ul{{margin:6px 0;padding-left:20px}}
.tiles{{display:flex;flex-wrap:wrap;gap:12px;margin:20px 0 0;padding:0;list-style:none}}
.tiles li{{flex:1 1 140px;background:var(--panel);border:1px solid var(--line);border-radius:8px;padding:10px 14px}}
.tiles span,.tiles b{{display:block}}.tiles b{{font-size:22px;font-variant-numeric:tabular-nums}}
.bad{{background:var(--bad-back);border:1px solid var(--bad);border-radius:8px;padding:10px 16px;margin:18px 0 0;
overflow-wrap:anywhere}}
.bad h2{{margin:0;color:var(--bad)}}
.plot{{position:relative;height:220px;margin:20px 0 32px 44px;font-size:12px;color:var(--quiet)}}
.grid{{position:absolute;left:0;right:0;border-top:1px solid var(--line)}}
.grid b{{position:absolute;right:100%;top:-.8em;margin-right:8px;font-weight:400}}
.bars{{position:absolute;top:0;right:0;bottom:0;left:0;display:grid;grid-auto-flow:column;
grid-auto-columns:minmax(0,1fr)}}
.bar{{position:relative;display:flex;flex-direction:column-reverse;width:80%;min-width:1px;max-width:60px;
justify-self:center}}
.bar i{{flex:none;box-shadow:inset 0 1px var(--back)}}
i.free{{background:var(--free);box-shadow:inset 0 0 0 1px var(--edge)}}
.bar span{{position:absolute;top:100%;left:50%;transform:translateX(-50%);padding-top:4px;white-space:nowrap}}
.legend{{display:flex;flex-wrap:wrap;gap:4px 18px;list-style:none;padding:0;font-size:13px}}
.legend li{{overflow-wrap:anywhere}}
.legend i{{display:inline-block;width:22px;height:14px;margin-right:6px;vertical-align:-2px}}
.uses{{list-style:none;padding:0;font-size:13px}}
.uses li{{display:grid;grid-template-columns:minmax(0,180px) minmax(0,1fr) 170px;gap:0 10px;align-items:center;
padding:3px 0}}
.uses b{{font-weight:400;text-align:right;overflow:hidden;text-overflow:ellipsis;white-space:nowrap}}
.uses span{{color:var(--quiet)}}
.had{{height:18px;border:1px solid var(--own)}}.had i{{display:block;height:100%}}
{_fills()}
.wide{{overflow-x:auto}}
table{{border-collapse:collapse;width:100%;font-size:13px;font-variant-numeric:tabular-nums}}
th,td{{text-align:left;padding:5px 10px 5px 0;border-bottom:1px solid var(--line);white-space:nowrap}}
th:first-child,td:first-child{{position:sticky;left:0;background:var(--back)}}
th{{color:var(--quiet);font-weight:600}}.number{{text-align:right}}.words{{white-space:normal;min-width:27em}}
tr.sum td{{font-weight:600;border-top:2px solid var(--line)}}tr.rest td{{color:var(--quiet)}}
@media (max-width:640px){{main{{padding:20px 16px 40px}}.sparse{{display:none}}
.uses li{{grid-template-columns:minmax(0,1fr) auto}}.uses b{{text-align:left}}.uses span{{grid-row:1;grid-column:2}}
.had{{grid-column:1/3}}}}
@media print{{body{{font-size:11px}}main{{max-width:none;padding:0}}.wide{{overflow:visible}}h2{{break-after:avoid}}
tr,.plot,.uses li,.bad,.tiles li{{break-inside:avoid}}thead{{display:table-header-group}}}}
*{{print-color-adjust:exact;-webkit-print-color-adjust:exact}}.bar i,.had,.legend i{{forced-color-adjust:none}}
"""
"""Style of the page. It names no color outside of the palettes."""
