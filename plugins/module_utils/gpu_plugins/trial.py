# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The pod that asks for a GPU or a small share of one, as a user's would, and what came of it. Pure."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Dict, Iterable, Mapping, Sequence

from ..cluster.annotations import checks
from ..shared.modes import BY_MODE, DRA_DRIVER, DRA_MODE, DRA_SHARE_CLASS, mode_of
from ..shared.quantity import whole_units
from ..shared.registers import entries, mapping, metadata_of, resources
from ..shared.waiting_pods import ENDED
from .delivery import ENFORCEMENT_LABEL, INTERPOSED

_CORES, _MEMORY_BYTES = 5, 1 << 30
"""What a pod asks for in a mode that divides GPUs: it is to find room nearly everywhere."""
_NO_ROOM = re.compile(r"Insufficient [a-z]+[.]com/|needs .*; .* free|cannot allocate all claims")
"""What kube-scheduler, or our extender, says of a pod for which others left no room."""
_LAST_LINES = 3


@dataclass(frozen=True)
class Seen:
    """What is known of the node where the pod is to run."""

    node: Mapping[str, Any]
    pods: Sequence[Mapping[str, Any]]
    """All pods of the node."""
    name: str
    """The pod that is tried."""
    mode: str
    """The mode that the node is to serve."""
    serves: str
    """The mode that it serves; empty for none."""
    offered: Mapping[str, int]
    """Devices by resource."""
    daemonsets: Sequence[object]
    """That of the mode's plugin, or nothing."""
    device_classes: Mapping[str, Any] = field(default_factory=dict)
    """In mode dra, the result for device classes."""
    check_mode: bool = False
    trials: Sequence[Mapping[str, Any]] = ()
    """The pod as the API server has it, or nothing while it is not there."""
    log: Sequence[object] = ()
    """Lines of its log."""


@dataclass(frozen=True)
class Row:
    """What came of the pod, as a row of a report."""

    verdict: str
    """``ok``, ``blocked``, or ``unknown``."""
    what: str
    found: str
    remedy: str = ""
    code: str = ""
    """Why it is not well: ``check_mode``, ``not_served``, ``cordoned``, ``full``, ``no_room``, or ``failed``."""


@dataclass(frozen=True)
class Trial:
    """The pod, and what came of it."""

    asks: Dict[str, int]
    """Limits of its container; in mode dra, the device class of its claim."""
    claim: Dict[str, Any]
    """In mode dra, the request of its claim; empty in other modes."""
    memory_bytes: int
    """What it is to be held to; 0 where nothing limits it."""
    obstacle: str
    """Why no pod is to be started; empty when one is."""
    over: bool
    """Whether it has ended, or found no room."""
    row: Row


def trial(seen: Seen) -> Trial:
    """Return what the pod asks for, whether it is to be started, and what came of it."""
    free = _free(seen)
    asks = _asks(seen, free)
    # What claims left of GPUs, kube-scheduler says.
    short = [name for name, amount in asks.items() if free.get(name, 0) < amount] if seen.mode != DRA_MODE else []
    obstacle = _obstacle(seen, short)
    waits = _waits(_pod(seen))
    phase = str(mapping(_pod(seen).get("status")).get("phase") or "")
    no_room = bool(_NO_ROOM.search(waits))
    if obstacle is None and no_room and phase == "Pending":
        row = Row("unknown", "pod", f"No room for a pod: {waits}", code="no_room")
    else:
        row = obstacle or _outcome(seen, asks, phase, waits)
    return Trial(
        asks=asks,
        claim=_claim(next(iter(asks))) if seen.mode == DRA_MODE else {},
        memory_bytes=_memory(seen, asks),
        obstacle="" if obstacle is None else obstacle.found,
        over=phase in ENDED or no_room,
        row=row,
    )


