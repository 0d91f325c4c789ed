# SPDX-License-Identifier: Apache-2.0
"""Module gpu_share_check against an API server whose pods end as they are told to."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sim.cluster.apiserver import ApiServer, Authority
from sim.cluster.store import Store
from unit.plugins.module_utils.benchmark.test_share import a_sharing_node, said
from unit.plugins.modules.test_gpu_benchmark import NAMESPACE, Kubelet, left, store

__all__ = ["store"]
Check = Callable[..., dict[str, Any]]


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """What each pod prints."""
    path = tmp_path / "log"
    path.write_text(said())
    return path


@pytest.fixture
def kubeconfig(store: Store, log: Path, tmp_path: Path) -> Iterator[str]:
    store.delete("nodes", "", "a")
    store.create("nodes", "", {"apiVersion": "v1", "kind": "Node", **a_sharing_node()})
    server = ApiServer(store, Authority(), lambda pod, container: log)
    server.start()
    path = tmp_path / "kubeconfig"
    path.write_text(server.kubeconfig("admin", server.admin_token))
    yield str(path)
    server.stop()


@pytest.fixture
def prove(kubeconfig: str, run_module: Callable[..., dict[str, Any]]) -> Check:
    def run(check: bool = False, **options: Any) -> dict[str, Any]:
        return run_module("gpu_share_check", {"kubeconfig": kubeconfig, "node": "a", **options}, check=check)

    return run


def test_a_share_is_proved_alone_and_beside_a_neighbor(prove: Check, store: Store, tmp_path: Path) -> None:
    kubelet = Kubelet(store)
    done = prove(json_file=str(tmp_path / "a.json"))
    assert done["complete"], done
    settings = [(row["setting"], row["pod"]) for row in done["report"]["rows"]]
    assert settings == [("alone", 1), ("beside a neighbor", 1), ("beside a neighbor", 2)]
    assert (kubelet.most, left(store)) == (2, [])
    assert json.loads((tmp_path / "a.json").read_text()) == done["report"]
    assert any("last byte" in line for line in done["table"])


def test_check_mode_says_what_would_run_and_starts_nothing(prove: Check, store: Store, tmp_path: Path) -> None:
    before = store.version
    done = prove(check=True, json_file=str(tmp_path / "a.json"))
    assert done["table"][0].startswith("Would run alone: 1 pod(s) with 25 tencent.com/vcuda-core")
    assert (store.version, (tmp_path / "a.json").exists()) == (before, False)


def test_checks_that_fail_are_told_and_no_pod_is_left(prove: Check, store: Store, log: Path) -> None:
    Kubelet(store, code=1)
    log.write_text(said(status="fail"))
    done = prove()
    assert not done["complete"]
    assert done["report"]["problems"][0] == "alone: last byte: 6144 of 6144 MiB were given"
    assert left(store) == []


def test_pods_that_never_start_are_given_up_and_told(prove: Check, store: Store) -> None:
    Kubelet(store, code=None)
    done = prove(start_timeout=2)
    assert "alone: not all of its pods ran within 2 s" in done["report"]["problems"][0]
    assert left(store) == []


def test_a_signal_ends_it_and_leaves_no_pod(kubeconfig: str, start_module: Callable[..., Any], store: Store) -> None:
    Kubelet(store, code=None)
    process = start_module("gpu_share_check", {"kubeconfig": kubeconfig, "node": "a"})
    while not store.all("jobs"):
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    out, _ = process.communicate(timeout=60)
    assert "interrupted by SIGTERM. What was proved until then" in json.loads(out)["msg"]
    assert left(store) == []


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"node": "x"}, "node x does not exist; see kubectl get nodes"),
        ({"node": " "}, "node is empty"),
        ({"sharers": 1}, "sharers is 1; give a number from 2 to 50"),
        ({"cores": 51}, "cores is 51; give a number from 0 to 50"),
        ({"runtime_class": "none"}, "RuntimeClass none does not exist"),
        ({"json_file": "/nowhere/a"}, "json_file: /nowhere/a: /nowhere has to be a directory"),
    ],
)
def test_refusals_start_nothing(prove: Check, store: Store, options: dict[str, Any], told: str) -> None:
    before = store.version
    done = prove(**options)
    assert told in done["msg"]
    assert done["msg"].endswith("Nothing was started")
    assert (store.version, NAMESPACE) == (before, "kube-system")
