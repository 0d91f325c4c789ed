# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What became of the drivers of nodes that were upgraded in turn. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Dict, Iterable, Mapping, Tuple


@dataclass(frozen=True)
class Upgrades:
    """The nodes that were to get another driver."""

    nodes: Dict[str, Dict[str, str]]
    """By host its driver before (``from``), and the one that NVML reported then (``to``), "" where it was not asked."""
    lines: Tuple[str, ...]
    """The same for people."""


def upgrades(hosts: Iterable[Mapping[str, Any]], check: bool) -> Upgrades:
    """Return what became of hosts, of their variables; ``check`` is a dry run, which changed nothing."""
    nodes = {
        str(host["inventory_hostname"]): {"from": str(host.get("upgrade_driver_from", "")), "to": _running(host)}
        for host in hosts
        if host.get("upgrade_driver_due") is True
    }
    lines = (
        f"{name} has {driver['from']} and would get another driver"
        if check
        else f"{name}: {driver['from']}, now {driver['to']}"
        for name, driver in nodes.items()
    )
    return Upgrades(nodes, tuple(lines) or ("every node has its driver already",))


def _running(host: Mapping[str, Any]) -> str:
    nvml = host.get("ansible_facts", {}).get("accel_nvml", {})
    return nvml.get("driver_version") or ""
