# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Reports what the playbook validate found on hosts. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Collection, Dict, Iterator, List, Mapping

from ..shared.finding import Finding
from ..shared.inventory import CONTROL_PLANES, GPU_NODES, Inventory
from ..shared.printable import line
from ..shared.registers import mapping, mappings

_LONGEST = 4096
"""Characters of what was found, in a row."""
_CHECKS = {"driver": "driver", "runtime": "container runtime", "plugin": "device plugin"}
"""Checks of a GPU node that may fail, as facts name them and as people do."""


@dataclass(frozen=True)
class Report:
    """What was found on all hosts."""

    rows: List[Dict[str, str]]
    """Each finding: ``host``, ``verdict``, ``what``, ``words``, and all of them as one ``text``."""
    lines: List[str]
    """All of it for people: what nodes offer, quotas, then the rows."""
    blocked: Dict[str, List[str]]
    """By host the texts of rows that say what cannot work. Hosts without such a row are not there."""


def report(inventory: Inventory, hosts: Collection[str]) -> Report:
    """Return what was found on those of the inventory's hosts that were to be looked at."""
    known = dict.fromkeys([*inventory.members(CONTROL_PLANES), *inventory.members(GPU_NODES)])
    rows = [_row(host, finding) for host in known if host in hosts for finding in _findings(inventory, host)]
    nodes = {host: inventory.variables(host) for host in inventory.members(GPU_NODES)}
    lines = [_offer(host, node) for host, node in nodes.items() if "gpu_plugins_offers" in node]
    quotas: List[Mapping[str, Any]] = next(
        (node["gpu_plugins_quotas"] for node in nodes.values() if "gpu_plugins_quotas" in node), []
    )
    lines += [f"quota of {row['namespace']}: {row['used']} of {row['hard']} {row['resource']}" for row in quotas]
    lines += [row["text"] for row in rows]
    if all(row["verdict"] in ("ok", "unknown") for row in rows):
        lines.append("nothing is wrong")
    blocked: Dict[str, List[str]] = {}
    for row in rows:
        if row["verdict"] == "blocked":
            blocked.setdefault(row["host"], []).append(row["text"])
    return Report(rows, lines, blocked)


def _findings(inventory: Inventory, host: str) -> Iterator[Finding]:
    variables = inventory.variables(host)
    is_control_plane, is_gpu_node = (host in inventory.members(group) for group in (CONTROL_PLANES, GPU_NODES))
    saw_scheduler, saw_node = variables.get("validate_saw_scheduler"), variables.get("validate_saw_node")
    if is_control_plane and "validate_failed_scheduler" in variables:
        yield Finding("blocked", "scheduler", str(variables["validate_failed_scheduler"]))
    elif is_control_plane and saw_scheduler:
        yield Finding("ok", "scheduler", "Its configuration was read.")
    if saw_node:
        found = list(_wrong(variables))
        passed = [
            Finding("ok", "container runtime", "It is configured."),
            *map(_finding, mappings(variables.get("gpu_plugins_passed"))),
        ]
        yield from (each for each in passed if each.what not in {finding.what for finding in found})
        yield from found
    if (is_control_plane and not saw_scheduler) or (is_gpu_node and not saw_node):
        yield Finding("blocked", "host", "It could not be looked at.", "See what failed above.")


def _wrong(variables: Mapping[str, Any]) -> Iterator[Finding]:
    """Yield what checks of a GPU node found that may be wrong."""
    for check, what in _CHECKS.items():
        if f"validate_failed_{check}" in variables:
            yield Finding("blocked", what, str(variables[f"validate_failed_{check}"]))
    yield from map(_finding, mappings(variables.get("gpu_plugins_findings")))
    if "validate_failed_pod" in variables:
        yield Finding("blocked", "pod", str(variables["validate_failed_pod"]))
    elif "gpu_plugins_trial" in variables:
        yield _finding(variables["gpu_plugins_trial"])


def _finding(found: Mapping[str, Any]) -> Finding:
    return Finding(*(str(found.get(key, "")) for key in ("verdict", "what", "found", "remedy")))


def _row(host: str, finding: Finding) -> Dict[str, str]:
    words = line(" ".join(f"{finding.found} {finding.remedy}".split()), _LONGEST)
    text = ": ".join((host, finding.verdict, finding.what, words))
    return {"host": host, "verdict": finding.verdict, "what": finding.what, "words": words, "text": text}


def _offer(host: str, variables: Mapping[str, Any]) -> str:
    nvml = mapping(mapping(variables.get("ansible_facts")).get("accel_nvml"))
    driver, cuda = (nvml.get(key) or "none" for key in ("driver_version", "cuda_version"))
    offers = ", ".join(f"{name} {amount}" for name, amount in mapping(variables["gpu_plugins_offers"]).items())
    return f"{host}: driver {driver}, CUDA {cuda}, {len(nvml.get('gpus') or ())} GPUs; offers {offers or 'nothing'}"
