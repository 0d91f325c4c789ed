# SPDX-License-Identifier: Apache-2.0
"""Role monitoring: with the Prometheus operator, with a Prometheus that reads annotations, with neither, by files."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any, ClassVar

import pytest
import yaml

from playbooks.conftest import REPOSITORY, Run, play
from prometheus import find
from sim.cluster import Cluster, Spec
from sim.cluster.kinds import MONITORING, Object

DASHBOARDS = REPOSITORY / "roles/monitoring/files/dashboards"
JOBS = {"kube-accel", "kube-accel-extender", "kube-accel-dcgm-exporter"}
NOTE = "kube-accel.io/retention-"
COMPONENT = "app.kubernetes.io/component"
BOOK = """
- hosts: localhost
  connection: local
  gather_facts: false
  tasks:
    - ansible.builtin.import_role:
        name: accel.kubernetes.monitoring
        tasks_from: {entry}
"""
KINDS = ("podmonitors", "prometheusrules", "services", "configmaps")


class Rig:
    """A cluster, and the role on it."""

    def __init__(self, cluster: Cluster, collections: Path, directory: Path) -> None:
        self.cluster, self.collections, self.directory = cluster, collections, directory

    def run(self, *options: str, entry: str = "main", **variables: Any) -> Run:
        book = self.directory / f"{entry}.yml"
        book.write_text(BOOK.format(entry=entry))
        kubeconfig = str(self.cluster.kubeconfig)
        return play(self.collections, str(book), *options, monitoring_kubeconfig=kubeconfig, **variables)

    def objects(self) -> dict[str, Object]:
        """What is ours, by kind, namespace and name."""
        return {
            f"{item['kind']}/{item['metadata']['namespace']}/{item['metadata']['name']}": item
            for kind in KINDS
            for item in self.cluster.store.all(kind)
            if item["metadata"].get("labels", {}).get(COMPONENT) == "monitoring"
        }

    def alerts(self) -> dict[str, Object]:
        groups = self.objects()["PrometheusRule/observed/kube-accel"]["spec"]["groups"]
        return {rule["alert"]: rule for group in groups for rule in group["rules"] if "alert" in rule}

    def dashboards(self) -> dict[str, Object]:
        """What Grafana's sidecar finds, by file name."""
        maps = self.cluster.store.all("configmaps")
        found = [item for item in maps if item["metadata"].get("labels", {}).get("grafana_dashboard") == "1"]
        return {name: json.loads(text) for item in found for name, text in item["data"].items()}

    def prometheus(self, name: str = "main", /, **spec: Any) -> None:
        """What an administrator has the operator run."""
        if name == "main":
            namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "observed"}}
            self.cluster.store.create("namespaces", "", namespace)
        body = {"apiVersion": f"{MONITORING}/v1", "kind": "Prometheus", "metadata": {"name": name}, "spec": spec}
        self.cluster.store.create("prometheuses", "observed", body)

    def retention(self, name: str = "main") -> tuple[str | None, dict[str, str]]:
        """How long the operator's Prometheus keeps samples, and what is noted of it."""
        item = self.cluster.store.get("prometheuses", "observed", name)
        notes = item["metadata"].get("annotations") or {}
        return item["spec"].get("retention"), {key.removeprefix(NOTE): text for key, text in notes.items()}

    def retain(self, retention: str, name: str = "main", /, **notes: str) -> None:
        """What an administrator sets, and what is noted besides."""

        def change(item: Object) -> None:
            item["spec"]["retention"] = retention
            annotations = item["metadata"].setdefault("annotations", {})
            annotations.update({f"{NOTE}{key}": text for key, text in notes.items()})

        self.cluster.store.edit("prometheuses", "observed", name, change)


@pytest.fixture
def rig(request: pytest.FixtureRequest, collections: Path, tmp_path: Path) -> Iterator[Rig]:
    """With the groups of the parameter."""
    spec = Spec("control", (), custom=getattr(request, "param", ()))
    with (
        tempfile.TemporaryDirectory(prefix="am", ignore_cleanup_errors=True) as root,
        Cluster(Path(root), spec) as cluster,
    ):
        yield Rig(cluster, collections, tmp_path)


operated = pytest.mark.parametrize("rig", [(MONITORING,)], indirect=True)


LABELS = {"matchLabels": {"release": "stack"}}


