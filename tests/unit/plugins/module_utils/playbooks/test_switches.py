# SPDX-License-Identifier: Apache-2.0
"""What switch_mode.yml reports of the nodes."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.accel.kubernetes.plugins.module_utils.playbooks.switches import switches


def host(name: str, due: bool = True, **variables: Any) -> dict[str, Any]:
    return {"inventory_hostname": name, "switch_mode_due": due, "switch_mode_from": "pgpu", **variables}


@pytest.mark.parametrize(
    ("variables", "mode"),
    [({}, "pgpu"), ({"gpu_mode": "mps"}, "mps"), ({"gpu_mode": "mps", "gpu_plugins_mode": "vgpu"}, "vgpu")],
)
def test_switched_node_is_reported_with_both_modes(variables: dict[str, str], mode: str) -> None:
    found = switches([host("gpu-a", **variables), host("gpu-b", due=False)], check=False)
    assert found.nodes == {"gpu-a": {"from": "pgpu", "to": mode}}
    assert found.lines == [f"gpu-a: pgpu, now {mode}"]


def test_dry_run_reports_what_nodes_would_serve() -> None:
    found = switches([host("gpu-a", gpu_mode="cgpu")], check=True)
    assert found.lines == ["gpu-a serves pgpu and would serve cgpu"]


def test_run_with_nothing_to_do_says_so() -> None:
    found = switches([host("gpu-a", due=False), {"inventory_hostname": "gpu-b"}], check=False)
    assert (found.nodes, found.lines) == ({}, ["every node serves its mode already"])
