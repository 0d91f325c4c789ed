# SPDX-License-Identifier: Apache-2.0
"""What a diagnosis has a user do is said in plain sentences, one to three."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
from ansible_collections.accel.kubernetes.plugins.module_utils.shared.gpu_xids import XIDS

from tools.prose import complaints_of_message

ROOT = Path(__file__).parents[5]
RULES = sorted((ROOT / "plugins/module_utils/diagnosis").glob("*.py"))


def remedies(text: str) -> Iterator[str]:
    """Yield the texts of a module that end as sentences, docstrings aside; what is put in is X."""
    tree = ast.parse(text)
    notes = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    notes |= {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in ast.walk(tree):
        if id(node) in notes:
            continue
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            said = node.value
        elif isinstance(node, ast.JoinedStr):
            said = "".join(str(part.value) if isinstance(part, ast.Constant) else "X" for part in node.values)
        else:
            continue
        if said.endswith(".") and " " in said:
            yield said


@pytest.mark.parametrize("path", RULES, ids=lambda path: path.stem)
def test_remedies_of_a_module_are_plain(path: Path) -> None:
    assert [complaint for said in remedies(path.read_text()) for complaint in complaints_of_message(said)] == []


def test_remedies_are_found() -> None:
    assert len({said for path in RULES for said in remedies(path.read_text())}) > 80


def test_remedies_of_xids_are_plain() -> None:
    said = {text for xid in XIDS.values() for text in (xid.meaning, xid.remedy)}
    assert [complaint for text in sorted(said) for complaint in complaints_of_message(text)] == []
