# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The taint that the role keeps on a node, beside those of others. Pure."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any, Dict, Iterable, List, Mapping, Optional

from ..cluster.annotations import TAINT, node_told
from ..shared.registers import entries, mapping, metadata_of

_TEXT = re.compile("([^=:]+)(?:=([^=:]*))?:(NoSchedule|PreferNoSchedule|NoExecute)")
_NOTE = "/metadata/annotations/" + TAINT.replace("/", "~1")


@dataclass(frozen=True)
class TaintPlan:
    """What is to be done about a node's taints."""

    due: bool
    """Whether taints, or the note that says which is ours, are to change."""
    patch: List[Dict[str, Any]]
    """JSON patch that changes both together, lest a run that stops between leaves ours as theirs.

    Taints can only be written all at once: it fails when others changed them since they were read.
    """
    taints: List[Any]
    """All taints of the node afterwards."""
    tolerated: bool
    """Whether the plugin goes on running on a node with the wanted taint."""


def read_taint(given: object) -> Optional[Mapping[str, Any]]:
    """Return the taint that a variable names, empty for none, and None where it names no taint.

    A survey or ``-e name=value`` gives text, which is written as kubectl does, or as JSON.
    """
    if not isinstance(given, str):
        return mapping(given)
    match = _TEXT.fullmatch(given.strip())
    if match:
        return {"key": match[1], "value": match[2] or "", "effect": match[3]}
    try:
        found = json.loads(given or "{}")
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def taint_plan(node: Mapping[str, Any], wanted: object, tolerations: Iterable[Mapping[str, Any]] = ()) -> TaintPlan:
    """Return how a node comes to have the ``wanted`` taint of ours alone; empty for none.

    A taint that others put there is theirs, and stays.
    """
    taint, ours = read_taint(wanted) or {}, node_told(node).taint
    taints = entries(mapping(node.get("spec")).get("taints"))
    theirs = [each for each in taints if _whole(each) != _whole(ours)]
    put = bool(taint) and _identity(taint) not in map(_identity, theirs)
    after = [*theirs, *([dict(taint)] if put else [])]
    changes = any(each not in after for each in taints) or any(each not in taints for each in after)
    return TaintPlan(
        due=bool(taint or ours) and (changes or (bool(ours) and not put)),
        patch=_patch(node, taints, after, dict(taint) if put else None),
        taints=after,
        tolerated=not taint or _tolerated(taint, tolerations),
    )


def _patch(
    node: Mapping[str, Any], before: List[Any], after: List[Any], ours: "Dict[str, Any] | None"
) -> List[Dict[str, Any]]:
    metadata = metadata_of(node)
    annotations = mapping(metadata.get("annotations"))
    steps: List[Dict[str, Any]] = []
    if before:
        steps.append({"op": "test", "path": "/spec/taints", "value": before})
    if not before or not annotations:
        # No test finds that a list or a map is still missing.
        steps.append({"op": "test", "path": "/metadata/resourceVersion", "value": metadata.get("resourceVersion")})
    steps.append({"op": "add", "path": "/spec/taints", "value": after})
    if not annotations:
        steps.append({"op": "add", "path": "/metadata/annotations", "value": {}})
    if ours is not None:
        steps.append({"op": "add", "path": _NOTE, "value": json.dumps(ours, sort_keys=True)})
    elif TAINT in annotations:
        steps.append({"op": "remove", "path": _NOTE})
    return steps


def _tolerated(taint: Mapping[str, Any], tolerations: Iterable[Mapping[str, Any]]) -> bool:
    """Return whether a pod with these tolerations stays, as Kubernetes has it.

    A toleration without a key is for all keys, without an effect for all effects; its operator is Equal unless it says
    Exists.
    """
    key, value, effect = _identity(taint)
    return effect == "PreferNoSchedule" or any(
        (each.get("effect") or "") in ("", effect)
        and (each.get("key") or "") in ("", key)
        and (each.get("operator") == "Exists" or (each.get("value") or "") == value)
        for each in map(mapping, tolerations)
    )


def _identity(taint: object) -> "tuple[object, object, object]":
    found = mapping(taint)
    return found.get("key") or "", found.get("value") or "", found.get("effect") or ""


def _whole(taint: object) -> Dict[str, Any]:
    return {"value": "", **mapping(taint)}
