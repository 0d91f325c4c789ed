# SPDX-License-Identifier: Apache-2.0
"""How role monitoring tells Prometheus of the GPUs, and what it refuses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.accel.kubernetes.plugins.module_utils.monitoring.plan import seconds
from ansible_collections.accel.kubernetes.plugins.module_utils.monitoring.role import monitoring_plan
from hypothesis import given
from hypothesis import strategies as st

DEFAULTS = yaml.safe_load((Path(__file__).parents[5] / "roles/monitoring/defaults/main.yml").read_text())
KINDS = ("Prometheus", "Service", "PodMonitor", "PrometheusRule", "Service", "ConfigMap")
SELECTOR = {"matchLabels": {"release": "stack"}}
OPERATED = ("Prometheus", "PodMonitor", "PrometheusRule")
RULES = yaml.safe_dump({"groups": [{"name": "all", "rules": [{"alert": "GpuLost"}, {"record": "a:b:c"}]}]})
OFF = {"groups": {"gpu_nodes": ["a"]}, "hostvars": {"a": {"gpu_plugins_metrics_enabled": "no"}}}


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


def plan(seen: dict[str, Any], rules: str = RULES, **given_values: Any) -> dict[str, Any]:
    """The plan with the role's defaults and these variables; other registers, ``hostvars`` and ``groups`` by name."""
    hostvars, groups = given_values.pop("hostvars", {}), given_values.pop("groups", {})
    registers = {name: given_values.pop(name) for name in REGISTERS if name in given_values}
    asked = {"options": DEFAULTS | given_values, "seen": {"looked": seen, **registers}}
    return monitoring_plan(asked, hostvars, groups, [rules])


REGISTERS = ("objects", "answer", "written")


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
def test_method_is_what_the_cluster_has(seen: dict[str, Any], method: str) -> None:
    assert plan(seen)["method"] == method
    assert plan(seen, monitoring_method="file")["method"] == "file"
    assert plan(seen, monitoring_method="file", monitoring_removing=True)["method"] == "none"


def test_objects_go_where_the_operators_prometheus_looks() -> None:
    seen = looked(
        *OPERATED, prometheus={"podMonitorSelector": SELECTOR, "ruleSelector": {"matchLabels": {"role": "r"}}}
    )
    found = plan(seen)
    assert found["namespace"] == "observed"
    assert found["prometheus"] == {"name": "main", "namespace": "observed"}
    assert (found["labels"]["release"], found["labels"]["role"]) == ("stack", "r")
    assert found["labels"]["app.kubernetes.io/managed-by"] == "accel.kubernetes"
    labels = plan(seen, monitoring_labels={"mine": "yes"})["labels"]
    assert (labels["mine"], "release" in labels) == ("yes", False)
    assert plan(looked(service=True), gpu_plugins_namespace="gpus")["namespace"] == "gpus"
    assert plan(seen, monitoring_namespace="there")["namespace"] == "there"


def test_prometheus_of_the_namespace_is_taken_of_several() -> None:
    seen = looked(*OPERATED, prometheus={})
    (first,) = seen["results"][0]["resources"]
    assert plan(seen)["others"] == []
    seen["results"][0]["resources"].append(first | {"metadata": {"name": "second", "namespace": "gpus"}})

    def taken(**words: Any) -> tuple[str, list[str]]:
        found = plan(seen, **words)
        return found["prometheus"]["name"], found["others"]

    assert taken() == ("main", ["gpus/second"])
    assert taken(monitoring_namespace="gpus") == ("second", [])
    assert taken(monitoring_namespace="neither") == ("main", ["gpus/second"])


@pytest.mark.parametrize(
    ("spec", "short"),
    [
        ({}, True),
        ({"retention": "1d12h"}, True),
        ({"retention": "6d23h59m59s999ms"}, True),
        ({"retention": "1w"}, False),
        ({"retention": "168h"}, False),
        ({"retention": "2w"}, False),
        ({"retention": "30d"}, False),
        ({"retentionSize": "50GB"}, False),
        ({"retention": "1d", "retentionSize": "50GB"}, True),
    ],
)
def test_samples_are_never_to_be_kept_for_less_than_they_are(spec: dict[str, Any], short: bool) -> None:
    assert plan(looked(*OPERATED, prometheus=spec))["kept_for_less"] is short


