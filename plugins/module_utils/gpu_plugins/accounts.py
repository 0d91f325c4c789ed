# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What becomes of the file system that bounds the accounts of containers. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, List, Mapping

from ..shared.registers import mapping, mappings, metadata_of, resources

_STATES = {"start": "started", "reload": "reloaded", "stop": "stopped"}


@dataclass(frozen=True)
class Seen:
    """What was seen of the file system and of the plugin."""

    node: str
    plan: Mapping[str, Any] = field(default_factory=dict)
    """The result of ``account_mount_info``."""
    pods: Mapping[str, Any] = field(default_factory=dict)
    """The result for the node's plugin."""
    check_mode: bool = False


@dataclass(frozen=True)
class Accounts:
    """What becomes of the file system."""

    unseen: bool
    """Whether the plugin would not see what is mounted now, and prepare files where no container looks for them."""
    state: str
    """The state of the unit that mounts it, as systemd's module has it; empty to leave it."""
    waits: bool
    """Whether what is wanted comes later."""
    due: bool
    """Whether there is something to be done."""
    foretold: bool
    """Whether a dry run foretells the unit by itself: systemd knows none whose file is still to be written."""
    warning: str
    """Why the accounts are not bounded as wanted; empty if they are."""


def accounts(seen: Seen) -> Accounts:
    """Return what becomes of the file system."""
    ready = [pod for pod in resources(seen.pods) if _is_ready(pod)]
    # The newest that is ready is the one that kubelet asks.
    serving: Mapping[str, Any] = max(ready, key=lambda pod: str(metadata_of(pod).get("creationTimestamp")), default={})
    unseen = any(mount.get("name") == "state" and "mountPropagation" not in mount for mount in _mounts(serving))
    action = str(seen.plan.get("action", "none"))
    words = (
        f"The plugin on '{seen.node}' is of an earlier version and would not see a tmpfs that is mounted now at "
        f"{seen.plan.get('where', '')}. The tmpfs comes when the plugin is renewed by a run, or with the next restart "
        "of the host."
    )
    return Accounts(
        unseen,
        "" if unseen and action == "start" else _STATES.get(action, ""),
        bool(seen.plan.get("waits")),
        action != "none",
        seen.check_mode and not seen.plan.get("unit_written"),
        str(seen.plan.get("says", "")) if seen.plan.get("waits") else words if unseen else "",
    )


def _is_ready(pod: Mapping[str, Any]) -> bool:
    containers = mappings(mapping(pod.get("status")).get("containerStatuses"))
    return bool(containers) and bool(containers[0].get("ready"))


def _mounts(pod: Mapping[str, Any]) -> List[Mapping[str, Any]]:
    containers = mappings(mapping(pod.get("spec")).get("containers"))
    return mappings(containers[0].get("volumeMounts")) if containers else []
