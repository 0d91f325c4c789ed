# SPDX-License-Identifier: Apache-2.0
"""Which rooms of a package need each other: an arrow is an import that leaves its room."""

from __future__ import annotations

import ast
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

Parts = tuple[str, ...]
Floors = Collection[Collection[str]]
"""Rooms from top to bottom. Rooms of a floor do not import each other."""


@dataclass(frozen=True)
class Arrow:
    """An import from a room to another."""

    start: str
    end: str
    file: str


def arrows(source: Path, package: str, room: Callable[[Parts], str]) -> Iterator[Arrow]:
    """The imports within the package ``package`` (dotted) at ``source`` that lead from one room to another.

    ``room`` names the room of a module by its parts below the package.
    """
    for path in source.rglob("*.py"):
        parts = path.relative_to(source).with_suffix("").parts
        parts = parts[:-1] if parts[-1] == "__init__" else parts
        if parts and not path.is_symlink():
            for target in _imports(path, source, package, parts):
                if room(parts) != room(target):
                    yield Arrow(room(parts), room(target), "/".join(parts))


def upwards(found: Collection[Arrow], floors: Floors) -> set[Arrow]:
    """The arrows that lead to the same floor or to one above."""
    floor = {room: number for number, rooms in enumerate(floors) for room in rooms}
    return {arrow for arrow in found if floor[arrow.end] <= floor[arrow.start]}


def _imports(path: Path, source: Path, package: str, own: Parts) -> Iterator[Parts]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            wholes = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = ".".join([*package.split("."), *own][: -node.level]) if node.level else ""
            module = ".".join(part for part in (above, node.module) if part)
            wholes = [f"{module}.{alias.name}" for alias in node.names]
        else:
            continue
        for whole in wholes:
            if whole.startswith(f"{package}."):
                parts = tuple(whole.removeprefix(f"{package}.").split("."))
                place = source.joinpath(*parts)
                target = parts if place.with_suffix(".py").exists() or place.is_dir() else parts[:-1]
                if target:
                    yield target
