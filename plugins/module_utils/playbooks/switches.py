# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Tells what became of nodes that were to serve in another mode. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Dict, Iterable, List, Mapping

from ..shared.modes import WHOLE_MODE


@dataclass(frozen=True)
class Switches:
    """The nodes that were to change their mode."""

    nodes: Dict[str, Dict[str, str]]
    """By host its mode before (``from``), and the one that was asked for (``to``)."""
    lines: List[str]
    """The same for people."""


def switches(hosts: Iterable[Mapping[str, Any]], check: bool) -> Switches:
    """Return what became of hosts, of their variables; ``check`` is a dry run, which changed nothing."""
    nodes = {
        str(host["inventory_hostname"]): {
            "from": str(host.get("switch_mode_from", "")),
            "to": str(host.get("gpu_plugins_mode", host.get("gpu_mode", WHOLE_MODE))),
        }
        for host in hosts
        if host.get("switch_mode_due") is True
    }
    lines = [
        f"{name} serves {mode['from']} and would serve {mode['to']}"
        if check
        else f"{name}: {mode['from']}, now {mode['to']}"
        for name, mode in nodes.items()
    ]
    return Switches(nodes, lines or ["every node serves its mode already"])
