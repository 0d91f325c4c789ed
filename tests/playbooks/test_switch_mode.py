# SPDX-License-Identifier: Apache-2.0
"""Nodes that serve change their mode in turn: what is refused, what stops at the first, what a killed run leaves."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

from kube_accel.sharing import inventory_annotation
from sim.cluster import NodeSpec, Spec
from sim.cluster.client import MERGE, Api, pod, until
from sim.cluster.kinds import Object

from .conftest import Playbooks, Run, Start, state
from .train import running, spared, train

pytestmark = pytest.mark.full
NODES = ("gpu-a", "gpu-b")
CORDONED = "kube-accel.io/cordoned"
PODS = "/api/v1/namespaces/default/pods"
# One GPU needs no extender.
VARIABLES: Object = {"scheduler_layout": "none"}


@pytest.fixture(scope="module")
def books(start: Start) -> Playbooks:
    """Two nodes that serve whole GPUs; mode mps is turned off."""
    books = start(Spec("control", tuple(NodeSpec(name, "t4") for name in NODES)))
    done = books.run("accel.kubernetes.site", gpu_plugins_mps_enabled=False, **VARIABLES)
    assert done.code == 0, done.output
    return books


@pytest.fixture(scope="module", autouse=True)
def training(api: Api) -> Iterator[None]:
    """A GPU of each node is held by a pod that has a controller; another pod of gpu-a holds none."""
    web = pod("web", "sleep", "1000", labels={"app": "web"}, nodeSelector={"kubernetes.io/hostname": "gpu-a"})
    api.create(PODS, web)
    with train(api):
        until(lambda: all("train" in told(api, name) for name in NODES), "the nodes tell who holds their GPUs")
        yield


@pytest.fixture
def budget(api: Api) -> Iterator[str]:
    with spared(api, least=2) as path:
        yield path


def told(api: Api, name: str) -> str:
    """What the node's plugin says of it."""
    text: str = api.get(f"/api/v1/nodes/{name}")["metadata"]["annotations"][inventory_annotation.ANNOTATION]
    return text


def marks(api: Api) -> dict[str, tuple[str, bool, str]]:
    """By node, its mode, whether it is cordoned, and whether it says that by us."""
    nodes = {name: api.get(f"/api/v1/nodes/{name}") for name in NODES}
    return {
        name: (
            node["metadata"]["labels"]["nvidia-device-enable"],
            node["spec"].get("unschedulable", False),
            node["metadata"].get("annotations", {}).get(CORDONED, ""),
        )
        for name, node in nodes.items()
    }


def switch(books: Playbooks, *options: str, **variables: object) -> Run:
    return books.run("accel.kubernetes.switch_mode", *options, **VARIABLES | {"gpu_mode": "cgpu"} | variables)


def test_a_dry_run_names_the_nodes_and_changes_nothing(books: Playbooks) -> None:
    before = state(books.cluster)
    done = switch(books, "--check", "--diff", gpu_plugins_drain=True)
    assert done.code == 0, done.output
    assert all(f"{node} serves pgpu and would serve cgpu" in done.output for node in NODES)
    assert "Would evict default/train-" in done.output
    assert state(books.cluster) == before


@pytest.mark.parametrize(
    ("variables", "told"),
    [
        ({}, "set gpu_plugins_drain=true to evict them"),
        ({"gpu_mode": "whole"}, "gpu_mode is 'whole'; set it to one of pgpu, vgpu, mps, cgpu"),
        ({"gpu_mode": "mps", "gpu_plugins_drain": True}, "The DaemonSet nvidia-mps-device-plugin-daemonset"),
    ],
)
def test_what_is_refused_changes_nothing(books: Playbooks, variables: dict[str, object], told: str) -> None:
    before = state(books.cluster)
    refused = switch(books, **variables)
    assert refused.code != 0
    assert told in refused.messages, refused.output
    assert state(books.cluster) == before


def test_a_label_of_somebody_else_is_named(books: Playbooks, api: Api) -> None:
    def label(value: str | None) -> None:
        api.call("PATCH", "/api/v1/nodes/gpu-b", {"metadata": {"labels": {"cgpu": value}}}, MERGE)

    label("true")
    try:
        refused = switch(books, gpu_mode="vgpu", gpu_plugins_drain=True)
    finally:
        label(None)
    assert refused.code != 0
    assert "Node gpu-b has the label cgpu=true from elsewhere" in refused.messages
    assert refused.changed == 0
    until(lambda: set(running(api)) == set(NODES), "the pods run again")


def test_the_first_that_fails_ends_it(books: Playbooks, api: Api, budget: str) -> None:
    before = running(api)
    failed = switch(books, gpu_plugins_drain=True, gpu_plugins_drain_timeout=3)
    assert failed.code != 0
    assert "was not emptied and goes on serving mode pgpu" in failed.messages
    assert "Later nodes keep their mode" in failed.messages
    assert marks(api) == dict.fromkeys(NODES, ("pgpu", False, ""))
    assert running(api) == before


def test_killed_run_is_resumed_and_a_second_is_idle(books: Playbooks, api: Api, budget: str) -> None:
    wanted = VARIABLES | {"gpu_mode": "cgpu", "gpu_plugins_drain": True}
    before = running(api)
    process = books.start("accel.kubernetes.switch_mode", **wanted)
    try:
        until(lambda: marks(api)["gpu-a"][1], "the first is cordoned", 300)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
    assert marks(api) == {"gpu-a": ("pgpu", True, "cgpu"), "gpu-b": ("pgpu", False, "")}
    assert running(api) == before

    # Somebody else's cordon stays.
    api.call("DELETE", budget)
    api.call("PATCH", "/api/v1/nodes/gpu-b", {"spec": {"unschedulable": True}}, MERGE)
    done = books.run("accel.kubernetes.switch_mode", **wanted)
    assert done.code == 0, done.output
    assert marks(api) == {"gpu-a": ("cgpu", False, ""), "gpu-b": ("cgpu", True, "")}
    assert all(f"{node}: pgpu, now cgpu" in done.output for node in NODES)
    for name in NODES:
        assert api.get(f"/api/v1/nodes/{name}")["status"]["allocatable"]["aliyun.com/gpu-mem"] == "15"
    assert api.get(f"{PODS}/web")["status"]["phase"] == "Running"
    assert running(api) == {}

    again = books.run("accel.kubernetes.switch_mode", **wanted)
    assert (again.code, again.changed) == (0, 0), again.output
    assert "every node serves its mode already" in again.output


def test_one_node_that_is_named_switches_alone(books: Playbooks, api: Api) -> None:
    done = switch(books, "--limit", "gpu-a", gpu_mode="vgpu")
    assert done.code == 0, done.output
    assert "gpu-a: cgpu, now vgpu" in done.output
    assert {name: mode for name, (mode, *_) in marks(api).items()} == {"gpu-a": "vgpu", "gpu-b": "cgpu"}
    assert api.get("/api/v1/nodes/gpu-a")["status"]["allocatable"]["tencent.com/vcuda-core"] == "100"
