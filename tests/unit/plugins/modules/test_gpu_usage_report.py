# SPDX-License-Identifier: Apache-2.0
"""Module gpu_usage_report and report.yml, against a real Prometheus with what plugins told, and against plugins."""

from __future__ import annotations

import json
import os
import subprocess
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import pytest
from ansible_collections.accel.kubernetes.plugins.module_utils.usage import (
    accounting as gpu_usage,
)
from ansible_collections.accel.kubernetes.plugins.module_utils.usage import counters
from ansible_collections.accel.kubernetes.plugins.module_utils.usage import (
    prometheus as gpu_usage_prometheus,
)

import prometheus
from kube_accel.metrics.exposition import Writer
from sim.cluster.apiserver import ApiServer, Authority
from sim.cluster.store import Store
from unit.plugins.module_utils.shared.test_gpu_view import node as node_object
from unit.plugins.module_utils.shared.test_gpu_view import plugin
from unit.plugins.usage_data import GIB, H100, T4, Node, Scrapes, share

HOUR = 3600
START = 1_763_769_600
DAY = "2025-11-22"
JOB = 'job="kube-accel"'

Report = Callable[..., dict[str, Any]]


def scraped(scrapes: Scrapes) -> None:
    """From midnight to three: quarters in the first hour; a loses its ledger in the third; b is silent from two on."""
    a = Node("a", {"g": H100}, instance="192.0.2.1:9445")
    b = Node("b", {"t": T4, "u": T4}, mode="pgpu", instance="192.0.2.2:9445", uses_known=False)
    for node in (a, b):
        node.at(START - 7200)
    for minute in range(-5, 181):
        now = START + 60 * minute
        if minute == 0:
            a.at(now, *(share("g", f"team-{number}", "quarter", 0.25, 20 * GIB) for number in range(4)))
            b.at(now, share("t", "team-0", "whole", 1.0))
        if minute == 60:
            a.peaks = {holding.container: 2 * GIB for holding in a.held["g"]}
            a.at(now, *a.held["g"][:1])
            a.busy("team-0", 600)
        if minute == 130:
            a.begins_anew()
            a.at(now - 30, *a.held["g"])
        scrapes.take(now, [a, b] if minute <= 120 else [a])


