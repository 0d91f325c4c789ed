# SPDX-License-Identifier: Apache-2.0
"""Files, classes and the names of tests are as short as CONTRIBUTING.md asks for; ruff counts what is in functions."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
DAEMON = ROOT / "roles/gpu_plugins/files/kube_accel"
LINES, METHODS, LETTERS = 500, 25, 60


def sources(*suffixes: str) -> list[Path]:
    return [
        path
        for path in sorted(DAEMON.rglob("*"))
        if path.suffix in suffixes and "_pb2" not in path.name and path.resolve() == path
    ]


def too_many_methods(source: str) -> list[str]:
    """The classes with more methods than one may have."""
    classes = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.ClassDef)]
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    return [each.name for each in classes if sum(isinstance(item, functions) for item in each.body) > METHODS]


def too_long_names(source: str) -> list[str]:
    """The tests whose names are longer than they may be."""
    return [name for name in re.findall(r"^ *(?:async )?def (test_\w+)", source, re.MULTILINE) if len(name) > LETTERS]


def test_files_of_the_daemons_are_short() -> None:
    lines = {path.name: len(path.read_text().splitlines()) for path in sources(".py", ".c", ".h")}
    assert {name: count for name, count in lines.items() if count > LINES} == {}


def test_classes_of_the_daemons_have_few_methods() -> None:
    wide = {path.name: too_many_methods(path.read_text()) for path in sources(".py")}
    assert len(wide) > 100
    assert {name: classes for name, classes in wide.items() if classes} == {}


def test_names_of_tests_are_short() -> None:
    long = {path.name: too_long_names(path.read_text()) for path in (ROOT / "tests").rglob("test_*.py")}
    assert {name: names for name, names in long.items() if names} == {}


def test_what_is_longer_is_found() -> None:
    methods = "".join(f"    def m{number}(self): ...\n" for number in range(METHODS + 1))
    assert too_many_methods(f"class Wide:\n{methods}class Narrow:\n    def m(self): ...\n") == ["Wide"]
    long = "test_" + "x" * (LETTERS - 4)
    assert (
        too_long_names(f"def {long}(): ...\nclass A:\n    def {long}(self): ...\ndef {long[:-1]}(): ...\n")
        == [long] * 2
    )
