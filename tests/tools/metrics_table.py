# SPDX-License-Identifier: Apache-2.0
"""Writes the table of metrics into docs/metrics.md: ``python tests/tools/metrics_table.py``."""

from __future__ import annotations

from pathlib import Path

from kube_accel.metrics.families import ALL

DOCUMENT = Path(__file__).parents[2] / "docs/metrics.md"
BEGIN, END = "<!-- families: made by tests/tools/metrics_table.py -->", "<!-- end of families -->"


def table() -> str:
    """One row a family."""
    rows = [f"| `{each.name}` | {each.kind.value} | `{'` `'.join(each.labels)}` | {each.help} |" for each in ALL]
    return "\n".join(["| metric | type | labels | what it says |", "|---|---|---|---|", *rows])


def main() -> None:
    text = DOCUMENT.read_text()
    before, rest = text.split(BEGIN)
    DOCUMENT.write_text(f"{before}{BEGIN}\n{table()}\n{END}{rest.split(END)[1]}")


if __name__ == "__main__":
    main()
