# SPDX-License-Identifier: Apache-2.0
"""site.yml given numbers and booleans as text, as `-e name=value`, INI inventories and AWX surveys give them."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from sim.cluster import NodeSpec, Spec

from .conftest import Playbooks, Start
from .controller import REPOSITORY


@pytest.fixture(scope="module")
def books(start: Start) -> Playbooks:
    return start(Spec("control", (NodeSpec("gpu-a", "t4"),)))


def as_text(inventory: Path) -> list[str]:
    """Every number and boolean of the roles' defaults, as the inventory has it, in options of ansible-playbook."""
    values = {}
    for path in sorted(REPOSITORY.glob("roles/*/defaults/main.yml")):
        values |= yaml.safe_load(path.read_text())
    values |= {
        name: value for name, value in yaml.safe_load(inventory.read_text())["all"]["vars"].items() if name in values
    }
    plain = {name: value for name, value in values.items() if isinstance(value, bool | int)}
    assert {"driver_force", "driver_dkms", "scheduler_timeout"} <= set(plain)
    return [word for name, value in plain.items() for word in ("-e", f"{name}={str(value).lower()}")]


def test_text_means_what_it_says(books: Playbooks) -> None:
    plain = books.run("accel.kubernetes.site", "--check")
    assert plain.code == 0, plain.output
    text = books.run("accel.kubernetes.site", "--check", *as_text(books.cluster.root / "inventory.yml"))
    assert text.code == 0, text.output
    assert text.recap == plain.recap
