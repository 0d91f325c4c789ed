# SPDX-License-Identifier: Apache-2.0
"""What `make lint` says of sentences and lines that are too long."""

from __future__ import annotations

import json

import pytest

from tools import prose


def words(count: int) -> str:
    return " ".join(["word"] * count)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (f"A {words(29)}.", "sentences have 30.0 words in the mean"),
        (f"A {words(30)}.\n\nIt is so.\n\nIt is.", "line 1: a sentence of 31 words"),
        (f"- A {words(15)}\n  {words(15)}.\n- It is.\n- It is.", "line 1: a sentence of 31 words"),
        (f"It is.\n\n> A {words(30)}.\n\nIt is.", "line 3: a sentence of 31 words"),
        ("a" * 121, "line 1: 121 characters"),
    ],
    ids=["mean", "sentence", "item", "quote", "line"],
)
def test_what_is_too_long_is_told_with_its_line(text: str, found: str) -> None:
    assert [complaint for complaint in prose.complaints(text) if found in complaint]


@pytest.mark.parametrize(
    "text",
    [
        f"| {words(40)} |\n|---|\n| {words(40)} |",
        f"```text\n{words(40)}\n```",
        f"# A {words(20)} and `code`",
        f"It is. It has {words(10)};\nthen `{words(20)}` is.",
        f"- [It is]({'a' * 120})",
    ],
    ids=["table", "code", "heading", "inline code", "link"],
)
def test_what_is_no_prose_is_not_measured(text: str) -> None:
    assert list(prose.complaints(text)) == []


def test_all_pages_pass(capsys: pytest.CaptureFixture[str]) -> None:
    assert prose.main([]) == 0, capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("Reset the GPU. If the XID returns, replace the GPU.", []),
        ("Reset it; then wait.", ["a semicolon"]),
        ("Reset. Wait. Look. Read.", ["4 sentences"]),
        (f"Look at {words(30)}.", ["a sentence of 32 words"]),
        ("Place the pod anew.", ["'anew'"]),
    ],
    ids=["plain", "joined", "many", "long", "old word"],
)
def test_a_message_that_is_not_plain_is_told(text: str, found: list[str]) -> None:
    told = list(prose.complaints_of_message(text))
    assert len(told) == len(found)
    assert all(part in complaint for part, complaint in zip(found, told, strict=True))


def test_descriptions_of_dashboards_are_plain() -> None:
    said = {
        panel["description"]
        for path in (prose.ROOT / "roles/monitoring/files/dashboards").glob("*.json")
        for panel in json.loads(path.read_text())["panels"]
        if panel.get("description")
    }
    assert len(said) > 60
    assert [complaint for text in sorted(said) for complaint in prose.complaints_of_message(text)] == []
