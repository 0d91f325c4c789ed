# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Decides by a plan of a migration, as ``gpu_migration_info`` makes it, what the playbook migrate does. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Dict, Iterable, Iterator, List, Mapping

from ..shared.modes import BY_MODE, HELD_LABEL
from ..shared.refusal import Refusal
from ..shared.registers import mapping, mappings, metadata_of, resources

_STATES = {
    "due": "served by another plugin",
    "begun": "left in the middle of it",
    "done": "migrated",
    "ours": "ours",
    "none": "served by none, which site.yml changes",
    "refused": "served by what is not known",
}
_EXTENDED = ("gpu-manager", "gpushare", "mps")
"""Kinds of plugins that have an extender of kube-scheduler."""
_MOVES = ("due", "begun")
"""States of a node that is to be migrated."""


@dataclass(frozen=True)
class Terms:
    """What the playbook is asked for."""

    back: bool
    """Whether nodes are given back to the other plugin."""
    strand: bool
    """Whether pods may be evicted that ask for what nodes offer no longer."""
    control_planes: bool = False
    """Whether the run reaches hosts whose kube-scheduler can ask our extender."""


@dataclass(frozen=True)
class Step:
    """What is done to a node."""

    due: bool
    reason: str
    """Why the node is drained, after its name; empty where it is not due."""
    extended: bool
    """Whether kube-scheduler may ask an extender of the other plugin, in whose place it has to ask ours."""
    extender_coming: bool
    """Whether the run brings our extender before the node is served."""
    driver: str
    """The DRA driver that gives away the node's GPUs before; empty for a device plugin."""
    plugin_leaves: bool
    """Whether a device plugin is taken off the node."""
    avoid: List[Mapping[str, Any]]
    """Patches that keep DaemonSets of the other plugin off marked nodes."""
    back: Mapping[str, Any]
    """Patch of the node that lets the other plugin return, and keeps ours off; empty where there is none."""
    refusals: List[Refusal]


def step(migration: Mapping[str, Any], name: str, terms: Terms) -> Step:
    """Return what is done to the node of this name."""
    node = migration["nodes"][name]
    due = bool(node["back"]) if terms.back else node["state"] in _MOVES
    whose = node["title"] or node["from"]
    reason = f"is given back to {whose}" if terms.back else f"is taken over from {whose}"
    theirs = [peer for peer in migration["peers"] if peer["kind"] == node["from"]]
    extended = due and not terms.back and node["from"] in _EXTENDED and node.get("mode") in BY_MODE
    return Step(
        due=due,
        reason=reason if due else "",
        extended=extended,
        extender_coming=extended and terms.control_planes,
        driver=node.get("driver", "") if due else "",
        plugin_leaves=due and not terms.back and not node.get("driver", ""),
        avoid=[patch for peer in theirs for patch in peer["avoid"]],
        back=_back(node, any(peer.get("shares_label") for peer in theirs)),
        refusals=list(_not_returned(node, name, terms) if terms.back and due else _not_taken(node, name, terms)),
    )


def _back(node: Mapping[str, Any], held: bool) -> Mapping[str, Any]:
    patch: Mapping[str, Any] = node["back"]
    if not patch or not held:
        return patch
    metadata = mapping(patch.get("metadata"))
    return {"metadata": {**metadata, "labels": {**mapping(metadata.get("labels")), HELD_LABEL: node["from"]}}}


def _not_taken(node: Mapping[str, Any], name: str, terms: Terms) -> Iterator[Refusal]:
    if node["problems"] and not terms.back:
        yield Refusal("migration_problems", f"Node '{name}': {'. '.join(node['problems'])}.")


def _not_returned(node: Mapping[str, Any], name: str, terms: Terms) -> Iterator[Refusal]:
    if node["gone"]:
        yield Refusal(
            "peer_gone",
            f"Node '{name}' was taken over from DaemonSet {', '.join(node['gone'])}, which is gone; install it again "
            "first.",
        )
    pods = dict.fromkeys(row["pod"] for row in node["returns"] if row["changes"])
    if pods and not terms.strand:
        yield Refusal(
            "pods_stranded",
            f"Node '{name}': {node['title']} does not offer what these pods ask for, so they would stay pending after "
            f"an eviction: {', '.join(pods)}. Change their manifests as the plan says, or set migrate_strand=true.",
        )


