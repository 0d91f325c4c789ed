# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Decides what the role scheduler asks the API server for, and reads its answers by subject. Pure."""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, Sequence

from ..shared.registers import mapping, resources, results

NAMESPACE = "kube-system"
_OURS = ["app.kubernetes.io/managed-by=accel.kubernetes", "app.kubernetes.io/component=extender"]
_RBAC, _ADMISSION = "rbac.authorization.k8s.io/v1", "admissionregistration.k8s.io/v1"
WORKLOADS: Sequence[Mapping[str, str]] = [
    {"api_version": "networking.k8s.io/v1", "kind": "NetworkPolicy"},
    {"api_version": _ADMISSION, "kind": "ValidatingAdmissionPolicyBinding"},
    {"api_version": _ADMISSION, "kind": "ValidatingAdmissionPolicy"},
    {"api_version": "apps/v1", "kind": "DaemonSet"},
    {"api_version": "apps/v1", "kind": "Deployment"},
]
"""Kinds of which each layout, and each variable, has one."""
KINDS: Sequence[Mapping[str, str]] = [
    {"api_version": "v1", "kind": "Service"},
    {"api_version": "v1", "kind": "ConfigMap"},
    {"api_version": "v1", "kind": "Secret"},
    {"api_version": _RBAC, "kind": "ClusterRoleBinding"},
    {"api_version": _RBAC, "kind": "RoleBinding"},
    {"api_version": _RBAC, "kind": "ClusterRole"},
    {"api_version": _RBAC, "kind": "Role"},
    {"api_version": "v1", "kind": "ServiceAccount"},
    {"api_version": "coordination.k8s.io/v1", "kind": "Lease"},
    *WORKLOADS,
]
"""All kinds of ours, in the order in which their objects go.

Workloads are last: as long as one is there, a run that was cut off is seen to have left something.
"""


def reads(layout: str, services: Sequence[str], peers: object) -> List[Dict[str, Any]]:
    """Return what to ask for: the subject of each question, and the options of ``kubernetes.core.k8s_info``.

    ``peers`` are those that NetworkPolicies admit. Kubernetes before 1.30 has no admission policies, and says so.
    """
    ours = {"namespace": NAMESPACE}
    found: List[Dict[str, Any]] = [
        {"subject": "kubeadm", "api_version": "v1", "kind": "ConfigMap", "name": "kubeadm-config", **ours}
    ]
    if layout == "proxied":
        named = [
            {"subject": "services", "api_version": "v1", "kind": "Service", "name": name, **ours} for name in services
        ]
        found += named
    if layout != "none":
        policy = "ValidatingAdmissionPolicy"
        found.append({"subject": "admission", "api_version": _ADMISSION, "kind": policy, "labels": _OURS})
    if layout in ("proxied", "secondary"):
        found.append({"subject": "network", "api_version": "networking.k8s.io/v1", "kind": "NetworkPolicy", **ours})
        if peers:
            slices = {"api_version": "discovery.k8s.io/v1", "kind": "EndpointSlice", "namespace": "default"}
            found.append({"subject": "network", **slices, "labels": ["kubernetes.io/service-name=kubernetes"]})
            found.append({"subject": "network", "api_version": "v1", "kind": "Node"})
    return found


def answers(register: object) -> Dict[str, Dict[str, Any]]:
    """Return by subject the ``resources`` that were found, ``api_found``, and ``msg`` where there was no answer."""
    found: Dict[str, Dict[str, Any]] = {}
    for answer in results(register):
        subject = str(mapping(answer.get("item")).get("subject"))
        entry = found.setdefault(subject, {"resources": [], "api_found": False})
        entry["resources"] += resources(answer)
        entry["api_found"] = entry["api_found"] or answer.get("api_found") is True
        if "msg" in answer:
            entry["msg"] = answer["msg"]
    return found
