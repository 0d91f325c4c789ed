# SPDX-License-Identifier: Apache-2.0
"""What validate says of admission policies, and which schedulers a pod may ask for."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.accel.kubernetes.plugins.module_utils.cluster.admission import (
    admission_findings,
    scheduler_names,
)


def policy(name: str, *warnings: str) -> dict[str, Any]:
    told = [{"fieldRef": "spec.validations[0].expression", "warning": text} for text in warnings]
    status = {"typeChecking": {"expressionWarnings": told}} if told else {}
    return {"kind": "ValidatingAdmissionPolicy", "metadata": {"name": name}, "spec": {}, "status": status}


def binding(name: str, *actions: str) -> dict[str, Any]:
    spec = {"policyName": name, "validationActions": list(actions)}
    return {"kind": "ValidatingAdmissionPolicyBinding", "metadata": {"name": name}, "spec": spec}


def served(*objects: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"api_found": True, "resources": list(objects)}, {"api_found": True, "resources": []}]


def rows(answers: list[dict[str, Any]], *expected: str) -> list[str]:
    found = admission_findings(answers, expected)
    assert all(row["what"] == "admission" for row in found)
    return [" ".join((row["verdict"], row["found"], row["remedy"])) for row in found]


def test_policies_with_bindings_that_deny_give_no_row() -> None:
    assert rows(served(policy("a"), policy("b"), binding("a", "Deny"), binding("b", "Deny", "Audit")), "a", "b") == []


def test_cluster_without_the_api_is_said_with_what_it_means() -> None:
    (row,) = rows([{"api_found": False, "resources": []}] * 2, "a", "b")
    assert row.startswith(
        "unknown This cluster is older than Kubernetes 1.30 and serves no ValidatingAdmissionPolicies"
    )
    assert "a, b" in row
    assert "Only RBAC limits" in row


def test_nothing_is_said_where_no_policy_is_wanted() -> None:
    assert rows([{"api_found": False, "resources": []}]) == []


@pytest.mark.parametrize(
    ("objects", "says"),
    [
        ([policy("a"), binding("a", "Deny")], "unstable The cluster lacks ValidatingAdmissionPolicy b. Run site.yml"),
        ([policy("a"), policy("b"), binding("a", "Deny")], "unstable No binding enforces policy b."),
        (
            [policy("a"), policy("b"), binding("a", "Deny"), binding("b", "Warn")],
            "unstable No binding enforces policy b.",
        ),
        (
            [policy("a", "ERROR: 1:2:\n undefined field 'x'"), policy("b"), binding("a", "Deny"), binding("b", "Deny")],
            "unstable Policy a does not fit this version of Kubernetes: spec.validations[0].expression: ERROR: 1:2: "
            "undefined field 'x'.",
        ),
    ],
)
def test_policy_that_does_not_hold_is_named(objects: list[dict[str, Any]], says: str) -> None:
    (row,) = rows(served(*objects), "a", "b")
    assert row.startswith(says)


def test_schedulers_are_all_profiles_and_those_added() -> None:
    profiles = {"profiles": [{"schedulerName": "batch"}, {"plugins": {}}]}
    assert scheduler_names([{}]) == ["default-scheduler"]
    assert scheduler_names([{}, profiles, {"profiles": []}], ["volcano", "batch"]) == [
        "default-scheduler",
        "batch",
        "volcano",
    ]
