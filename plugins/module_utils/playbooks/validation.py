# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Reports what the playbook validate found on the controller, in the cluster, and on hosts. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Dict, Iterator, List, Mapping, Sequence, Tuple

from ..shared.finding import Finding
from ..shared.inventory import CONTROL_PLANES, GPU_NODES, Inventory
from ..shared.printable import line
from ..shared.registers import entries, mapping, mappings
from . import readiness

_LONGEST = 4096
"""Characters of what was found, in a row."""
_CHECKS = {"driver": "driver", "runtime": "container runtime", "plugin": "device plugin"}
"""Checks of a GPU node that may fail, as facts name them and as people do."""
_CONTROLLER, _CLUSTER = "controller", "cluster"
"""Where findings are that are of no host."""
_MANY = 3
"""Hosts that a line of the table names."""


@dataclass(frozen=True)
class Report:
    """What was found on all hosts."""

    rows: List[Dict[str, str]]
    """Each finding: ``host``, ``verdict``, ``what``, ``words``, and all of them as one ``text``."""
    artifact: List[Dict[str, str]]
    """What a job of AWX hands on to each later job: the rows, those of a host that are ok as one, without words."""
    lines: List[str]
    """All of it for people: what nodes offer, quotas, then the rows."""
    table: List[str]
    """What cannot work, each with what mends it, for people."""
    blocked: Dict[str, str]
    """By host which rows say what cannot work. Hosts without such a row are not there."""


def report(inventory: Inventory, hosts: Sequence[str]) -> Report:
    """Return what was found on those of the inventory's hosts that were to be looked at.

    The first of them answers for controller and cluster.
    """
    first = hosts[0] if hosts else ""
    known = dict.fromkeys([*inventory.members(CONTROL_PLANES), *inventory.members(GPU_NODES)])
    controller, cluster = (
        mapping(inventory.variables(first).get(f"validate_{key}")) for key in ("controller", "cluster")
    )
    answers = not controller or _answers(cluster)
    found = list(_around(inventory, controller, cluster))
    for host in known:
        if host in hosts:
            seen = (*_findings(inventory, host, cluster), *_unseen(inventory, host, answers))
            found += [(host, finding) for finding in seen]
    rows = [_row(where, finding) for where, finding in found]
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
    for where, finding in found:
        if finding.verdict == "blocked":
            who, what = (where, finding.what) if where in known else (first, f"{finding.what} ({where})")
            blocked.setdefault(who, []).append(what)
    words = {host: f"Blocked: {', '.join(what)}. The table shows how to fix it." for host, what in blocked.items()}
    return Report(rows, _artifact(rows), lines, _table(found), words)


def _around(
    inventory: Inventory, controller: Mapping[str, Any], cluster: Mapping[str, Any]
) -> Iterator[Tuple[str, Finding]]:
    """Yield what was found on the controller and of the cluster, where they were looked at."""
    if controller:
        lacks = list(readiness.controller(inventory, controller))
        yield from ((_CONTROLLER, finding) for finding in lacks)
        if not lacks:
            yield _CONTROLLER, Finding("ok", "packages", "All packages that the playbooks import are installed.")
    if cluster:
        silent = list(readiness.cluster(cluster))
        yield from ((_CLUSTER, finding) for finding in silent)
        if not silent:
            yield (
                _CLUSTER,
                Finding("ok", "API server", f"It answers and has {len(entries(cluster.get('nodes')))} nodes."),
            )


def _findings(inventory: Inventory, host: str, cluster: Mapping[str, Any]) -> Iterator[Finding]:
    variables = inventory.variables(host)
    is_control_plane, is_gpu_node = (host in inventory.members(group) for group in (CONTROL_PLANES, GPU_NODES))
    saw_scheduler, saw_node = variables.get("validate_saw_scheduler"), variables.get("validate_saw_node")
    if is_control_plane and "validate_failed_scheduler" in variables:
        yield Finding("blocked", "scheduler", str(variables["validate_failed_scheduler"]))
    elif is_control_plane and saw_scheduler:
        yield Finding("ok", "scheduler", "Its configuration was read.")
    if is_gpu_node and _answers(cluster):
        yield from readiness.node(host, variables, entries(cluster["nodes"]))
    if saw_node:
        found = list(_wrong(variables))
        passed = [
            Finding("ok", "container runtime", "It is configured."),
            *map(_finding, mappings(variables.get("gpu_plugins_passed"))),
        ]
        yield from (each for each in passed if each.what not in {finding.what for finding in found})
        yield from found


