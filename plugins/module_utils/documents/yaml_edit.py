# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Change values in the text of a YAML document, of which every other character stays. No I/O."""

from __future__ import annotations

import difflib
import json
import operator
import re
from typing import Any, Dict, Iterator, List, Tuple

from ansible_collections.accel.kubernetes.plugins.module_utils.shared.api_json import ODD

from .yaml_text import MERGE, Node, Values, YamlError, key_of, load, parsed, resolved

_BARE = re.compile(r"(--)?[A-Za-z/][\w./@=-]*(:[\w./@=-]+)*", re.ASCII)
"""Texts that need no quotes, wherever they stand, if they are not another kind of value."""


def edit(text: str, data: Dict[str, Any], path: str, strict: bool = False) -> str:
    """Return the text with only those values changed that differ in ``data``. Raises YamlError if impossible."""
    before = load(text, path, strict)
    if before == data:
        return text
    try:
        text = _without_aliases(text, data)
        editor = _Editor(text)
        editor.change(parsed(text), data, "")
        result = editor.text()
        if Values(strict).of(parsed(result)) == data:
            return result
        place = " and ".join(dict.fromkeys(editor.places))
    except (YamlError, *ODD):
        place = "it"
    raise YamlError(
        f"{path} is laid out in a way that cannot be edited safely. In that file, write {place} out as plain lists and "
        "mappings, with one entry a line, and without tags, merged keys, or explicit keys, then run again"
    )


def _without_aliases(text: str, data: Dict[str, Any]) -> str:
    """Return the text with those aliases written out that stand for something that changes."""
    while True:
        root = parsed(text)
        changed: List[Node] = []
        _collect(root, data, changed)
        wanted = {id(node) for node in changed}
        places = [node for node in _all(root) if node.target and wanted.intersection((id(node), id(node.target)))]
        if not places:
            return text
        editor = _Editor(text)
        for place in places:
            editor.replace(place, Values().of(place), None)
        text = editor.text()


def _collect(node: Node, data: Any, changed: List[Node]) -> None:  # noqa: ANN401
    """Collect all nodes on the way to what changes."""
    if Values().of(node) == data:
        return
    changed.append(node)
    if node.kind == "mapping" and isinstance(data, dict):
        for key, item in node.pairs():
            if key_of(key) in data:
                _collect(item, data[key_of(key)], changed)
    elif node.kind == "sequence" and isinstance(data, list):
        for before, after in _paired([Values().of(item) for item in node.items], data):
            if before is not None and after is not None:
                _collect(node.items[before], data[after], changed)


def _all(node: Node) -> Iterator[Node]:
    yield node
    for item in node.items:
        yield from _all(item)


def _paired(before: List[Any], after: List[Any]) -> Iterator[Tuple["int | None", "int | None"]]:
    """Yield which entry of a list became which of another; None stands for one that goes or comes."""
    old = [json.dumps(item, sort_keys=True) for item in before]
    new = [json.dumps(item, sort_keys=True) for item in after]
    # Few entries change, and the search takes the square of their number.
    head = _alike(old, new)
    tail = _alike(old[head:][::-1], new[head:][::-1])
    yield from ((number, number) for number in range(head))
    matcher = difflib.SequenceMatcher(None, old[head : len(old) - tail], new[head : len(new) - tail], autojunk=False)
    for opcode in matcher.get_opcodes():
        start, end, first, last = opcode[1:]
        for step in range(max(end - start, last - first)):
            yield (
                head + start + step if start + step < end else None,
                head + first + step if first + step < last else None,
            )
    yield from ((len(old) - number, len(new) - number) for number in range(tail, 0, -1))


def _alike(one: List[str], other: List[str]) -> int:
    """Return how many entries both begin with."""
    same = map(operator.eq, one, other)
    return next((place for place, equal in enumerate(same) if not equal), min(len(one), len(other)))


