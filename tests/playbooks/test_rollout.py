# SPDX-License-Identifier: Apache-2.0
"""Other settings of the daemons on nodes that serve: first nodes, gates, what is put back, what a kill leaves."""

from __future__ import annotations

import os
import re
import signal
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from kube_accel.sharing import inventory_annotation
from sim.cluster import NodeSpec, Spec
from sim.cluster.client import Api, pod, until
from sim.cluster.kinds import Object
from sim.inventory import write_inventory
from sim.nvml.topology import edit

from .conftest import Playbooks, Run, Start, state

pytestmark = pytest.mark.full
NODES = ("gpu-a", "gpu-b")
PLUGIN, EXTENDER = "gpu-manager-daemonset", "kube-accel-extender"
SETS = "/apis/apps/v1/namespaces/kube-system/daemonsets"
SHARE = {"tencent.com/vcuda-core": "30", "tencent.com/vcuda-memory": "8"}
TIMEOUT = 300


@pytest.fixture(scope="module")
def books(start: Start) -> Playbooks:
    """Two nodes that share their GPUs, with an extender."""
    books = start(Spec("control", tuple(NodeSpec(name, "t4") for name in NODES)))
    write_inventory(books.cluster.root, dict.fromkeys(NODES, "vgpu"))
    done = books.run("accel.kubernetes.site")
    assert done.code == 0, done.output
    return books


@pytest.fixture(scope="module", autouse=True)
def stats() -> Iterator[None]:
    """What set_stats keeps is printed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ANSIBLE_SHOW_CUSTOM_STATS", "true")
        yield


@pytest.fixture(scope="module", autouse=True)
def train(api: Api) -> Iterator[None]:
    """A pod with a share runs all the while."""
    container = {"command": ["sleep", "10000"], "resources": {"limits": SHARE}}
    made = api.create("/api/v1/namespaces/default/pods", pod("train", container=container))

    def runs() -> bool:
        now = api.get("/api/v1/namespaces/default/pods/train")
        status = [item["restartCount"] for item in now["status"].get("containerStatuses", ())]
        return (now["metadata"]["uid"], now["status"]["phase"], status) == (made["metadata"]["uid"], "Running", [0])

    until(lambda: runs() and any("train" in told(api, name) for name in NODES), "the pod runs, and its node tells")
    yield
    assert runs()


def told(api: Api, name: str) -> str:
    """What the node's plugin says of it."""
    text: str = api.get(f"/api/v1/nodes/{name}")["metadata"]["annotations"][inventory_annotation.ANNOTATION]
    return text


def rollout(books: Playbooks, *options: str, **variables: object) -> Run:
    return books.run("accel.kubernetes.rollout", *options, **{"rollout_soak": 0} | variables)


def daemon_set(api: Api, name: str) -> Object:
    found: Object = api.get(f"{SETS}/{name}")
    return found


def spec(api: Api) -> list[Object]:
    """What plugin and extender are to be, and what is noted in them of a rollout."""
    sets = [daemon_set(api, name) for name in (PLUGIN, EXTENDER)]
    return [
        item["spec"] | {"note": item["metadata"]["annotations"].get("kube-accel.io/previous-object")} for item in sets
    ]


def says(api: Api, word: str) -> list[str]:
    """The nodes whose plugin, ready and not on its way out, was started with a word."""
    path = f"/api/v1/namespaces/kube-system/pods?labelSelector=app.kubernetes.io/name%3D{PLUGIN}"
    return sorted(
        item["spec"]["nodeName"]
        for item in api.get(path)["items"]
        if word in item["spec"]["containers"][0]["command"]
        and "deletionTimestamp" not in item["metadata"]
        and all(status["ready"] for status in item["status"].get("containerStatuses", [{"ready": False}]))
    )


def first_serves(api: Api) -> bool:
    """The first node of the inventory has its plugin, and the DaemonSet is held there."""
    strategy = daemon_set(api, PLUGIN)["spec"]["updateStrategy"]
    return strategy == {"type": "OnDelete"} and says(api, "--log-level=debug") == ["gpu-a"]


@pytest.mark.parametrize(
    ("options", "variables", "said"),
    [
        ((), {"rollout_first": 0}, "rollout_first is '0'; set it to a number of 1 or more"),
        ((), {"rollout_soak": "soon"}, "rollout_soak is 'soon'"),
        (("--limit=gpu-a,control,localhost",), {}, "--limit leaves out gpu-b"),
        (("--limit=gpu_nodes",), {}, "--limit leaves out control, localhost"),
        (
            (),
            {"gpu_mode": "pgpu", "gpu_plugins_drain": True, "gpu_plugins_drain_force": True},
            "serves mode vgpu, but should serve pgpu; run site.yml first",
        ),
        ((), {"gpu_plugins_image": ""}, "scheduler_image is not set"),
    ],
)
def test_what_is_refused_changes_nothing(
    books: Playbooks, options: tuple[str, ...], variables: dict[str, object], said: str
) -> None:
    before = state(books.cluster)
    done = rollout(books, *options, **variables)
    assert done.code != 0
    assert said in done.messages, done.output
    assert state(books.cluster) == before


