# SPDX-License-Identifier: Apache-2.0
"""Module gpu_inspect_info against an API server."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kube_accel.sharing.inventory_annotation import Holding
from sim.cluster.apiserver import ApiServer, Authority
from sim.cluster.store import Store
from unit.plugins.module_utils.test_gpu_view import GIB, SHARE, TRAIN, node, pod

Inspect = Callable[..., dict[str, Any]]


@pytest.fixture
def inspect(tmp_path: Path, run_module: Callable[..., dict[str, Any]]) -> Iterator[Inspect]:
    store = Store()
    store.create("namespaces", "", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "team"}})
    for item in (node("a", {0: (TRAIN,)}), node("b", {1: (Holding("team", "other", "main", 10, GIB),)})):
        store.create("nodes", "", {"apiVersion": "v1", "kind": "Node", **item})
    for item in (pod("train", SHARE, "a"), pod("late", SHARE)):
        store.create("pods", "team", {"apiVersion": "v1", "kind": "Pod", **item})
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
        ({"nodes": ["a", "gone"]}, "no node with GPUs is called gone; there are: a, b"),
        ({"kubeconfig": "/none"}, "Invalid kube-config file"),
    ],
)
def test_bad_input_is_named(inspect: Inspect, options: dict[str, Any], message: str) -> None:
    done = inspect(**options)
    assert done["failed"]
    assert message in done["msg"]
