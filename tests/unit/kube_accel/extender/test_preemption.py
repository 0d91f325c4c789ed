# SPDX-License-Identifier: Apache-2.0
"""Who is evicted: no pod that need not go, and the important ones last, as kube-scheduler has it."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kube_accel.extender.pods import requested
from unit.kube_accel.extender.world import Api, Extender, node_object, pod_object, share

NODE = "n1"
HIGH = 100
"""Priority of the pod that others are evicted for."""


def with_requests(pod: dict[str, Any], **requests: str) -> dict[str, Any]:
    pod["spec"]["containers"][0]["resources"]["requests"] = requests
    return pod


class World:
    """A node whose pods are bound by the extender itself, one after the other."""

    def __init__(self, gpus: int) -> None:
        self.gpus = gpus
        self.api = Api()
        self.extender = Extender(self.api)
        self.extender.cluster.keep_node(node_object(NODE, gpus=gpus))

    def bind(self, pod: dict[str, Any]) -> bool:
        self.api.create(pod)
        self.extender.listen()
        bound = self.extender.schedule(pod, NODE) == ""
        if not bound:
            self.api.delete(pod["metadata"]["name"])
        self.extender.listen()
        return bound

    def pods(self) -> dict[str, dict[str, Any]]:
        """By UID; the most important first."""
        found = sorted(self.api.pods.values(), key=lambda pod: -pod["spec"]["priority"])
        return {pod["metadata"]["uid"]: pod for pod in found}

    def has_room(self, pod: dict[str, Any], without: Collection[str]) -> bool:
        """Whether the node passes once these are gone, as an extender has it that never heard of them."""
        extender = Extender(Api())
        extender.cluster.keep_node(node_object(NODE, gpus=self.gpus))
        for uid, other in self.pods().items():
            if uid not in without:
                extender.cluster.keep_pod(other)
        return bool(extender.filter(pod, NODE)["NodeNames"])

    def victims(self, pod: dict[str, Any], told: list[str], violations: int = 0) -> list[str] | None:
        given = {"Pods": [{"UID": uid} for uid in told], "NumPDBViolations": violations}
        body = {"Pod": pod, "NodeNameToMetaVictims": {NODE: given}}
        answer = self.extender.call("preemption", body)["NodeNameToMetaVictims"]
        if NODE not in answer:
            return None
        assert answer[NODE]["NumPDBViolations"] <= min(violations, len(answer[NODE]["Pods"]))
        return [entry["UID"] for entry in answer[NODE]["Pods"]]

    def kube_schedulers_choice(self, asks: tuple[int, int], protected: Collection[str]) -> list[str] | None:
        """``SelectVictimsOnNode``, by sums over the node: who can stay is found by importance, the protected first."""
        uids = list(self.pods())
        order = [uid for uid in uids if uid in protected] + [uid for uid in uids if uid not in protected]
        stay: list[str] = []
        if not self._in_sum(asks, stay):
            return None
        victims = []
        for uid in order:
            if self._in_sum(asks, [*stay, uid]):
                stay.append(uid)
            else:
                victims.append(uid)
        return sorted(victims, key=uids.index)

    def _in_sum(self, asks: tuple[int, int], stay: Collection[str]) -> bool:
        found = [(asks[0], asks[1] * 4)]
        for uid in stay:
            limits = self.pods()[uid]["spec"]["containers"][0]["resources"]["limits"]
            found.append((int(limits["tencent.com/vcuda-core"]), int(limits["tencent.com/vcuda-memory"])))
        cores, units = (sum(amounts) for amounts in zip(*found, strict=True))
        return cores <= 100 * self.gpus and units <= 80 * 4 * self.gpus


def subsets(uids: Collection[str]) -> Iterator[tuple[str, ...]]:
    """All proper ones."""
    return itertools.chain.from_iterable(itertools.combinations(uids, size) for size in range(len(uids)))


AMOUNTS = st.tuples(st.sampled_from([10, 20, 30, 50, 60, 90]), st.sampled_from([1, 8, 20, 40]))


@settings(max_examples=120, deadline=None)
@given(
    gpus=st.integers(1, 3),
    running=st.lists(st.tuples(AMOUNTS, st.integers(0, 3)), min_size=1, max_size=7),
    asks=AMOUNTS | st.sampled_from([(100, 0), (200, 0)]),
    data=st.data(),
)
def test_no_victim_could_stay_and_the_important_stay(
    gpus: int, running: list[tuple[tuple[int, int], int]], asks: tuple[int, int], data: st.DataObject
) -> None:
    world = World(gpus)
    for number, (amounts, priority) in enumerate(running):
        world.bind(pod_object(f"p{number}", share(*amounts), priority=priority))
    pod = pod_object("high", share(*asks), priority=HIGH)
    uids = list(world.pods())
    protected = data.draw(st.sets(st.sampled_from(uids)) if uids else st.just(set[str]()))
    told = world.kube_schedulers_choice(asks, protected)
    if told is None or world.has_room(pod, ()):
        return
    if data.draw(st.booleans(), label="others are given, as after news that kube-scheduler has not heard"):
        told = data.draw(st.lists(st.sampled_from(uids), unique=True))
        protected = uids
    found = world.victims(pod, told, len(set(told) & set(protected)))
    if found is None:
        assert not world.has_room(pod, uids)
        return
    assert found
    assert world.has_room(pod, found)
    assert [less for less in subsets(found) if world.has_room(pod, less)] == []
    priorities = [world.pods()[uid]["spec"]["priority"] for uid in found]
    assert priorities == sorted(priorities, reverse=True), "kube-scheduler takes the first for the most important"
    if world.has_room(pod, told) and not any(world.has_room(pod, less) for less in subsets(told)):
        assert set(found) == set(told)
    if not protected:
        others = [set(uids), *map(set, subsets(uids))]
        enough = [other for other in others if world.has_room(pod, other)]
        assert priorities[0] == min(max(world.pods()[uid]["spec"]["priority"] for uid in other) for other in enough)


@pytest.fixture
def halves() -> World:
    """Two GPUs with two halves each: l0 and l1 on one, l2 and l3 on the other."""
    world = World(2)
    for number in range(4):
        assert world.bind(with_requests(pod_object(f"l{number}", share(50, 8), priority=1), cpu=f"{1 + number % 2}"))
    return world


def test_given_victim_on_another_gpu_is_spared(halves: World) -> None:
    pod = pod_object("high", share(60, 8), priority=HIGH)
    assert halves.victims(pod, ["uid-l0", "uid-l3"]) == ["uid-l3", "uid-l2"]
    assert halves.victims(pod, ["uid-l2", "uid-l0"]) == ["uid-l2", "uid-l3"]


def test_who_goes_for_processors_goes(halves: World) -> None:
    """Whether there is room for these kube-scheduler alone knows."""
    pod = pod_object("high", share(60, 8), priority=HIGH)
    assert sorted(halves.victims(pod, ["uid-l1", "uid-l3"]) or ()) == ["uid-l1", "uid-l2", "uid-l3"]
    assert halves.victims(pod, ["uid-web", "uid-l3"]) == ["uid-web", "uid-l3", "uid-l2"]
    small = World(2)
    assert small.bind(with_requests(pod_object("cpu", share(10, 1), priority=1), cpu="500m"))
    assert small.victims(pod, ["uid-cpu"]) == ["uid-cpu"], "a GPU has room as it is"


def test_protected_pods_are_evicted_only_as_a_last_resort() -> None:
    world = World(2)
    for name, priority in (("a", 3), ("b", 1), ("c", 1), ("d", 2)):
        assert world.bind(pod_object(name, share(50, 8), priority=priority))
    pod = pod_object("high", share(60, 8), priority=HIGH)
    # a and b are on one GPU, c and d on the other; a disruption budget keeps kube-scheduler from c.
    assert world.victims(pod, ["uid-a", "uid-b"]) == ["uid-a", "uid-b"]
    assert world.victims(pod, ["uid-d", "uid-b"]) == ["uid-d", "uid-c"]


def test_other_requests_count_as_kube_scheduler_counts_them() -> None:
    def container(policy: str = "", **requests: object) -> dict[str, Any]:
        return {"restartPolicy": policy, "resources": {"requests": requests}}

    spec = {
        "initContainers": [container(cpu="3"), container("Always", cpu="500m", memory="1Gi"), container(cpu="4")],
        "containers": [container(cpu="1", gpu="1"), container(cpu=1, memory="1k", odd="many"), 7, {"resources": []}],
        "overhead": {"cpu": "250m"},
    }
    assert requested(spec, {"gpu"}) == (("cpu", 4750), ("memory", (1 << 30) * 1000 + 1_000_000), ("odd", 0))
    assert requested({"containers": "none", "overhead": 1}, ()) == ()