@dataclass(frozen=True)
class Turn:
    """What is done to a cluster, for all of its nodes that the run reaches."""

    extended: bool
    """Whether kube-scheduler has to ask our extender in place of the other plugin's."""
    hold: List[Mapping[str, Any]]
    """Patches of nodes that keep ours off until it is their turn."""
    ends: bool
    """Whether kube-scheduler is to ask the other plugin's extender again."""


def turn(hosts: Iterable[Mapping[str, Any]], back: bool) -> Turn:
    """Return what is done to the cluster of these hosts, by their variables.

    A host that the run has not reached, as by ``--limit``, has no facts ``migrate_plan``, ``migrate_seen`` and
    ``migrate_ends``, and does not count.
    """
    reached = list(hosts)
    plans = [mapping(host.get("migrate_plan")) for host in reached]
    seen = [mapping(mapping(host.get("migrate_seen")).get("migration")) for host in reached]
    begins = not back and any(plan.get("due") for plan in plans)
    peers = mappings(next(filter(None, seen), {}).get("peers"))
    return Turn(
        extended=any(plan.get("extended") for plan in plans),
        hold=[patch for peer in peers for patch in mappings(peer.get("hold"))] if begins else [],
        ends=any(host.get("migrate_ends") for host in reached),
    )


def has_left(pods: object, uids: List[str]) -> bool:
    """Return whether none of the pods that were found belongs to a DaemonSet of the other plugin."""
    owners = [owner for pod in resources(pods) for owner in mappings(metadata_of(pod).get("ownerReferences"))]
    return not any(owner.get("uid") in uids for owner in owners)


def offers(nodes: object, names: str) -> bool:
    """Return whether a node that was found offers some of a resource whose name the expression matches."""
    found = [mapping(mapping(node.get("status")).get("allocatable")) for node in resources(nodes)]
    return any(re.match(names, name) and amount != "0" for each in found for name, amount in each.items())


def gives_devices(slices: object, driver: str) -> bool:
    """Return whether ResourceSlices that were found have devices of a DRA driver."""
    specs = [mapping(item.get("spec")) for item in resources(slices)]
    return any(spec.get("driver") == driver and spec.get("devices") for spec in specs)


@dataclass(frozen=True)
class Outcome:
    """Where a migration stands."""

    lines: List[str]
    """It for people, a line a node, and how to remove what is on no node any more."""
    ends: bool
    """Whether nothing of ours is left, so that kube-scheduler may ask the other plugin's extender again."""
    release: List[Mapping[str, Any]]
    """Patches of nodes that ours need no longer be kept off."""
    restore: List[Mapping[str, Any]]
    """Patches of the other plugin's DaemonSets that are as they were once no node of theirs is marked."""


def outcome(migration: Mapping[str, Any], back: bool, check: bool) -> Outcome:
    """Return where the migration stands; ``back`` is whether nodes are given back, and ``check`` a dry run."""
    peers = migration["peers"]
    nodes: Dict[str, Mapping[str, Any]] = migration["nodes"]
    removable = [peer for peer in peers if not peer["nodes"]]
    return Outcome(
        lines=[
            *(f"{name}: {_stands(node, check)}" for name, node in nodes.items()),
            *(
                f"{peer['title']} is on no node any more; to remove it: {'; '.join(peer['removal'])}"
                for peer in removable
            ),
        ],
        ends=back and not check and not migration.get("ours") and any(_is_returned(peer) for peer in peers),
        release=[patch for peer in peers if back and not peer["migrated"] for patch in peer.get("release", ())],
        restore=[patch for peer in peers if back and not peer["migrated"] for patch in peer["restore"]],
    )


def _is_returned(peer: Mapping[str, Any]) -> bool:
    return peer["kind"] in _EXTENDED and not peer["migrated"]


def _stands(node: Mapping[str, Any], check: bool) -> str:
    whose = f", from {node['title'] or node['from']}" if node["from"] else ""
    would = ", and would be migrated" if check and node["state"] in _MOVES else ""
    return f"{_STATES[node['state']]}{whose}{would}"
