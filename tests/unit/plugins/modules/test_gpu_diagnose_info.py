# SPDX-License-Identifier: Apache-2.0
"""Module gpu_diagnose_info against an API server."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sim.cluster.apiserver import ApiServer, Authority
from sim.cluster.store import Store
from unit.plugins.module_utils.diagnosis.test_verdict import FAILED, OVER, TORCH, daemon
from unit.plugins.module_utils.shared.test_gpu_view import SHARE, TRAIN, node, plugin, pod

Diagnose = Callable[..., dict[str, Any]]


def create_pod(store: Store, namespace: str, item: dict[str, Any]) -> None:
    """With its status, which is no part of what a client creates."""
    store.create("pods", namespace, {"apiVersion": "v1", "kind": "Pod", **item})
    store.edit("pods", namespace, item["metadata"]["name"], lambda pod: pod["status"].update(item["status"]))


@pytest.fixture
def store() -> Store:
    store = Store()
    for name in ("team", "default", "kube-system"):
        store.create("namespaces", "", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    for item in (node("a", {0: (TRAIN,)}), node("b", {})):
        store.create("nodes", "", {"apiVersion": "v1", "kind": "Node", **item})
    train = pod("train", SHARE, "a", containerStatuses=[{"name": "main", "state": {"terminated": FAILED}}])
    for item in (train, pod("late", SHARE)):
        create_pod(store, "team", item)
    return store


@pytest.fixture
def diagnose(store: Store, tmp_path: Path, run_module: Callable[..., dict[str, Any]]) -> Iterator[Diagnose]:
    server = ApiServer(store, Authority(), lambda pod, container: tmp_path / f"{pod['metadata']['name']}.log")
    server.start()
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(server.kubeconfig("admin", server.admin_token))
    yield lambda **options: run_module("gpu_diagnose_info", {"kubeconfig": str(kubeconfig), **options})
    server.stop()


def test_a_pod_is_told_of_by_events_logs_and_node(diagnose: Diagnose, store: Store, tmp_path: Path) -> None:
    (tmp_path / "train.log").write_text(f"{'x' * 100_000}\nbefore\n{TORCH}\n")
    store.record("team", store.get("pods", "team", "train"), "GpuMemoryRefused", OVER, "kube-accel")
    done = diagnose(pod={"namespace": "team", "name": "train"})
    assert not done["changed"]
    assert done["complete"]
    first = done["diagnosis"]["findings"][0]
    assert (first["rule"], first["subject"]) == ("quota_oom", "pod team/train container main")
    assert first["evidence"][0] == {"where": "event GpuMemoryRefused", "text": OVER}
    assert done["summary"][0].startswith("1. pod team/train container main: ")
    assert {finding["subject"] for finding in done["diagnosis"]["findings"]} >= {"node a"}
    assert not any("node b" in text for text in done["diagnosis"]["looked_at"])


def test_of_a_pod_without_a_node_all_nodes_are_looked_at(diagnose: Diagnose) -> None:
    done = diagnose(pod={"namespace": "team", "name": "late"})
    assert "scheduler" in [finding["rule"] for finding in done["diagnosis"]["findings"]]
    assert [text.split(":")[0] for text in done["diagnosis"]["looked_at"][:3]] == ["pod team/late", "node a", "node b"]


def test_what_does_not_answer_is_a_problem_and_the_rest_is_told(diagnose: Diagnose, store: Store) -> None:
    create_pod(store, "kube-system", daemon(plugin("a"), podIP="127.0.0.1"))
    done = diagnose(node="a")
    assert not done["complete"]
    [problem] = done["diagnosis"]["problems"]
    assert problem.startswith("node a: metrics of its plugin: the API server refused with status 503")
    assert done["summary"][-1] == f"NOT KNOWN: {problem}"
    assert any("node a: its labels" in text for text in done["diagnosis"]["looked_at"])


def test_an_odd_object_keeps_no_other_from_diagnosis(diagnose: Diagnose, store: Store) -> None:
    create_pod(store, "kube-system", daemon(plugin("a"), False))
    create_pod(store, "kube-system", pod("odd", SHARE) | {"metadata": {"name": "odd", "namespace": "kube-system"}})
    store.edit("pods", "kube-system", "odd", lambda body: body["spec"].update(containers=[5]))
    store.edit("nodes", "", "b", lambda body: body.update(status={"addresses": ["x"], "conditions": ["x"]}))
    assert "plugin_down" in [finding["rule"] for finding in diagnose()["diagnosis"]["findings"]]
    store.edit("nodes", "", "b", lambda body: body.update(status=5))
    done = diagnose()
    assert "plugin_down" in [finding["rule"] for finding in done["diagnosis"]["findings"]]
    assert any("cannot be read: b: status is no JSON object" in text for text in done["diagnosis"]["problems"])
    store.edit("pods", "team", "train", lambda body: body["spec"].update(containers=["x"]))
    assert diagnose(pod={"namespace": "team", "name": "train"})["summary"]


def test_a_daemon_in_trouble_is_quoted(diagnose: Diagnose, store: Store, tmp_path: Path) -> None:
    (tmp_path / "plugin-a.log").write_text('{"level": "error", "message": "no driver"}\n')
    create_pod(store, "kube-system", daemon(plugin("a"), False))
    first = diagnose(node="a")["diagnosis"]["findings"][0]
    assert first["rule"] == "plugin_down"
    assert {"where": "pod kube-system/plugin-a", "text": "no driver"} in first["evidence"]


def test_logs_of_a_silent_node_are_not_waited_for(diagnose: Diagnose, store: Store, tmp_path: Path) -> None:
    for name in ("plugin-a", "train"):
        (tmp_path / f"{name}.log").write_text('{"level": "error", "message": "no driver"}\n')
    create_pod(store, "kube-system", daemon(plugin("a"), False))
    away = {"conditions": [{"type": "Ready", "status": "Unknown", "message": "stopped posting"}]}
    store.edit("nodes", "", "a", lambda body: body["status"].update(away))
    done = diagnose(pod={"namespace": "team", "name": "train"})
    problem = "node a: kubelet does not answer, so the logs of its pods were not read"
    assert done["diagnosis"]["problems"] == [problem]
    assert "no driver" not in str(done)
    away["conditions"][0]["status"] = "False"
    store.edit("nodes", "", "a", lambda body: body["status"].update(away))
    assert "no driver" in str(diagnose(node="a")), "a kubelet that says what it lacks answers"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kubeconfig": "/none"}, "Invalid kube-config file"),
        (
            {"kubeconfig": None, "host": "https://127.0.0.1:1", "validate_certs": False},
            "the API server did not answer",
        ),
        ({"node": "a", "pod": {"name": "train"}}, "mutually exclusive"),
    ],
)
def test_what_cannot_be_asked_is_named(diagnose: Diagnose, options: dict[str, Any], message: str) -> None:
    done = diagnose(**options)
    assert done["failed"]
    assert message in done["msg"]