def _unseen(inventory: Inventory, host: str, answers: bool) -> Iterator[Finding]:
    """Yield why a host was not looked at. Where the API server does not answer, the reason is not the host's."""
    variables = inventory.variables(host)
    reasons = list(readiness.host(host, variables))
    yield from reasons
    looks = {CONTROL_PLANES: "validate_saw_scheduler", GPU_NODES: "validate_saw_node"}
    lost = any(host in inventory.members(group) and not variables.get(look) for group, look in looks.items())
    if lost and answers and not reasons:
        yield Finding("blocked", "host", "It could not be checked.", "Read the failure above.")


def _answers(cluster: Mapping[str, Any]) -> bool:
    return bool(cluster) and not cluster.get("message")


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


def _row(where: str, finding: Finding) -> Dict[str, str]:
    words = _one_line(f"{finding.found} {finding.remedy}")
    text = ": ".join((where, finding.verdict, finding.what, words))
    return {"host": where, "verdict": finding.verdict, "what": finding.what, "words": words, "text": text}


def _artifact(rows: Sequence[Dict[str, str]]) -> List[Dict[str, str]]:
    sound: Dict[str, List[str]] = {}
    for row in rows:
        if row["verdict"] == "ok":
            sound.setdefault(row["host"], []).append(row["what"])
    merged = [(host, ", ".join(dict.fromkeys(what))) for host, what in sound.items()]
    kept = [
        {"host": host, "verdict": "ok", "what": what, "words": "", "text": f"{host}: ok: {what}"}
        for host, what in merged
    ]
    return [*(row for row in rows if row["verdict"] != "ok"), *kept]


def _table(found: Sequence[Tuple[str, Finding]]) -> List[str]:
    """Return a row for each thing that cannot work, with the hosts that have it, and below it what mends it."""
    where: Dict[Tuple[str, str, str], List[str]] = {}
    for host, finding in found:
        if finding.verdict == "blocked":
            where.setdefault((finding.what, *_divided(finding)), []).append(host)
    rows = [("WHERE", "WHAT", "WHAT IS WRONG", "what mends it")]
    rows += [(_hosts(hosts), what, wrong, remedy) for (what, wrong, remedy), hosts in where.items()]
    first, second = (max(len(row[column]) for row in rows) for column in (0, 1))
    lines = []
    for host, what, wrong, remedy in rows:
        lines.append(f"{host.ljust(first)}  {what.ljust(second)}  {wrong}")
        lines += [f"{' ' * (first + second + 4)}> {remedy}"] if remedy else []
    return lines if where else []


def _divided(finding: Finding) -> Tuple[str, str]:
    """Return what is wrong, and what mends it, which messages of a sentence have after their last semicolon."""
    found, remedy = _one_line(finding.found), _one_line(finding.remedy)
    wrong, between, last = found.rpartition("; ")
    return (f"{wrong}.", last) if between and not remedy and ". " not in last else (found, remedy)


def _hosts(names: List[str]) -> str:
    return ", ".join(names[:_MANY]) + (f" and {len(names) - _MANY} more" if len(names) > _MANY else "")


def _one_line(text: str) -> str:
    return line(" ".join(text.split()), _LONGEST)


def _offer(host: str, variables: Mapping[str, Any]) -> str:
    nvml = mapping(mapping(variables.get("ansible_facts")).get("accel_nvml"))
    driver, cuda = (nvml.get(key) or "none" for key in ("driver_version", "cuda_version"))
    offers = ", ".join(f"{name} {amount}" for name, amount in mapping(variables["gpu_plugins_offers"]).items())
    return f"{host}: driver {driver}, CUDA {cuda}, {len(nvml.get('gpus') or ())} GPUs; offers {offers or 'nothing'}"
