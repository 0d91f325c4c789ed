# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Decides about the inventory and the tags that the playbook site was given, and tells what became of it. Pure."""

from __future__ import annotations

from typing import Any, Collection, Dict, Iterator, Mapping

from ..shared.inventory import CONTROL_PLANES, GPU_NODES, Inventory
from ..shared.modes import NODE_MODES, WHOLE_MODE
from ..shared.refusal import Refusal
from ..shared.registers import mapping

_SECONDARY = "secondary"
"""The layout of a scheduler beside the cluster's own, which needs no host of the control plane."""
_MEANING = {
    GPU_NODES: "the hosts that have GPUs",
    CONTROL_PLANES: "the hosts that run kube-scheduler (none for control planes that cannot be edited; then set "
    "scheduler_layout=secondary)",
}
_EVERYTHING = frozenset({"all", "tagged"})
_EXTENDER = frozenset({"scheduler", "scheduler_extender"})
_PLUGINS = frozenset({"gpu_plugins", "gpu_plugins_install", "gpu_plugins_configure"})


def refusals(inventory: Inventory, layout: str) -> Iterator[Refusal]:
    """Yield why the inventory cannot be worked on; ``layout`` is the one that the controller is asked for."""
    for group, meaning in _MEANING.items():
        if not inventory.members(group) and not (group == CONTROL_PLANES and layout == _SECONDARY):
            yield Refusal("group_empty", f"The inventory has no host in the group '{group}'; put {meaning} there.")
    modes = inventory.each(GPU_NODES, lambda variables: variables.get("gpu_mode", WHOLE_MODE))
    unknown = [f"{host} is {mode}" for host, mode in modes.items() if mode not in NODE_MODES]
    if unknown:
        known = ", ".join(NODE_MODES)
        yield Refusal("mode_unknown", f"Unknown gpu_mode: {', '.join(unknown)}; set it to one of {known}.")


def extender_coming(inventory: Inventory, layout: str, run_tags: Collection[str], skip_tags: Collection[str]) -> bool:
    """Return whether this run brings the extender that the plugins of a node need, or needs none.

    A control plane counts where ``--limit`` has left it and its check has left the fact ``scheduler_modes``. Where the
    plugins are not rolled out no extender is missed. ``layout`` is that of a host without control planes.
    """
    control_planes = inventory.members(CONTROL_PLANES)
    if control_planes:
        layout = inventory.variables(control_planes[0]).get("scheduler_layout", layout)
    if layout == "none":
        return False
    if "gpu_plugins" in skip_tags or not (_EVERYTHING | _PLUGINS).intersection(run_tags):
        return True
    if _EXTENDER.intersection(skip_tags) or not (_EVERYTHING | _EXTENDER).intersection(run_tags):
        return False
    hosts = ["localhost"] if layout == _SECONDARY else control_planes
    return any("scheduler_modes" in inventory.variables(host) for host in hosts)


def nodes(inventory: Inventory) -> Dict[str, Dict[str, Any]]:
    """Return what is known of each GPU node that was checked: its mode, driver, GPUs, and whether it needs a reboot."""
    checked = {host: inventory.variables(host) for host in inventory.members(GPU_NODES)}
    return {host: _node(variables) for host, variables in checked.items() if "site_mode" in variables}


def _node(variables: Mapping[str, Any]) -> Dict[str, Any]:
    node: Dict[str, Any] = {"mode": variables["site_mode"]}
    nvml = mapping(mapping(variables.get("ansible_facts")).get("accel_nvml"))
    if nvml.get("available"):
        node.update({"driver": nvml.get("driver_version"), "gpus": len(nvml.get("gpus") or ())})
    if variables.get("driver_reboot_required", "unknown") != "unknown":
        node["reboot_required"] = variables["driver_reboot_required"]
    return node
