# Apache License 2.0 (see https://www.apache.org/licenses/LICENSE-2.0)
# SPDX-License-Identifier: Apache-2.0
"""Which pods ask for GPUs and have none yet, and why. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Callable, Dict, Iterable, Iterator, List, Mapping, Optional, Tuple

from .asked import asked
from .modes import DRA_MODE, RESOURCE, mode_of
from .plugin_pods import node_name_of

ENDED = ("Succeeded", "Failed")
"""Phases of a pod that holds nothing any more."""
REFUSED = "refused"
"""In place of the mode of a pod that no node can serve."""


@dataclass(frozen=True)
class Waiting:
    """A pod that asks for GPUs and has none yet."""

    namespace: str
    pod: str
    node: str
    """Empty while no scheduler has chosen one."""
    wants: Mapping[str, str]
    """Amount by resource, over all its containers."""
    reason: str


def waiting_pod(
    item: Mapping[str, Any],
    holding: Iterable[Tuple[str, str, str]],
    sure: Iterable[str],
    claimed: Mapping[str, str] = MappingProxyType({}),
) -> Optional[Waiting]:
    """Return a pod without GPUs; of the nodes that are ``sure`` it is known that what does not hold any has none.

    ``claimed`` is what it asks for by claims, number by class.
    """
    metadata, spec, status = item["metadata"], item.get("spec") or {}, item.get("status") or {}
    wants, node = {**_wants(spec), **claimed}, node_name_of(item)
    if not wants or (metadata["namespace"], metadata["name"], node) in holding or _started(spec, status):
        return None
    if node:
        allocated = (
            "kubelet has not allocated its GPUs yet" if node in sure else "whether it has its GPUs yet is not known"
        )
        reason = next(_hurdles(status), f"scheduled, and {allocated}")
    else:
        reason = _not_scheduled(status)
    return Waiting(metadata["namespace"], metadata["name"], node, wants, reason)


def unplaced(
    item: Mapping[str, Any], by_claims: Callable[[Mapping[str, Any]], bool] = lambda item: False
) -> Optional[Tuple[str, str]]:
    """Return the namespace and the mode of a pod that asks for GPUs and has no node yet; None for any other pod.

    The mode of one that asks for resources of several modes is ``REFUSED``. One that asks for none of them is of mode
    dra if it does so ``by_claims``. Raises one of ``api_json.ODD`` where the pod cannot be read.
    """
    metadata, spec, status = item["metadata"], item.get("spec") or {}, item.get("status") or {}
    if node_name_of(item) or status.get("phase") in ENDED:
        return None
    modes = {mode_of(name) for name in _wants(spec)}
    if not modes:
        return (metadata["namespace"], DRA_MODE) if by_claims(item) else None
    return metadata["namespace"], modes.pop() or REFUSED if len(modes) == 1 else REFUSED


def _started(spec: Mapping[str, Any], status: Mapping[str, Any]) -> bool:
    """Return whether kubelet has allocated: it starts nothing before, and does not report what init containers have."""
    if status.get("phase") in (*ENDED, "Running"):
        return True
    asking = {container["name"] for container in _containers(spec) if asked(container, RESOURCE.match)}
    return any(
        entry["name"] in asking and {"running", "terminated"} & set(entry.get("state") or {})
        for entry in _statuses(status)
    )


def _wants(spec: Mapping[str, Any]) -> Dict[str, str]:
    """Amounts as the containers name them, several joined by ``+``."""
    found: Dict[str, List[str]] = {}
    for container in _containers(spec):
        for name, amount in asked(container, RESOURCE.match).items():
            found.setdefault(name, []).append(str(amount))
    return {name: "+".join(amounts) for name, amounts in sorted(found.items())}


def _containers(spec: Mapping[str, Any]) -> List[Mapping[str, Any]]:
    return [*(spec.get("initContainers") or ()), *(spec.get("containers") or ())]


def _not_scheduled(status: Mapping[str, Any]) -> str:
    for condition in status.get("conditions") or ():
        if condition["type"] == "PodScheduled" and condition["status"] != "True":
            return str(condition.get("message") or condition.get("reason") or "not scheduled")
    return "no scheduler has tried it"


def _statuses(status: Mapping[str, Any]) -> List[Mapping[str, Any]]:
    return [*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())]


def _hurdles(status: Mapping[str, Any]) -> Iterator[str]:
    for entry in _statuses(status):
        state = (entry.get("state") or {}).get("waiting") or {}
        if state.get("reason") not in (None, "PodInitializing", "ContainerCreating"):
            message = state.get("message")
            yield f"container {entry['name']}: {state['reason']}" + (f": {message}" if message else "")
