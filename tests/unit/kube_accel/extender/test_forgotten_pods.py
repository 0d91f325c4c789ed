# SPDX-License-Identifier: Apache-2.0
"""Pods that the API server has forgotten and kubelet has not: what they hold is taken until kubelet lets go of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from kube_accel.sharing import assignment
from kube_accel.sharing.inventory_annotation import Holding
from unit.kube_accel.extender.world import GIB, Api, Clock, Extender, node_object, pod_object, share, taken, uuid

NODE = "n1"
RUNS = {"phase": "Running", "containerStatuses": [{"name": "main", "state": {"running": {}}}]}
ENDED = {"phase": "Running", "containerStatuses": [{"name": "main", "state": {"terminated": {"exitCode": 0}}}]}


def holding(name: str, cores: int = 60) -> Holding:
    return Holding("team", name, "main", cores, 8 * GIB)


class Cluster:
    """One node of two GPUs whose plugin tells what it is told to."""

    def __init__(self) -> None:
        self.api = Api()
        self.extender = Extender(self.api)
        self.clock = Clock()
        self.extender.cluster._clock = self.clock
        self.tell()

    def tell(self, *held: Holding, gpu: int = 0) -> None:
        self.extender.cluster.keep_node(node_object(NODE, gpus=2, held={uuid(NODE, gpu): held} if held else {}))

    def schedule(self, name: str, cores: int = 60, **metadata: Any) -> str:
        pod = self.api.create(pod_object(name, share(cores, 8)))
        pod["metadata"] |= metadata
        self.extender.listen()
        found = self.extender.schedule(pod, NODE)
        self.extender.listen()
        return found

    def delete(self, name: str, status: Mapping[str, Any], **metadata: Any) -> None:
        """The API server has it no more; the watch tells of it as it was then."""
        self.api.pods[name]["status"] = dict(status)
        self.api.pods[name]["metadata"] |= metadata
        self.api.delete(name)
        self.extender.listen()

    def gpus(self) -> list[str]:
        return sorted(taken(self.api))


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


def test_unknown_pods_holdings_are_taken_and_named(cluster: Cluster) -> None:
    cluster.extender.cluster.keep_node(
        node_object(NODE, gpus=2, held={uuid(NODE, gpu): (holding("ghost", 100 - gpu),) for gpu in (0, 1)})
    )
    reason = cluster.schedule("p")
    assert "best has 1 percent" in reason
    assert (
        "; team/ghost, which the API server no longer has, still holds GPUs: end its containers on the node" in reason
    )
    cluster.tell(holding("ghost"), gpu=1)
    assert cluster.extender.schedule(cluster.api.pods["p"], NODE) == ""
    assert cluster.gpus() == [uuid(NODE, 0)]


@pytest.mark.parametrize(
    ("status", "metadata"),
    [
        (RUNS, {"deletionGracePeriodSeconds": 0}),
        ({"phase": "Pending"}, {"deletionGracePeriodSeconds": 0}),
        ({"phase": "Pending"}, {"deletionGracePeriodSeconds": 30}),
    ],
)
def test_pod_deleted_by_force_holds_its_gpu_until_reported_free(
    cluster: Cluster, status: Mapping[str, Any], metadata: Mapping[str, Any]
) -> None:
    assert cluster.schedule("old") == ""
    cluster.tell(holding("old"))
    cluster.delete("old", status, **metadata)
    assert [cluster.schedule("new"), cluster.gpus()] == ["", [uuid(NODE, 1)]]
    assert "team/old, which the API server no longer has" in cluster.schedule("third")
    cluster.tell(holding("new"), gpu=1)
    assert cluster.extender.schedule(cluster.api.pods["third"], NODE) == ""


@pytest.mark.parametrize(
    ("status", "metadata"),
    [
        (RUNS, {}),
        (RUNS, {"deletionGracePeriodSeconds": 30}),
        (ENDED, {"deletionGracePeriodSeconds": 0}),
        ({**RUNS, "phase": "Failed"}, {"deletionGracePeriodSeconds": 0}),
        ({"phase": "Pending", "initContainerStatuses": [{"name": "i", "state": {"terminated": {}}}]}, {}),
    ],
)
def test_ended_pods_gpus_are_free_before_its_plugin_reports(
    cluster: Cluster, status: Mapping[str, Any], metadata: Mapping[str, Any]
) -> None:
    assert cluster.schedule("old") == ""
    cluster.tell(holding("old"))
    assert cluster.schedule("other") == ""
    cluster.delete("old", status, **metadata)
    assert cluster.schedule("new") == ""
    assert uuid(NODE, 0) in taken(Api(pods={"new": cluster.api.pods["new"]}))


def test_what_was_missed_counts_as_held(cluster: Cluster) -> None:
    """A list does not say how a pod has gone."""
    assert cluster.schedule("old") == ""
    cluster.tell(holding("old"))
    cluster.extender.sink.lose("uid-old")
    del cluster.api.pods["old"]
    assert [cluster.schedule("new"), cluster.gpus()] == ["", [uuid(NODE, 1)]]


def test_namesake_on_another_node_does_not_hide_holdings(cluster: Cluster) -> None:
    cluster.tell(holding("web-0"))
    cluster.extender.cluster.keep_node(node_object("n2"))
    pod = cluster.api.create(pod_object("web-0", share(60, 8)))
    cluster.extender.listen()
    assert cluster.extender.schedule(pod, "n2") == ""
    cluster.extender.listen()
    assert [cluster.schedule("new"), uuid(NODE, 1) in cluster.gpus()] == ["", True]
    assert "team/web-0" in cluster.schedule("third")


def test_victims_are_gone_and_forgotten_pods_stay(cluster: Cluster) -> None:
    cluster.tell(holding("ghost"), gpu=1)
    assert cluster.schedule("low") == ""
    cluster.extender.cluster.keep_node(
        node_object(NODE, gpus=2, held={uuid(NODE, 0): (holding("low"),), uuid(NODE, 1): (holding("ghost"),)})
    )
    pod = pod_object("high", share(60, 8), priority=10)
    body = {"Pod": pod, "NodeNameToMetaVictims": {NODE: {"Pods": [{"UID": "uid-low"}]}}}
    answer = cluster.extender.call("preemption", body)["NodeNameToMetaVictims"]
    assert answer[NODE]["Pods"] == [{"UID": "uid-low"}]
    whole = {**body, "Pod": pod_object("whole", {"tencent.com/vcuda-core": "200"}, priority=10)}
    assert cluster.extender.call("preemption", whole)["NodeNameToMetaVictims"] == {}


@dataclass
class Allocated:
    """What kubelet has given to a pod."""

    name: str
    gpu: str
    cores: int
    told: bool = False
    """The node's plugin has told of it."""