@pytest.mark.parametrize(
    ("duration", "length"),
    [("24h", 86400), ("1d12h", 129600), ("2w", 1209600), ("1y", 31536000), ("1m30s", 90), ("500ms", 0.5)],
)
def test_durations_of_prometheus_are_read_in_seconds(duration: str, length: float) -> None:
    assert seconds(duration) == length


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
    notes: dict[str, str], retention: str | None, before: str, ours: bool
) -> None:
    seen = looked(*OPERATED, prometheus={"retention": retention} if retention else {})
    (prometheus,) = seen["results"][0]["resources"]
    assert plan(seen, monitoring_method="none")["given_back"] == []
    prometheus["metadata"]["annotations"] = {f"kube-accel.io/retention-{note}": text for note, text in notes.items()}
    noted = {"name": "main", "namespace": "observed", "ours": ours, "before": before}
    assert plan(seen, monitoring_method="none")["given_back"] == [noted]
    assert plan(seen, monitoring_removing=True)["given_back"] == [noted]
    # The method operator still tells it.
    assert plan(seen)["given_back"] == ([] if ours else [noted])
    assert plan(seen)["retention_before"] == before


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"podMonitorSelector": {}}, "Prometheus observed/main has no ruleSelector"),
        ({}, "has no podMonitorSelector and no ruleSelector"),
        ({"podMonitorSelector": {"matchExpressions": [{}]}, "ruleSelector": {}}, "set monitoring_labels to labels"),
        ({"podMonitorSelector": {}, "ruleSelector": SELECTOR}, ""),
    ],
)
def test_selectors_that_find_nothing_are_refused(spec: dict[str, Any], words: str) -> None:
    seen = looked(*OPERATED, prometheus=spec)
    problems = " ".join(refusal["message"] for refusal in plan(seen)["refusals"])
    assert words in problems
    assert bool(words) == bool(problems)
    assert plan(seen, monitoring_labels={"a": "b"})["refusals"] == []


@pytest.mark.parametrize(
    ("variables", "code", "words"),
    [
        (
            {"monitoring_method": "push"},
            "method_unknown",
            "monitoring_method is 'push'; set it to one of auto, operator",
        ),
        ({"monitoring_method": "operator"}, "operator_missing", "install the Prometheus operator first"),
        (
            {"monitoring_scrape_interval": "often"},
            "scrape_interval_unreadable",
            "monitoring_scrape_interval is 'often'; write it as Prometheus does, for example 30s or 1m.",
        ),
        (
            {"monitoring_retention": "7 days"},
            "retention_unreadable",
            "monitoring_retention is '7 days'; write it as Prometheus does, for example 7d or 36h.",
        ),
        (
            {"monitoring_alerts_disabled": ["GpuLots"]},
            "alerts_unknown",
            "monitoring_alerts_disabled has GpuLots; the alerts are GpuLost",
        ),
        ({"monitoring_alert_labels": {"severity": "none"}}, "severity_taken", "choose another name"),
        (
            {"monitoring_method": "file", "monitoring_directory": "here"},
            "directory_relative",
            "name a directory by its whole path",
        ),
        (
            {"monitoring_method": "file", "monitoring_host": "nowhere"},
            "host_unknown",
            "which the inventory does not have",
        ),
        ({"gpu_plugins_metrics_enabled": "maybe"}, "option_type", "gpu_plugins_metrics_enabled is 'maybe'"),
        ({"monitoring_labels": "a=b"}, "option_type", "monitoring_labels is 'a=b'; set it to a mapping"),
        ({"monitoring_dashboard_labels": ["a"]}, "option_type", "monitoring_dashboard_labels is ['a']; set it to"),
        ({"monitoring_reload_url": ["http://h"]}, "option_type", "monitoring_reload_url is ['http://h']; set it to"),
    ],
)
def test_what_cannot_work_is_refused_with_a_remedy(variables: dict[str, Any], code: str, words: str) -> None:
    (refusal,) = plan(looked(), **variables)["refusals"]
    assert refusal["code"] == code
    assert words in refusal["message"]


def test_nothing_is_refused_by_default() -> None:
    assert plan(looked())["refusals"] == []
    assert plan(looked(), monitoring_method="file")["refusals"] == []
    assert plan(looked(), monitoring_method="file", monitoring_host="h", hostvars={"h": {}})["refusals"] == []


ODD = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=4,
)
TYPED = sorted(name for name in DEFAULTS if name not in ("monitoring_kubeconfig", "monitoring_context"))


@given(st.sampled_from(TYPED), ODD)
def test_variable_of_any_type_is_planned_with_or_refused(name: str, value: Any) -> None:
    found = plan(looked(*OPERATED, prometheus={}), **{name: value})
    assert all(refusal.keys() == {"code", "message"} for refusal in found["refusals"])


def test_plugins_are_sought_in_the_namespace_of_gpu_nodes() -> None:
    words = {"groups": {"gpu_nodes": ["a"]}, "hostvars": {"a": {"gpu_plugins_namespace": "theirs"}}}

    def namespaces(**more: Any) -> list[str]:
        return [item["namespace"] for item in plan(looked(), **(words | more))["jobs"]]

    assert namespaces() == ["theirs", "kube-system", "theirs"]
    assert namespaces(gpu_plugins_namespace="all") == ["all", "kube-system", "all"]
    assert namespaces(groups={}) == ["kube-system"] * 3
    assert plan(looked(service=True), **words)["namespace"] == "theirs"


