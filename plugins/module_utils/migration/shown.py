# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The plan of a migration as people read it."""

from __future__ import annotations

from typing import Any, Dict, List, Mapping

from ..shared import printable
from ..shared.columns import columns
from .plan import BEGUN, DUE

_SENT = ("off", "forget", "back", "avoid", "restore", "hold", "release")
"""The names of the patches of a node and of another plugin."""


def shown(document: Mapping[str, Any]) -> Dict[str, Any]:
    """Return the plan with harmless texts. What is sent to the API server stays to the letter."""

    def part(entry: Mapping[str, Any]) -> Dict[str, Any]:
        return {key: value if key in _SENT else printable.document(value) for key, value in entry.items()}

    nodes = {name: part(node) for name, node in document["nodes"].items()}
    return {**printable.document(dict(document)), "nodes": nodes, "peers": list(map(part, document["peers"]))}


def table(document: Mapping[str, Any]) -> List[str]:
    """Return the plan for a person: a row a node, then what has to change."""
    rows = [("NODE", "SERVED BY", "MODE", "STATE", "PODS")]
    details: List[str] = []
    for name, node in sorted(document["nodes"].items()):
        pods = str(len({row["pod"] for row in node["pods"]}))
        rows.append((name, node["title"] or "-", node["mode"], node["state"], pods))
        moves = node["state"] in (DUE, BEGUN)
        details += [
            f"{name}: label {row['label']}: {row['before'] or 'none'} becomes {row['after'] or 'none'}, {row['why']}"
            for row in node["labels"]
            if moves
        ]
        details += [
            f"{name}: {row['offered']} {row['resource']} becomes {row['becomes']}" for row in node["resources"] if moves
        ]
        details += [f"{name}: {_asks(row)}" for row in node["pods"]]
        details += [f"{name}: given back, {_asks(row)}" for row in node["returns"]]
        details += [f"{name}: PROBLEM: {problem}" for problem in node["problems"]]
    return columns(rows) + details + [f"NOTE: {note}" for note in document["notes"]]


def _asks(row: Mapping[str, Any]) -> str:
    whose = f"{row['pod']} {row['container']}" + (f" of {row['owner']}" if row["owner"] else "")
    asks, becomes = _amounts(row["asks"]), _amounts(row["becomes"])
    note = f" ({row['note']})" if row["note"] else ""
    if not row["changes"]:
        return f"{whose} asks for {asks}, and can stay as it is: it has {row['has']}{note}"
    if not becomes:
        return f"{whose} asks for {asks}: {row['note']}"
    return f"{whose} asks for {asks}, and must ask for {becomes}{note}: it has {row['has']}"


def _amounts(limits: Mapping[str, int]) -> str:
    return ", ".join(f"{name}: {amount}" for name, amount in sorted(limits.items()))
