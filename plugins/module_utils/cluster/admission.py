# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What to say of the ValidatingAdmissionPolicies that the roles ship, and for which schedulers a pod may ask. Pure."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, Dict, Iterable, Iterator, List, Mapping, Sequence

from ansible_collections.accel.kubernetes.plugins.module_utils.shared.finding import Finding
from ansible_collections.accel.kubernetes.plugins.module_utils.shared.registers import entries, mapping

DEFAULT_SCHEDULER = "default-scheduler"
POLICY, BINDING = "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"

_SITE = "Run site.yml with --tags gpu_plugins,scheduler."


def scheduler_names(configurations: Iterable[Mapping[str, Any]], more: Iterable[str] = ()) -> List[str]:
    """Return the schedulerNames that these KubeSchedulerConfigurations serve, and ``more``, in order, each once.

    An extender is asked for every profile of a configuration. One without profiles serves ``default-scheduler``.
    """
    names: Dict[str, None] = {}
    for configuration in configurations:
        for profile in configuration.get("profiles") or [{}]:
            names[profile.get("schedulerName") or DEFAULT_SCHEDULER] = None
    names.update(dict.fromkeys(more))
    return list(names)


def admission_findings(answers: Sequence[Mapping[str, Any]], expected: Sequence[str]) -> List[Dict[str, str]]:
    """Return what keeps the policies named in ``expected`` from holding, as rows; none where all hold.

    ``answers`` are results of ``kubernetes.core.k8s_info`` for policies and bindings, each with ``api_found`` and
    ``resources``.
    """
    return [asdict(finding) for finding in _findings(answers, expected)] if expected else []


def _findings(answers: Sequence[Mapping[str, Any]], expected: Sequence[str]) -> Iterator[Finding]:
    if not all(answer.get("api_found") for answer in answers):
        yield Finding(
            "unknown",
            "admission",
            "This cluster is older than Kubernetes 1.30 and serves no ValidatingAdmissionPolicies, so it lacks "
            f"{', '.join(expected)}. Only RBAC limits the accounts of the daemons.",
            "Upgrade Kubernetes, then run site.yml.",
        )
        return
    objects = [item for answer in answers for item in answer.get("resources") or ()]
    policies = {item["metadata"]["name"]: item for item in objects if item.get("kind") == POLICY}
    bound = {
        mapping(item.get("spec")).get("policyName") for item in objects if item.get("kind") == BINDING and _denies(item)
    }
    missing = [name for name in expected if name not in policies]
    if missing:
        yield Finding(
            "unstable", "admission", f"The cluster lacks ValidatingAdmissionPolicy {', '.join(missing)}.", _SITE
        )
    idle = [name for name in expected if name in policies and name not in bound]
    if idle:
        yield Finding("unstable", "admission", f"No binding enforces policy {', '.join(idle)}.", _SITE)
    for name in expected:
        yield from _of_type_checking(name, policies.get(name) or {})


def _denies(binding: Mapping[str, Any]) -> bool:
    return "Deny" in entries(mapping(binding.get("spec")).get("validationActions"))


def _of_type_checking(name: str, policy: Mapping[str, Any]) -> Iterator[Finding]:
    status = policy.get("status") or {}
    for warning in (status.get("typeChecking") or {}).get("expressionWarnings") or ():
        text = " ".join(str(warning.get("warning", "")).split())
        yield Finding(
            "unstable",
            "admission",
            f"Policy {name} does not fit this version of Kubernetes: {warning.get('fieldRef', '')}: {text}.",
            "Report it with the version of Kubernetes; the variables that end in _admission_enabled turn policies off.",
        )
