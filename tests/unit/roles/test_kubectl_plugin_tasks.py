# SPDX-License-Identifier: Apache-2.0
"""What the tasks of kubectl inspect gpu write and remove, evaluated as Ansible would, without running them."""

from __future__ import annotations

from typing import Any

import pytest
from ansible.parsing.dataloader import DataLoader
from ansible.template import Templar, trust_as_template

from unit.plugins.filter.test_kubectl_plugin import PYTHON, planned

from .conftest import ROLES, variables_of

PATHS = ["/tree/usr/local/bin/kubectl-inspect-gpu", "/tree/usr/local/bin/kubectl-inspect-cgpu"]
WRITE, REMOVE = "ansible.builtin.copy", "ansible.builtin.file"


def tasks() -> dict[str, Any]:
    """The tasks by their modules."""
    file = str(ROLES / "scheduler/tasks/kubectl_plugin.yml")
    found = DataLoader().load_from_file(file, trusted_as_template=True)
    return {key: task for task in found for key in task if key.startswith("ansible.builtin.")}


def evaluated(expression: object, task: dict[str, Any], **variables: Any) -> Any:
    scope: dict[str, Any] = {"ansible_facts": {"python": PYTHON, "os_family": "Debian"}, "inventory_hostname": "cp"}
    scope |= {"hostvars": {"cp": {}}, "groups": {"kube_control_plane": ["cp"]}, **variables_of("scheduler")}
    scope |= {"scheduler_host_root": "/tree", "__scheduler_commands": {"results": []}}
    scope |= {**task.get("vars", {}), **variables}
    return Templar(DataLoader(), variables=scope).template(expression)


@pytest.mark.parametrize(
    ("variables", "written", "removed"),
    [
        ({}, PATHS, []),
        ({"scheduler_kubectl_plugin_enabled": "no"}, [], PATHS),
        ({"scheduler_removing": True}, [], PATHS),
    ],
)
def test_each_command_is_written_or_removed(variables: dict[str, Any], written: list[str], removed: list[str]) -> None:
    found = tasks()
    assert list(evaluated(found["ansible.builtin.slurp"]["loop"], {}, **variables)) == PATHS
    assert list(evaluated(found[WRITE]["loop"], found[WRITE], **variables)) == written
    assert list(evaluated(found[REMOVE]["loop"], found[REMOVE], **variables)) == removed
    assert not evaluated(trust_as_template("{{ foreign | length > 0 }}"), found["ansible.builtin.debug"], **variables)


def test_what_is_written_is_the_program_to_its_last_byte() -> None:
    task = tasks()[WRITE]
    for path, command in zip(PATHS, planned(), strict=True):
        assert evaluated(task[WRITE]["content"], task, item=path) == command["text"]
        assert evaluated(task[WRITE]["dest"], task, item=path) == path
