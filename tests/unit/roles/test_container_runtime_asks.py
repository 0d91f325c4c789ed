# SPDX-License-Identifier: Apache-2.0
"""The role container_runtime asks its planner for all that it decides, and acts on what that says."""

from __future__ import annotations

import re
from dataclasses import fields, is_dataclass
from typing import Any, get_type_hints

from ansible_collections.accel.kubernetes.plugins.module_utils.runtime.plan import Plan, plan

from yaml_files import document

from .conftest import ROLES, Evaluate

ROLE = ROLES / "container_runtime"
TASKS = " ".join(path.read_text() for path in sorted((ROLE / "tasks").glob("*.yml")))
VARIABLES = document(ROLE / "vars/main.yml")


class Recorded(dict[str, Any]):
    """Notes which of its entries are asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = set[str]()

    def get(self, name: str, default: Any = None) -> Any:
        self.asked.add(name)
        return default


def names(kind: Any, prefix: str = "") -> set[str]:
    """The fields of a plan, those of nested plans with a dot."""
    hints = get_type_hints(kind)
    nested = {name for name, hint in hints.items() if is_dataclass(hint)}
    inner = (names(hints[name], f"{prefix}{name}.") for name in nested)
    return {f"{prefix}{field.name}" for field in fields(kind) if field.name not in nested}.union(*inner)


def test_tasks_read_what_the_plan_has_and_all_of_it() -> None:
    assert set(re.findall(r"__container_runtime_plan\.([a-z_.]+[a-z_])", TASKS)) == names(Plan)


def test_the_planner_is_given_what_it_reads() -> None:
    options, seen = Recorded(), Recorded()
    plan(options, {}, seen)
    of_others = set(re.findall(r"'(\w+)': ", VARIABLES["__container_runtime_plan"]))
    assert options.asked == {*VARIABLES["__container_runtime_options"], *of_others}
    assert seen.asked == set(re.findall(r"'(\w+)': ", VARIABLES["__container_runtime_seen"]))
    told = set(re.findall(r"__container_runtime_\w+", VARIABLES["__container_runtime_seen"]))
    assert told <= set(re.findall(r"register: (\w+)", TASKS))


def test_the_plan_follows_variables_facts_and_what_was_seen(evaluate: Evaluate) -> None:
    facts = {"pkg_mgr": "dnf", "architecture": "x86_64", "distribution": "Rocky"}
    there = {"__container_runtime_found": {"stdout_lines": ["found /run/docker.sock"]}}
    variables = {"container_runtime_toolkit_version": "1.18.1", "gpu_mode": "vgpu", "group_names": ["gpu_nodes"]}
    found = evaluate("container_runtime", "__container_runtime_plan", facts, **there, **variables)
    assert found["refusals"] == {"preflight": [], "answer": []}
    assert (found["module"]["runtime"], found["module"]["ignore_visible_devices"]) == ("docker", True)
    assert "nvidia-container-toolkit-1.18.1-1" in found["toolkit"]["packages"]
    removing = evaluate("container_runtime", "__container_runtime_plan", facts, container_runtime_removing=True)
    assert (removing["state"], removing["refusals"]["preflight"]) == ("absent", [])
