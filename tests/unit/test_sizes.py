# SPDX-License-Identifier: Apache-2.0
"""Files, functions, classes and the names of tests are as short as CONTRIBUTING.md asks for; ruff counts branches."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PRODUCT = (ROOT / "roles/gpu_plugins/files/kube_accel", ROOT / "plugins")
DOCUMENTATION = re.compile(r'^(?:DOCUMENTATION|EXAMPLES|RETURN) = r?""".*?^"""\n', re.DOTALL | re.MULTILINE)
LINES, FUNCTION_LINES, METHODS, LETTERS = 500, 50, 25, 60


def sources(*suffixes: str) -> list[Path]:
    return [
        path
        for place in PRODUCT
        for path in sorted(place.rglob("*"))
        if path.suffix in suffixes and "_pb2" not in path.name and path.resolve() == path
    ]


def too_many_methods(source: str) -> list[str]:
    """The classes with more methods than one may have."""
    classes = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.ClassDef)]
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    return [each.name for each in classes if sum(isinstance(item, functions) for item in each.body) > METHODS]


def too_long_functions(source: str) -> list[str]:
    """The functions with more lines than one may have."""
    functions = [
        node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    return [each.name for each in functions if (each.end_lineno or 0) - each.lineno >= FUNCTION_LINES]


def too_long_names(source: str) -> list[str]:
    """The tests whose names are longer than they may be."""
    return [name for name in re.findall(r"^ *(?:async )?def (test_\w+)", source, re.MULTILINE) if len(name) > LETTERS]


def lines_of(source: str) -> int:
    """The lines of a file, without the documentation of a module."""
    return len(DOCUMENTATION.sub("", source).splitlines())


def test_files_of_the_product_are_short() -> None:
    lines = {str(path): lines_of(path.read_text()) for path in sources(".py", ".c", ".h")}
    assert {name: count for name, count in lines.items() if count > LINES} == {}


def test_classes_of_the_product_have_few_methods() -> None:
    wide = {str(path): too_many_methods(path.read_text()) for path in sources(".py")}
    assert len(wide) > 300
    assert {name: classes for name, classes in wide.items() if classes} == {}


def test_functions_of_the_product_are_short() -> None:
    long = {str(path): too_long_functions(path.read_text()) for path in sources(".py")}
    assert {name: functions for name, functions in long.items() if functions} == {}


def test_names_of_tests_are_short() -> None:
    long = {path.name: too_long_names(path.read_text()) for path in (ROOT / "tests").rglob("test_*.py")}
    assert {name: names for name, names in long.items() if names} == {}


def test_what_is_longer_is_found() -> None:
    assert lines_of('DOCUMENTATION = r"""\n---\n"""\n\nEXAMPLES = """\n- a\n"""\nimport os\n') == 2
    methods = "".join(f"    def m{number}(self): ...\n" for number in range(METHODS + 1))
    assert too_many_methods(f"class Wide:\n{methods}class Narrow:\n    def m(self): ...\n") == ["Wide"]
    body = "    pass\n" * (FUNCTION_LINES - 1)
    assert too_long_functions(f"def long():\n{body}    pass\ndef short():\n{body}") == ["long"]
    long = "test_" + "x" * (LETTERS - 4)
    assert (
        too_long_names(f"def {long}(): ...\nclass A:\n    def {long}(self): ...\ndef {long[:-1]}(): ...\n")
        == [long] * 2
    )
