# SPDX-License-Identifier: Apache-2.0
"""What upgrade_driver.yml tells of the nodes."""

from __future__ import annotations

from typing import Any

from ansible_collections.accel.kubernetes.plugins.module_utils.driver.upgrades import upgrades


def host(name: str, due: bool, **nvml: Any) -> dict[str, Any]:
    facts = {"accel_nvml": nvml} if nvml else {}
    return {
        "inventory_hostname": name,
        "upgrade_driver_due": due,
        "upgrade_driver_from": "570.1",
        "ansible_facts": facts,
    }


HOSTS = [host("gpu-a", True, driver_version="580.95.05"), host("gpu-b", False, driver_version="580.95.05")]


def test_nodes_with_another_driver_are_told_with_both() -> None:
    found = upgrades(HOSTS, check=False)
    assert found.nodes == {"gpu-a": {"from": "570.1", "to": "580.95.05"}}
    assert found.lines == ("gpu-a: 570.1, now 580.95.05",)


def test_a_dry_run_tells_who_would_get_another_driver() -> None:
    assert upgrades(HOSTS, check=True).lines == ("gpu-a has 570.1 and would get another driver",)


def test_nobody_is_told_of_a_run_with_nothing_to_do() -> None:
    found = upgrades([host("gpu-a", False)], check=False)
    assert (found.nodes, found.lines) == ({}, ("every node has its driver already",))


def test_a_node_that_nvml_was_not_asked_on_has_an_unknown_driver() -> None:
    hosts = [host("gpu-a", True), host("gpu-b", True, available=False, driver_version=None)]
    assert [node["to"] for node in upgrades(hosts, check=False).nodes.values()] == ["", ""]
