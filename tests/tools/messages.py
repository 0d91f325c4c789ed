# SPDX-License-Identifier: Apache-2.0
"""Finds the texts that a user may read: literals in Python code, and what tasks of roles and playbooks print."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from tools.prose import LONGEST_SENTENCE, MESSAGE_SENTENCES

ROOT = Path(__file__).parents[2]
KUBE_ACCEL = ROOT / "roles/gpu_plugins/files/kube_accel/src"
_DOCUMENTS = {"DOCUMENTATION", "EXAMPLES", "RETURN"}
_CODE = re.compile(r"[\n|\\]|\bWHERE\b|; }")
"""What programs, patterns, and queries have, and no message."""
_END = re.compile(r"(?<=[.!?])[\"')]*\s+(?=[\"'(]*[A-Z\u0001]|``)")
_OLD = re.compile(
    r"\b(anew|for ever|whoever|whyever|somebody|nobody|theirs|let go of|to be had|is to be|stays so"
    r"|all the same|heeds?|mend|would do)\b",
    re.IGNORECASE,
)
"""Words for which there are plain ones, or a name."""
_HOLE = "\u0001"
_LITERALS = (ast.Constant, ast.JoinedStr, ast.BinOp)
_TEMPLATE = re.compile(r"\{\{.*?\}\}|\{%.*?%\}", re.DOTALL)
_PRINTS = ("ansible.builtin.assert", "ansible.builtin.fail", "ansible.builtin.debug")


def complaints(text: str) -> Iterator[str]:
    """Yield what keeps a message from being read at once. A value that the code fills in counts as one word."""
    parts = [part for part in _END.split(text) if part.strip()]
    if len(parts) > MESSAGE_SENTENCES:
        yield f"{len(parts)} sentences, and {MESSAGE_SENTENCES} are enough: {shown(text)}"
    yield from sentence_complaints(text)


def sentence_complaints(text: str) -> Iterator[str]:
    """Yield the sentences that are too long, and the words that have a plain one."""
    for part in _END.split(text):
        if len(part.split()) > LONGEST_SENTENCE:
            yield f"a sentence of {len(part.split())} words, and {LONGEST_SENTENCE} are enough: {shown(part)}"
    yield from (f"{word!r} has a plain word: {shown(text)}" for word in _OLD.findall(text))


def shown(text: str) -> str:
    return text.replace(_HOLE, "{}")


def python_files() -> list[Path]:
    """Return the code that runs at a user's: the collection's plugins, and the daemons."""
    found = [path for place in (ROOT / "plugins", KUBE_ACCEL) for path in place.rglob("*.py")]
    return sorted(path for path in found if not path.name.endswith("_pb2.py"))


def yaml_files() -> list[Path]:
    """Return the tasks of roles and playbooks."""
    roles = [path for kind in ("tasks", "handlers") for path in ROOT.glob(f"roles/*/{kind}/**/*.yml")]
    return sorted([*roles, *ROOT.glob("playbooks/**/*.yml")])


def literals(source: str) -> Iterator[tuple[int, str]]:
    """Yield the line and the text of each literal that is neither documentation nor code."""
    left: list[ast.AST] = [ast.parse(source)]
    while left:
        node = left.pop()
        if _is_documentation(node):
            continue
        text = _text(node) if isinstance(node, _LITERALS) else None
        if text is None:
            left += ast.iter_child_nodes(node)
        else:
            values = (part.value for part in ast.walk(node) if isinstance(part, ast.FormattedValue))
            left += (value for value in values if not isinstance(value, ast.IfExp))
            if isinstance(node, ast.expr) and not _CODE.search(text):
                yield node.lineno, text


def printed(part: Any) -> Iterator[str]:
    """Yield what tasks print, and what they fail with."""
    for entry in part if isinstance(part, list) else part.values() if isinstance(part, dict) else ():
        yield from printed(entry)
    if isinstance(part, dict):
        for name in _PRINTS:
            said = part.get(name)
            if isinstance(said, dict):
                texts = (said.get(key) for key in ("msg", "fail_msg", "success_msg"))
                yield from (_TEMPLATE.sub(_HOLE, text) for text in texts if isinstance(text, str))


def messages_of_tasks(source: str) -> list[str]:
    return [" ".join(text.split()) for text in printed(yaml.safe_load(source))]


def _is_documentation(node: ast.AST) -> bool:
    if isinstance(node, ast.Expr):
        return isinstance(node.value, ast.Constant)
    return isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") in _DOCUMENTS


def _text(node: ast.AST) -> str | None:
    """Return the text of a literal, with one word for each value; of two alternatives the longer one."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else None
    if isinstance(node, ast.JoinedStr):
        return "".join(_text(part) or _HOLE for part in node.values)
    if isinstance(node, ast.FormattedValue):
        return _text(node.value) if isinstance(node.value, ast.IfExp) else None
    if isinstance(node, ast.IfExp):
        return max((_text(each) or _HOLE for each in (node.body, node.orelse)), key=lambda text: len(text.split()))
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        sides = [_text(node.left), _text(node.right)]
        return "".join(side or _HOLE for side in sides) if any(sides) else None
    return None
