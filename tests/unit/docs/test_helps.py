# SPDX-License-Identifier: Apache-2.0
"""Helps of targets, flags, surveys, metrics, and alerts, and the changelog, are plain; a help fits on one line."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import Any

import pytest

from kube_accel.metrics import aliases
from kube_accel.metrics.exposition import Family
from kube_accel.metrics.families import ALL
from tools.messages import KUBE_ACCEL, ROOT, complaints, sentence_complaints
from unit.roles.monitoring.served import extender_page
from yaml_files import document

WIDEST = 100
"""Characters of a help that a terminal or a form shows on one line."""
TEMPLATE = re.compile(r"\{\{.*?\}\}")


def targets() -> list[str]:
    return re.findall(r"^[a-z-]+:.*?## (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)


def surveys() -> Iterator[str]:
    """Yield what AWX shows of job templates and their questions."""
    for template in document(ROOT / "examples/awx/templates.yml")["gpu_job_templates"]:
        yield template["description"]
        for question in template["survey"]:
            yield from (question["question_name"], question["question_description"])


def flags() -> Iterator[str]:
    """Yield the literal help of each flag of the tests' tools and of the daemons."""
    for path in [*(ROOT / "tests").rglob("*.py"), *KUBE_ACCEL.rglob("*.py")]:
        text = path.read_text()
        if "add_argument(" in text:
            for call in (node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)):
                if isinstance(call.func, ast.Attribute) and call.func.attr in ("add_argument", "add_parser"):
                    yield from (str(_text(word.value)) for word in call.keywords if word.arg == "help")


def _text(node: ast.expr) -> str:
    parts = node.values if isinstance(node, ast.JoinedStr) else [node]
    return "".join(str(part.value) if isinstance(part, ast.Constant) else "X" for part in parts)


def metrics() -> Iterator[str]:
    yield from (family.help for family in (*ALL, *_families(vars(aliases))))
    yield from re.findall(r"^# HELP \S+ (.*)$", extender_page(), re.MULTILINE)


def _families(value: Any) -> Iterator[Family]:
    """Yield the families in what a module has."""
    if isinstance(value, Family):
        yield value
    elif isinstance(value, (dict, list, tuple)):
        for each in value.values() if isinstance(value, dict) else value:
            yield from _families(each)


def alerts() -> Iterator[str]:
    for path in sorted((ROOT / "roles/monitoring/files/rules").glob("*.yml")):
        for group in document(path)["groups"]:
            for rule in group["rules"]:
                told = rule.get("annotations", {})
                yield from (TEMPLATE.sub("X", told[key]) for key in ("summary", "description") if key in told)


@pytest.mark.parametrize(("texts", "least"), [(targets, 20), (surveys, 120), (flags, 80)], ids=["make", "AWX", "flags"])
def test_help_is_one_short_line(texts: Any, least: int) -> None:
    said = list(texts())
    assert len(said) > least
    assert [text for text in said if len(text) > WIDEST] == []
    assert [wrong for text in said for wrong in complaints(text)] == []


@pytest.mark.parametrize(("texts", "least"), [(metrics, 80), (alerts, 50)], ids=["metrics", "alerts"])
def test_texts_of_metrics_and_alerts_are_plain(texts: Any, least: int) -> None:
    said = list(texts())
    assert len(said) > least
    assert [wrong for text in said for wrong in complaints(text)] == []


def test_help_of_a_target_is_a_sentence_with_a_verb() -> None:
    assert [text for text in targets() if not re.fullmatch(r"[A-Z][a-z]+ .+[.:](?: make .+)?", text)] == []


def test_changelog_has_short_sentences() -> None:
    assert [wrong for text in changes() for wrong in sentence_complaints(text)] == []


def changes() -> Iterator[str]:
    """Yield the entries of the changelog, and of the fragments to come."""
    released = document(ROOT / "changelogs/changelog.yaml")["releases"]
    documents = [release.get("changes") or {} for release in released.values()]
    documents += [document(path) for path in (ROOT / "changelogs/fragments").glob("*.yml")]
    for entries in (entries for changes in documents for entries in changes.values()):
        yield from [entries] if isinstance(entries, str) else entries
