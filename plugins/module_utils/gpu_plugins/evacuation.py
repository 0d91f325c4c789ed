# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a node is emptied for, and what keeps it from being emptied. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Iterator, List, Mapping, Sequence

from ..shared.holders import Pod, holders
from ..shared.modes import DRA_MODE
from ..shared.options import OptionReader
from ..shared.refusal import Refusal, messages
from ..shared.registers import mappings, metadata_of, resources
from .dra import other_drivers


@dataclass(frozen=True)
class Seen:
    """What was seen of a node and its pods, and what is asked for."""

    name: str
    """The node's."""
    node: Mapping[str, Any]
    """How it is, as ``NodeState`` has it."""
    options: Mapping[str, object]
    """``gpu_plugins_mode``, ``_mig_config``, ``_drain``, ``_drain_force``, and ``_drain_reason``."""
    modes: Sequence[str] = ()
    emptying: str = ""
    """What the node is emptied for where the options name nothing."""
    pods: Mapping[str, Any] = field(default_factory=dict)
    """The result for pods of the node."""
    leaving: Mapping[str, Any] = field(default_factory=dict)
    """``namespace`` and ``job`` of pods that a playbook would have removed, which a dry run only looks at."""
    slices: Mapping[str, Any] = field(default_factory=dict)
    """The result for ResourceSlices."""
    driver: str = ""
    """Another DRA driver that this run takes off the node."""


@dataclass(frozen=True)
class Evacuation:
    """What a node is emptied for, and what keeps it from being emptied."""

    purpose: str
    """What becomes of the node, after its name; empty if it is not to be emptied."""
    holders: List[str]
    """Pods that hold its GPUs, as namespace/name."""
    refusals: List[Refusal]
    words: str
    """All refusals as one text."""
    serving: str
    """How a node that was not emptied goes on."""


def evacuation(seen: Seen) -> Evacuation:
    """Return what a node is emptied for. Raise ValueError if an option has another type than it is to have."""
    options = OptionReader(seen.options)
    drain, force = options.boolean("gpu_plugins_drain"), options.boolean("gpu_plugins_drain_force")
    reason, mig_config = options.text("gpu_plugins_drain_reason"), options.text("gpu_plugins_mig_config")
    options.require_values()
    if seen.node["switching"]:
        purpose = f"becomes {seen.options['gpu_plugins_mode']}"
    elif seen.node["mig_cutting"]:
        purpose = f"gets the MIG configuration {mig_config}"
    else:
        purpose = reason or seen.emptying
    by_claims = bool(seen.node["serves"] == DRA_MODE or seen.driver or other_drivers(seen.slices, seen.name))
    found = holders((pod for pod in resources(seen.pods) if not _leaves(seen, pod)), by_claims)
    refusals = list(_refusals(seen, purpose, found, drain, force)) if purpose else []
    known = seen.node["serves"] in seen.modes
    return Evacuation(
        purpose,
        list(map(str, found)),
        refusals,
        messages(refusals),
        f"serving mode {seen.node['serves']}" if known else "with the plugin it has,",
    )


def _refusals(seen: Seen, purpose: str, found: Sequence[Pod], drain: bool, force: bool) -> Iterator[Refusal]:
    node, serves = f"'{seen.name}'", seen.node["serves"]
    returning, bare = [pod for pod in found if pod.returns], [pod for pod in found if pod.bare]
    if found and not drain:
        words = f"serves mode {serves}" if serves in seen.modes else "is served by another plugin"
        yield Refusal(
            "pods_hold_gpus",
            f"Node {node} {words} and these pods hold its GPUs: {_names(found)}; remove them before the node"
            f" {purpose}, or set gpu_plugins_drain=true to evict them.",
        )
    if returning and drain:
        yield Refusal(
            "pods_return",
            f"Evicting does not free the GPUs of node {node}. These pods would return, because they are static or"
            f" belong to a DaemonSet: {_names(returning)}. Keep them off the node, for example by labels, before the"
            f" node {purpose}.",
        )
    if bare and drain and not force:
        yield Refusal(
            "pods_bare",
            f"These pods on node {node} have no controller that would create them again: {_names(bare)}; remove them"
            f" before the node {purpose}, or set gpu_plugins_drain_force=true.",
        )


def _leaves(seen: Seen, pod: Mapping[str, Any]) -> bool:
    """Return whether a pod is of the Job that would have gone; its own namespace has no other of that name."""
    metadata, job = metadata_of(pod), seen.leaving.get("job")
    if not job or metadata.get("namespace") != seen.leaving.get("namespace"):
        return False
    wanted = {"kind": "Job", "name": job, "controller": True}
    owners = mappings(metadata.get("ownerReferences"))
    return any(all(owner.get(key) == value for key, value in wanted.items()) for owner in owners)


def _names(pods: Sequence[Pod]) -> str:
    return ", ".join(map(str, pods))
