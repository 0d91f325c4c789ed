# SPDX-License-Identifier: Apache-2.0
"""Evaluates the variables of a role as its tasks would see them, without running a playbook."""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible.parsing.dataloader import DataLoader
from ansible.plugins.loader import init_plugin_loader
from ansible.template import Templar, trust_as_template

import collection  # noqa: F401
from programs import program
from unit.roles.compiled import keep_compiled

ROLES = Path(__file__).parents[3] / "roles"
Evaluate = Callable[..., Any]


@pytest.fixture(scope="session", autouse=True)
def _plugins() -> None:
    with warnings.catch_warnings():
        # It finds collections by what `collection` has installed.
        warnings.simplefilter("ignore")
        init_plugin_loader([])
    keep_compiled()


@cache
def variables_of(role: str) -> dict[str, Any]:
    """A role's defaults and variables, each of a file or of a directory with several."""
    loader, found = DataLoader(), dict[str, Any]()
    for path in [ROLES / role / "defaults/main.yml", *sorted((ROLES / role / "vars").rglob("*.yml"))]:
        found |= loader.load_from_file(str(path), trusted_as_template=True)
    return found


@pytest.fixture
def evaluate() -> Evaluate:
    """``evaluate(role, name, facts, **variables)``: a variable with these facts, inventory variables and registers."""

    def value(role: str, name: str, facts: dict[str, Any], /, **variables: Any) -> Any:
        loader = DataLoader()
        scope: dict[str, Any] = {"ansible_facts": facts, "inventory_hostname": "node-1", "ansible_check_mode": False}
        # Defaults of roles are not in it.
        scope["hostvars"] = {"node-1": variables}
        scope |= variables_of(role)
        scope |= variables
        return Templar(loader, variables=scope).template(scope[name])

    return value


def rendered(role: str, template: str, **variables: Any) -> list[dict[str, Any]]:
    """The objects that a role's template makes with its defaults and these variables."""
    directory = ROLES / role
    loader = DataLoader()
    loader.set_basedir(str(directory / "templates"))
    scope: dict[str, Any] = {"ansible_facts": {}, "inventory_hostname": "node-1", "groups": {}, "hostvars": {}}
    scope |= variables_of(role)
    if "mode" in variables and role == "gpu_plugins":
        scope["served"] = scope["__gpu_plugins_modes"][variables["mode"]]
    text = trust_as_template((directory / "templates" / template).read_text())
    made = Templar(loader, variables=scope | variables).template(text)
    return [document for document in yaml.load_all(made or "", yaml.CSafeLoader) if document]


def keeping(shares: bool) -> dict[str, Any]:
    """What the API server of a cluster that keeps shares, or does not, answers to a slice with one."""
    return {
        "result": {"spec": {"devices": [{"name": "gpu-00"} | ({"allowMultipleAllocations": True} if shares else {})]}}
    }


def runtime(version: str) -> dict[str, Any]:
    """A GPU node with this container runtime."""
    info = {"kubeletVersion": "v1.33.2", "containerRuntimeVersion": version}
    labels = {"nvidia-device-enable": "vgpu"}
    return {"kind": "Node", "metadata": {"name": "node-1", "labels": labels}, "status": {"nodeInfo": info}}


def simulated_play(root: Path, tasks: list[Any], variables: dict[str, Any]) -> tuple[list[str], dict[str, str]]:
    """Command and environment that play these tasks on a host with the simulated GPUs of ``root``."""
    simulated = {"LD_LIBRARY_PATH": str(root / "lib"), "GPUSIM_FILE": str(root / "gpusim.conf")}
    play = {"hosts": "all", "gather_facts": False, "environment": simulated, "tasks": tasks}
    (root / "play.json").write_text(json.dumps([play]))
    command = [program("ansible-playbook"), "--inventory=node,", "--connection=local"]
    command += [f"--extra-vars={json.dumps(variables)}", str(root / "play.json")]
    known = {"ANSIBLE_COLLECTIONS_PATH": str(ROLES.parent / ".build/link"), "ANSIBLE_HOME": str(root / "ansible")}
    return command, os.environ | known
