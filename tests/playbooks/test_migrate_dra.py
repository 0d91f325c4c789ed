# SPDX-License-Identifier: Apache-2.0
"""A node that NVIDIA's DRA driver serves becomes one of mode dra, and NVIDIA's again.

A DaemonSet with the driver's command stands for it. The test writes its ResourceSlices, and removes them as kubelet
does.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from sim.cluster import NodeSpec, Spec
from sim.cluster.client import Api, pod, until
from sim.cluster.kinds import Object

from .conftest import Playbooks, Run, Start, state
from .test_dra import CLAIMS, PODS, SLICES

pytestmark = pytest.mark.full
DAEMONSETS = "/apis/apps/v1/namespaces/default/daemonsets"
NAME, THEIRS = "nvidia-dra-driver-gpu-kubelet-plugin", "gpu.nvidia.com"
VARIABLES: Object = {"scheduler_layout": "none", "gpu_mode": "dra", "gpu_plugins_drain": True}


@pytest.fixture(scope="module")
def books(start: Start) -> Iterator[Playbooks]:
    """A node with a driver and a configured runtime, which NVIDIA's DRA driver serves."""
    books = start(Spec("control", (NodeSpec("gpu-a", "t4"),)))
    done = books.run("accel.kubernetes.site", "--tags", "driver,container_runtime", **VARIABLES)
    assert done.code == 0, done.output
    api = Api(books.cluster.kubeconfig)
    container = {"name": "gpus", "image": "x", "command": ["sh", "-c", "exec sleep 100000 # gpu-kubelet-plugin"]}
    labels = {"app": NAME}
    spec: Object = {"selector": {"matchLabels": labels}, "updateStrategy": {"type": "RollingUpdate"}}
    spec["template"] = {"metadata": {"labels": labels}, "spec": {"containers": [container]}}
    api.create(DAEMONSETS, {"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {"name": NAME}, "spec": spec})
    stopped = threading.Event()
    kubelet = threading.Thread(target=keep_slices, args=(api, stopped))
    kubelet.start()
    until(lambda: offering(api) == {THEIRS}, "NVIDIA's DRA driver to serve")
    yield books
    stopped.set()
    kubelet.join()


def keep_slices(api: Api, stopped: threading.Event) -> None:
    """Have a slice of the driver as long as a pod of it is there."""
    spec = {"driver": THEIRS, "nodeName": "gpu-a", "pool": {"name": "gpu-a", "generation": 1, "resourceSliceCount": 1}}
    spec |= {"devices": [{"name": "gpu-0"}]}
    body = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": "theirs"}, "spec": spec}
    while not stopped.wait(0.5):
        if api.get(f"{PODS}?labelSelector=app%3D{NAME}")["items"]:
            api.call("POST", SLICES, body)
        else:
            api.call("DELETE", f"{SLICES}/theirs")


def offering(api: Api) -> set[str]:
    """The drivers with devices of the node."""
    return {item["spec"]["driver"] for item in api.get(SLICES)["items"] if item["spec"].get("devices")}


@pytest.fixture
def holder(api: Api) -> Iterator[str]:
    """The name of a pod with a claim for NVIDIA's driver."""
    request = {"name": "gpu", "exactly": {"deviceClassName": THEIRS, "count": 1}}
    claim = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": "train"}}
    api.create(CLAIMS, claim | {"spec": {"devices": {"requests": [request]}}})
    body = pod("train", "sleep", "1000", container={"resources": {"claims": [{"name": "gpu"}]}})
    body["spec"]["resourceClaims"] = [{"name": "gpu", "resourceClaimName": "train"}]
    api.create(PODS, body)
    until(lambda: api.get(f"{PODS}/train")["status"].get("phase") == "Running", "the pod with a claim to run")
    yield "default/train"
    for path in (f"{PODS}/train", f"{CLAIMS}/train"):
        api.call("DELETE", path)


def migrate(books: Playbooks, *options: str, **variables: object) -> Run:
    return books.run("accel.kubernetes.migrate", *options, **VARIABLES | variables)


def test_pods_with_claims_are_told_what_to_ask_for(books: Playbooks, holder: str) -> None:
    found = state(books.cluster)
    refused = migrate(books)
    assert refused.code != 0
    assert f"{holder} main asks for {THEIRS}: 1, and must ask for gpu.kube-accel.io: 1" in refused.output
    assert f"so they would stay pending after an eviction: {holder}" in refused.messages
    assert (refused.changed, state(books.cluster)) == (0, found)


def test_node_is_taken_over_and_given_back(books: Playbooks, api: Api, holder: str) -> None:
    forced = {"migrate_strand": True, "gpu_plugins_drain_force": True}
    found = state(books.cluster)
    dry = migrate(books, "--check", **forced)
    assert dry.code == 0, dry.output
    assert f"Would evict {holder}" in dry.output
    assert "gpu-a: served by another plugin, from NVIDIA's DRA driver, and would be migrated" in dry.output
    assert state(books.cluster) == found

    done = migrate(books, **forced)
    assert done.code == 0, done.output
    assert api.call("GET", f"{PODS}/train")[0] == 404
    assert offering(api) == {"gpu.kube-accel.io"}
    assert api.get("/api/v1/nodes/gpu-a")["metadata"]["labels"]["nvidia-device-enable"] == "dra"
    again = migrate(books)
    assert (again.code, again.changed) == (0, 0), again.output

    back = migrate(books, migrate_back=True)
    assert back.code == 0, back.output
    assert offering(api) == {THEIRS}
    labels = api.get("/api/v1/nodes/gpu-a")["metadata"]["labels"]
    assert not {"nvidia-device-enable", "kube-accel.io/migrated-from"} & labels.keys()
    affinity = api.get(f"{DAEMONSETS}/{NAME}")["spec"]["template"]["spec"].get("affinity")
    assert affinity is None
