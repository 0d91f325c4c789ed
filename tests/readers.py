# SPDX-License-Identifier: Apache-2.0
"""Where a tree of Python reads what the API server or kubelet answers, so that a table of tests misses none."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Clients:
    """How code asks: ``methods`` of what is called one of ``names``, and functions."""

    types: Collection[str]
    """Annotations, and functions that make one. Who has such a thing calls it by one of ``names``."""
    names: Collection[str]
    methods: Collection[str]
    functions: Collection[str]


def readers(root: Path, clients: Clients) -> set[str]:
    """``file::function`` of each place that uses an answer, as ``a/b.py::Class.method``."""
    return {f"{file}::{where}" for file, tree in _trees(root) for where in _asking(tree, clients)}


def misnamed(root: Path, clients: Clients) -> set[str]:
    """``file::name`` of what is a client, and by its name none."""
    return {f"{file}::{name}" for file, tree in _trees(root) for name in _clients(tree, clients)}


def untested(table: Mapping[str, str]) -> set[str]:
    """Tests of a table, ``file::function`` below ``tests``, that are not there or try no odd values."""
    return {test for test in table.values() if not _tries(*test.split("::"))}


def _tries(file: str, name: str) -> bool:
    path = HERE / file
    tree = ast.parse(path.read_text() if path.is_file() else "")
    found = [each for each in tree.body if isinstance(each, ast.FunctionDef) and each.name == name]
    return any("parametrize" in ast.unparse(decorator) for each in found for decorator in each.decorator_list)


def _trees(root: Path) -> Iterator[tuple[Path, ast.Module]]:
    for path in sorted(root.rglob("*.py")):
        if not path.is_symlink():  # it is read where it lies
            yield path.relative_to(root), ast.parse(path.read_text())


def _asking(node: ast.AST, clients: Clients, at: tuple[str, ...] = ()) -> Iterator[str]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, (ast.FunctionDef, ast.ClassDef)):
            yield from _asking(child, clients, (*at, child.name))
            continue
        if isinstance(child, ast.Call) and not isinstance(node, ast.Expr) and _asks(child.func, clients):
            yield ".".join(at)
        yield from _asking(child, clients, at)


def _asks(function: ast.expr, clients: Clients) -> bool:
    if isinstance(function, ast.Attribute):
        of = function.value
        made = isinstance(of, ast.Call) and _is(of.func, clients)
        return function.attr in clients.methods and (made or _name(of) in clients.names)
    return isinstance(function, ast.Name) and function.id in clients.functions


def _clients(tree: ast.Module, clients: Clients) -> Iterator[str]:
    for node in ast.walk(tree):
        found: list[ast.expr | str] = []
        if isinstance(node, ast.arg) and node.annotation is not None and _is(node.annotation, clients):
            found = [node.arg]
        elif isinstance(node, ast.AnnAssign) and _is(node.annotation, clients):
            found = [node.target]
        elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Call) and _is(node.value.func, clients):
            found = list(node.targets)
        for each in found:
            name = each.lstrip("_") if isinstance(each, str) else _name(each)
            if name not in clients.names:
                yield name


def _is(node: ast.expr, clients: Clients) -> bool:
    """Whether one of the types is named, be it within a text or an alternative, and not within what takes one."""
    parts = [node]
    if isinstance(node, ast.BinOp):
        parts = [node.left, node.right]
    return any(ast.unparse(part).strip("'\"").rpartition(".")[2] in clients.types for part in parts)


def _name(node: ast.expr) -> str:
    name = node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
    return name.lstrip("_")