def grown(scrapes: Scrapes) -> None:
    """Two nodes with one GPU are off over midnight and come back at one with eight; new has a new ledger then.

    There a pod is started on another GPU every 20 minutes.
    """
    same = Node("same", {"g0": T4}, instance="192.0.2.3:9445")
    new = Node("new", {"g0": T4}, instance="192.0.2.4:9445")
    same.at(START - 3 * HOUR, share("g0", "team", "p", 1.0))
    new.at(START - 10 * HOUR, share("g0", "team", "p", 1.0))
    scrapes.take(START - 2 * HOUR, [same, new])
    new.begins_anew()
    same.at(START + HOUR - 60, *same.held["g0"])
    for node in (same, new):
        node.gpus = {f"g{number}": T4 for number in range(8)}
        node.at(START + HOUR - 60, *node.held["g0"])
    for minute in range(60, 121):
        if minute % 20 == 0:
            mover = share(f"g{minute // 20}", "mover", "train", 0.5, 8 * GIB)
            new.peaks = {mover.container: 2 * GIB}
            new.at(START + 60 * minute, *new.held["g0"], mover)
        scrapes.take(START + 60 * minute, [same, new])


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The same once more, in a job without honor_labels; and a tenant that makes himself large."""
    path = tmp_path_factory.mktemp("prometheus")
    kept, renamed, tenant = Scrapes(), Scrapes(), Scrapes()
    scraped(kept)
    scraped(renamed)
    bigger = Scrapes()
    grown(bigger)
    liar = Node("a", {"g": H100}, instance="198.51.100.7:80")
    liar.at(START - 10**6, share("g", "victim", "p", 1.0))
    for minute in range(-5, 181):
        tenant.take(START + 60 * minute, [liar], job="tenant")
    names = {"namespace": "exported_namespace", "pod": "exported_pod", "container": "exported_container"}
    all_names = {"node": "exported_node", **names}
    jobs = [(kept, {}, ""), (renamed, names, "renamed"), (tenant, {}, ""), (bigger, all_names, "grown")]
    for number, (scrapes, rename, job) in enumerate(jobs):
        file = scrapes.open_metrics(path / f"{number}.txt", rename)
        if job:
            file.write_text(file.read_text().replace(JOB, f'job="{job}",namespace="kube-system",pod="plugin"'))
        prometheus.backfill(file, path / "data")
    (path / "prometheus.yml").write_text("{}\n")
    with prometheus.serve(path / "prometheus.yml", path / "data") as found:
        yield found.url


@pytest.fixture
def report(server: str, run_module: Callable[..., dict[str, Any]]) -> Report:
    def run(check: bool = False, **options: Any) -> dict[str, Any]:
        given = {"prometheus_url": server, "prometheus_selector": JOB, "start": DAY, **options}
        return run_module(
            "gpu_usage_report", {key: value for key, value in given.items() if value is not None}, check=check
        )

    return run


def hours(done: dict[str, Any]) -> dict[tuple[str, str], float]:
    return {(row["namespace"], row["mode"]): row["allocated_gpu_hours"] for row in done["report"]["rows"]}


@pytest.mark.ci
def test_four_quarters_of_an_hour_are_exactly_one_gpu_hour(report: Report) -> None:
    done = report(end=f"{DAY}T01:00:00Z")
    assert done["complete"], done["report"]["problems"]
    assert hours(done) == {
        **{(f"team-{number}", "vgpu"): 0.25 for number in range(4)},
        ("team-0", "pgpu"): 1.0,
    }
    assert done["report"]["totals"]["capacity_gpu_hours"] == 3.0
    assert [free["gpu_hours"] for free in done["report"]["free"]] == [0.0, 1.0]
    assert not done["changed"]


def test_what_is_lost_with_a_ledger_or_a_silent_node_is_said(report: Report) -> None:
    done = report(end=f"{DAY}T03:00:00Z", prices={"Tesla T4": 0.5}, currency="EUR")
    assert not done["complete"]
    anew, silent = done["report"]["problems"]
    assert anew.startswith("node a: its counters were reset between 2025-11-22T02:09:00Z and 2025-11-22T02:10:00Z")
    assert silent == "node b: nothing is known after 2025-11-22T02:00:00Z"
    assert hours(done)["team-0", "vgpu"] == pytest.approx(0.75 - 0.25 * 30 / HOUR, abs=1e-6)
    assert hours(done)["team-0", "pgpu"] == 2.0
    by_model = {entry["model"]: entry["gpu_hours"] for entry in done["report"]["unknown"]}
    assert by_model == {H100.name: pytest.approx(30 / HOUR, abs=1e-6), T4.name: 2.0}
    assert [part["capacity_gpu_hours"] for part in done["report"]["parts"]][1] == 3.0
    cost = {(row["namespace"], row["mode"]): row["cost"] for row in done["report"]["rows"]}
    assert (cost["team-0", "pgpu"], cost["team-0", "vgpu"], done["report"]["totals"]["cost"]) == (1.0, None, None)
    assert done["report"]["notes"] == [f"{H100.name} has no price"]
    assert any(line.startswith("NOT KNOWN: node b: ") for line in done["table"])


def test_nodes_may_come_and_go(report: Report) -> None:
    done = report(end=f"{DAY}T03:00:00Z", start=f"{DAY}T02:20:00Z", nodes_come_and_go=True)
    assert done["complete"]
    assert hours(done) == {("team-0", "vgpu"): round(40 / 60 / 4, 6)}


def test_node_returning_with_more_gpus_is_not_billed_for_past(report: Report) -> None:
    done = report(end=f"{DAY}T02:00:00Z", prometheus_selector='job="grown"')
    assert hours(done) == {
        ("team", "vgpu"): pytest.approx(2.0 + 1 / 60, abs=1e-6),
        ("mover", "vgpu"): 0.5,
    }
    assert done["report"]["problems"] == ["node same: nothing is known before 2025-11-22T01:00:00Z"]


def test_a_pod_that_had_gpus_one_after_the_other_asked_for_one(report: Report) -> None:
    done = report(end=f"{DAY}T02:10:00Z", prometheus_selector='job="grown"', right_size_after="0h")
    (found,) = done["report"]["right_sizing"]
    assert (found["pod"], found["asked_bytes"], found["peak_bytes"]) == ("train", 8 * GIB, 2 * GIB)


def test_use_is_told_as_far_as_it_is_known(report: Report) -> None:
    rows = {(row["namespace"], row["mode"]): row for row in report(end=f"{DAY}T02:00:00Z")["report"]["rows"]}
    assert rows["team-0", "vgpu"]["used_gpu_hours"] == round(600 / HOUR, 6)
    assert (rows["team-0", "pgpu"]["used_gpu_hours"], rows["team-0", "pgpu"]["idle_gpu_hours"]) == (None, None)


def test_pods_that_used_little_are_listed_over_the_whole_period(report: Report) -> None:
    done = report(end=f"{DAY}T02:00:00Z")
    (found,) = done["report"]["right_sizing"]
    assert (found["namespace"], found["pod"], found["asked_bytes"], found["peak_bytes"]) == (
        "team-0",
        "quarter",
        20 * GIB,
        2 * GIB,
    )
    assert found["hours"] == pytest.approx(2, abs=0.05)
    assert "Ask for tencent.com/vcuda-memory: 10 " in found["advice"]
    assert done["report"]["unknown_pods"] == 1
    assert report(end=f"{DAY}T02:00:00Z", right_size_below=5)["report"]["right_sizing"] == []
    assert report(end=f"{DAY}T02:00:00Z", right_size_after="4h")["report"]["right_sizing"] == []


def test_labels_that_prometheus_renamed_are_understood(report: Report) -> None:
    end = f"{DAY}T03:00:00Z"
    kept, renamed = (report(end=end, prometheus_selector=f'job="{job}"')["report"] for job in ("kube-accel", "renamed"))
    assert renamed == kept


@pytest.mark.attack
def test_a_tenant_who_tells_of_a_node_too_is_found_out(report: Report) -> None:
    done = report(end=f"{DAY}T01:00:00Z", prometheus_selector='job=~"kube-accel|tenant"')
    assert not done["complete"]
    assert hours(done) == {("team-0", "pgpu"): 1.0}
    (problem,) = done["report"]["problems"]
    assert problem.startswith("node a: two plugins report different values of it ")
    assert "instance=198.51.100.7:80" in problem
    assert "prometheus_selector" in problem
    (unknown,) = done["report"]["unknown"]
    assert (unknown["model"], unknown["causes"]) == (H100.name, {"plugins_disagree": 1.0})


def test_files_are_written_once_and_readable_by_all(report: Report, tmp_path: Path) -> None:
    files = {f"{kind}_file": str(tmp_path / f"report.{kind}") for kind in ("html", "csv", "json")}
    run = {"end": f"{DAY}T02:00:00Z", **files}
    forecast = report(check=True, **run)
    assert forecast["changed"]
    assert not list(tmp_path.glob("report.*"))
    done = report(**run)
    assert (done["changed"], done["diff"]) == (True, forecast["diff"])
    assert json.loads((tmp_path / "report.json").read_text()) == done["report"]
    assert (tmp_path / "report.csv").read_text() == done["csv"]
    assert (tmp_path / "report.html").read_text().startswith("<!DOCTYPE html>")
    assert {path.stat().st_mode & 0o777 for path in tmp_path.glob("report.*")} == {0o644}
    assert not report(**run)["changed"]
    (tmp_path / "report.csv").chmod(0o600)
    assert [entry["after_header"] for entry in report(**run)["diff"]] == [files["csv_file"]]
    assert not list(tmp_path.glob(".report-*"))


def test_long_period_without_pages_is_incomplete_and_no_error(report: Report) -> None:
    done = report(start="2025-11-01", end="2025-11-08", prometheus_selector="")
    assert done["report"]["rows"] == []
    assert done["report"]["problems"] == [
        "Prometheus has no accel_node_gpu_seconds_total of this period; does it scrape the plugins?"
    ]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"end": "tomorrow"}, "end: tomorrow is no time; write 2026-11-01"),
        ({"end": "2999-01-01"}, "end: 2999-01-01T00:00:00Z has not come yet"),
        ({"start": "2025-11-23", "end": DAY}, "a period is of a minute to 400 days"),
        ({"start": None, "period": "7 months"}, "period: 7 months is no length of time; write 24h, 7d or 4w"),
        ({"period": "7d"}, "mutually exclusive: start|period"),
        ({"prices": {"Tesla T4": "free"}}, "prices: Tesla T4: free is no price"),
        ({"prometheus_selector": "job="}, "refused a query with status 400: invalid parameter"),
        ({"prometheus_token_file": "/none"}, "token: /none: "),
        ({"html_file": "/none/report.html"}, "html_file: /none/report.html: /none has to be a directory"),
        ({"prometheus_url": "http://user:secret@127.0.0.1:9"}, "http://127.0.0.1:9 did not answer as Prometheus does"),
        ({"prometheus_url": None}, "missing parameter(s) required by 'start': prometheus_url"),
        ({"keep": "/tmp/x"}, "mutually exclusive: prometheus_url|keep"),
    ],
)
def test_bad_input_is_named(report: Report, options: dict[str, Any], message: str) -> None:
    done = report(**options)
    assert done["failed"]
    assert message in done["msg"]


class Answers(BaseHTTPRequestHandler):
    """Whoever speaks something like Prometheus' API."""

    answer: ClassVar[tuple[int, dict[str, str], str]] = (200, {}, "")
    seen: ClassVar[list[str]] = []

    def do_GET(self) -> None:
        code, headers, body = self.answer
        self.seen.append(self.headers.get("Authorization", ""))
        self.send_response(code)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def speaker() -> Iterator[str]:
    Answers.seen.clear()
    with ThreadingHTTPServer(("127.0.0.1", 0), Answers) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/prefix/"
        server.shutdown()
        thread.join()