class Node(RuleBasedStateMachine):
    """Pods come, end, or are deleted by force, and come again under the same name; the plugin tells of it late."""

    names = st.sampled_from(["web-0", "web-1"])

    def __init__(self) -> None:
        super().__init__()
        self.cluster = Cluster()
        self.held: dict[str, Allocated] = {}
        """By UID."""
        self.made = 0

    @property
    def pods(self) -> dict[str, dict[str, Any]]:
        """By UID, as the API server has them."""
        return {pod["metadata"]["uid"]: pod for pod in self.cluster.api.pods.values()}

    @rule(name=names, cores=st.sampled_from([30, 60]))
    def comes(self, name: str, cores: int) -> None:
        pod = self.cluster.api.pods.get(name)
        if pod is None:
            pod = pod_object(name, share(cores, 8))
            pod["metadata"]["uid"] = f"uid-{self.made}"
            self.made += 1
            self.cluster.api.create(pod)
            self.cluster.extender.listen()
        if not pod["spec"].get("nodeName"):
            self.cluster.extender.schedule(pod, NODE)
            self.cluster.extender.listen()

    @rule()
    def kubelet_admits(self) -> None:
        """Whatever is bound, for which there must be room."""
        for uid, pod in self.pods.items():
            if pod["spec"].get("nodeName") and uid not in self.held:
                stated = assignment.decode(pod["metadata"]["annotations"][assignment.ANNOTATION])
                [entry] = stated.containers["main"]
                self.held[uid] = Allocated(pod["metadata"]["name"], entry.uuid, entry.cores)
                assert self.used()[entry.uuid] <= 100, "UnexpectedAdmissionError"

    @rule()
    def kubelet_starts(self) -> None:
        for uid, pod in self.pods.items():
            if uid in self.held and pod["status"] != RUNS:
                pod["status"] = dict(RUNS)
                self.cluster.api.annotate(pod["metadata"]["name"], {})
        self.cluster.extender.listen()

    @rule()
    def the_plugin_tells(self) -> None:
        told: dict[str, tuple[Holding, ...]] = {}
        for held in self.held.values():
            told[held.gpu] = (*told.get(held.gpu, ()), holding(held.name, held.cores))
            held.told = True
        self.cluster.extender.cluster.keep_node(node_object(NODE, gpus=2, held=told))

    @rule(name=names)
    def is_deleted_by_force(self, name: str) -> None:
        for uid, pod in self.pods.items():
            if pod["metadata"]["name"] == name and uid in self.held and self.held[uid].told:
                self.cluster.delete(name, pod["status"], deletionGracePeriodSeconds=0)

    @rule(name=names)
    def ends(self, name: str) -> None:
        for uid, pod in self.pods.items():
            if pod["metadata"]["name"] == name and self.held.pop(uid, None) is not None:
                self.cluster.delete(name, RUNS)

    @rule()
    def kubelet_is_done_with_who_is_forgotten(self) -> None:
        for uid in self.held.keys() - self.pods.keys():
            del self.held[uid]

    def teardown(self) -> None:
        """Once all is told, what is free is free."""
        self.kubelet_is_done_with_who_is_forgotten()
        self.kubelet_admits()
        self.kubelet_starts()
        self.cluster.clock.now += 3600
        self.the_plugin_tells()
        view = self.cluster.extender.cluster.nodes[NODE].view()
        assert view is not None
        assert {gpu.gpu.uuid: gpu.used.cores for gpu in view.gpus if gpu.used.cores} == dict(self.used())

    def used(self) -> Counter[str]:
        """Cores that kubelet has given out, by UUID."""
        used = Counter[str]()
        for held in self.held.values():
            used[held.gpu] += held.cores
        return used


Node.TestCase.settings = settings(max_examples=200, stateful_step_count=30, deadline=None)
test_kubelet_has_room_for_whatever_is_bound = Node.TestCase
