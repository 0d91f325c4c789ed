# SPDX-License-Identifier: Apache-2.0
"""Descriptions of variables, modules, filters, and commands have short sentences, and names in place of pronouns."""

from __future__ import annotations

import argparse
import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from kube_accel.cli import main
from tools.prose import complaints_of_description
from yaml_files import document

ROOT = Path(__file__).parents[3]
SPECS = sorted(ROOT.glob("roles/*/meta/argument_specs.yml"))
PLUGINS = sorted(path for kind in ("modules", "filter", "doc_fragments") for path in ROOT.glob(f"plugins/{kind}/*.py"))
DESCRIBES = ("description", "short_description", "details")
VERBS = (
    *("Add", "Assemble", "Check", "Collect", "Compare", "Configure", "Create", "Divide", "Find", "List", "Load"),
    *("Measure", "Plan", "Prove", "Read", "Remove", "Report", "Return", "Set"),
)
"""What a plugin can do."""


def described(document: Any) -> Iterator[str]:
    """Yield the paragraphs of each description in a document."""
    if isinstance(document, dict):
        for key, value in document.items():
            if key in DESCRIBES and isinstance(value, (str, list)):
                yield from (text for text in ([value] if isinstance(value, str) else value) if isinstance(text, str))
            else:
                yield from described(value)


def documents(path: Path) -> Iterator[Any]:
    """Yield the documentation of a plugin, and what it returns."""
    for node in ast.walk(ast.parse(path.read_text())):
        names = [target.id for target in getattr(node, "targets", ()) if isinstance(target, ast.Name)]
        if isinstance(node, ast.Assign) and names in (["DOCUMENTATION"], ["RETURN"]):
            yield yaml.safe_load(ast.literal_eval(node.value))


def helps(parser: argparse.ArgumentParser) -> Iterator[str]:
    """Yield the help of a command's flags, and of its subcommands."""
    for action in parser._actions:
        if action.help:
            yield action.help
        if isinstance(action, argparse._SubParsersAction):
            yield from (choice.help for choice in action._choices_actions if choice.help)
            for command in action.choices.values():
                yield from helps(command)


@pytest.mark.parametrize("path", SPECS, ids=lambda path: path.parts[-3])
def test_descriptions_of_variables_are_plain(path: Path) -> None:
    texts = list(described(document(path)))
    assert texts
    assert [complaint for text in texts for complaint in complaints_of_description(text)] == []


@pytest.mark.parametrize("path", PLUGINS, ids=lambda path: path.stem)
def test_descriptions_of_plugins_are_plain(path: Path) -> None:
    texts = [text for document in documents(path) for text in described(document)]
    assert texts
    assert [complaint for text in texts for complaint in complaints_of_description(text)] == []


@pytest.mark.parametrize(
    "path", [path for path in PLUGINS if path.parent.name != "doc_fragments"], ids=lambda path: path.stem
)
def test_plugin_is_described_by_verb_and_object(path: Path) -> None:
    """``ansible-doc -l`` lists these descriptions alone."""
    (described_by,) = [document["short_description"] for document in documents(path) if "short_description" in document]
    assert described_by.split()[0] in VERBS, described_by


def test_help_of_commands_is_plain() -> None:
    texts = set(helps(main._parser()))
    assert len(texts) > 60
    assert [complaint for text in sorted(texts) for complaint in complaints_of_description(text)] == []


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (" ".join(["word"] * 31) + ".", ["a sentence of 31 words"]),
        ("Whoever wrote it.", ["'Whoever'"]),
        ("The state is V(ours).", []),
        ("Path of the file. Empty uses the default.", []),
    ],
    ids=["long", "pronoun", "a value's name", "plain"],
)
def test_what_is_not_plain_is_told(text: str, found: list[str]) -> None:
    told = list(complaints_of_description(text))
    assert len(told) == len(found)
    assert all(complaint.startswith(start) for complaint, start in zip(told, found, strict=True))
