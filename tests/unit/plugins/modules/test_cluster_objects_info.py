# SPDX-License-Identifier: Apache-2.0
"""Module cluster_objects_info against an API server."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sim.cluster.apiserver import ApiServer, Authority
from sim.cluster.kinds import Object
from sim.cluster.store import Store

SPACE = "kube-system"
NODES, CONFIGMAPS = {"kind": "Node"}, {"kind": "ConfigMap", "api_version": "v1"}
Read = Callable[..., dict[str, Any]]


@pytest.fixture
def store() -> Store:
    store = Store()
    for name in (SPACE, "default"):
        store.create("namespaces", "", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    for space, name, labels in ((SPACE, "a", {"app": "x"}), (SPACE, "b", {}), ("default", "c", {"app": "x"})):
        head = {"name": name, "namespace": space, "labels": labels}
        store.create(
            "configmaps", space, {"apiVersion": "v1", "kind": "ConfigMap", "metadata": head, "data": {"k": "v"}}
        )
    return store


@pytest.fixture
def kubeconfig(store: Store, tmp_path: Path) -> Iterator[Path]:
    server = ApiServer(store, Authority(), lambda pod, container: tmp_path / "none")
    server.start()
    (tmp_path / "kubeconfig").write_text(server.kubeconfig("admin", server.admin_token))
    yield tmp_path / "kubeconfig"
    server.stop()


@pytest.fixture
def read(kubeconfig: Path, run_module: Callable[..., dict[str, Any]]) -> Read:
    def run(*reads: Object, path: Path = kubeconfig, **options: Any) -> dict[str, Any]:
        return run_module("cluster_objects_info", {"kubeconfig": str(path), "reads": list(reads), **options})

    return run


def names(answer: dict[str, Any]) -> list[str]:
    return sorted(item["metadata"]["name"] for item in answer["resources"])


def test_each_question_has_its_answer_in_its_place(read: Read) -> None:
    questions = [
        CONFIGMAPS | {"subject": "all"},
        NODES,
        CONFIGMAPS | {"namespace": SPACE},
        CONFIGMAPS | {"labels": ["app=x"]},
        CONFIGMAPS | {"namespace": SPACE, "name": "b"},
        CONFIGMAPS | {"namespace": SPACE, "name": "gone"},
    ]
    found = read(*questions)
    assert not found["changed"]
    assert [answer["item"] for answer in found["results"]] == questions
    assert [names(answer) for answer in found["results"]] == [["a", "b", "c"], [], ["a", "b"], ["a", "c"], ["b"], []]
    assert all(answer["api_found"] for answer in found["results"])


def test_a_kind_that_the_cluster_lacks_is_told_beside_the_others(read: Read) -> None:
    lacking, found = read({"kind": "Widget", "api_version": "example.com/v1"}, CONFIGMAPS)["results"]
    assert (lacking["api_found"], lacking["resources"]) == (False, [])
    assert "Widget" in lacking["msg"]
    assert names(found) == ["a", "b", "c"]


def test_the_first_version_that_the_cluster_has_counts(read: Read) -> None:
    versions = [{"kind": "ConfigMap", "api_versions": each} for each in (["v2", "v1", "v0"], ["v2", "v3"])]
    found, lacking = read(*versions)["results"]
    assert (found["api_found"], names(found)) == (True, ["a", "b", "c"])
    assert (lacking["api_found"], lacking["resources"]) == (False, [])


def test_hidden_fields_are_left_out(read: Read) -> None:
    (found,) = read(CONFIGMAPS, hidden_fields=["data"])["results"]
    assert all("data" not in item for item in found["resources"])


@pytest.mark.parametrize(
    "odd", [{}, {"kind": 1}, NODES | {"labels": "app=x"}, NODES | {"name": None}, NODES | {"api_versions": "v1"}]
)
def test_what_is_no_question_is_refused_by_its_place(read: Read, odd: Object) -> None:
    said = read(CONFIGMAPS, odd)
    assert said["failed"]
    assert said["msg"].startswith("item 2 of reads is no question")


def test_an_api_server_that_is_not_reached_fails_or_is_told(read: Read, kubeconfig: Path) -> None:
    elsewhere = kubeconfig.with_name("elsewhere")
    elsewhere.write_text(re.sub(r"127\.0\.0\.1:\d+", "127.0.0.1:1", kubeconfig.read_text()))
    said = read(NODES, CONFIGMAPS, path=elsewhere)
    assert said["failed"]
    assert "the API server did not answer" in said["msg"]
    told = read(NODES, CONFIGMAPS, path=elsewhere, tolerant=True)["results"]
    assert [answer["item"]["kind"] for answer in told] == ["Node", "ConfigMap"]
    assert all("the API server did not answer" in answer["msg"] for answer in told)
