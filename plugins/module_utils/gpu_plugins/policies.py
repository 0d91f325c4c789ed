# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which admission and network policies the plugins get, which are to go, and what to say of those that there are. Pure.

Kubernetes serves ValidatingAdmissionPolicies from 1.30 on.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, Dict, List, Mapping, Sequence

from ..cluster.admission import admission_findings
from ..cluster.network_policy import network_findings, network_policies
from ..dcgm_exporter.plan import exporter_server
from ..shared.modes import RESOURCE
from ..shared.options import OptionReader
from ..shared.registers import labels_of, mapping, mappings, metadata_of, resources
from ..shared.runtime_class import finds_no_driver
from ..shared.wishes import WISHES, no_effect

_OURS = "app.kubernetes.io/managed-by"
_COMPONENT = "app.kubernetes.io/component"
_PLUGIN = "kube-accel-plugin"
_EXTENDER = "kube-accel-extender"
_FROM = "gpu_plugins_network_policy_from"


@dataclass(frozen=True)
class AdmissionSeen:
    """What was seen of admission policies, and what is asked for."""

    policies: Mapping[str, Any]
    """The results for policies and for bindings."""
    options: Mapping[str, object]
    """Variables of the role, by name."""
    workloads: Mapping[str, Any] = field(default_factory=dict)
    """The results for workloads of the collection."""
    scheduler: Mapping[str, Any] = field(default_factory=dict)
    """Variables of the host that runs the scheduler role."""
    removed: bool = False
    """Whether the plugins are uninstalled."""
    by_cdi: bool = False
    """Whether whole GPUs come by CDI."""
    runtime_default: bool = False
    """Whether NVIDIA's runtime is made the default of the nodes."""
    unextended: bool = False
    """Whether the cluster has no extender, and none is coming."""
    dra: bool = False
    """Whether our DRA driver serves nodes, and writes their slices."""


@dataclass(frozen=True)
class Admission:
    """What becomes of admission policies."""

    served: bool
    wanted: bool
    evicts: bool
    """Whether plugins may evict pods. The API server reads pods for the policy about that."""
    warns: bool
    """Whether who makes a pod with whole GPUs and without a runtime class is warned: it finds no driver."""
    warning_text: str
    """What that says."""
    unheeded: Mapping[str, str]
    """Expressions of the policy that warns whoever makes a pod with wishes that no extender heeds. Empty for none."""
    names: Sequence[str]
    """Those that deny."""
    warning: Sequence[str]
    """Names of those that warn."""
    unwanted: Sequence[Mapping[str, Any]]
    """Objects that are to go."""
    expected: Sequence[str]
    """Names of those that the cluster is to have, with the extender's."""
    findings: Sequence[Mapping[str, str]]


@dataclass(frozen=True)
class NetworkSeen:
    """What was seen of network policies, and what is asked for."""

    policies: Mapping[str, Any]
    """The results for NetworkPolicies and for the API server's EndpointSlices."""
    nodes: Mapping[str, Any]
    namespace: str
    modes: Mapping[str, Any]
    """What each mode is made of."""
    options: Mapping[str, object]
    """Variables of the role, by name."""
    workloads: Mapping[str, Any] = field(default_factory=dict)
    scheduler: Mapping[str, Any] = field(default_factory=dict)
    removed: bool = False


@dataclass(frozen=True)
class Network:
    """What becomes of network policies."""

    policies: Sequence[Mapping[str, Any]]
    unwanted: Sequence[Mapping[str, Any]]
    problems: Sequence[str]
    """What is wrong with the peers that were named."""
    says: Sequence[str]
    findings: Sequence[Mapping[str, str]]


def admission(seen: AdmissionSeen) -> Admission:
    """Return what becomes of admission policies."""
    answers = mappings(seen.policies.get("results"))
    served = bool(answers) and bool(answers[0].get("api_found"))
    options = OptionReader(seen.options)
    enabled = options.boolean("gpu_plugins_admission_enabled")
    evicts = options.boolean("gpu_plugins_mig_label") and options.boolean("gpu_plugins_drain")
    warns = options.boolean("gpu_plugins_pgpu_enabled") and not seen.by_cdi and not seen.runtime_default
    options.require_values()
    wanted = enabled and served and not seen.removed
    names = [f"{_PLUGIN}-nodes", f"{_PLUGIN}-pods", f"{_PLUGIN}-events"]
    names += [f"{_PLUGIN}-evictions"] if evicts else []
    names += [f"{_PLUGIN}-slices", f"{_PLUGIN}-claim-status", f"{_PLUGIN}-claims"] if seen.dra else []
    warning = [f"{_PLUGIN}-runtime-class"] if warns else []
    warning += [f"{_PLUGIN}-annotations"] if seen.unextended else []
    kept = [*names, *warning] if wanted else []
    expected = [*(names if enabled else []), *_extender_policies(seen)]
    return Admission(
        served,
        wanted,
        evicts,
        warns,
        finds_no_driver(str(seen.options.get("gpu_plugins_runtime_class", "nvidia"))),
        _unheeded() if seen.unextended else {},
        names,
        warning,
        [item for item in resources(seen.policies) if _is_plugins(item) and metadata_of(item)["name"] not in kept],
        expected,
        admission_findings(answers, expected),
    )


