# SPDX-License-Identifier: Apache-2.0
"""Ansible's set filters return what they keep in an order that differs from run to run."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[3]
SET_FILTER = re.compile(r"\|\s*(?:union|intersect|difference|symmetric_difference)(?=\()")
COUNTED = re.compile(r"[\s)]*\|\s*length\b")


def ordered(text: str) -> list[str]:
    """The uses of a set filter whose result is not merely counted."""
    found = []
    for use in SET_FILTER.finditer(text):
        end, depth = use.end() + 1, 1
        while depth:
            depth += (text[end] == "(") - (text[end] == ")")
            end += 1
        if not COUNTED.match(text, end):
            found.append(text[use.start() : end])
    return found


@pytest.mark.parametrize("directory", ["roles", "playbooks"])
def test_no_order_that_a_user_sees_is_left_to_a_set(directory: str) -> None:
    files = [path for ending in ("yml", "j2") for path in (REPOSITORY / directory).rglob(f"*.{ending}")]
    assert files
    assert {str(path): uses for path in files if (uses := ordered(path.read_text()))} == {}


def test_a_set_that_is_listed_is_found() -> None:
    assert ordered("{{ a | union(b | default([])) | join }}") == ["| union(b | default([]))"]
    assert ordered("{{ (a | difference(b)) | length > 0 }}") == []
