# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a plugin makes of the label by which its node's GPUs are cut by MIG. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, Dict, Mapping

from ..shared import label_names
from ..shared.registers import annotations_of, labels_of, mapping, resources

CONFIG_LABEL = label_names.MIG_CONFIG
STATE_LABEL = label_names.MIG_STATE
TEXT = label_names.MIG_TEXT
"""Annotation with the SHA-256 of the configurations that the state is about."""
_PENDING, _SUCCESS, _ENDS = "pending", "success", ("success", "failed")


@dataclass(frozen=True)
class Seen:
    """What was seen of a node and of the configurations that its plugin is given."""

    config: str
    """``gpu_plugins_mig_config``."""
    node: Mapping[str, Any]
    """How the node was before it was labeled, as ``NodeState`` has it."""
    nodes: Mapping[str, Any] = field(default_factory=dict)
    """The result for the node since then. An API server that is away leaves nothing there."""
    given: Mapping[str, Any] = field(default_factory=dict)
    """The result for the ConfigMap of the configurations."""


@dataclass(frozen=True)
class MigLabel:
    """What a plugin makes of the label."""

    due: bool
    """Whether the node is to be labeled."""
    labels: Dict[str, str]
    """The labels that it gets then."""
    state: str
    """What the plugin says of the configurations that it is given now; ``pending`` where it says nothing of them."""
    ended: bool
    """Whether the plugin has cut the GPUs, or could not."""


def mig_label(seen: Seen) -> MigLabel:
    """Return what a plugin makes of the label."""
    node: Mapping[str, Any] = next(iter(resources(seen.nodes)), {})
    config_map: Mapping[str, Any] = next(iter(resources(seen.given)), {})
    text = str(mapping(config_map.get("data")).get("config.yaml", ""))
    current = annotations_of(node).get(TEXT) == sha256(text.encode()).hexdigest()
    state = str(labels_of(node).get(STATE_LABEL, _PENDING)) if current else _PENDING
    before = seen.node["labels"]
    settled = before.get(CONFIG_LABEL) == seen.config and before.get(STATE_LABEL) == _SUCCESS
    return MigLabel(
        due=seen.node["mig_cutting"] or not settled,
        labels={CONFIG_LABEL: seen.config, STATE_LABEL: _PENDING},
        state=state,
        ended=state in _ENDS,
    )
