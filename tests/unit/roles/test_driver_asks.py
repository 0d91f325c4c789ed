# SPDX-License-Identifier: Apache-2.0
"""The driver role asks its planner for all that it decides, and acts on what that says."""

from __future__ import annotations

import json
import re
from dataclasses import fields, is_dataclass
from typing import Any, get_type_hints

import pytest
from ansible_collections.accel.kubernetes.plugins.module_utils.driver import options, plan
from ansible_collections.accel.kubernetes.plugins.module_utils.driver.observation import Answers, Observation

from yaml_files import document

from .conftest import ROLES, Evaluate

TASKS = {path.name: path.read_text() for path in sorted((ROLES / "driver/tasks").glob("*.yml"))}
VARIABLES = document(ROLES / "driver/vars/main.yml")


def names(kind: Any, prefix: str = "") -> set[str]:
    """The fields of a plan, those of nested plans with a dot."""
    hints = get_type_hints(kind)
    nested = [name for name, hint in hints.items() if is_dataclass(hint) and hint is not Observation]
    inner = (names(hints[name], f"{prefix}{name}.") for name in nested)
    return {f"{prefix}{field.name}" for field in fields(kind) if field.name not in nested}.union(*inner)


def test_tasks_read_what_the_plan_has_and_all_of_it() -> None:
    read = {match for text in TASKS.values() for match in re.findall(r"__driver_plan\.([a-z_.]+[a-z_])", text)}
    seen = {f"observed.{field.name}" for field in fields(Observation)}
    unknown = read - seen - names(plan.Plan) - {"state"}
    assert unknown == set()
    assert {name for name in names(plan.Plan) - read - {"observed"} if not name.startswith("state.")} == set()


def test_the_planner_is_given_what_it_reads() -> None:
    assert set(VARIABLES["__driver_options"]) == {f"driver_{field.name}" for field in fields(options.Options)}
    told = set(re.findall(r"'(\w+)': ", VARIABLES["__driver_seen"]))
    assert told == {field.name for field in fields(Answers)} | {"observation", "connection"}


def test_what_the_planner_is_told_of_tasks_is_what_they_register() -> None:
    registered = {name for text in TASKS.values() for name in re.findall(r"register: (\w+)", text)}
    told = set(re.findall(r"__driver_\w+", VARIABLES["__driver_seen"]))
    assert told <= registered
    assert "register: gpu_plugins_nvml\n" in (ROLES / "gpu_plugins/tasks/preflight.yml").read_text()
    assert "'nvml': gpu_plugins_nvml | default({})" in VARIABLES["__driver_seen"]


@pytest.mark.parametrize(
    "given", [{"driver_dkms": False, "driver_hold": False}, {"driver_dkms": "no", "driver_hold": "0"}]
)
def test_the_plan_follows_variables_facts_and_what_was_seen(evaluate: Evaluate, given: dict[str, Any]) -> None:
    facts = {"distribution": "Ubuntu", "distribution_version": "24.04", "architecture": "x86_64", "kernel": "6.8"}
    gpu = {"address": "0000:00:00.0", "device": "0x2330", "driver": ""}
    seen = {"gpus": [gpu], "packages": ["nvidia-smi"], "held": [], "vendor": "nvidia", "installed": "580.95.05"}
    known = {"__driver_observation": {"stdout": json.dumps(seen)}, "ansible_check_mode": False, **given}
    found = evaluate("driver", "__driver_plan", facts | {"pkg_mgr": "apt"}, driver_branch="590", **known)
    assert [refusal["code"] for refusal in found["refusals"]["preflight"]] == ["dkms"]
    assert found["state"] == {"installed": "580.95.05", "loaded": "", "installs": True, "older": []}
    assert found["packages"]["unheld"] == []
    assert found["repository"]["pinning"] == "nvidia-driver-pinning-590"
    assert found["packages"]["state"] == "latest"


def test_the_role_knows_the_kernel_before_it_observed_the_host(evaluate: Evaluate) -> None:
    assert evaluate("driver", "__driver_plan", {"kernel": "6.8"}, ansible_check_mode=False)["kernel"] == "6.8"