def test_one_service_selects_all_pods_with_the_same_label() -> None:
    def services(**words: Any) -> list[str]:
        return [item["job"] for item in plan(looked(service=True), **words)["services"]]

    assert services() == ["kube-accel", "kube-accel-dcgm-exporter"]
    assert services(gpu_plugins_namespace="gpus") == ["kube-accel", "kube-accel-extender", "kube-accel-dcgm-exporter"]
    assert services(**OFF) == ["kube-accel-extender", "kube-accel-dcgm-exporter"]


def test_dashboards_have_our_labels_and_those_asked_for() -> None:
    labels = plan(looked(), monitoring_dashboard_labels={"grafana": "yes"})["dashboard_labels"]
    ours = {"app.kubernetes.io/managed-by": "accel.kubernetes", "app.kubernetes.io/component": "monitoring"}
    assert labels == ours | {"grafana": "yes"}


def test_plugins_that_serve_no_metrics_are_not_asked_for_any() -> None:
    more = {"labels": {"severity": "warning"}, "annotations": {"summary": "s"}}
    alerts = [{"alert": "GpuPluginDown", **more}, {"alert": "GpuLost", **more}]
    rules = yaml.safe_dump({"groups": [{"name": "all", "rules": alerts}]})

    def found(**words: Any) -> tuple[list[str], list[str]]:
        planned = plan(looked(), rules, **words)
        (group,) = planned["rules"]["groups"]
        return [item["job"] for item in planned["jobs"]], [rule["alert"] for rule in group["rules"]]

    others = ["kube-accel-extender", "kube-accel-dcgm-exporter"]
    assert found() == (["kube-accel", *others], ["GpuPluginDown", "GpuLost"])
    assert found(**OFF) == (others, ["GpuLost"])
    assert found(**OFF, gpu_plugins_metrics_enabled=True)[0] == ["kube-accel", *others]
    (group,) = plan(looked(), rules, monitoring_alert_labels={"team": "t"})["rules"]["groups"]
    assert group["rules"][1] == {
        "alert": "GpuLost",
        "labels": {"team": "t", "severity": "warning"},
        "annotations": {"summary": "s", "runbook_url": f"{DEFAULTS['monitoring_runbook_url']}/GpuLost.md"},
    }
    assert plan(looked(), rules, monitoring_alerts_disabled=["GpuLost", "GpuPluginDown"])["rules"] == {"groups": []}


def test_stale_objects_are_removed() -> None:
    def item(kind: str, name: str) -> dict[str, Any]:
        return {"kind": kind, "metadata": {"namespace": "observed", "name": name}}

    seen = looked(*OPERATED, prometheus={})
    there = [item("Service", "a"), item("Service", "b")]
    seen["results"][4]["resources"] = there
    made = [item("ConfigMap", "a"), item("Service", "b")]
    assert plan(seen, objects=made)["unwanted"] == [there[0]]
    assert plan(seen, objects=made, monitoring_removing=True)["unwanted"] == there


def test_files_of_a_prometheus_are_planned() -> None:
    found = plan(
        looked(),
        monitoring_directory="/etc/prometheus/",
        monitoring_host="h",
        monitoring_reload_url="http://h/-/reload",
        answer={"stderr": "line 3: field kubernetes_sd_configs not found in type config.plain"},
        written={"results": [{"checksum": "1"}, {"skipped": True}, {"checksum": "3"}]},
    )
    assert (found["directory"], found["local"], found["reachable"]) == ("/etc/prometheus/kube-accel", False, False)
    assert found["discovers_nothing"]
    assert found["reload_note"] == "http://h/-/reload 1\nhttp://h/-/reload \nhttp://h/-/reload 3"
    assert not plan(looked(), answer={"stderr": "no such file"})["discovers_nothing"]


def test_the_api_server_is_reached_as_the_first_gpu_node_says() -> None:
    hostvars = {"a": {"gpu_plugins_kubeconfig": "/theirs"}, "b": {"gpu_plugins_context": "other"}}
    found = monitoring_plan({"options": DEFAULTS}, hostvars, {"gpu_nodes": ["a", "b"]})
    assert (found["kubeconfig"], found["context"]) == ("/theirs", "")


def test_objects_of_ours_and_a_prometheus_of_others_are_looked_for() -> None:
    kinds = monitoring_plan({"options": DEFAULTS}, {}, {})["kinds"]
    assert [kind["kind"] for kind in kinds if kind.get("foreign")] == ["Prometheus", "Service"]
    ours = {label for kind in kinds if not kind.get("foreign") for label in kind["labels"]}
    assert ours == {"app.kubernetes.io/managed-by=accel.kubernetes", "app.kubernetes.io/component=monitoring"}
