# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which monitors hold a node's GPUs open, leave it while its GPUs are cut, and return. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Mapping, Optional, Sequence

from ..shared import label_names
from ..shared.registers import metadata_of, resources

OURS = label_names.EXPORTER
MONITORS = {
    "nvidia.com/gpu.deploy.dcgm": "nvidia-dcgm",
    "nvidia.com/gpu.deploy.dcgm-exporter": "nvidia-dcgm-exporter",
    "nvidia.com/gpu.deploy.nvsm": "nvidia-nvsm",
    OURS: label_names.EXPORTER_NAME,
}
"""Labels of nodes by which monitors are there, and ``app`` of their pods. As in ``plugin/mig/affected.py``."""
PAUSED = "paused-by-gpu-plugins"
_PAUSED_BY_PLUGIN = "paused-for-mig-change"


@dataclass(frozen=True)
class Seen:
    """What was seen of a node, and what is asked for."""

    node: Mapping[str, Any]
    """How it is, as ``NodeState`` has it."""
    daemonsets: Mapping[str, Any] = field(default_factory=dict)
    removed: bool = False
    """Whether the plugins are uninstalled."""


@dataclass(frozen=True)
class Monitors:
    """What becomes of monitors, by the label of the node."""

    pause: Mapping[str, str]
    """Labels that have those leave that are on the node."""
    back: Mapping[str, Optional[str]]
    """Labels of before of those that were sent away; None takes one off."""
    leaving: Sequence[str]
    """``app`` of all pods that leave."""


def monitors(seen: Seen) -> Monitors:
    """Return which monitors leave a node, and which return."""
    exporter = exporter_found(seen.daemonsets)
    undone_by_plugin = seen.node["mig_by_label"] and not seen.removed
    labels: Mapping[str, str] = seen.node["labels"]
    serving = [
        label
        for label in MONITORS
        if (label == OURS and exporter and label not in labels) or (label != OURS and labels.get(label) == "true")
    ]
    # What a plugin paused is the plugin's to undo, as its cordon is.
    plugin_left = seen.node["mig_cordoned"] and not undone_by_plugin
    words = (PAUSED, _PAUSED_BY_PLUGIN) if plugin_left else (PAUSED,)
    returning = [label for label in MONITORS if labels.get(label) in words]
    return Monitors(
        dict.fromkeys(serving, PAUSED),
        {label: None if label == OURS else "true" for label in returning},
        [MONITORS[label] for label in (*serving, *returning)],
    )


def exporter_found(daemonsets: object) -> bool:
    """Return whether our dcgm-exporter is among the DaemonSets of a cluster."""
    return any(metadata_of(item).get("name") == label_names.EXPORTER_NAME for item in resources(daemonsets))
