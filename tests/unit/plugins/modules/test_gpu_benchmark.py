# SPDX-License-Identifier: Apache-2.0
"""Module gpu_benchmark against an API server whose pods end as they are told to."""

from __future__ import annotations

import contextlib
import json
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from ansible_collections.accel.kubernetes.plugins.module_utils.benchmark import jobs, rows, surroundings
from ansible_collections.accel.kubernetes.plugins.module_utils.benchmark import run as run_room
from ansible_collections.accel.kubernetes.plugins.module_utils.benchmark.run import Run
from ansible_collections.accel.kubernetes.plugins.module_utils.benchmark.wish import Wish
from ansible_collections.accel.kubernetes.plugins.module_utils.cluster.api_server import ApiServerError

from odd_values import Path as FieldPath
from odd_values import cases, with_value
from sim.cluster.apiserver import ApiServer, Authority
from sim.cluster.controllers import Controllers
from sim.cluster.kinds import ApiError
from sim.cluster.store import Store
from unit.plugins.module_utils.benchmark.test_jobs import ran
from unit.plugins.module_utils.benchmark.test_rows import a_node
from unit.plugins.module_utils.shared.test_gpu_view import plugin, pod
from unit.plugins.odd_api import Answer, Client, Object
from unit.plugins.test_readers import TEXTS

NAMESPACE = "kube-system"
SLICED = a_node(allocatable={"nvidia.com/gpu": "2"})


class Kubelet:
    """Starts the pods of Jobs as they come, and ends them after a moment with this exit code."""

    def __init__(self, store: Store, code: int | None = 0) -> None:
        self.store, self.code, self.most = store, code, 0
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self.store.closed:
            version = self.store.version
            pods = [item for item in self.store.all("pods", NAMESPACE) if "benchmark" in item["metadata"]["name"]]
            self.most = max(self.most, len(pods))
            for item in pods:
                name = item["metadata"]["name"]
                if item["metadata"].get("deletionTimestamp"):
                    with contextlib.suppress(ApiError):
                        self.store.delete("pods", NAMESPACE, name, grace=0)
                elif item["status"]["phase"] == "Pending" and self.code is not None:
                    self.store.edit("pods", NAMESPACE, name, self._end)
            self.store.wait(("pods",), version, 0.2)

    def _end(self, body: Object) -> None:
        times = {"startedAt": "2026-11-28T03:00:00Z", "finishedAt": "2026-11-28T03:00:10Z"}
        state = {"terminated": {"exitCode": self.code, **times}}
        phase = "Failed" if self.code else "Succeeded"
        body["status"] = {"phase": phase, "containerStatuses": [{"name": "benchmark", "state": state}]}


