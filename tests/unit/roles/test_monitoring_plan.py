# SPDX-License-Identifier: Apache-2.0
"""How role monitoring tells Prometheus of the GPUs, and what it refuses."""

from __future__ import annotations

from typing import Any

import pytest

from .conftest import ROLES, Evaluate, rendered

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


RULE = {"labels": {}, "annotations": {}}
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


def test_of_several_prometheuses_the_one_of_the_namespace_is_taken_and_the_others_are_told(ask: Any) -> None:
    seen = looked(*OPERATED, prometheus={})
    (first,) = seen["results"][0]["resources"]
    assert ask("__monitoring_others", seen) == []
    seen["results"][0]["resources"].append(first | {"metadata": {"name": "second", "namespace": "gpus"}})
    assert ask("__monitoring_prometheus", seen)["metadata"]["name"] == "main"
    assert ask("__monitoring_others", seen) == ["gpus/second"]
    assert ask("__monitoring_prometheus", seen, monitoring_namespace="gpus")["metadata"]["name"] == "second"
    assert ask("__monitoring_others", seen, monitoring_namespace="gpus") == []
    assert ask("__monitoring_prometheus", seen, monitoring_namespace="neither")["metadata"]["name"] == "main"
    assert ask("__monitoring_others", seen, monitoring_namespace="neither") == ["gpus/second"]


@pytest.mark.parametrize(
    ("spec", "seconds"), [({}, 86400), ({"retention": "1d12h"}, 129600), ({"retention": "2w"}, 1209600)]
)
def test_retention_is_compared_in_seconds(ask: Any, spec: dict[str, Any], seconds: int) -> None:
    assert ask("__monitoring_seconds", looked(*OPERATED, prometheus=spec)) == [7 * 86400, seconds]


@pytest.mark.parametrize(
    ("spec", "short"),
    [
        ({}, True),
        ({"retention": "1d12h"}, True),
        ({"retention": "1w"}, False),
        ({"retention": "30d"}, False),
        ({"retentionSize": "50GB"}, False),
        ({"retention": "1d", "retentionSize": "50GB"}, True),
    ],
)
def test_samples_are_never_to_be_kept_for_less_than_they_are(ask: Any, spec: dict[str, Any], short: bool) -> None:
    assert ask("__monitoring_kept_for_less", looked(*OPERATED, prometheus=spec)) is short


@pytest.mark.parametrize(
    ("notes", "retention", "before", "ours"),
    [
        ({"before": "24h", "set": "7d"}, "7d", "24h", True),
        ({"before": "", "set": "7d"}, "7d", "", True),
        ({"before": "24h", "set": "7d"}, "90d", "90d", False),
        ({"before": "24h", "set": "7d"}, None, "", False),
        # A variable that changed since says nothing of what we set.
        ({"before": "24h", "set": "14d"}, "14d", "24h", True),
        ({"before": "24h"}, "7d", "24h", True),
        ({"before": "24h"}, "90d", "90d", False),
    ],
)
def test_retention_that_somebody_set_since_is_theirs(
    ask: Any, notes: dict[str, str], retention: str | None, before: str, ours: bool
) -> None:
    seen = looked(*OPERATED, prometheus={"retention": retention} if retention else {})
    (prometheus,) = seen["results"][0]["resources"]
    assert ask("__monitoring_noted", seen) == []
    prometheus["metadata"]["annotations"] = {f"kube-accel.io/retention-{note}": text for note, text in notes.items()}
    (noted,) = ask("__monitoring_noted", seen)
    assert (noted["name"], noted["namespace"], noted["before"], noted["ours"]) == ("main", "observed", before, ours)
    assert ask("__monitoring_retention_before", seen) == before


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


def test_the_plugins_are_looked_for_in_the_namespace_of_the_gpu_nodes(ask: Any) -> None:
    words = {"groups": {"gpu_nodes": ["a"]}, "hostvars": {"a": {"gpu_plugins_namespace": "theirs"}}}

    def namespaces(**more: Any) -> list[str]:
        return [item["namespace"] for item in ask("__monitoring_jobs", looked(), **(words | more))]

    assert namespaces() == ["theirs", "kube-system", "theirs"]
    assert namespaces(gpu_plugins_namespace="all") == ["all", "kube-system", "all"]
    assert namespaces(groups={}) == ["kube-system"] * 3
    assert ask("__monitoring_namespace", looked(service=True), **words) == "theirs"


OFF = {"groups": {"gpu_nodes": ["a"]}, "hostvars": {"a": {"gpu_plugins_metrics_enabled": "no"}}}


def test_plugins_that_serve_no_metrics_are_not_asked_for_any(ask: Any) -> None:
    rules = [{"name": "all", "rules": [{"alert": "GpuPluginDown"} | RULE, {"alert": "GpuLost"} | RULE]}]

    def jobs(**words: Any) -> list[str]:
        return [item["job"] for item in ask("__monitoring_jobs", looked(), **words)]

    def alerts(**words: Any) -> list[str]:
        (group,) = ask("__monitoring_rules", looked(), __monitoring_rule_groups=rules, **words)["groups"]
        return [rule["alert"] for rule in group["rules"]]

    others = ["kube-accel-extender", "kube-accel-dcgm-exporter"]
    assert (jobs(), alerts()) == (["kube-accel", *others], ["GpuPluginDown", "GpuLost"])
    assert (jobs(**OFF), alerts(**OFF)) == (others, ["GpuLost"])
    assert jobs(**OFF, gpu_plugins_metrics_enabled=True) == ["kube-accel", *others]


def test_a_series_is_written_by_one_plugin_alone() -> None:
    """While a node's plugin is replaced there are two."""
    for item in rendered("monitoring", "scrape.yml.j2", ansible_managed="ours", __monitoring_looked=looked()):
        for job in item["scrape_configs"]:
            pod = {"source_labels": ["__meta_kubernetes_pod_name"], "target_label": "plugin"}
            assert pod in job["relabel_configs"], job["job_name"]
    words = {"__monitoring_looked": looked(*OPERATED, prometheus={}), "__monitoring_rules": {}}
    made = rendered("monitoring", "objects.yml.j2", __monitoring_dashboards=[], **words)
    monitors = [item for item in made if item["kind"] == "PodMonitor"]
    assert len(monitors) == 3
    for monitor in monitors:
        (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
        pod = {"action": "replace", "sourceLabels": ["__meta_kubernetes_pod_name"], "targetLabel": "plugin"}
        assert pod in endpoint["relabelings"], monitor["metadata"]["name"]


def test_the_service_of_the_extender_alone_does_not_choose_plugins() -> None:
    words = {"__monitoring_looked": looked(service=True), "__monitoring_rules": {}, "__monitoring_dashboards": []}
    made = rendered("monitoring", "objects.yml.j2", **words, **OFF)
    selectors = [item["spec"]["selector"] for item in made if item["kind"] == "Service"]
    assert selectors[0].get("app.kubernetes.io/component") == "extender"
