# SPDX-License-Identifier: Apache-2.0
"""A task that waits goes on waiting while the API server does not answer, and is told what it said."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ansible.parsing.dataloader import DataLoader
from ansible.template import Templar, trust_as_template

from yaml_files import document

from .conftest import variables_of

ROOT = Path(__file__).parents[3]
FILES = sorted([*ROOT.glob("roles/*/tasks/*.yml"), *ROOT.glob("playbooks/**/*.yml")])
REFUSED = "resourceclaims is forbidden"
FAILED = {"failed": True, "msg": REFUSED, "attempts": 3}


def tasks(part: Any) -> Iterator[dict[str, Any]]:
    """All tasks, wherever they stand."""
    if isinstance(part, list):
        for entry in part:
            yield from tasks(entry)
    elif isinstance(part, dict):
        yield part
        for key in ("tasks", "pre_tasks", "post_tasks", "block", "rescue", "always"):
            yield from tasks(part.get(key))


def waiting() -> dict[str, dict[str, Any]]:
    """Tasks that ask again until something is so. Where failing is no failure, a planner reads what came."""
    found = {
        f"{path.relative_to(ROOT)}: {task['name']}": task
        for path in FILES
        for task in tasks(document(path))
        if "until" in task
    }
    return {name: task for name, task in found.items() if "failed_when" not in task}


def words(path: str, name: str, **variables: Any) -> str:
    """What a task of the role gpu_plugins fails with."""
    (task,) = (each for each in tasks(document(ROOT / "roles/gpu_plugins/tasks" / path)) if each.get("name") == name)
    scope = variables_of("gpu_plugins") | {"inventory_hostname": "n", "ansible_facts": {}} | variables
    told = Templar(DataLoader(), variables=scope).template(trust_as_template(task["ansible.builtin.fail"]["msg"]))
    return " ".join(str(told).split())


@pytest.mark.parametrize("name", waiting())
def test_failed_look_is_not_what_is_waited_for(name: str) -> None:
    task = waiting()[name]
    templar = Templar(DataLoader(), variables={task["register"]: FAILED})
    assert templar.evaluate_conditional(trust_as_template(task["until"])) is False


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("hand_over.yml", "Fail with the claims that have the node's GPUs"),
        ("empty.yml", "Fail with the reason why the node was not drained"),
        ("monitors_away.yml", "Fail with the GPU monitoring pods that remain"),
    ],
)
def test_words_of_the_api_server_are_told(path: str, name: str) -> None:
    found = {"holders": [], "serving": "serving mode dra"}
    variables = {"__gpu_plugins_handover": {"claims": []}, "__gpu_plugins_evacuation": found}
    told = words(path, name, ansible_failed_result=FAILED, **variables)
    assert REFUSED in told
    assert "Delete them" not in told
    assert "remove them" not in told


def test_claims_that_stay_are_told() -> None:
    claims = {"__gpu_plugins_handover": {"claims": ["team/a"]}}
    told = words("hand_over.yml", "Fail with the claims that have the node's GPUs", ansible_failed_result={}, **claims)
    assert "these claims still have its GPUs, though no pod on the node does: team/a. Delete them" in told
