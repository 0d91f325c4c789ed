# SPDX-License-Identifier: Apache-2.0
"""Module kubelet_info against what stands for an API server and the kubelet behind it."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml

Answer = tuple[int, str]
Ask = Callable[..., dict[str, Any]]
DISCOVERY = {
    "/version": (200, '{"major": "1", "minor": "33", "gitVersion": "v1.33.0"}'),
    "/api": (200, '{"kind": "APIVersions", "versions": ["v1"]}'),
    "/apis": (200, '{"kind": "APIGroupList", "groups": []}'),
    "/api/v1": (200, '{"kind": "APIResourceList", "groupVersion": "v1", "resources": []}'),
}
"""What a client asks before it asks for anything."""


@pytest.fixture
def answers() -> dict[str, Answer]:
    """What is answered, by path; the rest is 404."""
    return {}


@pytest.fixture
def ask(answers: dict[str, Answer], tmp_path: Path, run_module: Callable[..., dict[str, Any]]) -> Iterator[Ask]:
    class Handler(BaseHTTPRequestHandler):
        def log_message(self, format: str, *args: Any) -> None:
            pass

        def do_GET(self) -> None:
            status, body = answers.get(self.path) or DISCOVERY.get(self.path, (404, "{}"))
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body.encode())

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    kubeconfig = tmp_path / "kubeconfig"
    cluster = {"name": "it", "cluster": {"server": f"http://127.0.0.1:{server.server_address[1]}"}}
    context = {"name": "it", "context": {"cluster": "it", "user": "it"}}
    users = [{"name": "it", "user": {"token": "x"}}]
    document = {"clusters": [cluster], "contexts": [context], "users": users, "current-context": "it"}
    kubeconfig.write_text(yaml.safe_dump({"apiVersion": "v1", "kind": "Config", **document}))
    yield lambda **options: run_module("kubelet_info", {"kubeconfig": str(kubeconfig), **options})
    server.shutdown()
    server.server_close()


def test_kubelet_says_how_it_places_containers(ask: Ask, answers: dict[str, Answer]) -> None:
    config = {"topologyManagerPolicy": "restricted", "topologyManagerScope": "pod", "cpuManagerPolicy": "static"}
    answers["/api/v1/nodes/gpu-1/proxy/configz"] = (200, json.dumps({"kubeletconfig": config}))
    answers["/api/v1/nodes/gpu-2/proxy/configz"] = (200, json.dumps({"kubeletconfig": {"maxPods": 110}}))
    found = ask(node="gpu-1")
    assert (found["changed"], found["reason"]) == (False, "")
    assert found["settings"] == {
        "topology_manager_policy": "restricted",
        "topology_manager_scope": "pod",
        "cpu_manager_policy": "static",
        "memory_manager_policy": "None",
    }
    assert ask(node="gpu-2")["settings"]["topology_manager_policy"] == "none"


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ((403, '{"message": "forbidden"}'), "the API server refused with status 403"),
        ((503, "no kubelet"), "the API server refused with status 503: no kubelet"),
        ((200, "<html>"), "cannot be read"),
        ((200, "[]"), "it has no kubeletconfig"),
        ((200, '{"kubeletconfig": {"topologyManagerPolicy": 7}}'), "topologyManagerPolicy is not text"),
        ((200, "[" * 100_000), "cannot be read"),
    ],
)
def test_a_kubelet_that_does_not_say_is_no_failure(
    ask: Ask, answers: dict[str, Answer], answer: Answer, reason: str
) -> None:
    answers["/api/v1/nodes/gpu-1/proxy/configz"] = answer
    found = ask(node="gpu-1")
    assert found["settings"] == {}
    assert reason in found["reason"]