def _asks(seen: Seen, free: Mapping[str, int]) -> Dict[str, int]:
    """Return the limits of the pod: of several resources of whole GPUs, the first of which some are left."""
    if seen.mode == DRA_MODE:
        names = [metadata_of(item).get("name") for item in resources(seen.device_classes)]
        return {DRA_SHARE_CLASS if DRA_SHARE_CLASS in names else DRA_DRIVER: 1}
    if seen.mode not in BY_MODE:
        return dict.fromkeys((*free, *seen.offered)[:1], 1)
    share = BY_MODE[seen.mode]
    asked = {share.memory: _MEMORY_BYTES // share.memory_unit_bytes}
    return asked if share.cores is None else {share.cores: _CORES, **asked}


def _claim(name: str) -> Dict[str, Any]:
    share = {"capacity": {"requests": {"cores": str(_CORES), "memory": str(_MEMORY_BYTES)}}}
    return {"deviceClassName": name, **(share if name == DRA_SHARE_CLASS else {})}


def _memory(seen: Seen, asks: Mapping[str, int]) -> int:
    if DRA_SHARE_CLASS in asks:
        return _MEMORY_BYTES
    labels = mapping(mapping(seen.node.get("metadata")).get("labels"))
    if seen.mode not in BY_MODE or labels.get(ENFORCEMENT_LABEL) not in INTERPOSED:
        return 0
    share = BY_MODE[seen.mode]
    return asks[share.memory] * share.memory_unit_bytes


def _free(seen: Seen) -> Dict[str, int]:
    """Return what is left of each resource that the node offers, without those of which nothing is."""
    used: Counter[str] = Counter()
    for pod in seen.pods:
        if _phase(pod) in ENDED or metadata_of(pod).get("name") == seen.name:
            continue
        for container in entries(mapping(pod.get("spec")).get("containers")):
            limits = mapping(mapping(mapping(container).get("resources")).get("limits"))
            used.update({name: whole_units(amount) or 0 for name, amount in limits.items() if mode_of(name)})
    return {name: amount - used[name] for name, amount in seen.offered.items() if amount > used[name]}


def _obstacle(seen: Seen, short: Sequence[str]) -> "Row | None":
    if seen.check_mode:
        return Row("unknown", "pod", "Check mode starts no pod.", code="check_mode")
    if seen.serves != seen.mode or not seen.daemonsets:
        said = f"The node does not serve mode {seen.mode}, so no pod was started."
        return Row("unknown", "pod", said, code="not_served")
    if mapping(seen.node.get("spec")).get("unschedulable"):
        return Row("unknown", "pod", "The node is cordoned, so no pod was started.", code="cordoned")
    if short:
        said = f"The node is full: too little {', '.join(short)} is left, so no pod was started."
        return Row("unknown", "pod", said, code="full")
    return None


def _outcome(seen: Seen, asks: Mapping[str, int], phase: str, waits: str) -> Row:
    lines = [line for line in seen.log if line]
    told = checks(lines)
    failed = [check for check in told if check["status"] == "fail"]
    if phase == "Succeeded" and told and not failed:
        return Row("ok", "pod", "; ".join(check["detail"] for check in told))
    status = mapping(_pod(seen).get("status"))
    state = mapping(mapping(next(iter(entries(status.get("containerStatuses"))), {})).get("state"))
    said = [waits, status.get("reason"), status.get("message"), mapping(state.get("waiting")).get("message")]
    said.append(" | ".join(map(str, lines[-_LAST_LINES:])))
    why = "; ".join(f"{check['name']}: {check['detail']}" for check in failed)
    why = why or ": ".join(str(part) for part in said if part) or "no reason given"
    wanted = ", ".join(f"{amount} {name}" for name, amount in asks.items())
    remedy = "; ".join(dict.fromkeys(check["remedy"] for check in failed))
    found = f"A pod with {wanted} is {phase or 'gone'}: {why}."
    return Row("blocked", "pod", found, remedy or "Check the node's plugin and kubelet.", "failed")


def _waits(pod: Mapping[str, Any]) -> str:
    """Return what the scheduler says of a pod that it has not placed; empty where it says nothing."""
    conditions: Iterable[Mapping[str, Any]] = map(mapping, entries(mapping(pod.get("status")).get("conditions")))
    unplaced = (each for each in conditions if (each.get("type"), each.get("status")) == ("PodScheduled", "False"))
    return str(mapping(next(unplaced, {})).get("message") or "")


def _pod(seen: Seen) -> Mapping[str, Any]:
    return mapping(next(iter(seen.trials), {}))


def _phase(pod: Mapping[str, Any]) -> object:
    return mapping(pod.get("status")).get("phase")