@pytest.fixture
def store() -> Iterator[Store]:
    store = Store()
    for name in ("team", NAMESPACE):
        store.create("namespaces", "", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    store.create("nodes", "", {"apiVersion": "v1", "kind": "Node", **SLICED})
    runtime = {"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "handler": "nvidia"}
    store.create("runtimeclasses", "", runtime | {"metadata": {"name": "nvidia"}})
    found = plugin("a")
    store.create("pods", NAMESPACE, {"apiVersion": "v1", "kind": "Pod", **found})
    store.edit("pods", NAMESPACE, "plugin-a", lambda body: body.update(status=found["status"]))
    Controllers(store).start()
    yield store
    store.close()


@pytest.fixture
def kubeconfig(store: Store, tmp_path: Path) -> Iterator[str]:
    log = tmp_path / "log"
    log.write_text('{"seconds": 12.5, "launches": 7}\n')
    server = ApiServer(store, Authority(), lambda pod, container: log)
    server.start()
    path = tmp_path / "kubeconfig"
    path.write_text(server.kubeconfig("admin", server.admin_token))
    yield str(path)
    server.stop()


@pytest.fixture
def benchmark(kubeconfig: str, run_module: Callable[..., dict[str, Any]]) -> Callable[..., dict[str, Any]]:
    def run(check: bool = False, **options: Any) -> dict[str, Any]:
        return run_module("gpu_benchmark", {"kubeconfig": kubeconfig, "node": "a", **options}, check=check)

    return run


Benchmark = Callable[..., dict[str, Any]]


def left(store: Store) -> list[str]:
    pods = [item["metadata"]["name"] for item in store.all("pods", NAMESPACE) if item["metadata"]["name"] != "plugin-a"]
    return [*pods, *(item["metadata"]["name"] for item in store.all("jobs"))]


def test_each_row_is_run_and_its_pods_are_gone(benchmark: Benchmark, store: Store, tmp_path: Path) -> None:
    kubelet = Kubelet(store)
    done = benchmark(repeats=2, json_file=str(tmp_path / "a.json"), text_file=str(tmp_path / "a.txt"))
    assert done["complete"], done
    found = [(row["layout"], row["runs"], row["seconds"]) for row in done["report"]["rows"]]
    assert found == [("time-slices x1", 2, 12.5), ("time-slices x2", 2, 12.5)]
    assert (kubelet.most, left(store)) == (2, [])
    assert json.loads((tmp_path / "a.json").read_text()) == done["report"]
    assert (tmp_path / "a.txt").read_text().splitlines() == done["table"]


def test_check_mode_says_what_would_run_and_writes_nothing(benchmark: Benchmark, store: Store, tmp_path: Path) -> None:
    before = store.version
    done = benchmark(check=True, csv_file=str(tmp_path / "a.csv"), command=None)
    assert "Would run time-slices x2: 2 pod(s) with 1 nvidia.com/gpu" in done["table"]
    assert (store.version, (tmp_path / "a.csv").exists()) == (before, False)


def test_pods_that_fail_are_told_and_the_next_row_is_run(benchmark: Benchmark, store: Store) -> None:
    Kubelet(store, code=3)
    done = benchmark()
    assert not done["complete"]
    assert [row["layout"] for row in done["report"]["rows"]] == ["time-slices x1", "time-slices x2"]
    assert "a pod failed with exit code 3" in done["report"]["problems"][0]
    assert left(store) == []


def test_pods_that_never_start_are_given_up_with_a_reason(benchmark: Benchmark, store: Store) -> None:
    Kubelet(store, code=None)
    done = benchmark(start_timeout=2, sharers=[1])
    assert "not all of its pods ran within 2 s" in done["report"]["problems"][0]
    assert left(store) == []


@pytest.mark.parametrize("labels", [{}, {rows.INSTANCE: jobs.job_name("a")}], ids=["plain", "with our label"])
def test_a_pod_that_comes_meanwhile_spoils_the_row(
    benchmark: Benchmark, store: Store, labels: Mapping[str, str]
) -> None:
    Kubelet(store, code=None)
    late = pod("late", {"nvidia.com/gpu": "1"}, "a")
    late["metadata"]["labels"] = labels

    def come() -> None:
        while not store.all("jobs"):
            time.sleep(0.05)
        store.create("pods", "team", {"apiVersion": "v1", "kind": "Pod", **late})

    threading.Thread(target=come, daemon=True).start()
    done = benchmark(sharers=[1])
    assert "team/late started and also used GPUs of the node" in done["report"]["problems"][0]
    assert left(store) == []


def test_what_a_killed_run_left_goes_before_the_next(benchmark: Benchmark, store: Store) -> None:
    Kubelet(store)
    made = jobs.job(
        Wish("a"), rows.Row("x", 1, 1, rows.Fraction(1), {"nvidia.com/gpu": 1}), {}, jobs.Place(NAMESPACE, "i")
    )
    store.create("jobs", NAMESPACE, made)
    assert benchmark(sharers=[1])["complete"]
    assert left(store) == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_ends_it_and_no_pod_is_left(
    kubeconfig: str, start_module: Callable[..., Any], store: Store, number: int
) -> None:
    Kubelet(store, code=None)
    process = start_module("gpu_benchmark", {"kubeconfig": kubeconfig, "node": "a"})
    while not store.all("jobs"):
        time.sleep(0.05)
    process.send_signal(number)
    out, _ = process.communicate(timeout=60)
    assert f"interrupted by {signal.Signals(number).name}" in json.loads(out)["msg"]
    assert left(store) == []


def test_a_job_is_kept_alive_while_somebody_waits(store: Store, kubeconfig: str) -> None:
    asked: list[Any] = []

    class Cluster(Client):
        def patch(self, kind: str, body: Object, **where: Any) -> None:
            asked.append((kind, body["spec"]["activeDeadlineSeconds"]))

    run = Run(Cluster({}), Wish("a"), jobs.Place(NAMESPACE, "i"), {})
    run._keep_alive(40)
    assert asked == [("Job", 160)]


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"node": "x"}, "node x does not exist; see kubectl get nodes"),
        ({"node": " "}, "node is empty"),
        ({"namespace": "none"}, "Namespace none does not exist; name an existing one"),
        ({"runtime_class": "none"}, "RuntimeClass none does not exist; name an existing one, or an empty one"),
        ({"plugins_namespace": "team"}, "no device plugin runs there in team, so its image is not known"),
        ({"sharers": [4]}, "x4: nvidia.com/gpu has 2 replicas of a GPU, and no more can share it"),
        ({"json_file": "/nowhere/a"}, "json_file: /nowhere/a: /nowhere has to be a directory"),
        ({"earlier": "/nowhere/a"}, "earlier: /nowhere/a: "),
        ({"earlier": {"version": 7}}, "earlier: it is not a report of version 1"),
        ({"command": "a 'b"}, 'command is "a \'b", which is not a command'),
        ({"command": [["a"]]}, "which has entries that are not text"),
    ],
)
def test_what_is_refused_starts_nothing(benchmark: Benchmark, store: Store, options: dict[str, Any], told: str) -> None:
    before = store.version
    done = benchmark(**options)
    assert told in done["msg"]
    assert done["msg"].endswith("Nothing was started")
    assert store.version == before


