# SPDX-License-Identifier: Apache-2.0
"""What site.yml refuses of an inventory, whether it brings an extender, and what it reports of the nodes."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.accel.kubernetes.plugins.module_utils.playbooks.site import extender_coming, nodes, refusals
from ansible_collections.accel.kubernetes.plugins.module_utils.shared.inventory import Inventory

CHECKED = {"scheduler_modes": ["vgpu"]}
GROUPS = {"kube_control_plane": ["control"], "gpu_nodes": ["gpu-a", "gpu-b"]}


@pytest.mark.parametrize(
    ("groups", "hostvars", "layout", "codes", "words"),
    [
        (GROUPS, {}, "auto", [], ""),
        (GROUPS, {"gpu-a": {"gpu_mode": "cgpu"}}, "auto", [], ""),
        (
            GROUPS | {"kube_control_plane": []},
            {},
            "auto",
            ["group_empty"],
            "The inventory has no host in the group 'kube_control_plane'; put the hosts that run kube-scheduler (none",
        ),
        ({"gpu_nodes": ["gpu-a"]}, {}, "secondary", [], ""),
        (
            {"kube_control_plane": ["control"]},
            {},
            "secondary",
            ["group_empty"],
            "The inventory has no host in the group 'gpu_nodes'; put the hosts that have GPUs there.",
        ),
        ({}, {}, "auto", ["group_empty", "group_empty"], "'gpu_nodes'"),
        (
            GROUPS,
            {"gpu-a": {"gpu_mode": "shared"}, "gpu-b": {"gpu_mode": ["vgpu"]}},
            "auto",
            ["mode_unknown"],
            "Unknown gpu_mode: gpu-a is shared, gpu-b is ['vgpu']; set it to one of pgpu, vgpu, mps, cgpu, dra.",
        ),
    ],
)
def test_inventory_that_cannot_be_worked_on_is_refused(
    groups: dict[str, list[str]], hostvars: dict[str, Any], layout: str, codes: list[str], words: str
) -> None:
    found = list(refusals(Inventory(hostvars, groups), layout))
    assert [each.code for each in found] == codes
    assert words in " ".join(each.message for each in found)


@pytest.mark.parametrize(
    ("changed", "coming"),
    [
        ({}, True),
        ({"run_tags": ["gpu_plugins", "scheduler"]}, True),
        ({"run_tags": ["scheduler_extender"]}, True),
        ({"run_tags": ["tagged"]}, True),
        ({"run_tags": ["gpu_plugins"]}, False),
        ({"run_tags": ["gpu_plugins_configure"]}, False),
        ({"skip_tags": ["scheduler"]}, False),
        ({"skip_tags": ["scheduler_extender"]}, False),
        # --limit leaves out the control planes.
        ({"hostvars": {"control": {}, "localhost": {}}}, False),
        ({"hostvars": {"control": {"scheduler_layout": "none", **CHECKED}}}, False),
        ({"layout": "none", "groups": {}}, False),
        ({"layout": "none"}, True),
        ({"layout": "secondary", "groups": {}, "hostvars": {"localhost": CHECKED}}, True),
        ({"layout": "secondary", "hostvars": {"localhost": {}, "control": CHECKED}}, False),
        # Other roles alone, host by host.
        ({"run_tags": ["container_runtime"], "hostvars": {"control": {}}}, True),
        ({"skip_tags": ["gpu_plugins"], "hostvars": {"control": {}}}, True),
    ],
)
def test_site_counts_on_an_extender_that_it_brings_itself(changed: dict[str, Any], coming: bool) -> None:
    known = {"control": {"scheduler_layout": "auto", **CHECKED}, "localhost": {}}
    if changed.get("layout") == "secondary":
        known = {}
    given: dict[str, Any] = {"layout": "auto", "run_tags": ["all"], "skip_tags": [], "groups": GROUPS}
    given |= {"hostvars": known} | changed
    inventory = Inventory(given.pop("hostvars"), given.pop("groups"))
    assert extender_coming(inventory, **given) is coming


NVML = {"available": True, "driver_version": "580.95.05", "gpus": [{}, {}]}


@pytest.mark.parametrize(
    ("variables", "node"),
    [
        ({"ansible_facts": {"accel_nvml": NVML}}, {"mode": "vgpu", "driver": "580.95.05", "gpus": 2}),
        ({"ansible_facts": {"accel_nvml": {"available": False}}}, {"mode": "vgpu"}),
        ({"driver_reboot_required": False}, {"mode": "vgpu", "reboot_required": False}),
        ({"driver_reboot_required": "unknown"}, {"mode": "vgpu"}),
    ],
)
def test_node_is_reported_with_what_is_known(variables: dict[str, Any], node: dict[str, Any]) -> None:
    checked = {"gpu-a": {"site_mode": "vgpu", **variables}, "gpu-b": variables}
    assert nodes(Inventory(checked, GROUPS)) == {"gpu-a": node}