def test_a_dry_run_says_what_would_change(books: Playbooks) -> None:
    before = state(books.cluster)
    done = rollout(books, "--check", "--diff", gpu_plugins_log_level="debug", scheduler_policy="spread")
    assert done.code == 0, done.output
    assert f"DaemonSet {PLUGIN}" in done.messages
    assert f"DaemonSet {EXTENDER}" in done.messages
    assert "--log-level=debug" in done.output
    assert state(books.cluster) == before


@contextmanager
def offering(api: Api) -> Iterator[None]:
    """No node stops offering its GPUs meanwhile, for pods would be refused then."""
    over = threading.Event()

    def least() -> int:
        found = 100
        while not over.wait(0.05):
            for item in api.get("/api/v1/nodes")["items"]:
                if item["metadata"]["name"] in NODES:
                    found = min(found, int(item["status"]["allocatable"].get("tencent.com/vcuda-core", 0)))
        return found

    with ThreadPoolExecutor(1) as pool:
        found = pool.submit(least)
        try:
            yield
        finally:
            over.set()
    assert found.result() == 100


def test_a_plugin_that_does_not_start_is_undone(books: Playbooks, api: Api) -> None:
    before, nodes = spec(api), says(api, "--log-level=info")
    with offering(api):
        done = rollout(books, gpu_plugins_runtime_class="none", scheduler_policy="spread", gpu_plugins_ready_timeout=5)
    assert done.code != 0
    assert "Failed to create pod sandbox" in done.messages
    assert "The previous version is restored, and every node serves with it" in done.messages
    assert (spec(api), says(api, "--log-level=info")) == (before, nodes)
    assert '"result": "undone"' in done.output


def test_failed_extender_is_undone_before_any_plugin_changes(books: Playbooks, api: Api) -> None:
    before = spec(api)
    generation = daemon_set(api, PLUGIN)["metadata"]["generation"]
    with socket.socket() as taken:
        taken.bind(("0.0.0.0", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = rollout(books, scheduler_extender_port=port, scheduler_timeout=5, gpu_plugins_log_level="debug")
    assert done.code != 0
    assert re.search("(Not every|No ready) pod of the extender", done.messages)
    assert "The previous version is restored" in done.messages
    assert spec(api) == before
    assert daemon_set(api, PLUGIN)["metadata"]["generation"] == generation


def test_what_turns_bad_meanwhile_undoes_it(books: Playbooks, api: Api) -> None:
    before = spec(api)
    process = books.start("accel.kubernetes.rollout", gpu_plugins_log_level="debug", rollout_soak=20)
    until(lambda: first_serves(api), "the first node has its plugin", TIMEOUT)
    with edit(books.cluster.root / "gpu-b/gpusim.conf") as topology:
        topology.set_health(0, "lost")
    until(lambda: spec(api) == before, "what there was is put back", TIMEOUT)
    with edit(books.cluster.root / "gpu-b/gpusim.conf") as topology:
        topology.set_health(0, "ok")
    said, _ = process.communicate()
    assert process.returncode != 0
    assert "Node gpu-b reports 0 healthy GPUs, 1 before" in said
    assert "every node serves with it" in said
    assert says(api, "--log-level=info") == sorted(NODES)


def test_a_killed_run_stands_still_and_is_gone_on_with(books: Playbooks, api: Api) -> None:
    wanted = {"gpu_plugins_log_level": "debug", "scheduler_policy": "spread"}
    process = books.start("accel.kubernetes.rollout", rollout_soak=1000, **wanted)
    try:
        until(lambda: first_serves(api), "the first node has its plugin", TIMEOUT)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
    assert first_serves(api)
    assert all(item["note"] for item in spec(api))
    looked = books.run("accel.kubernetes.validate")
    assert looked.code == 0, looked.output
    for said in (
        "gpu-a: unstable: rollout: Running or interrupted: DaemonSet ",
        f"DaemonSet kube-system/{EXTENDER} (image ",
        f"DaemonSet kube-system/{PLUGIN} (image ",
        "; held, OnDelete; not yet changed on gpu-b)",
    ):
        assert said in looked.output, looked.output

    # It still knows what to put back.
    broken = rollout(books, gpu_plugins_runtime_class="none", gpu_plugins_ready_timeout=5)
    assert broken.code != 0
    assert "every node serves with it" in broken.messages
    assert says(api, "--log-level=info") == sorted(NODES)

    with offering(api):
        done = rollout(books, **wanted)
    assert done.code == 0, done.output
    assert says(api, "--log-level=debug") == sorted(NODES)
    assert not any(item["note"] for item in spec(api))
    assert daemon_set(api, PLUGIN)["spec"]["updateStrategy"]["type"] == "RollingUpdate"
    assert '"result": "kept"' in done.output

    again = rollout(books, **wanted)
    assert (again.code, again.changed) == (0, 0), again.output
    assert "The daemons are up to date" in again.messages
    site = books.run("accel.kubernetes.site", **wanted)
    assert (site.code, site.changed) == (0, 0), site.output