def network(seen: NetworkSeen) -> Network:
    """Return what becomes of network policies."""
    answers, nodes = mappings(seen.policies.get("results")), resources(seen.nodes)
    plans = network_policies([_plugin(seen)], answers, nodes)
    exporter = network_policies([_exporter(seen)], answers, nodes)
    return Network(
        [plan["policy"] for plan in plans if plan["policy"]],
        [plan["unwanted"] for plan in plans if plan["unwanted"]],
        list(dict.fromkeys(problem for plan in plans for problem in plan["problems"])),
        [plan["says"] for plan in plans if plan["says"]],
        network_findings(answers, [*plans, *exporter], network_policies([_extender(seen)], answers)),
    )


def _unheeded() -> Dict[str, str]:
    """Return by what a policy finds a pod's wishes and resources, and what it says of them.

    The variable ``annotations`` is the pod's, and ``containers`` are its containers.
    """
    wishes = json.dumps(sorted(WISHES))
    pattern = json.dumps("^" + RESOURCE.pattern.replace(r"\Z", "$"))
    said = no_effect("' + variables.wishes.join(', ') + '", "' + variables.resources[0] + '")
    return {
        "wishes": f"{wishes}.filter(k, k in variables.annotations)",
        # Of each container that asks for any.
        "resources": "variables.containers.map(c, c.?resources.?limits.orValue({})"
        f".filter(r, r.matches({pattern})).join(', ')).filter(names, names != '')",
        "validation": "variables.wishes.size() == 0 || variables.resources.size() == 0",
        "message": f"'{said}'",
    }


def _is_plugins(item: Mapping[str, Any]) -> bool:
    return str(metadata_of(item).get("name", "")).startswith(f"{_PLUGIN}-")


def _extender_policies(seen: AdmissionSeen) -> List[str]:
    """Return the names of the policies that the scheduler role ships with an extender."""
    if not _extender_kinds(seen.workloads):
        return []
    return [
        *([f"{_EXTENDER}-pods", f"{_EXTENDER}-bindings"] if _enabled(seen.scheduler, "admission_extender") else []),
        *(["kube-accel-shares"] if _enabled(seen.scheduler, "admission_pods") else []),
    ]


def _enabled(scheduler: Mapping[str, Any], subject: str) -> bool:
    name = f"scheduler_{subject}_enabled"
    options = OptionReader({name: scheduler.get(name, True)})
    enabled = options.boolean(name)
    options.require_values()
    return enabled


def _extender_kinds(workloads: object) -> List[str]:
    return [str(item.get("kind", "")) for item in resources(workloads) if labels_of(item).get(_COMPONENT) == "extender"]


def _plugin(seen: NetworkSeen) -> Dict[str, Any]:
    """Return the server that the plugins are, as ``network_policies`` takes it."""
    options = OptionReader(seen.options)
    wanted = options.boolean("gpu_plugins_network_policy_enabled") and not seen.removed
    port = options.number("gpu_plugins_metrics_port", 1, 65535)
    options.require_values()
    names = [mode["daemonset"] for mode in seen.modes.values()]
    return {
        "name": _PLUGIN,
        "namespace": seen.namespace,
        # By the label of all modes, which pods keep that a rollout takes from their DaemonSet.
        "selector": {
            "matchLabels": {_OURS: "accel.kubernetes"},
            "matchExpressions": [{"key": _COMPONENT, "operator": "NotIn", "values": ["extender"]}],
        },
        "pods": [{"app.kubernetes.io/name": name, _OURS: "accel.kubernetes"} for name in names],
        "ports": [port],
        "peers": seen.options[_FROM],
        "variable": _FROM,
        "wanted": wanted,
    }


def _exporter(seen: NetworkSeen) -> Dict[str, Any]:
    """Return the server whose policy the role dcgm_exporter ships."""
    options = OptionReader(seen.options)
    enabled = options.boolean("dcgm_exporter_enabled") and options.boolean("gpu_plugins_network_policy_enabled")
    port = options.number("dcgm_exporter_port", 1, 65535) if enabled else 0
    options.require_values()
    return exporter_server(
        {**seen.options, "gpu_plugins_namespace": seen.namespace}, port, enabled and not seen.removed
    )


def _extender(seen: NetworkSeen) -> Dict[str, Any]:
    """Return the server whose policy the scheduler role ships, with an extender that has an address of its own."""
    pods = {"app.kubernetes.io/name": _EXTENDER, _OURS: "accel.kubernetes", _COMPONENT: "extender"}
    return {
        "name": _EXTENDER,
        "namespace": "kube-system",
        "selector": {},
        "pods": [pods],
        "ports": [],
        "peers": mapping(seen.scheduler).get("scheduler_network_policy_from") or [],
        "variable": "scheduler_network_policy_from",
        "wanted": "Deployment" in _extender_kinds(seen.workloads) and _enabled(seen.scheduler, "network_policy"),
    }
