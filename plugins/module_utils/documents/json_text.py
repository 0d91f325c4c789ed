# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Edit single members of a JSON document and leave the rest of its text as it is."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Sequence

_BLANK = re.compile(r"[ \t\r\n]*")
_DECODER = json.JSONDecoder()


@dataclass(frozen=True)
class _Member:
    key: str
    start: int
    value_start: int
    end: int


def set_member(text: str, path: Sequence[str], value: object) -> str:
    """Return the document with the member at ``path`` set; objects on the way are created.

    The root has to be an object.
    """
    start = _skip(text, 0)
    end = len(text)
    for depth, key in enumerate(path):
        member = _find(text, start, key)
        if member is None:
            for missing in reversed(path[depth + 1 :]):
                value = {missing: value}
            return _insert(text, start, depth + 1, key, value)
        start, end = member.value_start, member.end
    return text[:start] + _dump(text, value, len(path)) + text[end:]


def delete_member(text: str, path: Sequence[str]) -> str:
    """Return the document without the member at ``path``, which has to exist."""
    start = _skip(text, 0)
    for key in path[:-1]:
        member = _find(text, start, key)
        if member is None:
            raise KeyError(key)
        start = member.value_start
    members = _members(text, start)
    position = next(i for i, member in enumerate(members) if member.key == path[-1])
    if len(members) == 1:
        return text[: start + 1] + text[_skip(text, members[0].end) :]
    if position == 0:
        return text[: members[0].start] + text[members[1].start :]
    return text[: members[position - 1].end] + text[members[position].end :]


def _skip(text: str, position: int) -> int:
    match = _BLANK.match(text, position)
    return match.end() if match else position


def _members(text: str, start: int) -> list[_Member]:
    """Members of the object that begins at ``start``; the document is known to be valid."""
    if text[start] != "{":
        raise KeyError("not an object")
    members = []
    position = _skip(text, start + 1)
    while text[position] != "}":
        key, after_key = _DECODER.raw_decode(text, position)
        value_start = _skip(text, _skip(text, after_key) + 1)
        end = _DECODER.raw_decode(text, value_start)[1]
        members.append(_Member(key, position, value_start, end))
        position = _skip(text, end)
        if text[position] == ",":
            position = _skip(text, position + 1)
    return members


def _find(text: str, start: int, key: str) -> _Member | None:
    # A key given twice counts with its last value, as in Python and Go.
    return next((member for member in reversed(_members(text, start)) if member.key == key), None)


def _insert(text: str, start: int, depth: int, key: str, value: object) -> str:
    members = _members(text, start)
    entry = f"{json.dumps(key)}: {_dump(text, value, depth)}"
    if not members:
        indent = _indent(text)
        inner = f"\n{indent * depth}{entry}\n{indent * (depth - 1)}" if indent else entry
        return text[: start + 1] + inner + text[_skip(text, start + 1) :]
    last = members[-1]
    lead = text[start + 1 : last.start] or " "
    between = text[members[-2].end : last.start] if len(members) > 1 else "," + lead
    return text[: last.end] + between + entry + text[last.end :]


def _indent(text: str) -> str:
    """Return one step of indentation, empty for a document in one line."""
    if "\n" not in text.strip():
        return "" if len(text.strip()) > 2 else "  "
    match = re.search(r'\n([ \t]+)"', text)
    return match.group(1) if match else ""


def _dump(text: str, value: object, depth: int) -> str:
    indent = _indent(text)
    if not indent:
        return json.dumps(value, ensure_ascii=False)
    return json.dumps(value, ensure_ascii=False, indent=indent).replace("\n", "\n" + indent * depth)
