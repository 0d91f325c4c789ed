# SPDX-License-Identifier: Apache-2.0
"""Evaluates the variables of a role as its tasks would see them, without running a playbook."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ansible.parsing.dataloader import DataLoader
from ansible.plugins.loader import init_plugin_loader
from ansible.template import Templar

ROLES = Path(__file__).parents[3] / "roles"
Evaluate = Callable[..., Any]


@pytest.fixture(scope="session", autouse=True)
def _plugins() -> None:
    init_plugin_loader([])


@pytest.fixture
def evaluate() -> Evaluate:
    """``evaluate(role, name, facts, **variables)``: a variable with these facts, inventory variables and registers."""

    def value(role: str, name: str, facts: dict[str, Any], /, **variables: Any) -> Any:
        loader = DataLoader()
        scope: dict[str, Any] = {"ansible_facts": facts, "inventory_hostname": "node-1"}
        scope |= loader.load_from_file(str(ROLES / role / "defaults/main.yml"), trusted_as_template=True)
        scope |= loader.load_from_file(str(ROLES / role / "vars/main.yml"), trusted_as_template=True)
        scope |= variables
        return Templar(loader, variables=scope).template(scope[name])

    return value