def test_the_token_is_sent_and_warnings_are_problems(report: Report, speaker: str, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("t0ken\n")
    Answers.answer = (
        200,
        {},
        json.dumps({"status": "success", "data": {"result": []}, "warnings": ["a store is away"]}),
    )
    done = report(prometheus_url=speaker, prometheus_token_file=str(tmp_path / "token"), end=f"{DAY}T01:00:00Z")
    assert done["report"]["problems"][0] == "Prometheus warns: a store is away"
    assert set(Answers.seen) == {"Bearer t0ken"}


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ((200, {}, "<html>log in</html>"), "did not answer as Prometheus does"),
        ((200, {}, '{"data": 1}'), "did not answer as Prometheus does"),
        ((401, {}, "who are you"), "refused a query with status 401: who are you"),
        ((302, {"Location": "http://127.0.0.1:9/"}, ""), "refused a query with status 302"),
    ],
)
def test_other_answers_are_named(report: Report, speaker: str, answer: tuple[Any, ...], message: str) -> None:
    Answers.answer = answer
    done = report(prometheus_url=speaker, end=f"{DAY}T01:00:00Z")
    assert done["failed"]
    assert message in done["msg"]
    assert len(Answers.seen) == 1


def test_all_samples_are_asked_of_doubtful_nodes_alone() -> None:
    """A week of 2 nodes is 9 small questions, and one more for the day in which a ledger was lost."""
    node, other, scrapes = Node("a\n", {"g": T4}), Node("b", {"g": T4}), Scrapes()
    for each in (node, other):
        each.at(START - 86400)
    asked = []

    def ask(expression: str, at: int) -> list[dict[str, Any]]:
        asked.append(expression)
        samples = [s for s in scrapes.samples() if s.at <= at]
        if expression.startswith("min by"):
            span = int(expression.split("[")[1].split("s]")[0])
            values = {
                (s.labels["node"], s.labels["model"]): [] for s in samples if s.name == "accel_node_gpu_seconds_total"
            }
            for s in samples:
                if s.name == "accel_node_gpu_seconds_total" and s.at >= at - span:
                    values[s.labels["node"], s.labels["model"]].append(float(s.value))
            return [
                {"metric": {"node": name, "model": model}, "value": [at, str(min(found))]}
                for (name, model), found in values.items()
                if found
            ]
        span = int(expression.rsplit("[", 1)[1].removesuffix("s]"))
        return [
            {"metric": {"__name__": s.name, **s.labels}, "values": [[s.at, s.value]]}
            for s in samples
            if s.at > at - span and ("node=" not in expression or s.labels["node"] == "a\n")
        ]

    for hour in range(0, 7 * 24 + 1):
        if hour == 50:
            node.begins_anew()
            node.at(START + hour * HOUR - 1800)
        scrapes.take(START + hour * HOUR, [node, other])
    window = counters.window(START, START + 7 * 86400)
    found = gpu_usage.usage(gpu_usage_prometheus.gather(ask, window, ""), window)
    assert float(sum(found.capacity.values()) / HOUR) == 2 * 7 * 24 - 0.5
    assert len([one for one in asked if 'node="a\\n"' in one]) == 1
    assert len(asked) == 8 + 7 + 1


