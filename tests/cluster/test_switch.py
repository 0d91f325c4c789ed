# SPDX-License-Identifier: Apache-2.0
"""A node that goes over between device plugins and the DRA driver, by the collection's own playbooks."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from cluster import images
from cluster.dra import CLAIMS, SLICES, claiming_pod
from cluster.node import GpuNode, pod
from cluster.rig import PODS, Rig, kubernetes
from cluster.runtime import needs_cdi
from cluster.site import Site
from kube_accel.shared.gpu_givers import driver_offers, plugin_offers

NODES = "/api/v1/nodes"
CORES, MEMORY, WHOLE = "tencent.com/vcuda-core", "tencent.com/vcuda-memory", "nvidia.com/gpu"
DRAINED = {"gpu_plugins_drain": True, "gpu_plugins_drain_force": True}
pytestmark = pytest.mark.usefixtures("no_pods_left")


@pytest.fixture(scope="module")
def rig(rig: Rig) -> Rig:
    if kubernetes() < (1, 36):
        pytest.skip("shares by claims and extended resources of classes are on since Kubernetes 1.36")
    needs_cdi()
    images.load(images.cuda())
    return rig


@pytest.fixture(scope="module")
def site(rig: Rig, node: GpuNode) -> Site:
    """The node after the first run, in mode vgpu."""
    site = Site(rig)
    assert site.run("site", gpu_mode="vgpu") > 0
    return site


class History:
    """What the API server has told of the node and its slices since this was made."""

    def __init__(self, rig: Rig) -> None:
        self._rig = rig
        self._listed = {path: rig.api.get(path) for path in (NODES, SLICES)}

    def givers(self) -> list[tuple[bool, bool]]:
        """Return whether a plugin and whether a driver gave the GPUs away, first to last."""
        objects = {path: {_uid(item): item for item in found["items"]} for path, found in self._listed.items()}
        events = sorted((event for path in self._listed for event in self._events(path)), key=lambda event: event[0])
        told = []
        for _, path, kind, item in [(0, NODES, "", {}), *events]:
            if kind == "DELETED":
                objects[path].pop(_uid(item), None)
            elif kind:
                objects[path][_uid(item)] = item
            (node,) = objects[NODES].values()
            now = bool(plugin_offers(node)), bool(driver_offers(objects[SLICES].values()))
            told += [now] if told[-1:] != [now] else []
        return told

    def _events(self, path: str) -> Iterator[tuple[int, str, str, dict[str, Any]]]:
        since = self._listed[path]["metadata"]["resourceVersion"]
        with self._rig.api.open("GET", f"{path}?watch=true&timeoutSeconds=2&resourceVersion={since}") as answer:
            for line in answer:
                event = json.loads(line)
                assert event["type"] != "ERROR", event
                yield int(event["object"]["metadata"]["resourceVersion"]), path, event["type"], event["object"]


def _uid(item: dict[str, Any]) -> str:
    return str(item["metadata"]["uid"])


def share(rig: Rig, name: str) -> None:
    """Create a claim of a share, and a pod with it."""
    exactly = {"deviceClassName": "share.kube-accel.io", "capacity": {"requests": {"cores": "30", "memory": "8Gi"}}}
    spec = {"devices": {"requests": [{"name": "share", "exactly": exactly}]}}
    body = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": name}, "spec": spec}
    rig.api.create(CLAIMS, body)
    rig.api.create(PODS, claiming_pod(name, name))


def gpus(rig: Rig, name: str) -> int:
    """Return how many GPUs a pod sees."""
    listed = rig.kubectl("exec", name, "--", "ls", "/dev").split()
    return sum(each.removeprefix("nvidia").isdecimal() for each in listed)


def test_node_goes_from_shares_to_claims_and_never_gives_twice(rig: Rig, node: GpuNode, site: Site) -> None:
    rig.api.create(PODS, pod("old", {CORES: "30", MEMORY: "32"}, runtimeClassName="nvidia"))
    rig.wait_running("old")
    past = History(rig)
    code, text = site.attempt("site", gpu_mode="dra")
    assert (code != 0, "these pods hold its GPUs" in text) == (True, True), text[-4000:]
    assert site.run("site", gpu_mode="dra", **DRAINED) > 0
    assert past.givers() == [(True, False), (False, False), (False, True)]
    assert rig.api.call("GET", f"{PODS}/old")[0] == 404
    share(rig, "share")
    rig.api.create(PODS, pod("whole", {WHOLE: "2"}))
    rig.wait_running("share", "whole")
    assert (gpus(rig, "share"), gpus(rig, "whole")) == (1, 2)


def test_node_goes_back_once_no_claim_has_its_gpus(rig: Rig, node: GpuNode, site: Site) -> None:
    site.run("site", gpu_mode="dra", **DRAINED)
    share(rig, "held")
    rig.wait_running("held")
    past = History(rig)
    code, text = site.attempt("switch_mode", gpu_mode="pgpu")
    assert (code != 0, "these pods hold its GPUs" in text) == (True, True), text[-4000:]
    site.run("switch_mode", gpu_mode="pgpu", **DRAINED)
    assert past.givers() == [(False, True), (False, False), (True, False)]
    rig.api.create(PODS, pod("next", {WHOLE: "1"}, runtimeClassName="nvidia"))
    rig.wait_running("next")
    rig.kubectl("delete", "resourceclaims", "--all", "--wait=true")
