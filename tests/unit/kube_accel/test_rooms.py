# SPDX-License-Identifier: Apache-2.0
"""The daemon's rooms: imports go downwards only, so that no two rooms need each other."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[3] / "roles/gpu_plugins/files/kube_accel/src/kube_accel"
FLOORS = (
    {"cli"},
    {"plugin", "extender"},
    {"plugin.mig", "plugin.tenancy"},
    {"plugin.configuration"},
    {"plugin.node"},
    {"plugin.allocation"},
    {"plugin.kubelet"},
    {"metrics", "enforce", "mig"},
    {"nvml", "web"},
    {"kube", "exclusions", "graphics", "listening", "logs", "stopping", "placement", "sharing", "files"},
    {"rpc"},
    {"inspect", "model"},
    {"shared"},
)
"""From top to bottom. Rooms of a floor do not import each other. ``shared`` is what modules and daemon share."""
FLOOR = {room: number for number, rooms in enumerate(FLOORS) for room in rooms}


def place(parts: tuple[str, ...]) -> Path:
    """Where a module's file is, or its directory."""
    return SOURCE.joinpath(*parts).with_suffix(".py") if parts else SOURCE


def room(parts: tuple[str, ...]) -> str:
    """The room that a module below ``kube_accel`` is in."""
    if place(parts).is_symlink() or parts[0] == "shared":
        return "shared"
    return ".".join(parts[:2]) if parts[0] == "plugin" and SOURCE.joinpath(*parts[:2]).is_dir() else parts[0]


def imports(path: Path) -> Iterator[tuple[str, ...]]:
    """The modules of the daemon that a file imports, without the package's name."""
    for node in ast.walk(ast.parse(path.read_text())):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import | ast.ImportFrom) else []
        module = node.module or "" if isinstance(node, ast.ImportFrom) else ""
        for name in names:
            whole = f"{module}.{name}" if module else name
            parts = tuple(whole.split(".")[1:])
            if whole.split(".")[0] == "kube_accel" and parts:
                found = place(parts).exists() or SOURCE.joinpath(*parts).is_dir()
                yield parts if found else parts[:-1]


@cache
def arrows() -> frozenset[tuple[str, str, str]]:
    """The room of each import, the room it leads to, and the file that has it."""
    return frozenset(_arrows())


def _arrows() -> Iterator[tuple[str, str, str]]:
    for path in SOURCE.rglob("*.py"):
        parts = path.relative_to(SOURCE).with_suffix("").parts
        parts = parts[:-1] if parts[-1] == "__init__" else parts
        if parts and not path.is_symlink():
            for target in imports(path):
                if target:
                    yield room(parts), room(target), "/".join(parts)


def test_every_room_is_on_a_floor() -> None:
    assert {room for start, end, _ in arrows() for room in (start, end)} <= FLOOR.keys()


@pytest.mark.parametrize("name", sorted(FLOOR))
def test_a_room_imports_from_floors_below(name: str) -> None:
    upwards = {(end, file) for start, end, file in arrows() if start == name != end and FLOOR[end] <= FLOOR[name]}
    assert upwards == set()
