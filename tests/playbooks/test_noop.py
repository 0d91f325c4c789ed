# SPDX-License-Identifier: Apache-2.0
"""site.yml on nodes that are as they should be: it changes nothing, and it is cheap."""

from __future__ import annotations

import pytest

from sim.cluster import NodeSpec, Spec
from sim.inventory import write_inventory

from .conftest import Playbooks, Run, Start

MODES = {"gpu-a": "pgpu", "gpu-b": "mps"}
MOST_TASKS = 60
"""On a node, those counted that were skipped: they too cost the controller a process."""


@pytest.fixture(scope="module")
def again(start: Start) -> Run:
    """The second of two runs."""
    books: Playbooks = start(Spec("control", (NodeSpec("gpu-a", "8xh100"), NodeSpec("gpu-b", "t4"))))
    write_inventory(books.cluster.root, MODES)
    first = books.run("accel.kubernetes.site")
    assert first.code == 0, first.output
    assert all(first.recap[node]["changed"] for node in MODES)
    return books.run("accel.kubernetes.site")


def test_a_second_run_changes_nothing(again: Run) -> None:
    assert again.code == 0, again.output
    assert again.changed == 0, again.output


@pytest.mark.parametrize("node", MODES)
def test_a_run_that_changes_nothing_has_few_tasks(again: Run, node: str) -> None:
    counted = again.recap[node]
    assert counted["ok"] + counted["skipped"] <= MOST_TASKS, again.output
