# SPDX-License-Identifier: Apache-2.0
"""In which order the policies have nodes: by example, and beside a reference that looks at every GPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from kube_accel.model import Assignment, ContainerRequest, GpuConstraints, Mode, PlacementPolicy, PodRequest
from kube_accel.placement.choose import GpuView, place
from kube_accel.placement.rank import LAST, Rank, left_of, left_with, points, rank
from kube_accel.placement.room import Room
from unit.kube_accel.placement.test_choose import (
    BINPACK,
    GIB,
    SPREAD,
    board,
    gpu,
    pod,
    pods,
    share,
    view,
    views_of,
    whole,
)

Node = Sequence[GpuView]


def stand(request: PodRequest, node: Node, closeness: float | None = None) -> Rank:
    room = Room.of(node, request.mode)
    (container,) = request.containers
    return rank(request, room, left_of(container, room, request.mode), closeness)


def best(request: PodRequest, *nodes: Node) -> int:
    """Position of the best of these nodes, of which no two are equal."""
    ranks = [stand(request, node) for node in nodes]
    assert len(set(ranks)) == len(ranks)
    return ranks.index(max(ranks))


EMPTY, HALF, FULL = board((0, 0), (0, 0)), board((50, 40), (50, 40)), board((80, 64), (80, 64))


@pytest.mark.parametrize(
    ("request_", "expected"),
    [
        (pod(share(20, 16)), [EMPTY, HALF, FULL]),
        (pod(share(20, 16), policy=SPREAD), [FULL, HALF, EMPTY]),
        (pod(share(0, 16), mode=Mode.CGPU), [EMPTY, HALF, FULL]),
        (pod(share(0, 16), mode=Mode.CGPU, policy=SPREAD), [FULL, HALF, EMPTY]),
    ],
)
def test_binpack_prefers_the_full_node_and_spread_the_empty_one(request_: PodRequest, expected: list[Node]) -> None:
    assert sorted((EMPTY, HALF, FULL), key=lambda node: stand(request_, node)) == expected


@pytest.mark.parametrize("policy", [BINPACK, SPREAD])
@pytest.mark.parametrize("request_", [pod(share(1, 1)), pod(share(100, 80)), pod(whole(1))])
def test_one_percent_in_use_tells_a_node_from_an_untouched_one(request_: PodRequest, policy: PlacementPolicy) -> None:
    small = [view(0, of=gpu(0, memory=16, model="Tesla T4"))]
    in_use = board((1, 1), *[(0, 0)] * 7)
    asked = replace(request_, policy=policy)
    assert (stand(asked, in_use) > stand(asked, small)) is (policy is BINPACK)
    assert (stand(asked, in_use) > stand(asked, board(*[(0, 0)] * 8))) is (policy is BINPACK)


def test_a_share_uses_up_a_gpu_or_breaks_none() -> None:
    asked = pod(share(30, 8))
    assert best(asked, board((60, 40), (90, 70)), board((70, 10), (0, 0))) == 1, "it uses up the cores of a GPU"
    assert best(asked, board((80, 40), (80, 40), (0, 0)), board((10, 10), (0, 0), (0, 0))) == 1, "it breaks none"
    assert best(asked, board((60, 40), (90, 40)), board((60, 40), (10, 10))) == 0, "the fullest"


def test_whole_gpus_go_where_the_fewest_others_are() -> None:
    assert best(pod(whole(1)), board((10, 8), (10, 8), (0, 0)), board((100, 80), (0, 0), (0, 0))) == 0
    assert best(pod(whole(2)), board((10, 8), (0, 0), (0, 0), (0, 0)), board((10, 8), (10, 8), (0, 0), (0, 0))) == 1


@pytest.mark.parametrize("policy", [BINPACK, SPREAD])
def test_well_connected_gpus_outweigh_the_policy(policy: PlacementPolicy) -> None:
    request = pod(whole(2), policy=policy)
    nodes = (board(*[(0, 0)] * 4), board(*[(0, 0)] * 2, *[(100, 80)] * 2))
    assert all(stand(request, near, 0.9) > stand(request, far, 0.3) for near in nodes for far in nodes)
    assert len({stand(request, node, 0.9) for node in nodes}) == 2, "of equally connected ones the policy decides"


def key(request: PodRequest, node: Node) -> tuple[float, ...]:
    """The order of the policies, spelled out over every GPU of a node that has room."""
    (container,) = request.containers
    usable = [each for each in node if not each.obstacle and not each.gpu.mig_enabled]
    untouched = [each for each in usable if each.untouched]
    card = sum(each.gpu.memory_bytes for each in usable) // len(usable)
    cores = sum(100 - each.free_cores for each in usable) + (100 * container.whole or container.cores)
    memory = sum(card - each.free_memory for each in usable) + (card * container.whole or container.memory_bytes)
    full = round((cores / 100 + memory / card) / len(usable) / 2, 6)
    in_use = len(untouched) < len(usable)
    if request.policy is SPREAD:
        return (not in_use, -full)
    if container.whole:
        return (in_use, -len(untouched), full)
    fit = [each for each in usable if each.free_cores >= container.cores and each.free_memory >= container.memory_bytes]
    used = [each for each in fit if not each.untouched]
    uses_up = any(each.free_cores == container.cores for each in used)
    return (in_use, uses_up, bool(used), full)


def boards() -> st.SearchStrategy[Node]:
    use = st.one_of(
        st.just((0, 0)), st.tuples(st.integers(1, 20), st.integers(1, 15)).map(lambda t: (t[0] * 5, t[1] * 5))
    )
    return st.lists(use, min_size=1, max_size=8).map(lambda used: board(*used))


@given(
    st.lists(boards(), min_size=2, max_size=6),
    st.one_of(
        st.integers(1, 4).map(whole),
        st.tuples(st.integers(1, 19), st.integers(1, 15)).map(lambda t: share(t[0] * 5, t[1] * 5)),
    ),
    st.sampled_from([BINPACK, SPREAD]),
)
def test_nodes_are_in_the_order_that_is_told(
    nodes: list[Node], container: ContainerRequest, policy: PlacementPolicy
) -> None:
    request = pod(container, policy=policy)
    fit = [node for node in nodes if Room.of(node, request.mode).fits(request)]
    assume(len(fit) > 1)
    for one in fit:
        for other in fit:
            if key(request, one) > key(request, other):
                assert stand(request, one) > stand(request, other)


@given(views_of(), pods())
def test_the_quick_way_and_placement_leave_the_same(views: list[GpuView], request: PodRequest) -> None:
    request = replace(request, containers=request.containers[:1], constraints=GpuConstraints(), policy=BINPACK)
    views = [replace(each, gpu=replace(each.gpu, memory_bytes=80 * GIB)) for each in views]
    views = [each for each in views if not each.doubtful]
    if request.mode is Mode.CGPU:
        views = [replace(each, used=replace(each.used, cores=0)) for each in views]
    room = Room.of(views, request.mode)
    assume(room.fits(request))
    found = place(request, views, "n")
    assert isinstance(found, Assignment)
    assert left_of(request.containers[0], room, request.mode) == pytest.approx(left_with(request, found, views))


def test_points_are_ten_for_the_best_alone() -> None:
    ranks: dict[str, Rank] = {"c": (2.0,), "b": (2.0,), "a": (1.0,), "z": (0.0,), "last": LAST}
    assert points(ranks, BINPACK) == {"b": 10, "c": 9, "a": 6, "z": 3, "last": 0}
    assert points(ranks, SPREAD) == {"b": 10, "c": 10, "a": 6, "z": 3, "last": 0}
    assert points({"b": (1.0,), "a": (1.0,)}, BINPACK) == {"a": 10, "b": 9}
    assert points({}, BINPACK) == {}


@given(st.dictionaries(st.text(max_size=3), st.tuples(st.floats(0, 1)), min_size=1), st.sampled_from(PlacementPolicy))
def test_points_keep_the_order_of_ranks(ranks: dict[str, Rank], policy: PlacementPolicy) -> None:
    found = points(ranks, policy)
    assert set(found.values()) <= set(range(11))
    assert ranks[max(found, key=lambda name: found[name])] == max(ranks.values())
    assert all(found[one] >= found[other] for one in ranks for other in ranks if ranks[one] > ranks[other])
    assert all(found[name] < 10 for name in ranks if ranks[name] < max(ranks.values()))
