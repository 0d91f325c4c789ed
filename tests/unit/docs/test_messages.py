# SPDX-License-Identifier: Apache-2.0
"""Errors, refusals, warnings, and log lines have short sentences, at most three, and no words that readers decode."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.messages import ROOT, complaints, literals, messages_of_tasks, python_files, shown, yaml_files


def test_messages_of_modules_and_daemons_are_plain() -> None:
    said = [(path, line, text) for path in python_files() for line, text in literals(path.read_text())]
    assert len(said) > 5000
    found = [f"{place(path)}:{line}: {wrong}" for path, line, text in said for wrong in complaints(text)]
    assert found == []


def test_messages_of_roles_and_playbooks_are_plain() -> None:
    said = [(path, text) for path in yaml_files() for text in messages_of_tasks(path.read_text())]
    assert len(said) > 90
    assert [f"{place(path)}: {wrong}" for path, text in said for wrong in complaints(text)] == []


def place(path: Path) -> str:
    return str(path.relative_to(ROOT))


def words(count: int) -> str:
    return " ".join(["word"] * count)


@pytest.mark.parametrize(
    ("source", "text", "wrong"),
    [
        (
            f'raise E("{words(15)} "\n  f"{{x}} {words(15)}")',
            f"{words(15)} {{}} {words(15)}",
            ["a sentence of 31 words"],
        ),
        ('fail("A is. " + x + " B is. C is. D is.")', "A is. {} B is. C is. D is.", ["4 sentences"]),
        (f"f\"is {{'{words(30)}' if x else ''}}.\"", f"is {words(30)}.", ["a sentence of 31 words"]),
        ('log("nobody is here")', "nobody is here", ["'nobody' has a plain word"]),
        ('f"{path}: A is. {why} B is."', "{}: A is. {} B is.", []),
    ],
    ids=["parts", "sum", "alternative", "old word", "plain"],
)
def test_message_in_code_is_read_with_a_word_for_each_value(source: str, text: str, wrong: list[str]) -> None:
    ((_line, found),) = literals(source)
    assert shown(found) == text
    told = list(complaints(found))
    assert len(told) == len(wrong)
    assert all(complaint.startswith(start) for complaint, start in zip(told, wrong, strict=True))


def test_documentation_and_code_are_no_messages() -> None:
    assert list(literals(f'"""{words(40)}"""\nDOCUMENTATION = "{words(40)}"\nx = re.compile("{words(40)}|a")')) == []


def test_message_of_a_task_in_a_block_is_read() -> None:
    tasks = "- rescue: [{ansible.builtin.assert: {that: x, fail_msg: '{{ a }} is wrong. B {{ c | join(\", \") }}'}}]"
    assert [shown(text) for text in messages_of_tasks(tasks)] == ["{} is wrong. B {}"]
