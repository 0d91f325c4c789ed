# SPDX-License-Identifier: Apache-2.0
"""A client of kubernetes.core whose API server has these objects, and which of odd values are of a wrong type."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from odd_values import ABSENT, Path

Object = dict[str, Any]


class Answer:
    """What the dynamic client returns."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def to_dict(self) -> Any:
        return self._value


class Client:
    """Lists all objects of a kind, whatever is selected."""

    def __init__(self, items: Mapping[str, list[Object]]) -> None:
        self.items = items

    def resource(self, kind: str, api_version: str) -> str:
        del api_version
        return kind

    def get(self, kind: str, **selected: Any) -> Answer:
        del selected
        return Answer({"metadata": {}, "items": self.items.get(kind, [])})


def is_wrong(item: Object, path: Path, value: Any) -> bool:
    """Whether the value is of another type than the one that a well-formed object has there."""
    found: Any = item
    for step in path:
        if isinstance(found, dict):
            found = found.get(step)
        elif isinstance(found, list):
            found = found[int(step)]
    if value is ABSENT or value is None or found is None:
        return False
    return type(value) is not type(found)


def is_named_oddly(path: Path) -> bool:
    """Whether it is the object's name that is odd."""
    return path in (("metadata",), ("metadata", "name"))
