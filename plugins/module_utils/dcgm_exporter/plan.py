# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether a cluster gets NVIDIA's dcgm-exporter, with which counters, and who may reach it. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Dict, List, Mapping, Sequence

from ..cluster.network_policy import network_policies
from ..shared.label_names import EXPORTER_NAME
from ..shared.options import OptionReader
from ..shared.refusal import Refusal, messages
from ..shared.registers import mappings

_FROM = "gpu_plugins_network_policy_from"


@dataclass(frozen=True)
class Seen:
    """What was seen of a cluster, and what is asked for."""

    options: Mapping[str, Any]
    """Variables of the role, and those of gpu_plugins that it has in common with it, by name."""
    answers: Mapping[str, Any]
    """The results for NetworkPolicies, the API server's EndpointSlices, and Nodes."""
    removed: bool = False
    """Whether the exporter is uninstalled."""


@dataclass(frozen=True)
class Plan:
    """What becomes of dcgm-exporter."""

    name: str
    """The name of its objects, and ``app`` of its pods."""
    wanted: bool
    fields: Sequence[str]
    """What it reads, by DCGM's names."""
    port: int
    policies: Sequence[Mapping[str, Any]]
    unwanted: Sequence[Mapping[str, Any]]
    """Policies of an earlier run that are to go."""
    refusals: Sequence[Refusal]
    words: str
    """All refusals as one text."""


def plan(seen: Seen) -> Plan:
    """Return what becomes of dcgm-exporter."""
    options = OptionReader(seen.options)
    wanted = options.boolean("dcgm_exporter_enabled") and not seen.removed
    closed = options.boolean("gpu_plugins_network_policy_enabled")
    fields, port = options.words("dcgm_exporter_fields"), options.number("dcgm_exporter_port", 1, 65535)
    results = mappings(seen.answers.get("results"))
    nodes = [item for answer in results for item in mappings(answer.get("resources")) if item.get("kind") == "Node"]
    server = exporter_server(seen.options, port, wanted and closed)
    (policy,) = network_policies([server], results, nodes)
    refusals: List[Refusal] = [*options.refusals]
    refusals += [Refusal("network_policy_peers", problem) for problem in policy["problems"]]
    return Plan(
        EXPORTER_NAME,
        wanted,
        fields,
        port,
        [policy["policy"]] if policy["policy"] else [],
        [policy["unwanted"]] if policy["unwanted"] else [],
        refusals,
        messages(refusals),
    )


def exporter_server(options: Mapping[str, Any], port: int, wanted: bool) -> Dict[str, Any]:
    """Return dcgm-exporter as a server, as ``network_policies`` takes it.

    ``options`` has ``gpu_plugins_namespace``, and ``gpu_plugins_network_policy_from``, who may come to its port.
    """
    return {
        "name": EXPORTER_NAME,
        "namespace": options["gpu_plugins_namespace"],
        "selector": {"matchLabels": {"app": EXPORTER_NAME}},
        "pods": [{"app": EXPORTER_NAME}],
        "ports": [port],
        "peers": options[_FROM],
        "variable": _FROM,
        "wanted": wanted,
    }
