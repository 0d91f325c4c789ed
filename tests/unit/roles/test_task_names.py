# SPDX-License-Identifier: Apache-2.0
"""Names of plays and tasks say in a log alone what is done to what."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

REPOSITORY = Path(__file__).parents[3]
LONGEST = 70
TEMPLATE = re.compile(r"\{\{.*?\}\}")
VAGUE = re.compile(r"(Ask|Bring|Do|Find|Hand|Have|Keep|Let|Look(?! up)|Note|Put|Refuse|Say|See|Take|Tell)\b")
PRONOUN = re.compile(r"\b(it|them|they|there|ours|theirs|those|whoever)\b", re.IGNORECASE)
SECTIONS = ("pre_tasks", "tasks", "post_tasks", "handlers", "block", "rescue", "always")


def steps(entries: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield plays and tasks, and the tasks within these."""
    for entry in entries:
        yield entry
        for section in SECTIONS:
            yield from steps(entry.get(section) or [])


def names(text: str) -> list[str]:
    """Return the names of a file's plays and tasks; a task that an alias repeats counts once."""
    found = {id(step): step for step in steps(yaml.safe_load(text))}
    return [step["name"] for step in found.values() if "name" in step]


def problems(text: str) -> list[str]:
    """Return what is wrong with the names of a file's plays and tasks."""
    found = names(text)
    wrong = [f"twice: {name}" for name, times in Counter(found).items() if times > 1]
    for name in found:
        if len(TEMPLATE.sub("", name).strip()) > LONGEST:
            wrong.append(f"longer than {LONGEST} characters: {name}")
        if not name[0].isupper():
            wrong.append(f"no capital: {name}")
        if "{{" in name and not name.endswith("}}"):
            wrong.append(f"text after a template: {name}")
        if VAGUE.match(name):
            wrong.append(f"verb that says little: {name}")
        if PRONOUN.search(TEMPLATE.sub("", name)):
            wrong.append(f"pronoun: {name}")
    return wrong


def files() -> list[Path]:
    places = [*REPOSITORY.glob("roles/*/tasks"), *REPOSITORY.glob("roles/*/handlers")]
    places += [REPOSITORY / "playbooks", REPOSITORY / "molecule"]
    found = [path for place in places for path in sorted(place.rglob("*.yml"))]
    return [
        path for path in found if path.parent.name not in ("vars", "group_vars", "files") and path.stem != "molecule"
    ]


def test_names_of_plays_and_tasks_are_plain_and_unique_in_a_file() -> None:
    found = files()
    assert len(found) > 150
    wrong = {str(path.relative_to(REPOSITORY)): problems(path.read_text()) for path in found}
    assert {path: lines for path, lines in wrong.items() if lines} == {}


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("Evict them", "pronoun"),
        ("Say which pods would be evicted", "verb that says little"),
        ("Look at the node", "verb that says little"),
        ("Wait until the node offers all of the GPUs that its driver reports as healthy", "longer than"),
        ("remove the image", "no capital"),
        ("'Install {{ packages }} again'", "text after a template"),
        ("Remove the image", "twice"),
    ],
)
def test_name_that_a_log_does_not_explain_is_found(name: str, problem: str) -> None:
    (line,) = problems(f"- tasks: [{{block: [{{name: Remove the image}}], rescue: [{{name: {name}}}]}}]")
    assert line.startswith(problem)


def test_name_with_a_template_or_an_alias_is_not_refused() -> None:
    assert problems("- name: Look up\n- &a {name: 'Install {{ it | join }}'}\n- *a\n- meta: end_host\n") == []
