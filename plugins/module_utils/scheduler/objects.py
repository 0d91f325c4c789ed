# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Decides which objects the cluster gets for the extender, as far as templates cannot. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Dict, List, Mapping

from ..cluster.admission import scheduler_names
from ..cluster.network_policy import network_policies
from ..shared.inventory import CONTROL_PLANES, GPU_NODES, Inventory
from ..shared.registers import mapping, metadata_of, resources
from .asked import Options
from .cluster import NAMESPACE
from .layout import NAME, SECOND, Plan, managed

_SECOND_PORT = 10259
"""Where a kube-scheduler serves its metrics."""
_LABELS = {"app.kubernetes.io/managed-by": "accel.kubernetes", "app.kubernetes.io/component": "extender"}


@dataclass(frozen=True)
class Objects:
    """What the templates of the role make of the plan."""

    policies: List[str]
    """Names of the ValidatingAdmissionPolicies; none where the cluster serves no such objects."""
    schedulers: List[str]
    """Names of the schedulers for which a pod with a share may ask."""
    managed: List[str]
    """The resources whose pods go through the extender."""
    networks: List[Dict[str, Any]]
    """NetworkPolicies."""
    nodes: List[str]
    """The nodes to which a Deployment is kept; none where every node gets its image."""
    tolerations: List[Mapping[str, Any]]
    second_image: str
    second_configuration: Dict[str, Any]
    certificates: str
    """Version of the Secret with the certificates of the second scheduler."""


def planned_objects(options: Options, plan: Plan, inventory: Inventory, answers: Mapping[str, Any]) -> Objects:
    """Decide by what the API server answered."""
    control_plane = {"key": "node-role.kubernetes.io/control-plane", "operator": "Exists"}
    return Objects(
        policies=_policies(options) if mapping(answers.get("admission")).get("api_found") is True else [],
        schedulers=_schedulers(options, plan, inventory),
        managed=managed(options),
        networks=[each["policy"] for each in networks(options, plan, answers.get("network")) if each["policy"]],
        nodes=_image_nodes(options, inventory),
        tolerations=[control_plane, *options.tolerations],
        second_image=options.secondary_image or f"registry.k8s.io/kube-scheduler:{_version(answers)}",
        second_configuration=_second_configuration(options),
        certificates=_version_of_secret(answers),
    )


def networks(options: Options, plan: Plan, answer: object) -> List[Dict[str, Any]]:
    """Return the plans of the extender's NetworkPolicies.

    In the layout local its pods have the addresses of their hosts, for which NetworkPolicies do not hold. Beside a
    second kube-scheduler the extender is asked within the pod. The layout before serves until the sweep, so that a
    policy names the layout.
    """
    found = resources(answer)
    pod = {"app.kubernetes.io/name": NAME, "kube-accel.io/layout": plan.layout}
    metrics = [options.metrics_port] if options.metrics_port else []
    server = {
        "name": NAME,
        "namespace": NAMESPACE,
        "selector": {"matchLabels": pod},
        "pods": [{**pod, **_LABELS}],
        "ports": [options.extender_port] if plan.layout == "proxied" else [*metrics, _SECOND_PORT],
        "peers": options.network_peers or [],
        "variable": "scheduler_network_policy_from",
        "wanted": options.network_policy and plan.layout in ("proxied", "secondary"),
        "labels": {"app.kubernetes.io/component": "extender"},
    }
    nodes = [item for item in found if item.get("kind") == "Node"]
    planned: List[Dict[str, Any]] = network_policies([server], [{"resources": found}], nodes)
    return planned


def _policies(options: Options) -> List[str]:
    extender = ["kube-accel-extender-pods", "kube-accel-extender-bindings"] if options.admission_extender else []
    return extender + (["kube-accel-shares"] if options.admission_pods else [])


def _schedulers(options: Options, plan: Plan, inventory: Inventory) -> List[str]:
    """Return who asks the extender. A control plane that could not be read has what one without profiles has."""
    if plan.layout == "secondary":
        configurations: List[Mapping[str, Any]] = [{"profiles": [{"schedulerName": SECOND}]}]
    else:
        read = inventory.each(CONTROL_PLANES, lambda variables: mapping(variables.get("__scheduler_proposal")))
        configurations = [mapping(proposal.get("configuration")) for proposal in read.values()] or [{}]
    names: List[str] = scheduler_names(configurations, options.admission_schedulers)
    return names


def _image_nodes(options: Options, inventory: Inventory) -> List[str]:
    """Return the nodes that this run gave an image that no registry has."""
    if not options.image_imported:
        return []
    found: Dict[str, None] = {}
    for group, name in ((GPU_NODES, "gpu_plugins_node_name"), (CONTROL_PLANES, "scheduler_node_name")):
        for host in inventory.members(group):
            variables = inventory.variables(host)
            if variables.get("kube_accel_image_here") == options.image:
                found[str(variables.get(name, host))] = None
    return list(found)


def _version(answers: Mapping[str, Any]) -> str:
    server = mapping(mapping(mapping(answers.get("version")).get("version")).get("server"))
    return re.sub("[+-].*", "", str(mapping(server.get("kubernetes")).get("gitVersion", "")))


def _version_of_secret(answers: Mapping[str, Any]) -> str:
    secret = answers.get("secret")
    found = mapping(secret).get("result") or next(iter(resources(secret)), {})
    return str(metadata_of(found).get("resourceVersion", ""))


def _second_configuration(options: Options) -> Dict[str, Any]:
    certificates = "/etc/kube-accel/certificates"
    return {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "leaderElection": {"leaderElect": False},
        "percentageOfNodesToScore": 100,
        "profiles": [{"schedulerName": SECOND}],
        "extenders": [
            {
                "urlPrefix": f"https://127.0.0.1:{options.extender_port}/scheduler",
                "filterVerb": "predicates",
                "prioritizeVerb": "priorities",
                "preemptVerb": "preemption",
                "bindVerb": "bind",
                "weight": options.policy_weight,
                "enableHTTPS": True,
                "nodeCacheCapable": True,
                "tlsConfig": {
                    "caFile": f"{certificates}/ca.crt",
                    "certFile": f"{certificates}/client.crt",
                    "keyFile": f"{certificates}/client.key",
                },
                "managedResources": [{"name": name, "ignoredByScheduler": False} for name in managed(options)],
            }
        ],
    }
