# SPDX-License-Identifier: Apache-2.0
"""Whatever pods kubelet admits in whatever order, each is steered to one GPU, and to its own when that can be known."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kube_accel.model import ContainerKind, ContainerRequest, Mode, PodRequest
from kube_accel.placement.topology import Connectivity
from kube_accel.plugin.allocation.call_matcher import Call, CallMatcher, NodeGpus, PendingPod
from kube_accel.sharing.fraction import Kind, device_ids, gpu_of
from kube_accel.sharing.profile import PROFILES
from unit.kube_accel.plugin.fakes import ready, uuid

UNIT = PROFILES[Mode.VGPU].memory_unit_bytes


class Node:
    """Kubelet's side of the calls, for one mode."""

    def __init__(self, count: int, mode: Mode = Mode.VGPU, seed: int = 0) -> None:
        self.profile = PROFILES[mode]
        self.random = random.Random(seed)
        snapshot = ready(count)
        assert snapshot.inventory is not None
        self.gpus = NodeGpus(snapshot.inventory, snapshot.health, Connectivity.of(snapshot.inventory))
        self.matcher = CallMatcher(self.profile)
        self.kinds = [Kind.CORES, Kind.MEMORY] if self.profile.core_resource else [Kind.MEMORY]
        self.rows = {
            kind: {gpu.uuid: frozenset(device_ids(gpu, kind, self.profile)) for gpu in snapshot.inventory.gpus}
            for kind in self.kinds
        }
        self.free = {kind: set[str]().union(*self.rows[kind].values()) for kind in self.kinds}

    def amounts(self, container: ContainerRequest) -> dict[Kind, int]:
        unit = self.profile.memory_unit_bytes
        found = {Kind.CORES: container.cores or 100 * container.whole, Kind.MEMORY: container.memory_bytes // unit}
        return {kind: size for kind, size in found.items() if size and kind in self.kinds}

    def prefer(self, kind: Kind, size: int, pods: Sequence[PendingPod], required: set[str]) -> set[str]:
        call = Call.of(kind, size, self.rows[kind], frozenset(self.free[kind] | required), frozenset(required))
        answer = (
            self.matcher.match(call, pods, self.gpus)
            or self.matcher.match(call, pods, self.gpus, strict=False)
            or self.matcher.choose(call, self.gpus)
        )
        assert set(answer) <= self.free[kind] | required
        assert not answer or (len(answer) == len(set(answer)) == size and required <= set(answer))
        return set(answer)

    def admit(
        self, pod: PendingPod, pods: Sequence[PendingPod], stop_after: int = 1000
    ) -> dict[str, dict[Kind, set[str]]]:
        """What each container got. ``stop_after`` so many calls the pod fails, and gives everything back."""
        got: dict[str, dict[Kind, set[str]]] = {}
        reusable: dict[Kind, set[str]] = {kind: set() for kind in self.kinds}
        taken: dict[Kind, set[str]] = {kind: set() for kind in self.kinds}
        calls = 0
        for container in pod.request.containers:
            got[container.name] = {}
            wanted = self.amounts(container)
            for kind in self.random.sample(sorted(wanted), len(wanted)):
                calls += 1
                if calls > stop_after:
                    for each, ids in taken.items():
                        self.free[each] |= ids
                    return {}
                required = set(self.random.sample(sorted(reusable[kind]), min(wanted[kind], len(reusable[kind]))))
                ids = required
                if len(required) < wanted[kind]:
                    ids = self.prefer(kind, wanted[kind], pods, required)
                if not ids:
                    for each, gone in taken.items():
                        self.free[each] |= gone
                    return {}
                self.matcher.granted(kind, ids)
                self.free[kind] -= ids
                taken[kind] |= ids
                got[container.name][kind] = ids
            for kind, ids in got[container.name].items():
                lends = container.kind is ContainerKind.INIT
                reusable[kind] = reusable[kind] | ids if lends else reusable[kind] - ids
        return got


def share(name: str, cores: int, units: int, kind: ContainerKind = ContainerKind.APP) -> ContainerRequest:
    return ContainerRequest(name, kind, cores=cores, memory_bytes=units * UNIT)


def pending(name: str, *containers: ContainerRequest, gpus: Sequence[int] | None) -> PendingPod:
    """``gpus``: the one assigned to each container."""
    assigned = gpus and {entry.name: (uuid(gpu),) for entry, gpu in zip(containers, gpus, strict=True)}
    return PendingPod(name, PodRequest(Mode.VGPU, containers, memory_unit=UNIT), assigned or None)


def one_gpu(devices: dict[Kind, set[str]]) -> str:
    (found,) = {gpu_of(device) for ids in devices.values() for device in ids}
    return found


CONTAINER = st.tuples(st.sampled_from((5, 6)), st.sampled_from((8, 16)))
"""All containers of a test fit on one GPU together."""
POD = st.lists(st.tuples(CONTAINER, st.integers(0, 3)), min_size=1, max_size=3)


@settings(max_examples=150)
@given(pods=st.lists(POD, min_size=1, max_size=4), seed=st.integers(0, 1 << 16))
def test_pods_in_bind_order_get_what_they_were_assigned(
    pods: list[list[tuple[tuple[int, int], int]]], seed: int
) -> None:
    node = Node(4, seed=seed)
    known = [
        pending(f"p{n}", *(share(f"c{i}", *amounts) for i, (amounts, _) in enumerate(pod)), gpus=[g for _, g in pod])
        for n, pod in enumerate(pods)
    ]
    for pod in known:
        assert pod.assigned is not None
        for name, devices in node.admit(pod, known).items():
            assert one_gpu(devices) == pod.assigned[name][0]


@settings(max_examples=150)
@given(
    pods=st.lists(POD, min_size=1, max_size=5),
    seed=st.integers(0, 1 << 16),
    fails=st.lists(st.integers(1, 6), max_size=3),
    data=st.data(),
)
def test_share_is_of_one_gpu_in_any_order_with_failures(
    pods: list[list[tuple[tuple[int, int], int]]], seed: int, fails: list[int], data: st.DataObject
) -> None:
    node = Node(4, seed=seed)
    known = [
        pending(f"p{n}", *(share(f"c{i}", *amounts) for i, (amounts, _) in enumerate(pod)), gpus=[g for _, g in pod])
        for n, pod in enumerate(pods)
    ]
    for number, pod in enumerate(data.draw(st.permutations(known))):
        if number < len(fails):
            node.admit(pod, known, stop_after=fails[number])
        for devices in node.admit(pod, known).values():
            one_gpu(devices)


@settings(max_examples=100)
@given(
    pods=st.lists(st.tuples(st.integers(1, 99), st.integers(1, 320)), min_size=1, max_size=12),
    seed=st.integers(0, 1 << 16),
)
def test_of_unknown_pods_each_has_one_gpu_or_none(pods: list[tuple[int, int]], seed: int) -> None:
    """Without any pod known: what could not be given together is refused as split across GPUs, never handed out."""
    node = Node(4, seed=seed)
    for number, amounts in enumerate(pods):
        container = share("main", *amounts)
        got: dict[Kind, set[str]] = {}
        split = ""
        wanted = node.amounts(container)
        for kind in node.random.sample(sorted(wanted), len(wanted)):
            ids = node.prefer(kind, wanted[kind], (), set())
            split = split or ("no room" if not ids else node.matcher.split_across_gpus(kind, ids))
            if split:
                break
            node.matcher.granted(kind, ids)
            got[kind] = ids
            node.free[kind] -= ids
        if split:
            for kind, ids in got.items():
                node.free[kind] |= ids
        else:
            one_gpu(got), number


@pytest.mark.parametrize("seed", range(8))
def test_equal_cores_and_unlike_memory_do_not_end_without_room(seed: int) -> None:
    node = Node(2, seed=seed)
    node.admit(filler := pending("filler", share("main", 10, 200), gpus=[0]), [filler])
    small = pending("small", share("main", 30, 20), gpus=[0])
    large = pending("large", share("main", 30, 250), gpus=[1])
    known = [filler, small, large]
    assert one_gpu(node.admit(large, known)["main"]) == uuid(1)
    assert one_gpu(node.admit(small, known)["main"])


@pytest.mark.parametrize("seed", range(8))
def test_what_an_init_container_had_is_kept_together(seed: int) -> None:
    node = Node(4, seed=seed)
    pod = pending(
        "stages",
        share("prepare", 40, 10, ContainerKind.INIT),
        share("app", 20, 30),
        gpus=[2, 2],
    )
    got = node.admit(pod, [pod])
    assert one_gpu(got["prepare"]) == one_gpu(got["app"]) == uuid(2)
    assert got["app"][Kind.CORES] <= got["prepare"][Kind.CORES]
    assert got["prepare"][Kind.MEMORY] <= got["app"][Kind.MEMORY]


@pytest.mark.parametrize("seed", range(8))
def test_memory_of_whole_gpus_is_of_these_gpus(seed: int) -> None:
    node = Node(4, seed=seed)
    container = ContainerRequest("main", ContainerKind.APP, whole=2, memory_bytes=300 * UNIT)
    request = PodRequest(Mode.VGPU, (container,), memory_unit=UNIT)
    pod = PendingPod("whole", request, {"main": (uuid(1), uuid(3))})
    got = node.admit(pod, [pod])["main"]
    assert {gpu_of(device) for device in got[Kind.CORES]} == {uuid(1), uuid(3)}
    assert {gpu_of(device) for device in got[Kind.MEMORY]} == {uuid(1), uuid(3)}


def test_an_assignment_with_nothing_in_it_is_made_here() -> None:
    node = Node(4)
    assigned = pending("assigned", share("main", 60, 20), gpus=[0])
    pod = node.matcher.assign(pending("free", share("a", 50, 20), share("b", 60, 20), gpus=None), [assigned], node.gpus)
    assert pod.assigned is not None
    assert len({*pod.assigned["a"], *pod.assigned["b"], uuid(0)}) == 3
