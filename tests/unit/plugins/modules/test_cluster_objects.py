# SPDX-License-Identifier: Apache-2.0
"""Module cluster_objects against an API server."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ansible_collections.accel.kubernetes.plugins.module_utils.cluster.api_server import ApiServerError
from ansible_collections.accel.kubernetes.plugins.modules import cluster_objects
from ansible_collections.kubernetes.core.plugins.module_utils.k8s.client import K8SClient, get_api_client
from ansible_collections.kubernetes.core.plugins.module_utils.k8s.service import K8sService
from kubernetes.client.exceptions import ApiException
from kubernetes.dynamic.exceptions import api_exception

from sim.cluster.apiserver import ApiServer, Authority
from sim.cluster.kinds import Object
from sim.cluster.store import Store

SPACE = "kube-system"
Apply = Callable[..., dict[str, Any]]


def configmap(name: str, **data: str) -> Object:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": SPACE}, "data": data}


@pytest.fixture
def store() -> Store:
    store = Store()
    store.create("namespaces", "", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": SPACE}})
    return store


@pytest.fixture
def kubeconfig(store: Store, tmp_path: Path) -> Iterator[Path]:
    server = ApiServer(store, Authority(), lambda pod, container: tmp_path / "none")
    server.start()
    (tmp_path / "kubeconfig").write_text(server.kubeconfig("admin", server.admin_token))
    yield tmp_path / "kubeconfig"
    server.stop()


@pytest.fixture
def apply(kubeconfig: Path, run_module: Callable[..., dict[str, Any]]) -> Apply:
    def run(*definitions: Object, check: bool = False, path: Path = kubeconfig) -> dict[str, Any]:
        words = {"kubeconfig": str(path), "definitions": list(definitions), "_ansible_diff": True}
        return run_module("cluster_objects", words, check=check)

    return run


def seen(store: Store) -> dict[str, dict[str, str]]:
    """The data of each ConfigMap, by name."""
    return {item["metadata"]["name"]: item["data"] for item in store.all("configmaps")}


def test_objects_are_foretold_applied_once_and_kept(store: Store, apply: Apply) -> None:
    wanted = [configmap("b", x="1"), configmap("a", y="2")]
    foretold = apply(*wanted, check=True)
    assert (foretold["changed"], foretold["applied"]) == (True, [f"ConfigMap {SPACE}/b", f"ConfigMap {SPACE}/a"])
    assert seen(store) == {}
    done = apply(*wanted)
    assert (done["changed"], done["applied"], done["differing"]) == (True, foretold["applied"], wanted)
    assert seen(store) == {"a": {"y": "2"}, "b": {"x": "1"}}
    again = apply(*wanted)
    assert (again["changed"], again["applied"], again["differing"], again["diff"]) == (False, [], [], [])


def test_one_that_differs_is_changed_and_shown_alone(store: Store, apply: Apply) -> None:
    apply(configmap("a", x="1", old="1"), configmap("b", y="2"))
    store.edit("configmaps", SPACE, "a", lambda item: item["data"].update(theirs="3"))
    before = seen(store)
    wanted = configmap("a", x="4"), configmap("b", y="2")
    for check in (True, False):
        done = apply(*wanted, check=check)
        assert done["applied"] == [f"ConfigMap {SPACE}/a"]
        (shown,) = done["diff"]
        assert shown["before_header"] == shown["after_header"] == f"ConfigMap {SPACE}/a"
        assert (shown["before"]["data"], shown["after"]["data"]) == ({"x": "1", "old": "1"}, {"x": "4"})
        assert (seen(store) == before) is check
    assert seen(store) == {"a": {"x": "4", "theirs": "3"}, "b": {"y": "2"}}


@pytest.mark.parametrize("check", [False, True])
@pytest.mark.parametrize(
    ("odd", "says"),
    [
        ({"apiVersion": "v1", "kind": "ConfigMap"}, "item 2 of definitions is no object: set its apiVersion, kind,"),
        ({"kind": "ConfigMap", "metadata": {"name": "b"}}, "item 2 of definitions is no object"),
        (
            {"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": "b"}},
            "Widget b was not applied: Failed to find exact match for example.com/v1.Widget",
        ),
    ],
)
def test_one_that_cannot_be_applied_leaves_all_as_they_are(
    store: Store, apply: Apply, odd: Object, says: str, check: bool
) -> None:
    said = apply(configmap("a", x="1"), odd, check=check)
    assert said["failed"]
    assert says in said["msg"]
    assert said["msg"].endswith("nothing was changed")
    assert seen(store) == {}


class _Full(K8SClient):
    """A client of an API server that has no room left for ConfigMap b once it is asked in earnest."""

    def apply(self, resource: Any, definition: Object, namespace: str, **params: Any) -> Any:
        if not self.dry_run and definition["metadata"]["name"] == "b":
            raise api_exception(ApiException(status=403, reason="Forbidden"))
        return super().apply(resource, definition, namespace, **params)


def test_one_that_is_refused_in_earnest_leaves_those_before(store: Store, kubeconfig: Path) -> None:
    client = get_api_client(kubeconfig=str(kubeconfig))
    module = SimpleNamespace(params={}, check_mode=False, _diff=True)
    service = K8sService(_Full(client.configuration, client.client), module)
    outcome = cluster_objects.Outcome()
    objects = [configmap(name, x="1") for name in "abc"]
    with pytest.raises(ApiServerError, match=f"ConfigMap {SPACE}/b was not applied: .* status 403"):
        cluster_objects.carry_out(service, objects, False, outcome)
    assert outcome.applied == [f"ConfigMap {SPACE}/a"]
    assert seen(store) == {"a": {"x": "1"}}


def test_an_api_server_that_is_not_reached_is_named(apply: Apply, kubeconfig: Path) -> None:
    elsewhere = kubeconfig.with_name("elsewhere")
    elsewhere.write_text(re.sub(r"127\.0\.0\.1:\d+", "127.0.0.1:1", kubeconfig.read_text()))
    said = apply(configmap("a"), path=elsewhere)
    assert said["failed"]
    assert "nothing was changed" in said["msg"]
    assert "127.0.0.1" in said["msg"]
