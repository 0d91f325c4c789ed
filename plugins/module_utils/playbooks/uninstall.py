# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Tells which GPU nodes the playbook uninstall gives up, and which serve on. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Collection, List

from ..shared.inventory import GPU_NODES, Inventory
from ..shared.registers import metadata_of, resources


@dataclass(frozen=True)
class GivenUp:
    """The GPU nodes that are given up."""

    nodes: List[str]
    """Their hosts."""
    driver: bool
    """Whether the driver of one of them was removed."""
    serving: List[str]
    """Nodes of the cluster that have a mode and are not given up."""


def given_up(inventory: Inventory, hosts: Collection[str], labelled: object) -> GivenUp:
    """Return what becomes of GPU nodes among ``hosts``; ``labelled`` are the nodes that the API server has found."""
    nodes = {host: inventory.variables(host) for host in inventory.members(GPU_NODES) if host in hosts}
    names = {variables.get("gpu_plugins_node_name", host) for host, variables in nodes.items()}
    found = [metadata_of(item).get("name") for item in resources(labelled)]
    return GivenUp(
        nodes=list(nodes),
        driver=any("uninstall_driver_went" in variables for variables in nodes.values()),
        serving=[str(name) for name in found if name not in names],
    )
