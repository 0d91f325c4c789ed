# SPDX-License-Identifier: Apache-2.0
"""site.yml on nodes that serve: another run changes nothing and is cheap; a dry run of other modes tells the change."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from sim.cluster import NodeSpec, Spec
from sim.cluster.client import Api, pod, until
from sim.cluster.kinds import Object
from sim.inventory import write_inventory

from .conftest import INVENTORY, Playbooks, Run, Start, state

pytestmark = pytest.mark.full
MODES = {"gpu-a": "pgpu", "gpu-b": "mps"}
OTHER_MODES = {"gpu-a": "vgpu", "gpu-b": "cgpu"}
LIMITS = {"gpu-a": {"nvidia.com/gpu": "2"}, "gpu-b": {"nvidia.com/mps-core": "30", "nvidia.com/mps-memory": "4"}}
DEPLOYMENTS = "/apis/apps/v1/namespaces/default/deployments"
MOST_TASKS = {"gpu-a": 20, "gpu-b": 24}
"""A node in mode mps also has its control daemons looked after."""
MOST_WITH_SKIPPED = {"gpu-a": 76, "gpu-b": 75}
"""A skipped one costs the controller a process too. The first node also has those that run once for the cluster."""


@pytest.fixture(scope="module")
def books(start: Start) -> Playbooks:
    """Nodes that serve."""
    books = start(Spec("control", (NodeSpec("gpu-a", "8xh100"), NodeSpec("gpu-b", "t4"))))
    write_inventory(books.cluster.root, MODES)
    first = books.run("accel.kubernetes.site")
    assert first.code == 0, first.output
    assert all(first.recap[node]["changed"] for node in MODES)
    return books


@pytest.fixture(scope="module")
def again(books: Playbooks) -> Run:
    return books.run("accel.kubernetes.site")


@pytest.fixture
def holders(books: Playbooks) -> Iterator[dict[str, str]]:
    """By node, the name of a pod that holds a GPU of it and has a controller."""
    api = Api(books.cluster.kubeconfig)
    for node, limits in LIMITS.items():
        container = {"image": "none", "command": ["sleep", "1000"], "resources": {"limits": limits}}
        labels = {"metadata": {"labels": {"app": node}}}
        spec = {
            "selector": {"matchLabels": {"app": node}},
            "template": labels | {"spec": pod(node, container=container)["spec"]},
        }
        api.create(
            DEPLOYMENTS, {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": node}, "spec": spec}
        )
    yield {node: until(lambda node=node: told(api, node), f"{node} tells who holds its GPU") for node in LIMITS}
    for node in LIMITS:
        api.call("DELETE", f"{DEPLOYMENTS}/{node}")
        until(lambda node=node: not pods(api, node), "its pod has gone")


def pods(api: Api, app: str) -> list[Object]:
    items: list[Object] = api.get(f"/api/v1/namespaces/default/pods?labelSelector=app%3D{app}")["items"]
    return items


def told(api: Api, node: str) -> str:
    """The name of the running pod that a node's inventory names."""
    annotation = api.get(f"/api/v1/nodes/{node}")["metadata"]["annotations"].get(INVENTORY, "")
    return next((name for item in pods(api, node) if (name := item["metadata"]["name"]) in annotation), "")


def test_a_second_run_changes_nothing(again: Run) -> None:
    assert again.code == 0, again.output
    assert again.changed == 0, again.output


@pytest.mark.parametrize("node", MODES)
def test_a_run_that_changes_nothing_has_few_tasks(again: Run, node: str) -> None:
    counted = again.recap[node]
    assert counted["ok"] <= MOST_TASKS[node], again.output
    assert counted["ok"] + counted["skipped"] <= MOST_WITH_SKIPPED[node], again.output


def test_dry_run_of_a_mode_switch_names_evictions_only(books: Playbooks, again: Run, holders: dict[str, str]) -> None:
    before = state(books.cluster)
    inventory = write_inventory(books.cluster.root, OTHER_MODES)
    try:
        done = books.run("accel.kubernetes.site", "--check", "--diff", inventory=inventory, gpu_plugins_drain=True)
    finally:
        write_inventory(books.cluster.root, MODES)
    assert state(books.cluster) == before, done.output
    assert done.code == 0, done.output
    for node, name in holders.items():
        assert f"Would evict default/{name}" in done.messages
        assert done.recap[node]["changed"]
        assert re.search(rf'nvidia-device-enable"?: "?{OTHER_MODES[node]}"?', done.output), done.output
    assert re.search(r'unschedulable"?: true', done.output), done.output


def test_a_dry_run_of_another_mode_names_the_pods_in_its_way(
    books: Playbooks, again: Run, holders: dict[str, str]
) -> None:
    before = state(books.cluster)
    done = books.run("accel.kubernetes.site", "--check", "--diff", gpu_mode="cgpu")
    assert done.code != 0
    assert done.changed == 0
    assert all(f"these pods hold its GPUs: default/{name}" in done.messages for name in holders.values())
    assert state(books.cluster) == before