class Plugins(NamedTuple):
    """A node, where its plugin and another node can be, and reports so many seconds after the start."""

    node: Node
    store: Store
    page: ThreadingHTTPServer
    moments: list[float]
    report: Report


@pytest.fixture
def plugins(tmp_path: Path, run_module: Callable[..., dict[str, Any]]) -> Iterator[Plugins]:
    """A node whose plugin answers, and one that has none."""
    metered = Node("a", {"GPU-a-0": H100})
    moments = [float(START)]
    store = Store()
    for name in ("kube-system", "team"):
        store.create("namespaces", "", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    store.create("nodes", "", {"apiVersion": "v1", "kind": "Node", **node_object("a", {})})

    class Metrics(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(Writer().page(metered.told(moments[-1])))

        def log_message(self, *args: object) -> None:
            pass

    api = ApiServer(store, Authority(), lambda pod, container: tmp_path / "none")
    with ThreadingHTTPServer(("127.0.0.1", 0), Metrics) as page:
        threading.Thread(target=page.serve_forever).start()
        item = plugin("a", port=page.server_port)
        store.create("pods", "kube-system", {"apiVersion": "v1", "kind": "Pod", **item})
        status = {**item["status"], "podIP": "127.0.0.1"}
        store.edit("pods", "kube-system", "plugin-a", lambda body: body.update(status=status))
        api.start()
        kubeconfig = tmp_path / "kubeconfig"
        kubeconfig.write_text(api.kubeconfig("admin", api.admin_token))

        def run(at: float, check: bool = False, **options: Any) -> dict[str, Any]:
            moments.append(START + at)
            return run_module("gpu_usage_report", {"kubeconfig": str(kubeconfig), **options}, check=check)

        yield Plugins(metered, store, page, moments, run)
        api.stop()
        page.shutdown()


def test_hours_are_summed_up_by_a_label_of_namespaces(plugins: Plugins) -> None:
    plugins.node.at(START, share("GPU-a-0", "team", "p", 0.5, 8 * GIB), share("GPU-a-0", "gone", "q", 0.25, GIB))
    label = {"labels": {"example.com/unit": "research"}}
    plugins.store.edit("namespaces", "", "team", lambda body: body["metadata"].update(label))
    done = plugins.report(HOUR, unit_label="example.com/unit")
    sums = {unit["unit"]: unit["allocated_gpu_hours"] for unit in done["report"]["units"]}
    assert sums == {"research": 0.5, "": 0.25}
    assert "BY example.com/unit" in done["table"]
    assert plugins.report(HOUR)["report"]["units"] == []


def test_without_prometheus_ledgers_count_since_a_report(plugins: Plugins, tmp_path: Path) -> None:
    node, report = plugins.node, plugins.report
    node.at(START, share("GPU-a-0", "team", "p", 0.5, 8 * GIB))
    node.peaks = {node.held["GPU-a-0"][0].container: GIB}
    state = str(tmp_path / "state")
    foreseen = report(HOUR, check=True, keep=state)
    assert foreseen["changed"]
    assert not Path(state).exists()
    first = report(HOUR, keep=state)
    assert first["complete"], first["report"]["problems"]
    assert first["report"]["source"] == "the plugins' counters since their ledgers began"
    assert (hours(first), first["report"]["free"][0]["gpu_hours"]) == ({("team", "vgpu"): 0.5}, 0.5)
    assert [(pod["pod"], pod["hours"]) for pod in first["report"]["right_sizing"]] == [("p", None)]
    too_much = report(3 * HOUR, since=state)
    assert hours(too_much) == {}
    assert "its counters grew by more than its GPUs can have given" in too_much["report"]["problems"][0]
    kept = json.loads(Path(state).read_text())
    kept["nodes"]["a"]["at"] -= 2 * HOUR
    Path(state).write_text(json.dumps(kept))
    second = report(3 * HOUR, since=state, keep=state)
    assert second["report"]["source"] == "the plugins' counters since an earlier report"
    assert hours(second) == {("team", "vgpu"): 1.0}
    assert second["report"]["totals"]["capacity_gpu_hours"] == 2.0


def test_a_node_without_a_plugin_is_said(plugins: Plugins) -> None:
    plugins.node.at(START)
    plugins.store.create("nodes", "", {"apiVersion": "v1", "kind": "Node", **node_object("b", {})})
    done = plugins.report(HOUR)
    assert done["report"]["problems"] == ["node b: no plugin of it runs in kube-system"]
    assert not done["complete"]


def test_a_plugin_that_does_not_answer_leaves_its_node_unknown(plugins: Plugins, tmp_path: Path) -> None:
    plugins.node.at(START)
    state = tmp_path / "state"
    plugins.report(HOUR, keep=str(state))
    plugins.page.shutdown()
    plugins.page.server_close()
    done = plugins.report(2 * HOUR, since=str(state), keep=str(state))
    (problem,) = done["report"]["problems"]
    assert problem.startswith("node a: the API server refused with status 503: ")
    assert done["report"]["totals"]["capacity_gpu_hours"] == 0
    assert not done["changed"]


def test_plugin_that_does_not_start_leaves_the_report_whole(plugins: Plugins) -> None:
    plugins.node.at(START)
    coming = plugin("a", ready="False")
    coming["metadata"]["name"] = "plugin-a-new"
    plugins.store.create("pods", "kube-system", {"apiVersion": "v1", "kind": "Pod", **coming})
    status = {**coming["status"], "phase": "Pending"}
    plugins.store.edit("pods", "kube-system", "plugin-a-new", lambda body: body.update(status=status))
    done = plugins.report(HOUR)
    assert done["complete"], done["report"]["problems"]


def test_plugin_of_an_unready_node_is_not_waited_for(plugins: Plugins) -> None:
    plugins.node.at(START)
    away = {"conditions": [{"type": "Ready", "status": "Unknown", "message": "stopped posting"}]}
    plugins.store.edit("nodes", "", "a", lambda body: body.update(status=away))
    (problem,) = plugins.report(HOUR)["report"]["problems"]
    assert problem == "node a: it is not ready, and this was last heard: stopped posting; its plugin was not asked"


def test_a_file_that_nobody_kept_is_refused(plugins: Plugins, tmp_path: Path) -> None:
    (tmp_path / "bad").write_text("{}")
    assert (
        f"since: {tmp_path}/bad: it is not what an earlier report kept"
        in plugins.report(0, since=str(tmp_path / "bad"))["msg"]
    )


@pytest.mark.ci
@pytest.mark.parametrize(("end", "code"), [("01", 0), ("03", 2)])
def test_playbook_shows_and_keeps_report_and_fails_on_gaps(server: str, tmp_path: Path, end: str, code: int) -> None:
    given = {
        "report_prometheus_url": server,
        "report_prometheus_selector": JOB,
        "report_start": DAY,
        "report_end": f"{DAY}T{end}:00:00Z",
        "report_html": str(tmp_path / "report.html"),
        "report_prices": {H100.name: 2},
    }
    environment = os.environ | {"ANSIBLE_SHOW_CUSTOM_STATS": "true", "ANSIBLE_LOCALHOST_WARNING": "0"}
    command = ["ansible-playbook", "accel.kubernetes.report", "-e", json.dumps(given)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == code, done.stdout + done.stderr
    assert "TOTAL" in done.stdout
    assert "gpu_usage_report" in done.stdout.split("CUSTOM STATS")[1]
    assert ("node b: nothing is known after" in done.stdout) is bool(code)
    assert (tmp_path / "report.html").exists()


@pytest.mark.ci
def test_playbook_asks_the_plugins_without_prometheus(plugins: Plugins, tmp_path: Path) -> None:
    plugins.node.at(START, share("GPU-a-0", "team", "p", 0.5, 8 * GIB))
    plugins.node.peaks = {plugins.node.held["GPU-a-0"][0].container: GIB}
    plugins.moments.append(START + HOUR)
    given = {
        "gpu_plugins_kubeconfig": str(tmp_path / "kubeconfig"),
        "report_json": str(tmp_path / "report.json"),
        "report_right_size_below": 0,
    }
    command = ["ansible-playbook", "accel.kubernetes.report", "-e", json.dumps(given)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    told = json.loads((tmp_path / "report.json").read_text())
    assert (told["source"], told["rows"][0]["allocated_gpu_hours"]) == (
        "the plugins' counters since their ledgers began",
        0.5,
    )
    assert told["right_sizing"] == []
