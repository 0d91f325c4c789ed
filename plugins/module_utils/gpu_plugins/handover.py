# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How a node goes over from a device plugin to the DRA driver, or back: one has gone before the other comes. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, List, Mapping

from ..shared import label_names
from ..shared.gpu_givers import plugin_offers
from ..shared.modes import DRA_MODE, HELD_LABEL
from ..shared.registers import metadata_of, resources
from ..shared.sharing_config import renamed
from .fixed import devices_of


@dataclass(frozen=True)
class Seen:
    """What was seen of a node and its cluster."""

    name: str
    """The node's."""
    node: Mapping[str, Any]
    """How it is, as ``NodeState`` has it."""
    claims: Mapping[str, Any] = field(default_factory=dict)
    """The result for ResourceClaims of all namespaces."""
    configs: Mapping[str, Any] = field(default_factory=dict)
    """Configurations of the plugin by name, which may rename what it offers."""


@dataclass(frozen=True)
class Handover:
    """What has to be gone before the node is labeled with its new mode."""

    due: bool
    """Whether the node goes over between a plugin and the driver."""
    held_labels: Mapping[str, str]
    """Labels that keep ours off the node. Those of its modes stay, so that a later run goes on here."""
    claims: List[str]
    """Claims that still have devices of the node, as namespace/name."""
    offered: List[str]
    """Resources of a plugin that the node still offers."""
    left: Mapping[str, Mapping[str, None]]
    """Annotations and labels that the plugin wrote, for a patch that takes them off."""


def handover(seen: Seen) -> Handover:
    """Return what has to be gone."""
    serves, target = seen.node["serves"], seen.node["target"]
    annotations = dict.fromkeys((label_names.INVENTORY, label_names.OWNED, label_names.MIG_TEXT))
    return Handover(
        due=serves not in ("", target) and DRA_MODE in (serves, target),
        held_labels={HELD_LABEL: serves},
        claims=[_path(item) for item in resources(seen.claims) if devices_of(item, seen.name)],
        offered=list(plugin_offers(seen.node["object"], renamed(seen.configs))),
        left={"annotations": annotations, "labels": dict.fromkeys(seen.node["kept_labels"])},
    )


def _path(item: Mapping[str, Any]) -> str:
    return f"{metadata_of(item).get('namespace')}/{metadata_of(item).get('name')}"
