# SPDX-License-Identifier: Apache-2.0
"""Every attack that the pages on security tell of is made by a test, and every file of attacks is told of there."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
TESTS = ROOT / "tests"
PAGES = [ROOT / "docs/explanation" / name for name in ("isolation.md", "security-model.md")]
NOT_SHOWN = "nothing: it succeeds"
"""In the last cell of an attempt that succeeds."""


def attempts() -> Iterator[tuple[str, str]]:
    """What is tried and what shows how that ends: first and last cells of the tables whose last column says so."""
    text = "\n".join(page.read_text() for page in PAGES)
    for table in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE):
        header, _, *rows = [[cell.strip() for cell in line[1:-1].split(" | ")] for line in table.splitlines()]
        if header[-1] == "Shown by":
            yield from ((row[0], row[-1]) for row in rows)


def is_mark(node: ast.AST) -> bool:
    return any(isinstance(part, ast.Attribute) and part.attr == "attack" for part in ast.walk(node))


def attacks(path: Path) -> Iterator[tuple[str, bool]]:
    """The tests of a file, and whether ``make attacks`` or, of a real cluster, ``make test-cluster`` runs them."""
    body = ast.parse(path.read_text()).body
    names = [
        target.id
        for part in body
        if isinstance(part, ast.Assign)
        for target in part.targets
        if is_mark(part.value) and isinstance(target, ast.Name)
    ]
    everyone = path.parent.name == "cluster" or "pytestmark" in names
    for part in body:
        if isinstance(part, ast.FunctionDef) and part.name.startswith("test_"):
            yield part.name, everyone or any(map(is_mark, part.decorator_list))


FOUND = {path: dict(attacks(path)) for path in sorted(TESTS.rglob("test_*.py"))}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_has_attempts_that_tests_make(page: Path) -> None:
    assert page.read_text().count("| Shown by |") > 2


@pytest.mark.parametrize(("attempt", "shown"), list(attempts()))
def test_an_attempt_is_made_by_a_test(attempt: str, shown: str) -> None:
    assert attempt
    named = re.findall(r"`(test_\w+(?:\.py)?)`", shown)
    assert named or shown == NOT_SHOWN
    for name in named:
        made = [
            made
            for path, tests in FOUND.items()
            for test, made in tests.items()
            if name == test or (name == path.name and made)
        ]
        assert made, f"no test is named {name}"
        assert all(made), f"{name} lacks the marker attack"


@pytest.mark.parametrize("path", [path for path in FOUND if path.parent.name == "attacks"], ids=lambda path: path.stem)
def test_a_file_of_attacks_is_told_of(path: Path) -> None:
    told = {name for _, shown in attempts() for name in re.findall(r"`(test_\w+(?:\.py)?)`", shown)}
    assert path.name == "test_attackers.py" or told & {path.name, *FOUND[path]}, "name a test of it in docs/explanation"
