# SPDX-License-Identifier: Apache-2.0
"""Module node_condition against an API server."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sim.cluster.apiserver import ApiServer, Authority
from sim.cluster.store import Store

READY = {"type": "Ready", "status": "True"}
OURS = {"type": "GpusHealthy", "status": "False", "reason": "GpuUnhealthy", "message": "GPU 1"}
Remove = Callable[..., dict[str, Any]]


@pytest.fixture
def store() -> Store:
    store = Store()
    store.create("nodes", "", {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "gpu-1"}})
    store.edit("nodes", "", "gpu-1", lambda node: node.update(status={"conditions": [OURS, READY]}))
    return store


@pytest.fixture
def remove(store: Store, tmp_path: Path, run_module: Callable[..., dict[str, Any]]) -> Iterator[Remove]:
    server = ApiServer(store, Authority(), lambda pod, container: tmp_path / "none")
    server.start()
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(server.kubeconfig("admin", server.admin_token))

    def run(node: str = "gpu-1", check: bool = False, path: Path = kubeconfig) -> dict[str, Any]:
        return run_module("node_condition", {"kubeconfig": str(path), "node": node, "type": "GpusHealthy"}, check=check)

    yield run
    server.stop()


def conditions(store: Store) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = store.get("nodes", "", "gpu-1")["status"]["conditions"]
    return found


def test_condition_removal_is_planned_done_once_and_alone(store: Store, remove: Remove) -> None:
    foretold = remove(check=True)
    assert foretold["changed"], foretold
    assert conditions(store) == [OURS, READY]
    done = remove()
    assert (done["changed"], done["condition"], done["diff"]) == (True, OURS, foretold["diff"])
    assert conditions(store) == [READY]
    again = remove()
    assert (again["changed"], again["condition"]) == (False, {})


def test_a_node_that_is_gone_has_none(remove: Remove) -> None:
    assert not remove("gone")["changed"]


def test_an_api_server_that_does_not_answer_is_said(remove: Remove, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").write_text(
        re.sub(r"127\.0\.0\.1:\d+", "127.0.0.1:1", (tmp_path / "kubeconfig").read_text())
    )
    said = remove(path=tmp_path / "elsewhere")
    assert said["failed"]
    assert "the API server did not answer" in said["msg"]
