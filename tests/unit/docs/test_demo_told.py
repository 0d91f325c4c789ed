# SPDX-License-Identifier: Apache-2.0
"""The demo's page shows what the demo says: its lines are compared with the texts in the demo's code."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from demo.allocation import GpuRow, table
from tools.blocks import blocks

ROOT = Path(__file__).parents[3]
TIME = re.compile(r"\[\.\.\. s\] ")
"""What a page shows of the time that ``Story.say`` prints in front of a line."""
GAP = "..."
PROGRAM = r"(?:greedy|neighbou?r): (.+)"
"""What the demo says of the log of a program."""


@dataclass(frozen=True)
class Said:
    """A text of the demo, as a pattern: what is filled in may be anything."""

    chapter: str
    """The pattern of the chapter that it is said in; empty before the first one of its function."""
    pattern: str
    always: bool
    """Whether it is said on every machine."""


def texts(path: Path, calls: tuple[str, ...]) -> Iterator[Said]:
    """The texts that the functions of a file say, in their order."""
    for function in (node for node in ast.parse(path.read_text()).body if isinstance(node, ast.FunctionDef)):
        unsure = {call for each in ast.walk(function) if isinstance(each, ast.If) for call in ast.walk(each)}
        found = [each for each in ast.walk(function) if isinstance(each, ast.Call) and called(each) in calls]
        chapter = ""
        for call in sorted(found, key=lambda each: each.lineno):
            pattern = of(call.args[0]).partition("\\\n")[0]
            if called(call) == "chapter":
                chapter = pattern
            yield Said(chapter, pattern, call not in unsure)


def called(call: ast.Call) -> str:
    return getattr(call.func, "attr", "") or getattr(call.func, "id", "")


def of(text: ast.expr) -> str:
    parts = text.values if isinstance(text, ast.JoinedStr) else [text]
    return "".join(re.escape(str(part.value)) if isinstance(part, ast.Constant) else ".+" for part in parts)


SAID = [each for name in ("__main__", "usage") for each in texts(ROOT / f"tests/demo/{name}.py", ("chapter", "say"))]
PRINTED = [each.pattern for each in texts(ROOT / "tests/demo/program.py", ("print",))] + ["nvidia-smi shows .+ MiB"]


def chapters(shown: str) -> dict[str, list[str]]:
    """The lines of a page by their chapter."""
    found: dict[str, list[str]] = {}
    for line in filter(None, shown.splitlines()):
        if line.startswith("== "):
            lines = found.setdefault(line.removeprefix("== "), [])
        else:
            lines.append(line)
    return found


def complaints(shown: str) -> Iterator[str]:
    """What a page shows that the demo does not say, and what it leaves out without dots."""
    for title, lines in chapters(shown).items():
        told = [each for each in SAID if each.chapter and re.fullmatch(each.chapter, title)]
        if not told:
            yield f"no chapter {title!r}"
        texts_here = [TIME.sub("", line, count=1) for line in lines if TIME.match(line)]
        for text in texts_here:
            program = re.fullmatch(PROGRAM, text)
            if not any(
                re.fullmatch(each, program[1] if program else text) for each in (PRINTED if program else known())
            ):
                yield f"{title}: it does not say {text!r}"
        missed = (each.pattern for each in told if each.always and each.pattern != each.chapter)
        for pattern in () if GAP in lines else missed:
            if not any(re.fullmatch(pattern, text) for text in texts_here):
                yield f"{title}: it says {pattern!r} too"


def known() -> list[str]:
    """The patterns of which enough is a text."""
    return [each.pattern for each in SAID if len(re.findall(r"[A-Za-z]", each.pattern)) > 3]


def page() -> str:
    (shown,) = (block.text for block in blocks(ROOT / "docs/tutorials/demo.md") if block.kind == "text")
    return shown


def test_the_page_shows_what_the_demo_says() -> None:
    assert list(complaints(page())) == []


def test_the_page_has_the_columns_of_the_demos_table() -> None:
    gpu = GpuRow("gpu-a", "pgpu", 0, "NVIDIA H100 80GB HBM3", 80 << 30, "healthy", "", ())
    head = table([gpu]).splitlines()[0].split()
    assert head in [line.split() for line in page().splitlines()]


@pytest.mark.parametrize(
    ("line", "instead", "complaint"),
    [
        ("== A GPU falls off the bus, and comes back", "== A card is lost", "no chapter 'A card is lost'"),
        ("is pending:", "waits:", "it does not say 'default/six-gpus asks for"),
        ("6 GiB: refused, CUDA error 2", "6 GiB: no", "it does not say 'greedy: 6 GiB: no'"),
        ("kubectl describe pod greedy: ", "", 'it does not say "container main'),
    ],
    ids=["chapter", "words", "program", "event"],
)
def test_a_page_that_differs_from_the_demo_is_told(line: str, instead: str, complaint: str) -> None:
    assert line in page()
    assert [each for each in complaints(page().replace(line, instead)) if complaint in each]


def test_a_line_that_is_left_out_without_dots_is_told() -> None:
    lines = page().splitlines(keepends=True)
    (gone,) = (line for line in lines if "kubectl describe pod greedy" in line)
    assert "describe" in "".join(complaints("".join(line for line in lines if line != gone)))
