# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How a node is: which mode it serves, which one it is to serve, and who cordoned it. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Dict, List, Mapping, Optional

from ..cluster.annotations import node_told
from ..shared import label_names
from ..shared.fixed_shares import MOST
from ..shared.label_names import FIXED_SHARES
from ..shared.modes import BY_MODE, CGPU_LABEL, DRA_MODE, HELD_LABEL, MODE_LABEL, WHOLE_MODE
from ..shared.options import OptionReader
from ..shared.registers import annotations_of, labels_of, mapping, mappings, resources
from .offer import CONFIG_LABEL

CORDON = label_names.CORDONED
"""Annotation of a node that a role cordoned; its value is the mode that the node is to serve then."""
MIG_CORDON = label_names.MIG_CORDONED
"""Annotation of a node that its plugin cordoned while GPUs are cut."""
_CGPU = "cgpu"


@dataclass(frozen=True)
class Seen:
    """What was seen of a node, and what is asked for."""

    nodes: Mapping[str, Any]
    """The result for the node."""
    options: Mapping[str, object]
    """``gpu_plugins_mode``, ``gpu_plugins_config``, ``gpu_plugins_mig_label``, ``gpu_plugins_dra_shares``, and
    ``gpu_plugins_dra_fixed_shares``."""
    mig_planned: Mapping[str, Any] = field(default_factory=dict)
    """The result of ``mig_geometry`` in check mode."""


@dataclass(frozen=True)
class NodeState:
    """How a node is."""

    object: Mapping[str, Any]
    """The node, as the API server has it. One that is not registered is empty."""
    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    conditions: Mapping[str, str]
    """Status by type."""
    mode_label: str
    """The value of the label of the mode."""
    serves: str
    """The mode that the node serves; empty for none.

    One that is labeled ``cgpu=true`` serves that mode whatever the other label says, and one whose label ``cgpu`` was
    cleared gives whole GPUs again.
    """
    target: str
    """The mode that the node is to serve. A label ``cgpu`` that somebody else set stays."""
    shares: bool
    """Whether that mode divides GPUs."""
    fixed_shares: int
    """Into how many shares a DRA driver is to cut each GPU; 0 for none."""
    keeps_accounts: bool
    """Whether containers have accounts of their shares there, which a file system of their own bounds."""
    switching: bool
    """Whether it serves another mode than it is to."""
    cgpu_foreign: bool
    """Whether somebody else set the label ``cgpu``."""
    cgpu_cleared: bool
    """Whether somebody cleared the label ``cgpu`` of a node that is to serve that mode."""
    unschedulable: bool
    cordoned: bool
    """Whether the cordon is ours to undo. A plugin undoes its own, while it looks after MIG."""
    mig_cordoned: bool
    """Whether the plugin cordoned it."""
    keeps_cordon: bool
    """Whether somebody else cordoned it, so that it stays cordoned."""
    left_for: str
    """The mode that a run was bringing the node to when it was stopped before it labeled it; empty for none."""
    wanted_labels: Mapping[str, Optional[str]]
    """Labels that the node is to have; None takes one off."""
    kept_labels: List[str]
    """Names of the labels that the plugin keeps."""
    taint: Mapping[str, str]
    """The taint that a role put there."""
    problems: List[str]
    """Annotations that cannot be read, a sentence each."""
    mig_by_label: bool
    """Whether the plugin cuts GPUs by MIG as a label says. Otherwise the role does: the DRA driver obeys no label."""
    mig_cutting: bool
    """Whether GPUs are to be cut by MIG. In other modes what was planned is of an earlier layout of the run."""


def node_state(seen: Seen) -> NodeState:
    """Return how a node is. Raise ValueError if an option has another type than it is to have."""
    node: Mapping[str, Any] = next(iter(resources(seen.nodes)), {})
    options = OptionReader(seen.options)
    mode, config = options.text("gpu_plugins_mode"), options.text("gpu_plugins_config")
    mig_label = options.boolean("gpu_plugins_mig_label")
    sized, fixed = options.boolean("gpu_plugins_dra_shares"), options.number("gpu_plugins_dra_fixed_shares", 0, MOST)
    options.require_values()
    labels, annotations, told = labels_of(node), annotations_of(node), node_told(node)
    mode_label = str(labels.get(MODE_LABEL, ""))
    cgpu = labels.get(CGPU_LABEL) == "true"
    serves = _CGPU if cgpu else "pgpu" if mode_label == _CGPU else mode_label
    cgpu_foreign = cgpu and mode_label != _CGPU
    target = _CGPU if cgpu_foreign else mode
    mig_by_label = mig_label and target == WHOLE_MODE
    mig_cordoned = MIG_CORDON in annotations
    cordoned = CORDON in annotations or (mig_cordoned and not mig_by_label)
    unschedulable = bool(mapping(node.get("spec")).get("unschedulable"))
    left_for = str(annotations.get(CORDON, ""))
    return NodeState(
        object=node,
        labels=labels,
        annotations=annotations,
        conditions=_conditions(node),
        mode_label=mode_label,
        serves=serves,
        target=target,
        shares=target in BY_MODE,
        fixed_shares=fixed if target == DRA_MODE else 0,
        keeps_accounts=target in BY_MODE or (target == DRA_MODE and (sized or fixed > 0)),
        switching=serves not in ("", target),
        cgpu_foreign=cgpu_foreign,
        cgpu_cleared=mode_label == mode == _CGPU and not cgpu,
        unschedulable=unschedulable,
        cordoned=cordoned,
        mig_cordoned=mig_cordoned,
        keeps_cordon=unschedulable and not cordoned,
        left_for=left_for if left_for != serves and target == mode else "",
        wanted_labels=_wanted_labels(mode, config, fixed if mode == DRA_MODE else 0, labels),
        kept_labels=told.labels,
        taint=told.taint,
        problems=told.problems,
        mig_by_label=mig_by_label,
        mig_cutting=target in (WHOLE_MODE, DRA_MODE) and bool(seen.mig_planned.get("cut")),
    )


def _conditions(node: Mapping[str, Any]) -> Dict[str, str]:
    conditions = mappings(mapping(node.get("status")).get("conditions"))
    return {str(each.get("type", "")): str(each.get("status", "")) for each in conditions}


def _wanted_labels(mode: str, config: str, fixed: int, labels: Mapping[str, str]) -> Dict[str, Optional[str]]:
    wanted: Dict[str, Optional[str]] = {MODE_LABEL: mode}
    if fixed or FIXED_SHARES in labels:
        wanted[FIXED_SHARES] = str(fixed) if fixed else None
    if mode == _CGPU:
        wanted[CGPU_LABEL] = "true"
    elif labels.get(MODE_LABEL) == _CGPU:
        wanted[CGPU_LABEL] = None
    if HELD_LABEL in labels:
        wanted[HELD_LABEL] = None
    return {**wanted, CONFIG_LABEL: config} if config else wanted
