# SPDX-License-Identifier: Apache-2.0
"""A node that is to serve another mode: who may stand in the way, who is evicted, and what is left when it fails."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator

import pytest
import yaml

from kube_accel.sharing.fraction import resources
from kube_accel.sharing.profile import PROFILES, WHOLE_GPU_RESOURCE
from sim.cluster import NodeSpec, Spec
from sim.cluster.client import MERGE, Api, pod, until
from sim.cluster.kinds import Object

from .conftest import Playbooks, Run, Start
from .train import GPU, spared

pytestmark = pytest.mark.full
PODS = "/api/v1/namespaces/default/pods"
NODE = "/api/v1/nodes/gpu-a"
THEIRS: Object = {"key": "example.com/theirs", "value": "x", "effect": "NoSchedule"}
OURS: Object = {"key": "node-role.kubernetes.io/gpu", "value": "true", "effect": "NoSchedule"}
# One GPU needs no extender.
VARIABLES: Object = {
    "scheduler_layout": "none",
    "gpu_plugins_cf_crl_enabled": True,
    "gpu_plugins_drain_timeout": 3,
    "gpu_plugins_tolerations": [{"operator": "Exists"}],
}


@pytest.fixture(scope="module")
def books(start: Start) -> Playbooks:
    """A node that serves whole GPUs."""
    books = start(Spec("control", (NodeSpec("gpu-a", "t4"),)))
    done = books.run("accel.kubernetes.site", **VARIABLES)
    assert done.code == 0, done.output
    role = [{"hosts": "gpu_nodes", "gather_facts": False, "roles": ["accel.kubernetes.gpu_plugins"]}]
    (books.cluster.root / "role.yml").write_text(yaml.safe_dump(role))
    return books


@pytest.fixture
def train(api: Api) -> Iterator[str]:
    """The name of a pod that holds the GPU and has a controller."""
    name = "train"
    template = {"metadata": {"labels": {"app": name}}, "spec": pod(name, container=GPU)["spec"]}
    head = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name}}
    spec = {"selector": {"matchLabels": {"app": name}}, "template": template}
    path = "/apis/apps/v1/namespaces/default/deployments"
    api.create(path, head | {"spec": spec})
    try:
        yield until(lambda: running(api, name), "the pod that holds the GPU runs")
    finally:
        api.call("DELETE", f"{path}/{name}")
        until(lambda: not listed(api, name), "it has gone")


@pytest.fixture
def budget(api: Api) -> Iterator[str]:
    with spared(api, least=1) as path:
        yield path


def listed(api: Api, app: str) -> list[Object]:
    items: list[Object] = api.get(f"{PODS}?labelSelector=app%3D{app}")["items"]
    return items


def running(api: Api, app: str) -> str:
    return next((item["metadata"]["name"] for item in listed(api, app) if item["status"]["phase"] == "Running"), "")


def serves(books: Playbooks, mode: str, **variables: object) -> Run:
    """Runs the role with that mode for the node."""
    return books.run(str(books.cluster.root / "role.yml"), gpu_mode=mode, **VARIABLES | variables)


def marks(api: Api) -> tuple[str, bool, dict[str, str]]:
    """The node's mode, whether it is cordoned, and our annotations but for the inventory."""
    node = api.get(NODE)
    annotations = node["metadata"].get("annotations", {})
    ours = {
        key: value for key, value in annotations.items() if key in ("kube-accel.io/cordoned", "kube-accel.io/taint")
    }
    return node["metadata"]["labels"]["nvidia-device-enable"], node["spec"].get("unschedulable", False), ours


def taints(api: Api) -> list[Object]:
    """Without that of a cordon, which is the cluster's own."""
    found = api.get(NODE)["spec"].get("taints", [])
    ours_and_theirs = [item for item in found if not item["key"].startswith("node.kubernetes.io/")]
    return [{key: item.get(key, "") for key in OURS} for item in ours_and_theirs]


def offered(api: Api) -> dict[str, str]:
    allocatable = api.get(NODE)["status"]["allocatable"]
    return {name: count for name, count in allocatable.items() if "/" in name and count != "0"}


def test_pods_that_hold_gpus_are_named_and_nothing_happens(books: Playbooks, api: Api, train: str) -> None:
    done = serves(books, "cgpu")
    assert done.code != 0
    assert f"these pods hold its GPUs: default/{train}" in done.messages
    assert done.changed == 0
    assert marks(api) == ("pgpu", False, {})


def test_host_without_mps_programs_is_refused_before_a_drain(books: Playbooks, api: Api, train: str) -> None:
    control = books.cluster.root / "gpu-a/usr/bin/nvidia-cuda-mps-control"
    away = control.rename(control.with_suffix(".away"))
    try:
        done = serves(books, "mps", gpu_plugins_drain=True)
    finally:
        away.rename(control)
    assert done.code != 0
    assert "'gpu-a' lacks nvidia-cuda-mps-control" in done.messages
    assert "nvidia-smi of the driver" not in done.messages
    assert done.changed == 0
    assert marks(api) == ("pgpu", False, {})
    assert running(api, "train") == train


