# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which nodes a playbook refuses that takes nodes in turn. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Mapping

from ..shared.modes import DRA_FIXED_CLASS


@dataclass(frozen=True)
class Seen:
    """What was seen of a node and its cluster, and what is asked for."""

    name: str
    """The node's."""
    mode: str
    """``gpu_plugins_mode``."""
    mig_config: str
    """``gpu_plugins_mig_config``."""
    node: Mapping[str, Any]
    """How it is, as ``NodeState`` has it."""
    cluster: Mapping[str, Any]


@dataclass(frozen=True)
class Turn:
    """Why each playbook refuses the node; empty if it does not."""

    switch_mode: str
    upgrade_driver: str
    rollout: str


def turn(seen: Seen) -> Turn:
    """Return why each playbook refuses the node."""
    # What an earlier upgrade left is also a GPU without its MIG devices.
    taken_up = seen.node["cordoned"]
    return Turn(_switch_mode(seen), _first_site(seen, seen.node["mig_cutting"] and not taken_up), _rollout(seen))


def _switch_mode(seen: Seen) -> str:
    daemonset = seen.cluster["daemonset"]
    if not seen.node["serves"]:
        return f"Node {seen.name} does not serve yet; run site.yml."
    if seen.node["target"] != seen.mode:
        return (
            f"Node {seen.name} has the label cgpu=true from elsewhere, and serves that mode; clear the label first: "
            f"kubectl label node {seen.name} cgpu-"
        )
    if daemonset not in seen.cluster["ours"]:
        return f"The DaemonSet {daemonset} for mode {seen.mode} does not exist; run site.yml first."
    due = seen.node["switching"] or seen.node["cordoned"]
    if due and seen.node["fixed_shares"] and DRA_FIXED_CLASS not in seen.cluster["device_classes"]:
        return (
            f"The device class {DRA_FIXED_CLASS} does not exist, and by gpu_plugins_dra_fixed_shares claims for GPUs of"
            f" node {seen.name} ask for it; run site.yml --limit {seen.name} first, which switches the node, too."
        )
    return ""


def _rollout(seen: Seen) -> str:
    if not seen.cluster["ours"] or not seen.node["serves"]:
        return f"Node '{seen.name}' does not serve yet; run site.yml first."
    return _first_site(seen, seen.node["mig_cutting"])


def _first_site(seen: Seen, cutting: bool) -> str:
    if seen.node["switching"]:
        words = f"serves mode {seen.node['serves']}, but should serve {seen.mode}"
    elif cutting:
        words = f"should get the MIG configuration {seen.mig_config}"
    else:
        return ""
    return f"Node '{seen.name}' {words}; run site.yml first."
