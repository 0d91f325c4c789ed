# SPDX-License-Identifier: Apache-2.0
"""Nodes that serve get another driver in turn: what stops at the first, what a failed run leaves, what stays."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kube_accel.sharing import inventory_annotation
from sim.cluster import NodeSpec, Spec
from sim.cluster.client import MERGE, Api, until

from .conftest import Playbooks, Run, Start, state
from .driver import NEW, OLD, loaded, runfile, user
from .train import running, train

pytestmark = pytest.mark.full
NODES = ("gpu-a", "gpu-b")
CORDONED = "kube-accel.io/cordoned"
SMALL = {"devices": [0, 1, 2], "mig-enabled": True, "mig-devices": {"1g.5gb": 7}}
MIG = {
    "gpu_plugins_mig_strategy": "mixed",
    "gpu_plugins_mig_config": "{{ 'small' if inventory_hostname == 'gpu-b' else '' }}",
    "gpu_plugins_mig_configs": {"version": "v1", "mig-configs": {"small": [SMALL]}},
}


@pytest.fixture(scope="module")
def books(start: Start) -> Playbooks:
    """Two nodes that serve with the old driver, the second with MIG devices too."""
    nodes = (NodeSpec("gpu-a", "t4"), NodeSpec("gpu-b", "4xa100-mig"))
    books = start(Spec("control", nodes, driver_versions=(OLD, NEW)))
    done = books.run(
        "accel.kubernetes.site",
        scheduler_layout="none",
        driver_runfile=runfile(books, OLD),
        dcgm_exporter_enabled=True,
        **MIG,
    )
    assert done.code == 0, done.output
    assert versions(books) == [OLD, OLD]
    return books


@pytest.fixture(scope="module")
def training(api: Api) -> Iterator[None]:
    with train(api):
        until(lambda: all("train" in told(api, name) for name in NODES), "the nodes tell who holds their GPUs")
        yield


def told(api: Api, name: str) -> str:
    """What the node's plugin says of it."""
    text: str = api.get(f"/api/v1/nodes/{name}")["metadata"]["annotations"][inventory_annotation.ANNOTATION]
    return text


def versions(books: Playbooks) -> list[str]:
    """The versions of the loaded drivers."""
    return [loaded(books, node) for node in NODES]


def marks(api: Api) -> dict[str, tuple[bool, str]]:
    """By node, whether it is cordoned, and whether it says that by us."""
    nodes = {name: api.get(f"/api/v1/nodes/{name}") for name in NODES}
    return {
        name: (node["spec"].get("unschedulable", False), node["metadata"]["annotations"].get(CORDONED, ""))
        for name, node in nodes.items()
    }


def monitored(api: Api) -> set[str]:
    """The nodes that dcgm-exporter is on, which holds GPUs open."""
    pods = api.get("/api/v1/namespaces/kube-system/pods?labelSelector=app%3Dkube-accel-dcgm-exporter")["items"]
    return {item["spec"]["nodeName"] for item in pods}


def upgrade(books: Playbooks, *options: str, version: str = NEW, **variables: object) -> Run:
    # Hosts that are reached by the local connection are never rebooted.
    return books.run(
        "accel.kubernetes.upgrade_driver",
        *options,
        scheduler_layout="none",
        driver_runfile=runfile(books, version),
        driver_reload_plugin_socket=str(books.cluster.root) + "/{{ inventory_hostname }}/var/lib/kube-accel/admin.sock",
        **MIG,
        **variables,
    )


@pytest.mark.usefixtures("training")
def test_a_dry_run_names_the_nodes_and_changes_nothing(books: Playbooks) -> None:
    before = state(books.cluster)
    done = upgrade(books, "--check")
    assert done.code == 0, done.output
    assert all(f"{node} has {OLD} and would get another driver" in done.output for node in NODES)
    assert "Would evict default/train-" in done.output
    assert state(books.cluster) == before


def test_pods_that_may_not_go_are_named_before_anything_is_done(books: Playbooks, api: Api) -> None:
    before = running(api)
    refused = upgrade(books, gpu_plugins_drain=False)
    assert refused.code != 0
    assert f"these pods hold its GPUs: default/{before['gpu-a']}" in refused.messages
    assert "before the node gets another driver" in refused.messages
    assert (refused.changed, versions(books), running(api)) == (0, [OLD, OLD], before)


def test_first_failure_stops_and_next_run_resumes_there(books: Playbooks, api: Api) -> None:
    before = running(api)
    until(lambda: monitored(api) == set(NODES), "both nodes are monitored")
    with user(books, "gpu-a") as process:
        failed = upgrade(books)
    assert failed.code != 0
    assert f"{process.pid} sleep use a GPU" in failed.messages
    assert "Later nodes keep their driver" in failed.messages
    assert versions(books) == [OLD, OLD]
    assert marks(api) == {"gpu-a": (True, "pgpu"), "gpu-b": (False, "")}
    assert running(api)["gpu-b"] == before["gpu-b"]
    assert monitored(api) == {"gpu-b"}

    # Somebody else's cordon stays.
    api.call("PATCH", "/api/v1/nodes/gpu-b", {"spec": {"unschedulable": True}}, MERGE)
    done = upgrade(books)
    assert done.code == 0, done.output
    assert versions(books) == [NEW, NEW]
    assert marks(api) == {"gpu-a": (False, ""), "gpu-b": (True, "")}
    assert all(f"{node}: {OLD}, now {NEW}" in done.output for node in NODES)
    assert api.get("/api/v1/nodes/gpu-b")["status"]["allocatable"]["nvidia.com/mig-1g.5gb"] == "21"
    until(lambda: "gpu-a" in running(api), "the pods are back")
    until(lambda: monitored(api) == set(NODES), "both nodes are monitored again")

    again = upgrade(books)
    assert (again.code, again.changed) == (0, 0), again.output
    assert "every node has its driver already" in again.output


def test_an_older_driver_comes_only_where_that_is_told(books: Playbooks) -> None:
    assert upgrade(books).code == 0
    refused = upgrade(books, version=OLD)
    assert refused.code != 0
    for node in NODES:
        assert f"{node}: {NEW} is installed, and {OLD} is older" in refused.messages
    assert (refused.changed, versions(books)) == (0, [NEW, NEW])

    done = upgrade(books, version=OLD, upgrade_driver_downgrade="true")
    assert done.code == 0, done.output
    assert versions(books) == [OLD, OLD]
