# SPDX-License-Identifier: Apache-2.0
"""Every table of every Markdown file has rows as long as its header: a bar inside a cell has to be escaped."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
FENCE = re.compile(r" {0,3}(```+|~~~+)")
DELIMITER = re.compile(r" {0,3}\|?\s*:?-+:?\s*(\|\s*:?-+:?\s*)*\|?\s*")
BLOCK = re.compile(r" {0,3}(#{1,6} |>|[-*+] |<!--)")
"""What begins something else, without an empty line before it."""
LONGEST = 300
"""Characters of a row."""
BAR = re.compile(r"(?<!\\)\|")


def documents() -> list[str]:
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.md"]
    return subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.split()


def cells(line: str) -> int:
    """How many a row has. Bars split it wherever they are, inside code too."""
    parts = BAR.split(line.strip())
    return len(parts) - (parts[0] == "") - (parts[-1] == "")


def broken(text: str) -> Iterator[str]:
    """The rows of tables that have more or fewer cells than the header, delimiters included."""
    fence, width, before = "", 0, ""
    for number, line in enumerate(text.splitlines(), 1):
        if found := FENCE.match(line):
            fence = found[1] if not fence else "" if found[1].startswith(fence) else fence
        if fence or not line.strip() or BLOCK.match(line):
            width, before = 0, ""
        elif width:
            if cells(line) != width:
                yield f"{number}: {cells(line)} cells and not {width}: {line}"
        elif "|" in line and "|" in before and DELIMITER.fullmatch(line):
            width = cells(before)
            if cells(line) != width:
                yield f"{number}: {cells(line)} delimiters and not {width}: {before}"
        before = line


@pytest.mark.parametrize("path", documents())
def test_every_row_of_a_table_is_as_long_as_its_header(path: str) -> None:
    assert list(broken((ROOT / path).read_text())) == []


def test_no_row_is_longer_than_is_read() -> None:
    lines = {path: (ROOT / path).read_text().splitlines() for path in documents()}
    long = [(path, line[:60]) for path in lines for line in lines[path] if line.startswith("|") and len(line) > LONGEST]
    assert long == [], "divide the row, or write a list"


@pytest.mark.parametrize(
    ("rows", "found"),
    [
        ("| a | b |\n|---|---|\n| 1 | 2 |", 0),
        ("a | b\n--- | :-:\n1 | 2", 0),
        ("| a | b |\n|---|---|\n| `x \\| y` | 2 |\n| | |", 0),
        ("| a | b |\n|---|---|\n| `x | y` | 2 |\n| 1 |", 2),
        ("| a | b |\n|---|\n| 1 |", 2),
        ("```\n| a | b |\n|---|---|\n| 1 |\n```\n| 1 |", 0),
        ("| a |\n|---|\n\n| 1 | 2 |", 0),
        ("| a | b |\n|---|---|\n| 1 | 2 |\n<!-- end -->", 0),
    ],
)
def test_rows_are_counted_as_markdown_readers_do(rows: str, found: int) -> None:
    assert len(list(broken(f"words\n\n{rows}\n"))) == found
