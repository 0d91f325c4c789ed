# SPDX-License-Identifier: Apache-2.0
"""Which GPU nodes uninstall.yml gives up, and which serve on."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.accel.kubernetes.plugins.module_utils.playbooks.uninstall import GivenUp, given_up
from ansible_collections.accel.kubernetes.plugins.module_utils.shared.inventory import Inventory

INVENTORY = Inventory(
    {"gpu-a": {"gpu_plugins_node_name": "a.example"}, "gpu-b": {"uninstall_driver_went": True}, "control": {}},
    {"gpu_nodes": ["gpu-a", "gpu-b"], "kube_control_plane": ["control"]},
)


def labelled(*names: str) -> dict[str, Any]:
    return {"resources": [{"metadata": {"name": name}} for name in names]}


@pytest.mark.parametrize(
    ("hosts", "found", "expected"),
    [
        (["gpu-a", "control"], labelled("a.example", "gpu-b"), GivenUp(["gpu-a"], False, ["gpu-b"])),
        (["gpu-b"], labelled("a.example", "gpu-b", "foreign"), GivenUp(["gpu-b"], True, ["a.example", "foreign"])),
        # Nobody looked, since no node is left out.
        (["gpu-a", "gpu-b"], {"skipped": True}, GivenUp(["gpu-a", "gpu-b"], True, [])),
        (["localhost"], None, GivenUp([], False, [])),
    ],
)
def test_nodes_that_the_limit_leaves_out_serve_on(hosts: list[str], found: object, expected: GivenUp) -> None:
    assert given_up(INVENTORY, hosts, found) == expected


def test_inventory_without_gpu_nodes_gives_up_none() -> None:
    assert given_up(Inventory({}, {}), ["localhost"], labelled("gpu-a")) == GivenUp([], False, ["gpu-a"])
