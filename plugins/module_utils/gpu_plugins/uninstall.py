# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What is taken from a node, and from the cluster once no node serves, when the plugins are uninstalled. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Dict, List, Mapping, Sequence

from ..shared.label_names import FIXED_SHARES
from ..shared.modes import CGPU_LABEL, DRA_MODE, HELD_LABEL, MODE_LABEL, NODE_MODES
from ..shared.options import OptionReader
from ..shared.registers import mapping, metadata_of, resources
from . import mig_label
from .offer import CONFIG_LABEL

_NAMES_OF_OTHERS = ("DaemonSet", "ConfigMap")
"""Kinds of which others have objects with the names of ours, as gpu-manager has. Only ours bear our label."""


@dataclass(frozen=True)
class Seen:
    """What was seen of a node and its cluster, and what is asked for."""

    name: str
    """The node's."""
    node: Mapping[str, Any]
    """How the node is, as ``NodeState`` has it."""
    options: Mapping[str, object]
    """``gpu_plugins_config``, ``gpu_plugins_mig_config``, and ``gpu_plugins_mig_label``."""
    monitors: Mapping[str, Any]
    """What becomes of monitors."""
    holders: Sequence[str] = ()
    """Pods that hold GPUs of the node, as namespace/name."""
    serving: Mapping[str, Any] = field(default_factory=dict)
    """The result for nodes with a label of a mode."""
    given_up: Sequence[str] = ()
    """Hosts that this run takes the plugins from, though a check has taken no label."""
    hostvars: Mapping[str, Any] = field(default_factory=dict)
    ours: Mapping[str, Any] = field(default_factory=dict)
    """The results for DaemonSets and ConfigMaps with our label."""
    objects: Sequence[Mapping[str, Any]] = ()
    """All objects that the role makes for a cluster, in the order in which they are made."""


@dataclass(frozen=True)
class Uninstall:
    """What is taken."""

    refusal: str
    """Why nothing is to be taken while pods hold GPUs, and what becomes of them otherwise; empty if none does."""
    labels: Dict[str, None]
    """Labels of the node by which its plugin is there."""
    later_labels: Dict[str, Any]
    """Labels of the node once its plugin has gone: those that it kept, and those by which monitors come back."""
    serving: List[str]
    """Names of nodes that go on serving."""
    objects: List[Mapping[str, Any]]
    """Objects of the cluster, in the order in which they go; none while a node serves."""


def uninstall(seen: Seen) -> Uninstall:
    """Return what is taken. Raise ValueError if an option has another type than it is to have."""
    options = OptionReader(seen.options)
    config, mig_config = options.text("gpu_plugins_config"), options.text("gpu_plugins_mig_config")
    by_label = options.boolean("gpu_plugins_mig_label")
    options.require_values()
    labels = [
        MODE_LABEL,
        *([FIXED_SHARES] if FIXED_SHARES in seen.node["labels"] else []),
        # Of a run that was killed while the node went over. Migration sets it for plugins of others.
        *([HELD_LABEL] if seen.node["labels"].get(HELD_LABEL) in NODE_MODES else []),
        *([CGPU_LABEL] if seen.node["mode_label"] == "cgpu" else []),
        *([CONFIG_LABEL] if config else []),
        *([mig_label.CONFIG_LABEL] if mig_config and by_label else []),
    ]
    later = [*seen.node["kept_labels"], *([mig_label.STATE_LABEL] if by_label else [])]
    given_up = {_node_name(seen.hostvars, host) for host in seen.given_up}
    ours = {(item.get("kind"), metadata_of(item).get("name")) for item in resources(seen.ours)}
    serving = [name for name in (metadata_of(item)["name"] for item in resources(seen.serving)) if name not in given_up]
    return Uninstall(
        _refusal(seen),
        dict.fromkeys(labels),
        {**dict.fromkeys(later), **seen.monitors["back"]},
        serving,
        [item for item in reversed(seen.objects) if not serving and (_is_named_by_us(item) or _key(item) in ours)],
    )


def _refusal(seen: Seen) -> str:
    if not seen.holders:
        return ""
    kept = "they keep running, and the node no longer accounts for their GPUs"
    if seen.node["serves"] == DRA_MODE:
        kept = "they run on, but hang in Terminating later, as kubelet needs the driver to release a claim"
    return (
        f"These pods hold GPUs of node '{seen.name}': {', '.join(seen.holders)}. Remove them, or set"
        f" gpu_plugins_uninstall_force=true: {kept}."
    )


def _node_name(hostvars: Mapping[str, Any], host: str) -> str:
    return str(mapping(hostvars.get(host)).get("gpu_plugins_node_name") or host)


def _is_named_by_us(item: Mapping[str, Any]) -> bool:
    return item["kind"] not in _NAMES_OF_OTHERS


def _key(item: Mapping[str, Any]) -> Sequence[object]:
    return item["kind"], metadata_of(item).get("name")
