# SPDX-License-Identifier: Apache-2.0
"""A node's GPUs are cut by MIG, and cut anew under pods."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from sim.cluster import NodeSpec, Spec
from sim.cluster.client import MERGE, Api, pod, until
from sim.cluster.kinds import Object
from sim.nvml.topology import Topology, edit

from .conftest import Playbooks, Run, Start

pytestmark = pytest.mark.full
PODS = "/api/v1/namespaces/default/pods"
NODE = "/api/v1/nodes/gpu-a"
DAEMON_SETS = "/apis/apps/v1/namespaces/default/daemonsets"
DCGM = "nvidia.com/gpu.deploy.dcgm"


def entry(devices: object, **profiles: int) -> Object:
    """GPUs with so many of each profile; none of any: whole."""
    counts = {f"{name.replace('_', '.')}gb": count for name, count in profiles.items()}
    return {"devices": devices, "mig-enabled": bool(counts)} | ({"mig-devices": counts} if counts else {})


VARIABLES: Object = {
    "scheduler_layout": "none",
    "gpu_plugins_mig_strategy": "mixed",
    "gpu_plugins_drain_timeout": 60,
    "gpu_plugins_mig_configs": {
        "version": "v1",
        "mig-configs": {
            "small": [entry([0, 1], **{"1g_18": 7})],
            "large": [entry([0], **{"3g_71": 2}), entry([1])],
            "too-much": [entry("all", **{"4g_71": 2})],
            "whole": [entry("all")],
        },
    },
}


@pytest.fixture(scope="module")
def books(start: Start) -> Playbooks:
    """Eight GPUs, two of them in small pieces."""
    books = start(Spec("control", (NodeSpec("gpu-a", "8xh200"),)))
    dry = books.run("accel.kubernetes.site", "--check", **VARIABLES | {"gpu_plugins_mig_config": "small"})
    assert dry.code == 0, dry.output
    assert "would be cut by the MIG configuration small" in dry.output
    done = cut(books, "small", "accel.kubernetes.site")
    assert done.code == 0, done.output
    return books


def cut(books: Playbooks, config: str, book: str = "accel.kubernetes.site", **variables: object) -> Run:
    return books.run(book, **VARIABLES | {"gpu_plugins_mig_config": config} | variables)


def offered(api: Api) -> dict[str, str]:
    allocatable = api.get(NODE)["status"]["allocatable"]
    return {name: count for name, count in allocatable.items() if "/" in name and count != "0"}


def cordoned(api: Api) -> bool:
    return bool(api.get(NODE)["spec"].get("unschedulable", False))


def gpus(books: Playbooks) -> Topology:
    return Topology.load(books.cluster.root / "gpu-a/gpusim.conf")


@pytest.fixture
def train(api: Api) -> Iterator[str]:
    """A pod that holds a small device."""
    limits = {"limits": {"nvidia.com/mig-1g.18gb": "1"}}
    container: Object = {"image": "none", "command": ["sleep", "1000"], "resources": limits}
    api.create(PODS, pod("train", container=container))
    until(lambda: api.get(f"{PODS}/train")["status"]["phase"] == "Running", "the pod runs")
    yield "train"
    if any(item["metadata"]["name"] == "train" for item in api.get(PODS)["items"]):
        api.call("DELETE", f"{PODS}/train")


@pytest.fixture
def dcgm(api: Api) -> Iterator[str]:
    """What NVIDIA's operator runs where the node's label says so, and what holds GPUs open; the path of its pods."""
    labels = {"app": "nvidia-dcgm"}
    spec = pod("dcgm", "sleep", "1000")["spec"] | {"nodeSelector": {DCGM: "true"}}
    template = {"metadata": {"labels": labels}, "spec": spec}
    head = {"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {"name": "dcgm"}}
    api.create(DAEMON_SETS, head | {"spec": {"selector": {"matchLabels": labels}, "template": template}})
    api.call("PATCH", NODE, {"metadata": {"labels": {DCGM: "true"}}}, MERGE)
    pods = f"{PODS}?labelSelector=app%3Dnvidia-dcgm"
    until(lambda: api.get(pods)["items"], "DCGM is there")
    yield pods
    api.call("DELETE", f"{DAEMON_SETS}/dcgm")
    api.call("PATCH", NODE, {"metadata": {"labels": {DCGM: None}}}, MERGE)


def test_node_offers_mig_devices_and_second_run_is_idle(books: Playbooks, api: Api) -> None:
    assert offered(api) == {"nvidia.com/gpu": "6", "nvidia.com/mig-1g.18gb": "14"}
    again = cut(books, "small")
    assert (again.code, again.changed) == (0, 0), again.output


def test_a_geometry_that_does_not_fit_is_refused_with_what_would(books: Playbooks, api: Api) -> None:
    before = gpus(books)
    done = cut(books, "too-much")
    assert done.code != 0
    assert "2 x 4g.71gb does not fit GPU 0" in done.messages
    assert done.changed == 0
    assert gpus(books) == before


def test_pods_that_hold_gpus_are_named_or_evicted(books: Playbooks, api: Api, train: str) -> None:
    refused = cut(books, "large")
    assert refused.code != 0
    assert "these pods hold its GPUs: default/train" in refused.messages
    assert "gets the MIG configuration large" in refused.messages
    assert refused.changed == 0

    done = cut(books, "large", gpu_plugins_drain=True, gpu_plugins_drain_force=True)
    assert done.code == 0, done.output
    assert offered(api) == {"nvidia.com/gpu": "7", "nvidia.com/mig-3g.71gb": "2"}
    assert not cordoned(api)


def test_gpu_to_reset_keeps_node_cordoned_and_monitors_away(books: Playbooks, api: Api, dcgm: str) -> None:
    with edit(books.cluster.root / "gpu-a/gpusim.conf") as node:
        node.add_process(0, 11, mem=0, type="-")
    done = cut(books, "whole")
    assert done.code != 0
    assert f"{gpus(books).gpus[0].uuid}: end what holds them open" in done.messages
    assert cordoned(api)
    assert not api.get(dcgm)["items"]
    with edit(books.cluster.root / "gpu-a/gpusim.conf") as node:
        node.remove_process(11)
    done = cut(books, "whole")
    assert done.code == 0, done.output
    assert offered(api) == {"nvidia.com/gpu": "8"}
    assert not cordoned(api)
    until(lambda: api.get(dcgm)["items"], "DCGM is back")


def test_the_plugin_cuts_the_gpus_as_the_nodes_label_says(books: Playbooks, api: Api) -> None:
    done = cut(books, "small", gpu_plugins_mig_label=True)
    assert done.code == 0, done.output
    labels = api.get(NODE)["metadata"]["labels"]
    assert (labels["nvidia.com/mig.config"], labels["nvidia.com/mig.config.state"]) == ("small", "success")
    assert offered(api) == {"nvidia.com/gpu": "6", "nvidia.com/mig-1g.18gb": "14"}
    again = cut(books, "small", gpu_plugins_mig_label=True)
    assert (again.code, again.changed) == (0, 0), again.output

    api.call("PATCH", NODE, {"metadata": {"labels": {"nvidia.com/mig.config": "whole"}}}, MERGE)
    until(lambda: offered(api) == {"nvidia.com/gpu": "8"}, "whole GPUs")
    until(lambda: not cordoned(api), "the end of the cordon")
    refused = cut(books, "too-much", gpu_plugins_mig_label=True)
    assert "2 x 4g.71gb does not fit GPU 0" in refused.messages
    gone = cut(books, "whole", "accel.kubernetes.uninstall", gpu_plugins_mig_label=True)
    assert gone.code == 0, gone.output
    assert not {name for name in api.get(NODE)["metadata"]["labels"] if name.startswith("nvidia.com/")}
