# SPDX-License-Identifier: Apache-2.0
"""Writes docs/reference/modules.md from the documentation of modules and filters: ``make docs``."""

from __future__ import annotations

import ast
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[2]
DOCUMENT = ROOT / "docs/reference/modules.md"

_HEAD = """\
# Module and filter reference

`make docs` writes this page from the documentation of each module and filter. For options, examples, and return values
run `ansible-doc accel.kubernetes.NAME`, for a filter with `--type filter`.
"""
_KINDS = {"Modules": "modules", "Filters": "filter"}
"""Headings, and the folder of each kind."""


def document(root: Path = ROOT) -> str:
    """Return the whole page."""
    return "\n".join([_HEAD, *("\n".join(_section(root, *kind)) for kind in _KINDS.items())])


def _section(root: Path, heading: str, folder: str) -> list[str]:
    rows = [_row(path) for path in sorted((root / "plugins" / folder).glob("*.py"))]
    return [f"## {heading}", "", "| Name | What it does |", "|---|---|", *rows, ""]


def _row(path: Path) -> str:
    """Return the row of a plugin's file, whose DOCUMENTATION is read and not imported."""
    texts = [
        node.value
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "DOCUMENTATION"
    ]
    said = yaml.safe_load(ast.literal_eval(texts[0]))["short_description"].replace("|", "\\|")
    return f"| `accel.kubernetes.{path.stem}` | {said} |"


if __name__ == "__main__":
    DOCUMENT.write_text(document())
