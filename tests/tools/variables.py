# SPDX-License-Identifier: Apache-2.0
"""Writes docs/variables.md from the roles' argument specs: ``make docs``."""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
DOCUMENT = ROOT / "docs/variables.md"
ROLES = ("driver", "container_runtime", "scheduler", "gpu_plugins", "dcgm_exporter", "kube_accel_image", "monitoring")
"""In the order of the site playbook."""

_HEAD = """\
# Variable reference

Every variable of every role, with its type, default, and meaning. `make docs` writes this page from
`roles/*/meta/argument_specs.yml`. Ansible checks variables by these files before a role does anything.

All entry points of a role take the same variables unless a table of its own follows. Set `gpu_mode` for hosts or
groups. It is the one variable without the name of a role, and sets `gpu_plugins_mode`.
"""
_MARKUP = re.compile(r"\b([CVOM])\(([^)]*)\)")
_SENTENCE = re.compile(r"(?<=\.)\s+(?=[`A-Z0-9])")
_LONGEST_ROW = 300
"""Characters of a row. Of a longer one, a list below the table has the rest."""
_LONGEST = 100
_LONGEST_EXPRESSION = 60
"""Characters of a default that are shown."""


def document(root: Path = ROOT) -> str:
    """The whole file."""
    return "\n".join([_HEAD, *("\n".join(_role(root, role)) for role in ROLES)])


def _role(root: Path, role: str) -> list[str]:
    specs = yaml.safe_load((root / "roles" / role / "meta/argument_specs.yml").read_text())["argument_specs"]
    main = specs["main"]["options"]
    defaults = yaml.safe_load((root / "roles" / role / "defaults/main.yml").read_text()) or {}
    lines = [f"## [{role}](../roles/{role}/README.md)", "", "| Entry point | What it does |", "|---|---|"]
    lines += [f"| `{entry}` | {_cell(_text(spec['short_description']))} |" for entry, spec in specs.items()]
    lines += ["", *_table(main, role, defaults)]
    for entry, spec in specs.items():
        if spec.get("options", {}) != main:
            lines += [f"### `{entry}`", "", *_table(spec.get("options", {}), role, defaults)]
    return lines


def _table(options: Mapping[str, Any], role: str, defaults: Mapping[str, Any]) -> list[str]:
    rows, more = [], []
    for name, each in options.items():
        meaning = _meaning(each)
        cells = (f"`{name}`", _type(each), _default(name, each, role, defaults))
        row = f"| {' | '.join((*cells, _cell(meaning)))} |"
        if len(row) > _LONGEST_ROW:
            first, rest = _SENTENCE.split(meaning, maxsplit=1)
            row = f"| {' | '.join((*cells, _cell(first)))} More below. |"
            more.append(_item(f"`{name}`: {rest}"))
        rows.append(row)
    return ["| Variable | Type | Default | Meaning |", "|---|---|---|---|", *rows, "", *more, *[""] * bool(more)]


def _item(text: str) -> str:
    """Return the text as an item of a list."""
    return textwrap.fill(
        text, 118, initial_indent="- ", subsequent_indent="  ", break_long_words=False, break_on_hyphens=False
    )


def _type(option: Mapping[str, Any]) -> str:
    kind = option.get("type", "str")
    return f"{kind} of {option['elements']}" if "elements" in option else str(kind)


def _default(name: str, option: Mapping[str, Any], role: str, defaults: Mapping[str, Any]) -> str:
    if option.get("required", False):
        return "**required**"
    elsewhere = f"see [defaults](../roles/{role}/defaults/main.yml)"
    if name not in defaults and "default" not in option:
        return elsewhere
    value = option["default"] if "default" in option else defaults[name]
    text = value if isinstance(value, str) and value else json.dumps(value)
    longest = _LONGEST_EXPRESSION if "{{" in text else _LONGEST
    return elsewhere if len(text) > longest else f"`{_cell(text)}`"


def _meaning(option: Mapping[str, Any]) -> str:
    said = option["description"]
    text = _text(said if isinstance(said, str) else " ".join(said))
    if "choices" in option:
        text += " One of " + ", ".join(f"`{each}`" for each in option["choices"]) + "."
    return text + (" Never shown." if option.get("no_log", False) else "")


def _text(text: str) -> str:
    return _MARKUP.sub(r"`\2`", " ".join(text.split()))


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    DOCUMENT.write_text(document())
