# SPDX-License-Identifier: Apache-2.0
"""Module gpu_inspect_info against an API server."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ansible_collections.accel.kubernetes.plugins.module_utils.cluster import api_server
from kubernetes.client import ApiClient, Configuration
from kubernetes.dynamic import DynamicClient

from kube_accel.sharing.inventory_annotation import Holding
from sim.cluster.apiserver import ApiServer, Authority
from sim.cluster.store import Store
from unit.plugins.module_utils.shared import test_claim_view as claims
from unit.plugins.module_utils.shared.test_gpu_view import AWAY, GIB, SHARE, TRAIN, USED, node, plugin, pod

Inspect = Callable[..., dict[str, Any]]


@pytest.fixture
def store() -> Store:
    store = Store()
    for name in ("kube-system", "team"):
        store.create("namespaces", "", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    for item in (node("a", {0: (TRAIN,)}), node("b", {1: (Holding("team", "other", "main", 10, GIB),)})):
        store.create("nodes", "", {"apiVersion": "v1", "kind": "Node", **item})
    for item in (pod("train", SHARE, "a"), pod("other", SHARE, "b"), pod("late", SHARE), plugin("a"), plugin("b")):
        namespace, name = item["metadata"]["namespace"], item["metadata"]["name"]
        store.create("pods", namespace, {"apiVersion": "v1", "kind": "Pod", **item})
        store.edit("pods", namespace, name, lambda body, status=item["status"]: body.update(status=status))
    return store


@pytest.fixture
def inspect(store: Store, tmp_path: Path, run_module: Callable[..., dict[str, Any]]) -> Iterator[Inspect]:
    server = ApiServer(store, Authority(), lambda pod, container: tmp_path / "none")
    server.start()
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(server.kubeconfig("admin", server.admin_token))
    yield lambda **options: run_module("gpu_inspect_info", {"kubeconfig": str(kubeconfig), **options})
    server.stop()


def test_nodes_pods_and_sums_are_told_in_every_form(inspect: Inspect) -> None:
    done = inspect()
    assert not done["changed"]
    assert done["complete"]
    assert done["inspection"]["totals"]["allocated_bytes"] == 9 * GIB
    assert [entry["pod"] for entry in done["inspection"]["waiting"]] == ["late"]
    assert any(line.startswith("a ") and "8/80" in line for line in done["summary"])
    assert any(line.startswith("train  team") for line in done["details"])
    assert done["csv"].count("\n") == 5
    assert "result" not in done


def test_inspection_with_plugins_elsewhere_is_incomplete(inspect: Inspect) -> None:
    done = inspect(plugins_namespace="gpu")
    assert not done["complete"]
    (problem,) = done["inspection"]["problems"]
    assert problem == "no plugin is in namespace gpu, but in kube-system; say where plugins run"


def test_plugins_are_asked_at_once_except_on_absent_nodes(store: Store, inspect: Inspect) -> None:
    both, asked = threading.Barrier(2, timeout=20), []

    class Metrics(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            both.wait()
            self.send_response(200)
            self.end_headers()
            self.wfile.write(USED.encode())

        def log_message(self, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Metrics) as page:
        threading.Thread(target=page.serve_forever, daemon=True).start()
        store.create("nodes", "", {"apiVersion": "v1", "kind": "Node", **node("c", {}, **AWAY)})
        store.edit("nodes", "", "c", lambda body: body.update(status=AWAY))
        store.create("pods", "kube-system", {"apiVersion": "v1", "kind": "Pod", **plugin("c")})
        for name in ("a", "b", "c"):
            item = plugin(name, port=page.server_port)
            item["status"]["podIP"] = "127.0.0.1"
            store.edit(
                "pods",
                "kube-system",
                f"plugin-{name}",
                lambda body, item=item: body.update(item | {"metadata": body["metadata"]}),
            )
        done = inspect(used=True, query="nodes[].gpus[].containers[].[pod, used_bytes]")
        page.shutdown()
    assert ["train", 3 * GIB] in done["result"]
    assert done["inspection"]["problems"] == ["node c: it is not ready, and this was last heard: stopped posting"]
    assert len(asked) == 2


def test_whoever_does_not_answer_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api_server, "_PATIENCE", 0.5)
    taken = []
    with socket.create_server(("127.0.0.1", 0)) as silent:

        def take() -> None:
            while True:
                try:
                    taken.append(silent.accept()[0])
                except OSError:
                    return

        thread = threading.Thread(target=take, daemon=True)
        thread.start()
        api = ApiClient(Configuration(host=f"http://127.0.0.1:{silent.getsockname()[1]}"))
        client = DynamicClient(api, discoverer=lambda client, cache: None)
        with pytest.raises(api_server.ApiServerError, match=r"^no answer in 0\.5 s$"):
            api_server.text_at(SimpleNamespace(client=client), "/page", 1)
        silent.shutdown(socket.SHUT_RDWR)
        thread.join(20)
    assert len(taken) == 1
    taken[0].close()


def test_an_odd_object_is_a_problem_and_the_others_are_told(store: Store, inspect: Inspect) -> None:
    store.edit("nodes", "", "b", lambda body: body.update(status={"addresses": ["x"], "conditions": 5}))
    store.edit("pods", "team", "late", lambda body: body["spec"].update(containers=[5]))
    store.edit("pods", "team", "other", lambda body: body.update(status=5))
    done = inspect(used=True)
    assert not done["complete"]
    problems = "\n".join(done["inspection"]["problems"])
    for name in ("node b: it cannot", "pod team/late cannot", "pod team/other cannot"):
        assert f"{name} be read: " in problems
    assert any(line.startswith("a ") and "8/80" in line for line in done["summary"])


def test_a_query_finds_what_it_asks_for(inspect: Inspect) -> None:
    done = inspect(query="nodes[].gpus[].containers[?cores > `20`][].pod", nodes=["a", "b"])
    assert done["result"] == ["train"]


def test_it_is_narrowed_to_nodes_and_modes(inspect: Inspect) -> None:
    assert [found["name"] for found in inspect(nodes=["b"])["inspection"]["nodes"]] == ["b"]
    assert inspect(mode="mps")["inspection"]["nodes"] == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"query": "nodes["}, "query is not a JMESPath expression"),
        ({"nodes": ["a", "gone"]}, "no node with GPUs has the name gone; there are: a, b"),
        ({"kubeconfig": "/none"}, "Invalid kube-config file"),
    ],
)
def test_bad_input_is_named(inspect: Inspect, options: dict[str, Any], message: str) -> None:
    done = inspect(**options)
    assert done["failed"]
    assert message in done["msg"]


def test_claims_are_told_of_nodes_of_mode_dra(store: Store, inspect: Inspect) -> None:
    store.create("nodes", "", {"apiVersion": "v1", "kind": "Node", **claims.node("c")})
    for item in (claims.pod("claimant", {"x": "third"}, "main", node="c"), claims.system()):
        item["spec"]["nodeName"] = "c"
        metadata = item["metadata"]
        store.create("pods", metadata["namespace"], {"apiVersion": "v1", "kind": "Pod", **item})
        status = item["status"]
        store.edit("pods", metadata["namespace"], metadata["name"], lambda body, told=status: body.update(status=told))
    kind = {"apiVersion": "resource.k8s.io/v1"}
    slices = claims.slices(claims.device(0))
    slices["spec"]["nodeName"] = "c"
    store.create("resourceslices", "", {**kind, "kind": "ResourceSlice", **slices})
    claim = claims.claim("third", "claimant")
    store.create("resourceclaims", "team", {**kind, "kind": "ResourceClaim", **claim})
    store.edit("resourceclaims", "team", "third", lambda body: body.update(status=claim["status"]))
    done = inspect(mode="dra", query="nodes[].gpus[].containers[].[pod, container, cores, memory_bytes]")
    assert done["complete"], done["inspection"]["problems"]
    assert done["result"] == [["claimant", "main", 30, 8 * GIB]]
