# SPDX-License-Identifier: Apache-2.0
"""Playbooks have Ansible's own process load the collection's filters, which each fork would have to load otherwise."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from yaml_files import document

PLAYBOOKS = Path(__file__).parents[3] / "playbooks"
MANY_HOSTS = ("site", "rollout", "validate", "switch_mode", "upgrade_driver", "migrate")


def first_task(playbook: Path) -> dict[str, Any]:
    """The task that runs first, in whatever file it is."""
    task: dict[str, Any] = document(playbook)[0]["tasks"][0]
    imported = task.get("ansible.builtin.import_tasks")
    return document(PLAYBOOKS / imported)[0] if imported else task


@pytest.mark.parametrize("name", MANY_HOSTS)
def test_first_task_loads_the_filters_before_any_fork(name: str) -> None:
    """A throttle is evaluated before the fork."""
    task = first_task(PLAYBOOKS / f"{name}.yml")
    assert "| accel.kubernetes." in task["throttle"]
    assert document(PLAYBOOKS.joinpath(f"{name}.yml"))[0]["gather_facts"] is False
