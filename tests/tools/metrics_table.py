# SPDX-License-Identifier: Apache-2.0
"""Writes the tables of metrics into docs/metrics.md: ``python tests/tools/metrics_table.py``."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Final

from kube_accel.metrics.families import ALL
from unit.roles.monitoring.served import asked, extender_page, recorded, rules, served

DOCUMENT = Path(__file__).parents[2] / "docs/metrics.md"
_METRICS = ("metric", "type", "labels", "what it says")


def families() -> str:
    """One row a family of the plugin."""
    return _table(_METRICS, ((each.name, each.kind.value, _code(each.labels), each.help) for each in ALL))


def extender() -> str:
    """One row a family of the extender, as its page has them."""
    page = extender_page()
    kinds = dict(re.findall(r"^# TYPE (\S+) (\S+)$", page, re.MULTILINE))
    helps = re.findall(r"^# HELP (\S+) (.*)$", page, re.MULTILINE)
    labels = {name: served()[f"{name}_sum" if kind == "histogram" else name] for name, kind in kinds.items()}
    return _table(_METRICS, ((name, kinds[name], _code(sorted(labels[name])), text) for name, text in helps))


def recording() -> str:
    """One row a recording rule."""
    rows = ((name, _code(sorted(recorded()[name])), _code(asked(expression))) for name, expression in rules().items())
    return _table(("series", "labels", "made of"), rows)


TABLES: Final[Mapping[str, Callable[[], str]]] = {
    "families": families,
    "the extender's families": extender,
    "recording rules": recording,
}


def marks(name: str) -> tuple[str, str]:
    """What stands before and after a table."""
    return f"<!-- {name}: made by tests/tools/metrics_table.py -->", f"<!-- end of {name} -->"


def _code(words: Iterable[str]) -> str:
    return " ".join(f"`{word}`" for word in words)


def _table(head: Iterable[str], rows: Iterable[tuple[str, ...]]) -> str:
    head = [*head]
    shown = [f"| `{name}` | {' | '.join(rest)} |" for name, *rest in rows]
    return "\n".join([f"| {' | '.join(head)} |", "|---" * len(head) + "|", *shown])


def main() -> None:
    text = DOCUMENT.read_text()
    for name, table in TABLES.items():
        begin, end = marks(name)
        before, rest = text.split(begin)
        text = f"{before}{begin}\n{table()}\n{end}{rest.split(end)[1]}"
    DOCUMENT.write_text(text)


if __name__ == "__main__":
    main()
