# SPDX-License-Identifier: Apache-2.0
"""How role monitoring tells Prometheus of the GPUs, and what it refuses."""

from __future__ import annotations

from typing import Any

import pytest

from .conftest import ROLES, Evaluate

KINDS = ("Prometheus", "Service", "PodMonitor", "PrometheusRule", "Service", "ConfigMap")
SELECTOR = {"matchLabels": {"release": "stack"}}


def looked(*known: str, prometheus: dict[str, Any] | None = None, service: bool = False) -> dict[str, Any]:
    """What a cluster with these kinds of the operator answers."""
    mine = [{"kind": "Prometheus", "metadata": {"name": "main", "namespace": "observed"}, "spec": prometheus}]
    theirs = [{"kind": "Service", "metadata": {"name": "prometheus-server", "namespace": "default"}}]
    results = []
    for index, kind in enumerate(KINDS):
        item = {"kind": kind} | ({"foreign": []} if index < 2 else {})
        found = mine if kind == "Prometheus" and prometheus is not None else theirs if index == 1 and service else []
        known_kind = kind in (*known, "Service", "ConfigMap")
        results.append({"item": item, "api_found": known_kind, "resources": found if known_kind else []})
    return {"results": results}


OPERATED = ("Prometheus", "PodMonitor", "PrometheusRule")


@pytest.fixture
def ask(evaluate: Evaluate) -> Any:
    """``ask(name, seen, **variables)``."""
    groups = {"__monitoring_rule_groups": [{"rules": [{"alert": "GpuLost"}, {"record": "a:b:c"}]}]}

    def value(name: str, seen: dict[str, Any], **variables: Any) -> Any:
        words = {"groups": {}, "hostvars": {}, "role_path": str(ROLES / "monitoring")} | groups
        return evaluate("monitoring", name, {}, __monitoring_looked=seen, **(words | variables))

    return value


@pytest.mark.parametrize(
    ("seen", "method"),
    [
        (looked(*OPERATED, prometheus={}), "operator"),
        (looked("PodMonitor", "PrometheusRule"), "operator"),
        (looked("PodMonitor", service=True), "annotations"),
        (looked(service=True), "annotations"),
        (looked(), "none"),
    ],
)
def test_the_method_is_what_the_cluster_has(ask: Any, seen: dict[str, Any], method: str) -> None:
    assert ask("__monitoring_method", seen) == method
    assert ask("__monitoring_method", seen, monitoring_method="file") == "file"


def test_objects_go_where_the_operators_prometheus_looks(ask: Any) -> None:
    seen = looked(
        *OPERATED, prometheus={"podMonitorSelector": SELECTOR, "ruleSelector": {"matchLabels": {"role": "r"}}}
    )
    assert ask("__monitoring_namespace", seen) == "observed"
    labels = ask("__monitoring_labels", seen)
    assert (labels["release"], labels["role"]) == ("stack", "r")
    labels = ask("__monitoring_labels", seen, monitoring_labels={"mine": "yes"})
    assert (labels["mine"], "release" in labels) == ("yes", False)
    assert ask("__monitoring_namespace", looked(service=True), gpu_plugins_namespace="gpus") == "gpus"
    assert ask("__monitoring_namespace", seen, monitoring_namespace="there") == "there"


@pytest.mark.parametrize(
    ("spec", "seconds"), [({}, 86400), ({"retention": "1d12h"}, 129600), ({"retention": "2w"}, 1209600)]
)
def test_retention_is_compared_in_seconds(ask: Any, spec: dict[str, Any], seconds: int) -> None:
    assert ask("__monitoring_seconds", looked(*OPERATED, prometheus=spec)) == [7 * 86400, seconds]


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"podMonitorSelector": {}}, "Prometheus observed/main has no ruleSelector"),
        ({}, "has no podMonitorSelector and no ruleSelector"),
        ({"podMonitorSelector": {"matchExpressions": [{}]}, "ruleSelector": {}}, "set monitoring_labels to labels"),
        ({"podMonitorSelector": {}, "ruleSelector": SELECTOR}, ""),
    ],
)
def test_selectors_that_find_nothing_are_refused(ask: Any, spec: dict[str, Any], words: str) -> None:
    seen = looked(*OPERATED, prometheus=spec)
    problems = " ".join(ask("__monitoring_problems", seen))
    assert words in problems
    assert bool(words) == bool(problems)
    assert ask("__monitoring_problems", seen, monitoring_labels={"a": "b"}) == []


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        ({"monitoring_method": "push"}, "monitoring_method is 'push'; set it to one of auto, operator"),
        ({"monitoring_method": "operator"}, "install the Prometheus operator first"),
        ({"monitoring_scrape_interval": "often"}, "monitoring_scrape_interval is 'often'"),
        ({"monitoring_retention": "7 days"}, "monitoring_retention is '7 days'"),
        ({"monitoring_alerts_disabled": ["GpuLots"]}, "monitoring_alerts_disabled has GpuLots; the alerts are GpuLost"),
        ({"monitoring_alert_labels": {"severity": "none"}}, "choose another name"),
        ({"monitoring_method": "file", "monitoring_directory": "here"}, "name a directory by its whole path"),
        ({"monitoring_method": "file", "monitoring_host": "nowhere"}, "which the inventory does not have"),
    ],
)
def test_what_cannot_work_is_refused_with_a_remedy(ask: Any, variables: dict[str, Any], words: str) -> None:
    (problem,) = ask("__monitoring_problems", looked(), **variables)
    assert words in problem


def test_nothing_is_refused_by_default(ask: Any) -> None:
    assert ask("__monitoring_problems", looked()) == []
    assert ask("__monitoring_problems", looked(), monitoring_method="file") == []


def test_the_kubeconfig_is_that_of_the_gpu_nodes(ask: Any) -> None:
    words = {"groups": {"gpu_nodes": ["a"]}, "hostvars": {"a": {"gpu_plugins_kubeconfig": "/theirs"}}}
    assert ask("monitoring_kubeconfig", looked(), **words) == "/theirs"
    assert ask("monitoring_kubeconfig", looked(), **words, gpu_plugins_kubeconfig="/all") == "/all"
    assert ask("monitoring_kubeconfig", looked()) == ""