@operated
def test_the_operator_is_told_and_all_of_it_taken_back(rig: Rig) -> None:
    rig.prometheus(podMonitorSelector=LABELS, ruleSelector=LABELS)
    first = rig.run()
    assert first.code == 0, first.output
    assert "keeps samples for 24h; dashboards and reports look back 7d" in first.messages
    made = rig.objects()
    assert {item["metadata"]["name"] for item in made.values() if item["kind"] == "PodMonitor"} == JOBS
    for name in JOBS:
        monitor = made[f"PodMonitor/observed/{name}"]
        (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
        assert endpoint["honorLabels"] is True
        assert monitor["spec"]["namespaceSelector"] == {"matchNames": ["kube-system"]}
        assert monitor["metadata"]["labels"]["release"] == "stack"
    lost = rig.alerts()["GpuLost"]
    assert lost["annotations"]["summary"] == "{{ $value }} of the GPUs of {{ $labels.node }} do not answer."
    assert lost["annotations"]["runbook_url"].endswith("/docs/runbooks/GpuLost.md")
    assert rig.dashboards() == {path.name: json.loads(path.read_text()) for path in DASHBOARDS.iterdir()}
    assert rig.run(entry="uninstall").code == 0
    assert rig.objects() == {}


@pytest.mark.full
@operated
def test_operator_settings_change_once_and_retention_returns(rig: Rig) -> None:
    rig.prometheus(podMonitorSelector=LABELS, ruleSelector=LABELS)
    dry = rig.run("--check", "--diff")
    assert (dry.code, dry.changed, rig.objects()) == (0, 1, {}), dry.output
    assert '"honorLabels": true' in dry.output
    assert rig.run().code == 0
    again = rig.run()
    assert (again.code, again.changed) == (0, 0), again.output

    words = {"monitoring_alerts_disabled": ["GpuLost"], "monitoring_alert_labels": {"team": "ours"}}
    other = rig.run(monitoring_retention_manage=True, **words)
    assert (other.code, other.changed) == (0, 2), other.output
    assert rig.retention() == ("7d", {"before": "", "set": "7d"})
    assert "GpuLost" not in rig.alerts()
    assert all(alert["labels"]["team"] == "ours" for alert in rig.alerts().values())

    none = rig.run(monitoring_method="none")
    assert none.code == 0, none.output
    assert (rig.retention(), rig.objects()) == ((None, {}), {})

    # What an administrator sets after us is theirs, whoever comes next.
    rig.retain("30d", before="24h", set="7d")
    assert rig.run(monitoring_retention_manage=True).code == 0
    assert rig.retention() == ("30d", {})
    rig.retain("90d", before="24h", set="7d")
    rig.prometheus("second", retention="7d", podMonitorSelector=LABELS)
    rig.retain("7d", "second", before="24h", set="7d")
    gone = rig.run(entry="uninstall")
    assert gone.code == 0, gone.output
    assert (rig.retention(), rig.retention("second"), rig.objects()) == (("90d", {}), ("24h", {}), {})


class Reloaded(BaseHTTPRequestHandler):
    """Where a Prometheus is told to read its configuration: ``answers`` are its next ones, the last for good."""

    answers: ClassVar[list[int]] = []
    told: ClassVar[list[str]] = []

    def do_POST(self) -> None:
        self.told.append(self.path)
        self.send_response(self.answers.pop(0) if len(self.answers) > 1 else self.answers[0])
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def reload_url() -> Iterator[str]:
    """A Prometheus that is down at first."""
    Reloaded.answers, Reloaded.told = [503, 200], []
    with ThreadingHTTPServer(("127.0.0.1", 0), Reloaded) as server:
        Thread(target=server.serve_forever).start()
        yield f"http://127.0.0.1:{server.server_port}/-/reload"
        server.shutdown()


@pytest.mark.full
def test_files_that_promtool_takes(rig: Rig, reload_url: str, tmp_path: Path) -> None:
    directory = tmp_path / "prometheus"
    promtool = find("promtool") or "promtool"
    words = {"monitoring_method": "file", "monitoring_directory": str(directory), "monitoring_promtool": promtool}
    words["monitoring_reload_url"] = reload_url
    dry = rig.run("--check", "--diff", **words)
    assert (dry.code, directory.exists(), Reloaded.told) == (0, False, []), dry.output
    down = rig.run(**words)
    assert (down.code != 0, len(Reloaded.told)) == (True, 1), down.output
    assert f"Prometheus did not reload its configuration at {reload_url}: " in down.messages
    first = rig.run(**words)
    assert (first.code, len(Reloaded.told)) == (0, 2), first.output
    ours = directory / "kube-accel"
    config = yaml.safe_load((ours / "prometheus.yml").read_text())
    assert {job["job_name"] for job in config["scrape_configs"]} == JOBS
    assert all(job["honor_labels"] for job in config["scrape_configs"])
    assert config["scrape_configs"] == yaml.safe_load((ours / "scrape.yml").read_text())["scrape_configs"]
    assert "do not answer" in (ours / "rules.yml").read_text()
    again = rig.run(**words)
    assert (again.code, again.changed, len(Reloaded.told)) == (0, 0, 2), again.output
    (ours / "dashboards/older.json").write_text("")
    swept = rig.run(**words)
    assert (swept.code, swept.changed) == (0, 1), swept.output
    assert {path.name for path in (ours / "dashboards").iterdir()} == {path.name for path in DASHBOARDS.iterdir()}
    (directory / "theirs.yml").write_text("")
    assert rig.run(entry="uninstall", **words).code == 0
    assert [path.name for path in directory.iterdir()] == ["theirs.yml"]


@pytest.mark.full
def test_files_of_before_are_taken_back_and_prometheus_is_told(rig: Rig, reload_url: str, tmp_path: Path) -> None:
    ours = tmp_path / "kube-accel"
    words = {"monitoring_method": "none", "monitoring_directory": str(tmp_path), "monitoring_reload_url": reload_url}

    def left() -> None:
        (ours / "dashboards").mkdir(parents=True)
        for name in ("prometheus.yml", "rules.yml", "scrape.yml", ".reloaded"):
            (ours / name).write_text("old")

    left()
    files = [path for path in ours.iterdir() if path.is_file()]
    down = rig.run(**words)
    assert (down.code != 0, len(Reloaded.told)) == (True, 1), down.output
    assert f"Prometheus did not reload its configuration at {reload_url}: " in down.messages
    # One that was started with ours reads them once more.
    assert {path.read_text() for path in files} == {""}
    up = rig.run(**words)
    assert (up.code, ours.exists(), len(Reloaded.told)) == (0, False, 2), up.output
    left()
    gone = rig.run(entry="uninstall", **words)
    assert (gone.code, ours.exists(), len(Reloaded.told)) == (0, False, 3), gone.output
    again = rig.run(**words)
    assert (again.code, again.changed, len(Reloaded.told)) == (0, 0, 3), again.output


@pytest.mark.full
def test_annotations_are_set_only_where_prometheus_reads_them(rig: Rig) -> None:
    none = rig.run()
    assert (none.code, none.changed, rig.objects()) == (0, 0, {}), none.output
    assert "no Prometheus was found" in none.messages
    metadata = {"name": "prometheus-server", "labels": {"app.kubernetes.io/name": "prometheus"}}
    service = {"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": {"ports": [{"port": 80}]}}
    rig.cluster.store.create("services", "default", service)
    assert rig.run().code == 0
    made = rig.objects()
    services = {name: item for name, item in made.items() if item["kind"] == "Service"}
    assert {item["metadata"]["annotations"]["prometheus.io/scrape"] for item in services.values()} == {"true"}
    assert {name: item["spec"]["selector"] for name, item in services.items()} == {
        "Service/kube-system/kube-accel-metrics": {"app.kubernetes.io/managed-by": "accel.kubernetes"},
        "Service/kube-system/kube-accel-dcgm-exporter-metrics": {"app": "kube-accel-dcgm-exporter"},
    }
    rules = yaml.safe_load(made["ConfigMap/kube-system/kube-accel-rules"]["data"]["kube-accel.yml"])
    assert "GpuLost" in json.dumps(rules)
    assert rig.run().changed == 0
    # Another method takes away what this one needed.
    assert rig.run(monitoring_method="none").code == 0
    assert rig.objects() == {}
    assert rig.cluster.store.get("services", "default", "prometheus-server")


def test_what_cannot_work_changes_nothing(rig: Rig) -> None:
    run = rig.run(monitoring_method="operator", monitoring_retention="7 days")
    assert (run.code != 0, run.changed, rig.objects()) == (True, 0, {})
    assert "install the Prometheus operator first" in run.messages
    assert "monitoring_retention is '7 days'" in run.messages


@pytest.mark.full
def test_a_context_that_there_is_not_names_the_variable(rig: Rig) -> None:
    run = rig.run(monitoring_context="elsewhere")
    assert run.code != 0
    assert "set monitoring_kubeconfig (and monitoring_context)" in run.messages