class Cluster(Client):
    """Answers for the only object of a kind, too."""

    def resource(self, kind: str, api_version: str) -> str:
        return kind

    def get(self, kind: str, name: str = "", **selected: Any) -> Answer:
        return Answer(self.items[kind][0]) if name else super().get(kind, **selected)


NODE: list[FieldPath] = [("metadata",), ("metadata", "name"), ("metadata", "labels"), ("spec",), ("status",)]


@pytest.mark.parametrize(("path", "values"), cases(NODE))
def test_an_odd_node_is_seen_or_named(path: FieldPath, values: Mapping[str, Any]) -> None:
    for name, value in values.items():
        client = Cluster({"Node": [with_value({**SLICED, "spec": {}}, path, value)], "Pod": [None, plugin("a")]})
        try:
            seen = surroundings.look(client, "a", NAMESPACE)
        except ApiServerError as error:
            why = str(error)
        else:
            found = rows.plan(Wish("a"), seen)
            why = "" if seen.pods == (plugin("a"),) and bool(found.rows) != bool(found.refusals) else "neither"
        assert not why or "kubectl get node a" in why, name


@pytest.mark.parametrize(("path", "values"), cases([("metadata",), ("metadata", "name"), ("spec",), ("status",)]))
def test_an_odd_pod_of_it_is_judged_or_named(path: FieldPath, values: Mapping[str, Any]) -> None:
    for name, value in values.items():
        client = Cluster({"Job": [], "Pod": [with_value({**ran(), "spec": {}}, path, value)]})
        run = Run(client, Wish("a"), jobs.Place(NAMESPACE, "i"), {})
        try:
            _, pods = run.state()
        except ApiServerError as error:
            why = str(error)
        else:
            why = "" if isinstance(jobs.progress(None, pods, 1).over, bool) else "neither"
        assert not why or "cannot be read" in why, name


@pytest.mark.parametrize(("path", "values"), cases([("metadata",), ("metadata", "name"), ("spec",)]))
def test_an_odd_object_beside_it_hides_nothing(path: FieldPath, values: Mapping[str, Any]) -> None:
    named = {"metadata": {"name": "nvidia"}, "spec": {}}
    for value in values.values():
        client = Cluster({"RuntimeClass": [with_value(named, path, value), named], "Deployment": [None]})
        surroundings.exists(client, "RuntimeClass", "node.k8s.io/v1", "nvidia", "")
        assert surroundings.scheduler(client) == ""


@pytest.mark.parametrize("text", TEXTS, ids=range(len(TEXTS)))
def test_an_odd_log_is_a_figure_or_none(text: str) -> None:
    run = Run(Cluster({}), Wish("a"), jobs.Place(NAMESPACE, "i"), {})
    with patch.object(run_room, "text_at", lambda client, path, most: text):
        found = jobs.measured(Wish("a"), [ran()], [run.log(ran())])
    assert found.problem
    json.dumps(found.problem)


def test_the_pods_of_a_share_are_placed_by_our_second_scheduler() -> None:
    client = Cluster({"Deployment": [{"metadata": {"name": "accel-scheduler"}}]})
    assert surroundings.scheduler(client) == "accel-scheduler"
