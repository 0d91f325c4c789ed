# SPDX-License-Identifier: Apache-2.0
"""`-e name=false`, INI inventories and AWX surveys give booleans as text, which is true in Jinja whatever it says."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from jinja2 import Environment, nodes

from yaml_files import document

from .conftest import ROLES

# Jinja's lexer, of a regular expression in a template.
pytestmark = pytest.mark.filterwarnings("ignore:invalid escape sequence:DeprecationWarning")
CONDITIONS = ("when", "that", "failed_when", "changed_when", "until")
"""Keywords whose values are expressions without braces."""


class AnyName(dict[str, Any]):
    """Has a filter or a test of every name: what they do is not asked."""

    def __contains__(self, name: object) -> bool:
        return True

    def __missing__(self, name: str) -> Any:
        return lambda *_: None

    def get(self, name: str, default: Any = None) -> Any:
        return self[name]


JINJA = Environment()
JINJA.filters = JINJA.tests = AnyName()


@cache
def booleans() -> set[str]:
    """Every variable of a role that is one."""
    specs = [document(path)["argument_specs"] for path in ROLES.glob("*/meta/argument_specs.yml")]
    options = [entry.get("options", {}) for spec in specs for entry in spec.values()]
    return {name for group in options for name, option in group.items() if option["type"] == "bool"}


def texts(value: Any, key: str = "") -> Iterator[tuple[str, str]]:
    """Every text in a document, with the key it stands under."""
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from texts(inner, name)
    elif isinstance(value, list):
        for inner in value:
            yield from texts(inner, key)
    elif isinstance(value, str):
        yield key, value


def templates(path: Path) -> Iterator[str]:
    """Every template of a file, its conditions with braces."""
    if path.suffix == ".j2":
        yield path.read_text()
        return
    for key, text in texts(document(path)):
        # A planner is given the variable as it is, under its own name, and reads it.
        if re.fullmatch(rf"{{{{ {re.escape(key)}( \| default\([^|{{}}]*\))? }}}}", text):
            continue
        yield f"{{{{ {text} }}}}" if key in CONDITIONS and "{{" not in text else text


def taken_as_they_are(node: nodes.Node, filters: tuple[str, ...] = ()) -> Iterator[str]:
    """Names that a template reads without the filter ``bool``."""
    if isinstance(node, nodes.Name) and "bool" not in filters:
        yield node.name
    passed = (*filters, node.name) if isinstance(node, nodes.Filter) else ()
    for child in node.iter_child_nodes():
        yield from taken_as_they_are(child, passed)


FILES = sorted(
    path
    for path in [*ROLES.rglob("*"), *ROLES.with_name("playbooks").rglob("*")]
    if path.suffix in (".yml", ".j2") and not {"files", "meta", "molecule"} & set(path.relative_to(ROLES.parent).parts)
)


def test_every_file_with_templates_is_looked_at() -> None:
    assert {path.relative_to(ROLES).parts[0] for path in FILES if path.is_relative_to(ROLES)} == {
        path.name for path in ROLES.iterdir() if path.is_dir()
    }
    assert "driver_dkms" in booleans()


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROLES.parent)))
def test_a_boolean_that_is_text_means_what_it_says(path: Path) -> None:
    read = {name for text in templates(path) for name in taken_as_they_are(JINJA.parse(text))}
    assert read & booleans() == set()
