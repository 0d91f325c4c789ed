# SPDX-License-Identifier: Apache-2.0
"""The thread that counts pending pods, against an API server."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
import trustme

from kube_accel.plugin.node import pending_pods
from kube_accel.plugin.node.pending_pods import PendingPods, plugin_look
from kube_accel.plugin.node.pod_warnings import PodWarnings
from unit.kube_accel.api_server import ApiServer, service_account, serving
from waiting import wait


def pod(name: str, limits: object, namespace: str = "team", node: str = "") -> dict[str, Any]:
    spec = {"containers": [{"name": "main", "resources": {"limits": limits}}], "nodeName": node}
    return {"metadata": {"name": name, "namespace": namespace, "uid": name}, "spec": spec}


def listed(*items: object) -> Any:
    return {"kind": "PodList", "metadata": {"resourceVersion": "7"}, "items": list(items)}


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ApiServer]:
    authority = trustme.CA()
    monkeypatch.setattr(pending_pods, "_SECONDS", 0.01)
    with serving(authority) as server:
        monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
        monkeypatch.setenv("KUBERNETES_SERVICE_PORT", str(server.port))
        service_account(tmp_path / "account", authority)
        server.node = listed()
        yield server


@pytest.fixture
def pending(tmp_path: Path, server: ApiServer) -> Iterator[PendingPods]:
    """A running counter."""
    stop = threading.Event()
    found = PendingPods(partial(plugin_look, tmp_path / "account", PodWarnings("node-1", "nvidia")))
    thread = threading.Thread(target=found.run, args=(stop,))
    thread.start()
    yield found
    stop.set()
    thread.join()


def test_pods_without_a_node_are_counted_by_mode(server: ApiServer, pending: PendingPods) -> None:
    wait(lambda: pending.counts == {}, "an empty list")
    whole, share = {"nvidia.com/gpu": "1"}, {"aliyun.com/gpu-mem": "4"}
    placed = pod("placed", whole, node="gpu-1")
    server.node = listed(pod("a", whole), pod("b", whole), pod("c", share, "other"), pod("web", {"cpu": "1"}), placed)
    wait(lambda: pending.counts == {("team", "pgpu"): 2, ("other", "cgpu"): 1}, "the counts")
    queries = [parse_qs(urlsplit(asked.path).query) for asked in server.requests if asked.method == "GET"]
    assert queries[0] == {"fieldSelector": ["spec.nodeName=,status.phase=Pending"], "resourceVersion": ["0"]}


def test_counts_are_unknown_while_no_pods_are_listed(server: ApiServer, pending: PendingPods) -> None:
    wait(lambda: pending.counts == {}, "an empty list")
    server.status = 403
    wait(lambda: pending.counts is None, "a refusal")
    assert pending.asked
    server.status = 200
    wait(lambda: pending.counts == {}, "it answers again")


@pytest.mark.parametrize("odd", [7, {}, {"metadata": 7}, pod("odd", 7), {**pod("odd", {}), "spec": {"containers": 7}}])
def test_an_odd_pending_pod_costs_itself_alone(server: ApiServer, pending: PendingPods, odd: object) -> None:
    whole = {"nvidia.com/gpu": "1"}
    server.node = listed(pod("a", whole), odd, pod("b", whole))
    wait(lambda: pending.counts == {("team", "pgpu"): 2}, "the others")


def test_without_an_api_server_nothing_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    found = PendingPods(partial(plugin_look, tmp_path, PodWarnings("node-1", "")))
    found.run(threading.Event())
    assert not found.asked
