# SPDX-License-Identifier: Apache-2.0
"""Every attack that the pages on security tell of is made by a test, and every file of attacks is told of there."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
TESTS = ROOT / "tests"
PAGES = [ROOT / "docs/explanation" / name for name in ("isolation.md", "security-model.md")]
LIST = ROOT / "docs/measurements/attacks.md"
NOT_SHOWN = "nothing: it succeeds"
"""Stands for the tests of an attempt that succeeds."""


def attempts() -> Iterator[tuple[str, str]]:
    """What is tried, and what shows how that ends, as the list has it."""
    for item in re.findall(r"^- (.*\n(?:  .*\n)*)", LIST.read_text(), re.MULTILINE):
        attempt, shown = re.fullmatch(rf"(.+?): (`(?:test_|make ).*|{NOT_SHOWN})", " ".join(item.split())).groups()  # type: ignore[union-attr]
        yield attempt, shown


def tables(page: Path) -> list[list[str]]:
    """The attempts of each table of a page."""
    found = re.findall(r"^\| [^|]+ \| Result \|\n\|.*\n((?:\|.*\n)+)", page.read_text(), re.MULTILINE)
    return [[line[2:].split(" | ")[0] for line in rows.splitlines()] for rows in found]


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


@cache
def attacks_by_file() -> dict[Path, dict[str, bool]]:
    return {path: dict(attacks(path)) for path in sorted(TESTS.rglob("test_*.py"))}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_has_attempts_that_tests_make(page: Path) -> None:
    listed = {attempt for attempt, _ in attempts()}
    told = [rows for rows in tables(page) if listed.intersection(rows)]
    assert len(told) > 2
    assert {attempt for rows in told for attempt in rows} - listed == set(), f"name their tests in {LIST.name}"


def test_the_list_of_attacks_has_no_others() -> None:
    told = {attempt for page in PAGES for rows in tables(page) for attempt in rows}
    assert {attempt for attempt, _ in attempts()} - told == set()


@pytest.mark.parametrize(("attempt", "shown"), list(attempts()))
def test_an_attempt_is_made_by_a_test(attempt: str, shown: str) -> None:
    assert attempt
    named = re.findall(r"`(test_\w+(?:\.py)?)`", shown)
    assert named or shown == NOT_SHOWN
    for name in named:
        made = [
            made
            for path, file in attacks_by_file().items()
            for test, made in file.items()
            if name == test or (name == path.name and made)
        ]
        assert made, f"no test is named {name}"
        assert all(made), f"{name} lacks the marker attack"


@pytest.mark.parametrize("path", sorted(TESTS.glob("attacks/test_*.py")), ids=lambda path: path.stem)
def test_a_file_of_attacks_is_told_of(path: Path) -> None:
    told = {name for _, shown in attempts() for name in re.findall(r"`(test_\w+(?:\.py)?)`", shown)}
    assert path.name == "test_attackers.py" or told & {path.name, *attacks_by_file()[path]}, (
        f"name a test of it in {LIST.name}"
    )
