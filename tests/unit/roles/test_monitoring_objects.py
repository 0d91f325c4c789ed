# SPDX-License-Identifier: Apache-2.0
"""What the templates of the monitoring role make, and that the role asks its planner with all variables."""

from __future__ import annotations

from typing import Any

import pytest

from .conftest import ROLES, Evaluate, rendered, variables_of

SELECTORS: dict[str, Any] = {"podMonitorSelector": {}, "ruleSelector": {}}
PROMETHEUS = {"kind": "Prometheus", "metadata": {"name": "main", "namespace": "observed"}, "spec": SELECTORS}
SERVICE = {"kind": "Service", "metadata": {"name": "prometheus-server", "namespace": "default"}}
OFF = {"groups": {"gpu_nodes": ["a"]}, "hostvars": {"a": {"gpu_plugins_metrics_enabled": "no"}}}
FILES = {"ansible_search_path": [str(ROLES / "monitoring")]}
"""Where lookups of the role find its files."""


def looked(*found: dict[str, Any]) -> dict[str, Any]:
    """What a cluster with the operator answers, that has these objects of others."""
    kinds = [{"kind": kind} for kind in ("PodMonitor", "PrometheusRule")]
    theirs = [{"item": {"kind": item["kind"], "foreign": []}, "resources": [item]} for item in found]
    return {"results": [{"api_found": True, "resources": [], "item": kind} for kind in kinds] + theirs}


def test_series_is_written_by_one_plugin_alone() -> None:
    """While a node's plugin is replaced there are two."""
    seen = looked(PROMETHEUS)
    for item in rendered("monitoring", "scrape.yml.j2", ansible_managed="ours", __monitoring_looked=seen, **FILES):
        for job in item["scrape_configs"]:
            pod = {"source_labels": ["__meta_kubernetes_pod_name"], "target_label": "plugin"}
            assert pod in job["relabel_configs"], job["job_name"]
    made = rendered("monitoring", "objects.yml.j2", __monitoring_looked=seen, **FILES)
    monitors = [item for item in made if item["kind"] == "PodMonitor"]
    assert len(monitors) == 3
    for monitor in monitors:
        (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
        pod = {"action": "replace", "sourceLabels": ["__meta_kubernetes_pod_name"], "targetLabel": "plugin"}
        assert pod in endpoint["relabelings"], monitor["metadata"]["name"]


def test_service_of_the_extender_alone_does_not_select_plugins() -> None:
    words = {"monitoring_method": "annotations", "__monitoring_looked": looked(SERVICE)}
    made = rendered("monitoring", "objects.yml.j2", **words, **FILES, **OFF)
    selectors = [item["spec"]["selector"] for item in made if item["kind"] == "Service"]
    assert selectors[0].get("app.kubernetes.io/component") == "extender"


def test_kubeconfig_is_that_of_the_gpu_nodes(evaluate: Evaluate) -> None:
    def kubeconfig(**words: Any) -> Any:
        return evaluate("monitoring", "monitoring_kubeconfig", {}, **({"groups": {}, "hostvars": {}} | words))

    nodes = {"groups": {"gpu_nodes": ["a"]}, "hostvars": {"a": {"gpu_plugins_kubeconfig": "/theirs"}}}
    assert kubeconfig(**nodes) == "/theirs"
    assert kubeconfig(**nodes, gpu_plugins_kubeconfig="/all") == "/all"
    assert kubeconfig() == ""


NOT_ASKED = {
    *("monitoring_kubeconfig", "monitoring_context", "monitoring_promtool", "monitoring_kubernetes_sd"),
    *("monitoring_retention_manage", "monitoring_dashboards_enabled", "monitoring_dashboard_folder"),
}
"""What tasks and templates act on themselves."""


def test_planner_is_asked_with_every_variable_that_is_decided_on() -> None:
    scope = variables_of("monitoring")
    public = {name for name in scope if name.startswith("monitoring_")}
    asked = scope["__monitoring_asked"]["options"]
    assert public - NOT_ASKED == asked.keys() - {"monitoring_removing"} - {
        name for name in asked if name.startswith("gpu_plugins_")
    }
    assert all(f"{{{{ {name}" in text for name, text in asked.items())


@pytest.mark.parametrize("given", ["no", False, "off"])
def test_metrics_enabled_for_all_hosts_is_read_as_a_boolean(evaluate: Evaluate, given: object) -> None:
    words = {"__monitoring_looked": looked(), "groups": {}, "hostvars": {}, "role_path": "/r"} | FILES
    jobs = evaluate("monitoring", "__monitoring_plan", {}, gpu_plugins_metrics_enabled=given, **words)["jobs"]
    assert "kube-accel" not in {job["job"] for job in jobs}