def test_exhausted_disruption_budget_leaves_the_node_as_it_was(
    books: Playbooks, api: Api, train: str, budget: str
) -> None:
    done = serves(books, "cgpu", gpu_plugins_drain=True)
    assert done.code != 0
    assert "goes on serving mode pgpu" in done.messages
    assert "violate the pod's disruption budget" in done.messages
    assert f"still hold its GPUs: default/{train}" in done.messages
    assert marks(api) == ("pgpu", False, {})
    assert running(api, "train") == train
    assert "kube-accel.io/evict" not in api.get(f"{PODS}/{train}")["metadata"]["labels"]


def test_a_killed_run_is_taken_up_again(books: Playbooks, api: Api, train: str, budget: str) -> None:
    """Only what holds GPUs is evicted; our cordon, which the killed run left, is undone."""
    api.create(PODS, pod("web", "sleep", "1000", labels={"app": "web"}))
    until(lambda: running(api, "web"), "the pod without a GPU runs")
    book = str(books.cluster.root / "role.yml")
    patient = VARIABLES | {"gpu_plugins_drain": True, "gpu_plugins_drain_timeout": 300}
    process = books.start(book, gpu_mode="cgpu", **patient)
    try:
        evicting = "kube-accel.io/evict"
        until(lambda: evicting in api.get(f"{PODS}/{train}")["metadata"]["labels"], "it evicts", 300)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
    assert marks(api) == ("pgpu", True, {"kube-accel.io/cordoned": "cgpu"})
    api.call("DELETE", budget)

    done = serves(books, "cgpu", gpu_plugins_drain=True, gpu_plugins_drain_timeout=60)
    assert done.code == 0, done.output
    assert marks(api) == ("cgpu", False, {})
    assert offered(api) == {"aliyun.com/gpu-mem": "15"}
    assert running(api, "web")
    assert running(api, "train") == ""
    assert serves(books, "cgpu").changed == 0
    api.call("DELETE", f"{PODS}/web")


def test_bare_pods_go_by_force_and_foreign_marks_stay(books: Playbooks, api: Api) -> None:
    limits = {"limits": {"aliyun.com/gpu-mem": "2"}}
    api.create(PODS, pod("bare", container=GPU | {"resources": limits}, labels={"app": "bare"}))
    until(lambda: running(api, "bare"), "the bare pod runs")
    api.call("PATCH", NODE, {"spec": {"unschedulable": True, "taints": [THEIRS]}}, MERGE)
    done = serves(books, "pgpu", gpu_plugins_drain=True, gpu_plugins_drain_force=True, gpu_plugins_taint=OURS)
    assert done.code == 0, done.output
    assert not listed(api, "bare")
    assert marks(api) == ("pgpu", True, {"kube-accel.io/taint": json.dumps(OURS, sort_keys=True)})
    assert taints(api) == [THEIRS, OURS]
    assert offered(api) == {"nvidia.com/gpu": "1"}
    api.call("PATCH", NODE, {"spec": {"unschedulable": False}}, MERGE)


def test_a_node_that_does_not_offer_its_gpus_says_why(books: Playbooks, api: Api) -> None:
    """Its containerd has no handler for the plugin's runtime class."""
    runtime = {"gpu_plugins_runtime_class": "none", "gpu_plugins_ready_timeout": 10}
    done = serves(books, "cgpu", gpu_plugins_taint=OURS, **runtime)
    assert done.code != 0
    assert "offers {'aliyun.com/gpu-mem': 0} after 10 s" in done.messages
    assert "make {'aliyun.com/gpu-mem': 15}" in done.messages
    assert "Its plugin is pod kube-system/cgpu-device-plugin-ds-" in done.messages
    assert "ContainerCreating: Failed to create pod sandbox" in done.messages
    assert "It stays cordoned" in done.messages
    assert marks(api)[:2] == ("cgpu", True)

    other = OURS | {"effect": "PreferNoSchedule"}
    done = serves(books, "cgpu", gpu_plugins_taint=other)
    assert done.code == 0, done.output
    assert marks(api) == ("cgpu", False, {"kube-accel.io/taint": json.dumps(other, sort_keys=True)})
    assert taints(api) == [THEIRS, other]
    again = serves(books, "cgpu", gpu_plugins_taint=other)
    assert again.changed == 0, again.output


def definitions(api: Api) -> list[str]:
    """What the platform was told, by name."""
    items = api.get("/api/v1/namespaces/kube-public/configmaps")["items"]
    return [item["data"]["key"] for item in items if item["metadata"]["name"].startswith("cf-crl-")]


def test_uninstall_takes_exactly_what_is_ours_from_the_node(books: Playbooks, api: Api) -> None:
    assert set(definitions(api)) == {
        WHOLE_GPU_RESOURCE,
        f"{WHOLE_GPU_RESOURCE}.shared",
        *(name for profile in PROFILES.values() for name in resources(profile).values()),
    }
    done = books.run("accel.kubernetes.uninstall", "--tags", "gpu_plugins", **VARIABLES)
    assert done.code == 0, done.output
    metadata = api.get(NODE)["metadata"]
    assert not [key for key in metadata.get("annotations", {}) | metadata["labels"] if "accel" in key or "gpu" in key]
    assert taints(api) == [THEIRS]
    assert definitions(api) == []