class _Editor:
    """Collects replacements in a text, by places of the text as it was."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._cuts: List[Tuple[int, int, str]] = []
        self.places: List[str] = []
        """What was changed."""

    def text(self) -> str:
        """Return the text with everything replaced."""
        parts = []
        done = 0
        for start, end, new in sorted(self._cuts, key=lambda cut: cut[:2]):
            parts += [self._text[done : max(done, start)], new]
            done = max(done, end)
        return "".join([*parts, self._text[done:]])

    def change(self, node: Node, data: Any, place: str, key: Node | None = None) -> None:  # noqa: ANN401
        """Make a node that no alias stands for what it is to be; ``key`` is the one before it in a mapping."""
        if Values().of(node) == data:
            return
        if node.kind == "mapping" and node.items and isinstance(data, dict) and self._keeps(node, data):
            self._mapping(node, data, place)
        elif node.kind == "sequence" and node.items and isinstance(data, list) and data:
            self._sequence(node, data, place)
        else:
            self.places.append(place)
            self.replace(node, data, key)

    def replace(self, node: Node, data: Any, key: Node | None) -> None:  # noqa: ANN401
        """Put another value in a node's place."""
        column = node.start - self._line_start(node.start)
        if node.items and not node.flow and key is not None and self._line_start(key.end) <= node.start - column - 1:
            # It is below its key; what stands for it now stands beside it, before a comment.
            width = 2 if node.kind == "mapping" else 1
            self._out(node, list(range(len(node.items) // width)), width)
            colon = self._text.index(":", key.end) + 1
            self._cuts.append((colon, colon, "" if data is None else " " + flow(data)))
        elif not isinstance(data, (dict, list)) or not data or self._in_flow(node):
            blank = "" if node.start < node.end or self._text[: node.start].endswith(" ") else " "
            self._cuts.append((node.start, node.end, blank + flow(data)))
        elif re.fullmatch(r" *(- +)+", self._text[node.start - column : node.start]):
            self._cuts.append((node.start, node.end, "\n".join(block(data, column)).lstrip()))
        else:
            self._cuts.append((len(self._text[: node.start].rstrip(" ")), node.end, ""))
            line = self._text[node.start - column : node.start]
            column = len(line) - len(re.sub(r"^ *(- +)*", "", line))
            self._lines_in(node.end, block(data, column if isinstance(data, list) and self._flush() else column + 2))

    @staticmethod
    def _keeps(node: Node, data: Dict[str, Any]) -> bool:
        """Return whether an entry of a mapping stays, beside which the others can come and go."""
        return any(key_of(key) in data or key_of(key) == MERGE for key in node.items[::2])

    def _mapping(self, node: Node, data: Dict[str, Any], place: str) -> None:
        merged = Values().of(node)
        names = []
        gone = []
        for number, (key, item) in enumerate(node.pairs()):
            name = key_of(key)
            names.append(name)
            where = f"{place}.{name}".lstrip(".")
            if name in data:
                self.change(item, data[name], where, key)
            elif name != MERGE:
                self.places.append(where)
                gone.append(number)
        self._out(node, gone, 2)
        for name, item in data.items():
            if name not in names and (name not in merged or merged[name] != item):
                self.places.append(f"{place}.{name}".lstrip("."))
                self._in(node, len(names), {name: item})

    def _sequence(self, node: Node, data: List[Any], place: str) -> None:
        done = 0
        gone = []
        for before, after in _paired([Values().of(item) for item in node.items], data):
            if before is None:
                self.places.append(place)
                self._in(node, done, [data[after or 0]])
                continue
            done = before + 1
            if after is None:
                self.places.append(f"{place}[{before}]")
                gone.append(before)
            else:
                self.change(node.items[before], data[after], f"{place}[{before}]")
        self._out(node, gone, 1)

    def _out(self, node: Node, gone: List[int], width: int) -> None:
        """Take entries out."""
        count = len(node.items) // width
        last = max((number for number in range(count) if number not in gone), default=-1)
        for number in gone:
            if not node.flow:
                self._out_of_block(node, number, width)
            elif number < last:
                self._cuts.append((node.items[number * width].start, node.items[(number + 1) * width].start, ""))
        if node.flow and last < count - 1:
            # The comma before those at the end goes with them.
            start = node.items[(last + 1) * width - 1].end if last >= 0 else node.items[0].start
            self._cuts.append((start, node.items[-1].end, ""))

    def _out_of_block(self, node: Node, number: int, width: int) -> None:
        entry = node.items[number * width : (number + 1) * width]
        following = node.items[(number + 1) * width].start if (number + 1) * width < len(node.items) else None
        start = self._dash(node, number) if width == 1 else entry[0].start
        line = self._line_start(start)
        if self._text[line:start].strip():
            self._cuts.append((start, following or entry[-1].end, ""))
            return
        end = self._text.find("\n", entry[-1].end) + 1 or len(self._text)
        kept = [row for row in self._text[line:end].splitlines(keepends=True) if row.lstrip().startswith("#")]
        self._cuts.append((line, end, "".join(kept)))

    def _in(self, node: Node, number: int, entry: Any) -> None:  # noqa: ANN401
        """Put an entry, a list or mapping of one, before that of a number."""
        width = 2 if node.kind == "mapping" else 1
        last = number * width == len(node.items)
        if node.flow:
            place = node.items[-1].end if last else node.items[number * width].start
            self._cuts.append((place, place, f", {flow(entry)[1:-1]}" if last else f"{flow(entry)[1:-1]}, "))
            return
        first = self._dash(node, 0) if width == 1 else node.items[0].start
        lines = block(entry, first - self._line_start(first))
        if number:
            self._lines_in(node.items[number * width - 1].end, lines)
        else:
            place = self._line_start(first)
            self._cuts.append((place, place, "".join(line + "\n" for line in lines)))

    def _lines_in(self, after: int, lines: List[str]) -> None:
        """Put lines below that of a place."""
        end = self._text.find("\n", after)
        text = "\n".join(lines)
        if end < 0:
            self._cuts.append((len(self._text), len(self._text), "\n" + text))
        else:
            self._cuts.append((end + 1, end + 1, text + "\n"))

    def _line_start(self, place: int) -> int:
        return self._text.rfind("\n", 0, place) + 1

    def _dash(self, node: Node, number: int) -> int:
        """Return where the dash of a list's entry is."""
        # Between the dash and the entry before it are comments at most, before the first an anchor as well.
        start = node.items[number - 1].end if number else node.start
        match = re.compile(r"(?:[&!]\S*|#[^\n]*|\s)*-(?=\s)").match(self._text, start)
        if match is None:
            raise YamlError(f"a list whose entry {number} has no dash")
        return match.end() - 1

    def _in_flow(self, node: Node) -> bool:
        """Return whether a value stands in brackets."""
        return any(outer.flow and outer.start < node.start < outer.end for outer in _all(parsed(self._text)))

    def _flush(self) -> bool:
        """Return whether lists begin at the column of their key in this text."""
        match = re.search(r"^( *)[^\s#-][^\n]*:[ \t]*\n( *)- ", self._text, re.MULTILINE)
        return match is None or len(match.group(2)) <= len(match.group(1))


def block(data: Any, column: int) -> List[str]:  # noqa: ANN401
    """Lines of a list or mapping in block style."""
    lines = []
    space = " " * column
    if isinstance(data, list):
        for item in data:
            if isinstance(item, (dict, list)) and item:
                below = block(item, column + 2)
                lines += [f"{space}- {below[0].lstrip()}", *below[1:]]
            else:
                lines.append(f"{space}- {flow(item)}")
        return lines
    for name, item in data.items():
        if isinstance(item, (dict, list)) and item:
            lines += [f"{space}{flow(name)}:", *block(item, column + 2 if isinstance(item, dict) else column)]
        else:
            lines.append(f"{space}{flow(name)}: {flow(item)}")
    return lines


def flow(data: Any) -> str:  # noqa: ANN401
    """Return a value on one line."""
    if isinstance(data, dict):
        return "{" + ", ".join(f"{flow(name)}: {flow(item)}" for name, item in data.items()) + "}"
    if isinstance(data, list):
        return "[" + ", ".join(map(flow, data)) + "]"
    if isinstance(data, str) and _BARE.fullmatch(data) and resolved(data) == data:
        return data
    return json.dumps(data)
