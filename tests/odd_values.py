# SPDX-License-Identifier: Apache-2.0
"""Objects of an API that note which of their fields are read, and the same with one field of an odd value.

What is read is found by running the code under test on well-formed objects, so that a field that is read from tomorrow
on is tried without anybody's editing a list.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, ItemsView, Iterator, KeysView
from typing import Any

import pytest

Path = tuple[str | int, ...]

ABSENT = object()
"""The field is not there."""


def nested(depth: int) -> Any:
    """A list in a list, and so on."""
    value: Any = []
    for _ in range(depth):
        value = [value]
    return value


ODD: dict[str, Any] = {
    "absent": ABSENT,
    "null": None,
    "empty text": "",
    "text": "no such thing",
    "a path": "../../etc",
    "control characters": "\x1b[2J\x00\n",
    "half a character": "\ud800",
    "long text": "9" * 5000,
    "a number": 7,
    "a negative number": -1,
    "a huge number": (1 << 64) - 1,
    "a fraction": 1.5,
    "a truth": True,
    "an empty list": [],
    "a list": [None, 7, "x", {}],
    "an empty object": {},
    "an object": {"a": {"b": [None]}, "name": 7},
    "nested": nested(200),
}


ODD_YAML = (
    *("a: !!timestamp x", "a: !!bool x", "a: !!int ''", "a: !!int x", "a: !!int '0b'", "a: !!float ''", "a: !!float x"),
    *("a: !!binary '\u00e9'", "a: !!omap 7", "a: !!pairs 7", "a: !!set 7", "a: 2001-99-99", "a: *x", "a: &a [*a]"),
    *("? {}\n: 1", "? []\n: 1", "<<: 7", "<<: [7]", "a: !!python/object:os.system x", "a: " + "9" * 5000, "a: 1e400"),
    *("\ud800", '"\\ud800"', "a: '\x00'", "[" * 400, "{a: " * 400, "a: {", "- x", "7", "", "a: !!null x"),
)
"""Texts that a decoder of YAML refuses in one way or another, or makes something odd of."""


_FEW = ("absent", "null", "half a character", "a number", "a list", "an object")


def cases(fields: list[Path]) -> list[Any]:
    """Parameters ``path`` and ``values`` of a test: few values for each field, and the others when there is time."""
    few = {name: ODD[name] for name in _FEW}
    rest = {name: value for name, value in ODD.items() if name not in few}
    found = [pytest.param(path, few, id=shown(path)) for path in fields]
    return found + [pytest.param(path, rest, id=f"{shown(path)}-all", marks=pytest.mark.full) for path in fields]


class Noted(dict[str, Any]):
    """An object of JSON that adds the path of each field it is asked for to ``paths``, whether it has it or not."""

    def __init__(self, value: dict[str, Any], paths: set[Path], at: Path = ()) -> None:
        super().__init__({key: noted(child, paths, (*at, key)) for key, child in value.items()})
        self._paths, self._at = paths, at

    def _note(self, key: object) -> None:
        if isinstance(key, str):
            self._paths.add((*self._at, key))

    def __deepcopy__(self, memo: dict[int, Any]) -> dict[str, Any]:
        """A copy is read by nobody yet, and is plain."""
        return {key: copy.deepcopy(value, memo) for key, value in super().items()}

    def __getitem__(self, key: str) -> Any:
        self._note(key)
        return super().__getitem__(key)

    def get(self, key: str, default: Any = None) -> Any:
        self._note(key)
        return super().get(key, default)

    def __contains__(self, key: object) -> bool:
        self._note(key)
        return super().__contains__(key)

    def __iter__(self) -> Iterator[str]:
        for key in super().__iter__():
            self._note(key)
            yield key

    def keys(self) -> Any:
        return KeysView(self)

    def values(self) -> Any:
        return [self[key] for key in self]

    def items(self) -> Any:
        return ItemsView(self)


def noted(value: Any, paths: set[Path], at: Path = ()) -> Any:
    """The same value, whose objects note what is read of them; entries of lists count as read."""
    if isinstance(value, dict):
        return Noted(value, paths, at)
    if isinstance(value, list):
        paths.update((*at, place) for place in range(len(value)))
        return [noted(child, paths, (*at, place)) for place, child in enumerate(value)]
    return value


def fields_read(item: dict[str, Any], run: Callable[[dict[str, Any]], object]) -> list[Path]:
    """The fields of an object that ``run`` reads."""
    paths: set[Path] = set()
    run(Noted(copy.deepcopy(item), paths))
    # Below what is not there nothing was read.
    return sorted(paths, key=lambda path: tuple(map(str, path)))


def with_value(item: dict[str, Any], path: Path, value: Any) -> dict[str, Any]:
    """A copy of an object with one field of another value."""
    changed = copy.deepcopy(item)
    parent: Any = changed
    for step in path[:-1]:
        parent = parent[step]
    if value is not ABSENT:
        parent[path[-1]] = copy.deepcopy(value)
    elif isinstance(parent, list) or path[-1] in parent:
        del parent[path[-1]]
    return changed


def shown(path: Path) -> str:
    """A field's path for a person."""
    return ".".join(map(str, path))
