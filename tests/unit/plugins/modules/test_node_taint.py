# SPDX-License-Identifier: Apache-2.0
"""Module node_taint against an API server."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.accel.kubernetes.plugins.module_utils.cluster.api_server import ApiServerError
from ansible_collections.accel.kubernetes.plugins.modules import node_taint
from ansible_collections.kubernetes.core.plugins.module_utils.k8s.client import get_api_client

from sim.cluster.apiserver import ApiServer, Authority
from sim.cluster.kinds import Object
from sim.cluster.store import Store

NODE, NOTE = "gpu-1", "kube-accel.io/taint"
THEIRS: Object = {"key": "example.com/theirs", "value": "x", "effect": "NoSchedule"}
OURS: Object = {"key": "nvidia.com/gpu", "value": "true", "effect": "NoSchedule"}
Keep = Callable[..., dict[str, Any]]


@pytest.fixture
def store() -> Store:
    store = Store()
    metadata = {"name": NODE, "annotations": {"example.com/rack": "7"}}
    store.create("nodes", "", {"apiVersion": "v1", "kind": "Node", "metadata": metadata, "spec": {}})
    return store


@pytest.fixture
def kubeconfig(store: Store, tmp_path: Path) -> Iterator[Path]:
    server = ApiServer(store, Authority(), lambda pod, container: tmp_path / "none")
    server.start()
    (tmp_path / "kubeconfig").write_text(server.kubeconfig("admin", server.admin_token))
    yield tmp_path / "kubeconfig"
    server.stop()


@pytest.fixture
def keep(kubeconfig: Path, run_module: Callable[..., dict[str, Any]]) -> Keep:
    def run(taint: Any = None, node: str = NODE, check: bool = False, path: Path = kubeconfig) -> dict[str, Any]:
        words = {"kubeconfig": str(path), "node": node} | ({} if taint is None else {"taint": taint})
        return run_module("node_taint", words, check=check)

    return run


def seen(store: Store) -> tuple[list[Object], dict[str, str]]:
    """Taints and annotations of the node."""
    node = store.get("nodes", "", NODE)
    return node["spec"].get("taints", []), node["metadata"].get("annotations", {})


def put(store: Store, *taints: Object) -> None:
    """Somebody else writes these taints."""
    store.edit("nodes", "", NODE, lambda node: node["spec"].update(taints=list(taints)))


def test_taint_is_foretold_kept_once_and_taken_away_alone(store: Store, keep: Keep) -> None:
    put(store, THEIRS)
    before = seen(store)
    foretold = keep(OURS, check=True)
    assert foretold["changed"], foretold
    assert seen(store) == before
    done = keep(OURS)
    assert (done["changed"], done["diff"], done["taints"]) == (True, foretold["diff"], [THEIRS, OURS])
    assert seen(store) == ([THEIRS, OURS], before[1] | {NOTE: json.dumps(OURS, sort_keys=True)})
    assert not keep(OURS)["changed"]
    assert keep(check=True)["changed"]
    assert keep()["taints"] == [THEIRS]
    assert seen(store) == before
    assert not keep()["changed"]


def test_a_survey_gives_it_as_text(store: Store, keep: Keep) -> None:
    assert keep("nvidia.com/gpu=true:NoSchedule")["taints"] == [OURS]
    assert not keep(OURS)["changed"]


@pytest.mark.parametrize("check", [False, True])
@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ({"taint": "team=a"}, "taint of node gpu-1 is 'team=a', which is no taint; set it to text such as"),
        (
            {"taint": OURS, "node": "gone"},
            "the taints of node gone were not changed: the API server refused with status 404",
        ),
    ],
)
def test_bad_input_is_refused_in_a_dry_run_too(store: Store, keep: Keep, asked: Object, says: str, check: bool) -> None:
    before = seen(store)
    said = keep(**asked, check=check)
    assert said["failed"]
    assert says in said["msg"]
    assert seen(store) == before


def test_an_api_server_that_is_not_reached_is_named(keep: Keep, kubeconfig: Path) -> None:
    elsewhere = kubeconfig.with_name("elsewhere")
    elsewhere.write_text(re.sub(r"127\.0\.0\.1:\d+", "127.0.0.1:1", kubeconfig.read_text()))
    said = keep(OURS, path=elsewhere)
    assert "the taints of node gpu-1 were not changed: the API server did not answer" in said["msg"]


class _Busy:
    """A client to whose patches others are ahead with theirs, so many times."""

    def __init__(self, client: Any, store: Store, times: int) -> None:
        self._client, self._store, self.times = client, store, times

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    def patch(self, *words: Any, **options: Any) -> Any:
        self.times -= 1
        if self.times >= 0:
            put(self._store, THEIRS | {"value": str(self.times)})
        return self._client.patch(*words, **options)


def test_taints_that_others_write_meanwhile_stay(store: Store, kubeconfig: Path) -> None:
    client = _Busy(get_api_client(kubeconfig=str(kubeconfig)), store, 2)
    before, after, changed = node_taint.keep(client, NODE, OURS)
    theirs = THEIRS | {"value": "0"}
    assert (before, after, changed) == ([theirs], [theirs, OURS], True)
    assert seen(store)[0] == after


def test_a_node_that_never_rests_is_given_up_with_a_reason(store: Store, kubeconfig: Path) -> None:
    client = _Busy(get_api_client(kubeconfig=str(kubeconfig)), store, 100)
    with pytest.raises(ApiServerError, match="the API server refused with status 422"):
        node_taint.keep(client, NODE, OURS)
    assert client.times == 95
    assert NOTE not in seen(store)[1]
