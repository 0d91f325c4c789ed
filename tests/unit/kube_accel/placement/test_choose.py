# SPDX-License-Identifier: Apache-2.0
"""Which GPUs the containers of a pod get: by example, and by property on any node."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kube_accel.model import (
    Ancestor,
    Assignment,
    ContainerKind,
    ContainerRequest,
    Gpu,
    GpuConstraints,
    GpuHealth,
    GpuLink,
    GpuUse,
    Health,
    Inventory,
    Mode,
    PlacementPolicy,
    PodRequest,
    Share,
)
from kube_accel.placement.choose import GpuView, Refusal, place, usage
from kube_accel.placement.topology import Connectivity

GIB = 1 << 30
HEALTHY = GpuHealth(Health.HEALTHY)
LOST = GpuHealth(Health.UNHEALTHY, "the GPU is lost")
UNKNOWN = GpuHealth(Health.UNKNOWN)
APP, INIT, SIDECAR = ContainerKind.APP, ContainerKind.INIT, ContainerKind.SIDECAR
BINPACK, SPREAD = PlacementPolicy.BINPACK, PlacementPolicy.SPREAD


def name(index: int) -> str:
    return f"GPU-{index}"


def gpu(index: int, memory: int = 80, model: str = "NVIDIA H100", mig: bool = False) -> Gpu:
    return Gpu(name(index), index, index, model, memory * GIB, (9, 0), f"0000:{index:02x}:00.0", index // 4, mig)


def view(index: int, cores: int = 0, memory: int = 0, health: GpuHealth = HEALTHY, of: Gpu | None = None) -> GpuView:
    """A GPU of which others have so many percent and GiB."""
    return GpuView(of or gpu(index), health, (13, 0), GpuUse(cores, memory * GIB))


def board(*used: tuple[int, int]) -> list[GpuView]:
    return [view(index, *use) for index, use in enumerate(used)]


def share(cores: int, memory: int, kind: ContainerKind = APP, name: str = "main") -> ContainerRequest:
    return ContainerRequest(name, kind, cores=cores, memory_bytes=memory * GIB)


def whole(count: int, kind: ContainerKind = APP, name: str = "main", memory: int = 0) -> ContainerRequest:
    return ContainerRequest(name, kind, whole=count, memory_bytes=memory * GIB)


def pod(*containers: ContainerRequest, policy: PlacementPolicy = BINPACK, mode: Mode = Mode.VGPU) -> PodRequest:
    return PodRequest(mode, containers, policy, memory_unit=GIB)


def topology(views: Sequence[GpuView], close: Iterable[tuple[int, int]] = ()) -> Connectivity:
    """NVLink between the close pairs, nothing but the system between the others."""
    pairs = {frozenset(pair) for pair in close}
    return Connectivity.of(
        Inventory(
            "580",
            (13, 0),
            tuple(view.gpu for view in views),
            {
                frozenset((name(a), name(b))): GpuLink(Ancestor.SYSTEM, 4 if frozenset((a, b)) in pairs else 0)
                for a, b in itertools.combinations(range(len(views)), 2)
            },
        )
    )


def chosen(answer: Assignment | Refusal) -> dict[str, list[int]]:
    """GPU indexes by container."""
    assert isinstance(answer, Assignment), answer
    return {
        container: [int(share.uuid.removeprefix("GPU-")) for share in shares]
        for container, shares in answer.containers.items()
    }


def refusal(answer: Assignment | Refusal) -> Refusal:
    assert isinstance(answer, Refusal), answer
    return answer


@pytest.mark.parametrize(
    ("used", "policy", "index"),
    [
        pytest.param([(0, 0), (40, 8), (60, 8)], BINPACK, 2, id="binpack fills the fullest"),
        pytest.param([(0, 0), (40, 8), (80, 8)], BINPACK, 1, id="that has the cores"),
        pytest.param([(0, 0), (40, 8), (60, 75)], BINPACK, 1, id="that has the memory"),
        pytest.param([(0, 0), (80, 8), (60, 75)], BINPACK, 0, id="breaks a whole one when it must"),
        pytest.param([(71, 0), (70, 72)], SPREAD, 1, id="to the last percent and byte"),
        pytest.param([(60, 8), (0, 0), (40, 8)], SPREAD, 1, id="spread takes the emptiest"),
        pytest.param([(50, 8), (50, 8), (50, 8)], SPREAD, 0, id="the first of equals"),
    ],
)
def test_one_share(used: list[tuple[int, int]], policy: PlacementPolicy, index: int) -> None:
    answer = place(pod(share(30, 8), policy=policy), board(*used), "node-1")
    assert answer == Assignment("node-1", {"main": (Share(name(index), 30, 8 * GIB),)})


def test_binpack_breaks_the_least_connected_and_smaller_gpu() -> None:
    views = board(*[(0, 0)] * 4)
    assert chosen(place(pod(share(30, 8)), views, "n", topology(views, [(0, 1), (0, 2)]))) == {"main": [3]}
    unlike = [view(0), view(1, of=gpu(1, memory=16, model="Tesla T4"))]
    assert chosen(place(pod(share(30, 8)), unlike, "n")) == {"main": [1]}
    assert chosen(place(pod(share(30, 20)), unlike, "n")) == {"main": [0]}


def test_whole_gpus_are_a_connected_set_of_untouched_ones() -> None:
    views = board((0, 0), (0, 0), (1, 1), (0, 0), (0, 0))
    answer = place(pod(whole(2)), views, "n", topology(views, [(0, 2), (1, 4)]))
    assert answer == Assignment("n", {"main": (Share(name(1), 100, 80 * GIB), Share(name(4), 100, 80 * GIB))})


def test_of_two_models_the_better_connected_one() -> None:
    views = [view(0), view(1), *(view(i, of=gpu(i, memory=16, model="Tesla T4")) for i in (2, 3))]
    assert chosen(place(pod(whole(2)), views, "n", topology(views, [(0, 1)]))) == {"main": [0, 1]}


def test_whole_gpus_are_of_one_model_when_that_is_possible() -> None:
    views = [view(0), *(view(i, of=gpu(i, memory=16, model="Tesla T4")) for i in (1, 2, 3))]
    links = topology(views, [(0, 1), (1, 2)])
    assert chosen(place(pod(whole(2)), views, "n", links)) == {"main": [1, 2]}
    assert chosen(place(pod(whole(1)), views, "n", links)) == {"main": [3]}, "the smaller model will do"
    assert chosen(place(pod(whole(4)), views, "n", links)) == {"main": [0, 1, 2, 3]}
    assert chosen(place(pod(whole(1, memory=20)), views, "n", links)) == {"main": [0]}
    assert chosen(place(pod(whole(2, memory=90)), views, "n", links)) == {"main": [0, 1]}


def test_gpus_of_three_models() -> None:
    views = [view(index, of=gpu(index, memory, model)) for index, (memory, model) in enumerate(MODELS)]
    assert chosen(place(pod(whole(2)), views, "n")) == {"main": [0, 1]}
    assert chosen(place(pod(whole(2, memory=100)), views, "n")) == {"main": [0, 2]}, "those with the most memory"
    both = pod(whole(2, name="train"), share(10, 60, name="serve"))
    assert chosen(place(both, views, "n")) == {"train": [1, 2], "serve": [0]}, "the share fits nowhere else"
    following = pod(share(30, 8, INIT, "fetch"), whole(2, APP, "train"))
    views = [view(0, of=gpu(0, 16, "Tesla T4")), view(1), view(2)]
    assert chosen(place(following, views, "n")) == {"fetch": [0], "train": [0, 1]}, "the init container's is one of two"


MODELS = [(80, "NVIDIA H100"), (16, "Tesla T4"), (24, "NVIDIA A10")]


def test_given_memory_counts_in_whole_units_of_the_mode() -> None:
    odd = [GpuView(replace(gpu(0), memory_bytes=80 * GIB - 1), HEALTHY, (13, 0))]
    assert chosen(place(pod(whole(1, memory=79)), odd, "n")) == {"main": [0]}
    assert refusal(place(pod(whole(1, memory=80)), odd, "n")) == Refusal(
        "needs 1 whole GPU with 80 GiB in all; the largest free have 79 GiB (GPU 0)", resolvable=False
    )


def test_a_mode_without_cores_divides_memory_alone() -> None:
    request = pod(share(0, 8), mode=Mode.CGPU)
    assert chosen(place(request, board((0, 0), (0, 70), (0, 75)), "n")) == {"main": [1]}
    assert refusal(place(request, board((0, 76), (0, 74)), "n")).reason == (
        "needs 8 GiB on one GPU; best has 6 GiB free (GPU 1)"
    )
    assert refusal(place(request, board((100, 0)), "n")).reason == (
        "needs 8 GiB on one GPU; best has 0 MiB free (GPU 0)"
    ), "held as a whole"


def test_gpus_that_are_not_handed_out() -> None:
    views = [
        view(0, health=LOST),
        view(1, of=gpu(1, mig=True)),
        replace(view(2), excluded="reserved by the cluster's policy"),
        view(3, 90, 72),
        view(4, health=UNKNOWN),
    ]
    assert chosen(place(pod(share(30, 8)), views, "n")) == {"main": [4]}, "unknown is not unhealthy"
    assert chosen(place(pod(share(10, 8)), views, "n")) == {"main": [3]}, "but comes last"
    assert chosen(place(pod(share(10, 8), policy=SPREAD), views, "n")) == {"main": [3]}
    assert chosen(place(pod(whole(1), mode=Mode.PGPU), views[1:], "n")) == {"main": [1]}, "MIG is out of sharing only"
    assert refusal(place(pod(share(30, 8)), views[:4], "n")) == Refusal(
        "needs 30 % and 8 GiB on one GPU; best has 10 % and 8 GiB free (GPU 3)"
        "; GPU 0 left out (unhealthy: the GPU is lost); GPU 1 left out (MIG mode)"
        "; GPU 2 left out (reserved by the cluster's policy)",
        resolvable=True,
    )


def test_a_healthy_whole_gpu_comes_before_one_of_unknown_health() -> None:
    views = [view(0, health=UNKNOWN), view(1), view(2)]
    links = topology(views, [(0, 1)])
    assert chosen(place(pod(whole(2)), views, "n", links)) == {"main": [1, 2]}
    assert chosen(place(pod(whole(3)), views, "n", links)) == {"main": [0, 1, 2]}


UNLIKE = [
    view(0, of=replace(gpu(0, memory=16, model="Tesla T4"), compute_capability=(7, 5))),
    view(1, of=gpu(1, model="NVIDIA A100-SXM4-80GB")),
    view(2, of=gpu(2, model="NVIDIA H100 PCIe")),
]


@pytest.mark.parametrize(
    ("constraints", "allowed"),
    [
        (GpuConstraints(models_in=frozenset({"a100"})), {1}),
        (GpuConstraints(models_in=frozenset({"a100", "h100"}), models_out=frozenset({"pcie"})), {1}),
        (GpuConstraints(models_out=frozenset({"tesla"})), {1, 2}),
        (GpuConstraints(uuids_in=frozenset({"gpu-2", "gpu-9"})), {2}),
        (GpuConstraints(uuids_out=frozenset({"gpu-0", "gpu-1"})), {2}),
        (GpuConstraints(min_compute_capability=(8, 0)), {1, 2}),
        (GpuConstraints(min_compute_capability=(9, 0)), {1, 2}),
        (GpuConstraints(min_cuda=(13, 0)), {0, 1, 2}),
        (GpuConstraints(min_cuda=(13, 1)), set()),
        (GpuConstraints(min_compute_capability=(10, 0)), set()),
    ],
)
def test_what_a_pod_wants_of_its_gpus(constraints: GpuConstraints, allowed: set[int]) -> None:
    got = set()
    for index in range(3):
        answer = place(replace(pod(share(1, 1)), constraints=constraints), UNLIKE[index : index + 1], "n")
        if isinstance(answer, Assignment):
            got.add(index)
        else:
            assert not answer.resolvable
    assert got == allowed


def test_a_refusal_names_what_was_not_wanted() -> None:
    constraints = GpuConstraints(models_out=frozenset({"t4", "a100"}), min_cuda=(13, 1))
    assert refusal(place(replace(pod(share(1, 1)), constraints=constraints), UNLIKE, "n")) == Refusal(
        "no GPU can be used; GPU 0 left out (model Tesla T4 is not wanted)"
        "; GPU 1 left out (model NVIDIA A100-SXM4-80GB is not wanted); GPU 2 left out (CUDA version 13.0 < 13.1)",
        resolvable=False,
    )


@pytest.mark.parametrize(
    ("request_", "used", "expected"),
    [
        pytest.param(
            pod(share(30, 20)),
            [(90, 40), (80, 40), (10, 79)],
            Refusal("needs 30 % and 20 GiB on one GPU; best has 20 % and 40 GiB free (GPU 1)", resolvable=True),
            id="nearest miss",
        ),
        pytest.param(
            pod(share(30, 81)),
            [(0, 0)],
            Refusal("needs 30 % and 81 GiB on one GPU; best has 100 % and 80 GiB free (GPU 0)", resolvable=False),
            id="larger than a card",
        ),
        pytest.param(
            pod(whole(3)),
            [(1, 1), (0, 0), (100, 0), (0, 0)],
            Refusal("needs 3 whole GPUs; 2 free (GPUs 1, 3)", resolvable=True),
            id="too few whole ones",
        ),
        pytest.param(
            pod(whole(17), mode=Mode.PGPU),
            [(0, 0)] * 2,
            Refusal("needs 17 whole GPUs; 2 free (GPUs 0, 1)", resolvable=False),
            id="more than the node has",
        ),
        pytest.param(
            pod(share(60, 8, name="a"), share(50, 8, name="b")),
            [(0, 0)],
            Refusal(
                'container "b" needs 50 % and 8 GiB on one GPU; '
                "best has 40 % and 72 GiB free beside the pod's other containers (GPU 0)",
                resolvable=False,
            ),
            id="two containers",
        ),
        pytest.param(pod(share(1, 1)), [], Refusal("no GPU can be used: the node has none", False), id="no GPU"),
    ],
)
def test_refusals_name_the_gpu_and_what_it_lacked(
    request_: PodRequest, used: list[tuple[int, int]], expected: Refusal
) -> None:
    assert place(request_, board(*used), "n") == expected


@pytest.mark.parametrize(
    ("containers", "used", "expected"),
    [
        pytest.param(
            [share(50, 40, name="a"), share(50, 40, name="b")], [(0, 0)] * 2, {"a": [0], "b": [0]}, id="one GPU"
        ),
        pytest.param(
            [share(30, 40, name="a"), share(60, 10, name="b")],
            [(40, 0), (60, 0)],
            {"a": [1], "b": [0]},
            id="the second leaves the first only one place",
        ),
        pytest.param(
            [whole(1, name="a"), share(10, 10, name="b")], [(0, 0), (50, 0)], {"a": [0], "b": [1]}, id="share first"
        ),
        pytest.param(
            [share(50, 8, INIT, "a"), share(50, 8, APP, "b"), share(50, 8, APP, "c")],
            [(0, 0), (40, 0)],
            {"a": [1], "b": [1], "c": [0]},
            id="an init container's GPU serves the next container",
        ),
        pytest.param(
            [share(60, 8, INIT, "a"), share(30, 8, SIDECAR, "b"), share(30, 8, APP, "c")],
            [(0, 0), (40, 0)],
            {"a": [1], "b": [1], "c": [1]},
            id="sidecar and app share what the init container had",
        ),
        pytest.param(
            [share(60, 8, SIDECAR, "a"), share(30, 8, APP, "b")],
            [(0, 0), (40, 0)],
            {"a": [1], "b": [0]},
            id="a sidecar keeps what it has",
        ),
        pytest.param(
            [whole(1, INIT, "a"), share(30, 8, APP, "b")], [(50, 0), (0, 0)], {"a": [1], "b": [1]},
            id="whole, then share",
        ),
        pytest.param(
            [share(30, 8, INIT, "a"), whole(2, APP, "b")], [(50, 0), (0, 0), (0, 0)], {"a": [1], "b": [1, 2]},
            id="share, then whole",
        ),
        pytest.param(
            [whole(2, INIT, "a"), whole(2, APP, "b")], [(0, 0), (0, 0)], {"a": [0, 1], "b": [0, 1]}, id="whole twice"
        ),
    ],
)  # fmt: skip
def test_several_containers(
    containers: list[ContainerRequest], used: list[tuple[int, int]], expected: Mapping[str, list[int]]
) -> None:
    assert chosen(place(pod(*containers), board(*used), "n")) == expected


def test_init_container_with_more_gpus_is_refused_with_a_remedy() -> None:
    for following in (whole(1, APP, "b"), share(30, 8, APP, "b")):
        answer = refusal(place(pod(whole(2, INIT, "a"), following), board((0, 0), (0, 0)), "n"))
        assert "give both the same number of GPUs" in answer.reason
        assert not answer.resolvable
    plain = pod(whole(2, INIT, "a"), whole(1, APP, "b"), mode=Mode.PGPU)
    assert chosen(place(plain, board((0, 0), (0, 0)), "n"))["b"] == [0], "one id is one GPU there"


def test_the_init_containers_gpu_has_to_serve_the_next_one() -> None:
    answer = refusal(place(pod(share(30, 8, INIT, "a"), share(50, 8, APP, "b")), board((60, 0)), "n"))
    assert answer == Refusal(
        'container "b" needs 50 % and 8 GiB on GPU 0, where the init container before it ran; 40 % and 80 GiB free',
        resolvable=True,
    )


def test_use_at_its_peak() -> None:
    request = pod(
        share(20, 8, SIDECAR, "proxy"), share(60, 4, INIT, "fetch"), share(30, 10, APP, "main"), whole(1, APP, "train")
    )
    one, other = name(0), name(1)
    assignment = Assignment(
        "n",
        {
            "proxy": (Share(one, 20, 8 * GIB),),
            "fetch": (Share(one, 60, 4 * GIB),),
            "main": (Share(one, 1, 1),),
            "train": (Share(other, 100, 80 * GIB),),
        },
    )
    assert usage(request, assignment) == {one: GpuUse(80, 18 * GIB, 2), other: GpuUse(100, 80 * GIB, 1)}, (
        "proxy with fetch has the most cores, proxy with main the most memory; the annotation's amounts do not count"
    )


@pytest.mark.parametrize(
    "containers",
    [
        {},
        {"other": (Share(name(0), 1, 1),)},
        {"main": (Share(name(0), 1, 1),), "other": (Share(name(0), 1, 1),)},
        {"main": (Share(name(0), 1, 1), Share(name(1), 1, 1))},
        {"main": ()},
    ],
)
def test_an_assignment_of_another_request_is_told_apart(containers: dict[str, tuple[Share, ...]]) -> None:
    with pytest.raises(ValueError, match="the assignment"):
        usage(pod(share(30, 8)), Assignment("n", containers))


@pytest.mark.parametrize(("cuda", "clients"), [((13, 0), 48), ((13, 1), 60)])
def test_an_mps_server_is_given_as_many_clients_as_it_takes(cuda: tuple[int, int], clients: int) -> None:
    request = pod(share(1, 1), mode=Mode.MPS)

    def taken(containers: int) -> list[GpuView]:
        return [GpuView(gpu(0), HEALTHY, cuda, GpuUse(containers, containers * GIB // 2, containers))]

    assert chosen(place(request, taken(clients - 1), "n")) == {"main": [0]}
    found = refusal(place(request, taken(clients), "n"))
    assert f"free on GPU 0, where MPS takes no more than {clients} clients" in found.reason
    assert found.resolvable
    assert chosen(place(pod(share(1, 1)), taken(clients), "n")) == {"main": [0]}, "the interposer has no such limit"


def test_pod_with_more_containers_than_clients_uses_two_gpus() -> None:
    views = [
        GpuView(gpu(index), HEALTHY, (13, 0), GpuUse(40, 0, containers)) for index, containers in ((0, 47), (1, 46))
    ]
    request = pod(share(1, 1, name="a"), share(1, 1, name="b"), share(1, 1, name="c"), mode=Mode.MPS)
    answer = chosen(place(request, views, "n"))
    assert sorted(position for positions in answer.values() for position in positions) == [0, 1, 1]
    assert isinstance(place(pod(*request.containers, share(1, 1, name="d"), mode=Mode.MPS), views, "n"), Refusal)


# Properties. GPUs of 4 GiB and quarters of cores keep the room small enough to look at all of it.


def small_gpu(index: int, memory: int, model: str) -> Gpu:
    return replace(gpu(index, memory, model), uuid=name(index))


@st.composite
def views_of(draw: st.DrawFn, most: int = 5) -> list[GpuView]:
    found = []
    for index in range(draw(st.integers(1, most))):
        memory, model = draw(st.sampled_from([(4, "big"), (4, "big"), (2, "small")]))
        use = draw(
            st.sampled_from([GpuUse(), GpuUse(), GpuUse(100, memory * GIB)])
            | st.builds(
                lambda c, m, n: GpuUse(25 * c, m * GIB, n),
                st.integers(1, 3),
                st.integers(1, memory),
                st.sampled_from([1, 46, 47, 48]),
            )
        )
        health = draw(st.sampled_from([HEALTHY, HEALTHY, HEALTHY, UNKNOWN, LOST]))
        mig = draw(st.sampled_from([False, False, False, True]))
        found.append(GpuView(replace(small_gpu(index, memory, model), mig_enabled=mig), health, (13, 0), use))
    return found


quarters = st.integers(1, 3).map(lambda n: 25 * n)


@st.composite
def pods(draw: st.DrawFn, kinds: Sequence[ContainerKind] = (APP, APP, SIDECAR, INIT), most: int = 3) -> PodRequest:
    mode = draw(st.sampled_from(Mode))
    containers = []
    for number in range(draw(st.integers(1, most))):
        wants_whole = mode is Mode.PGPU or (mode in (Mode.VGPU, Mode.MPS) and draw(st.integers(0, 2)) == 0)
        least = 0 if wants_whole else 1
        containers.append(
            ContainerRequest(
                f"c{number}",
                draw(st.sampled_from(kinds)),
                whole=draw(st.integers(1, 3)) if wants_whole else 0,
                cores=0 if wants_whole or mode is Mode.CGPU else draw(quarters),
                memory_bytes=0 if mode is Mode.PGPU else draw(st.integers(least, 4)) * GIB,
            )
        )
    containers.sort(key=lambda container: container.kind is APP)
    return PodRequest(mode, tuple(containers), draw(st.sampled_from(PlacementPolicy)), memory_unit=GIB)


@st.composite
def links(draw: st.DrawFn, views: Sequence[GpuView]) -> Connectivity:
    pairs = list(itertools.combinations(range(len(views)), 2))
    return topology(views, draw(st.lists(st.sampled_from(pairs), unique=True)) if pairs else [])


questions = views_of().flatmap(lambda views: st.tuples(pods(), st.just(views), st.none() | links(views)))


@given(questions)
def test_no_card_is_ever_given_out_twice(question: tuple[PodRequest, list[GpuView], Connectivity | None]) -> None:
    request, views, connectivity = question
    answer = place(request, views, "n", connectivity)
    if isinstance(answer, Refusal):
        return
    by_uuid = {view.gpu.uuid: view for view in views}
    for container in request.containers:
        shares = answer.containers[container.name]
        assert len({share.uuid for share in shares}) == len(shares) == (container.whole or 1)
        for given_share in shares:
            of = by_uuid[given_share.uuid]
            assert of.health is not LOST
            assert request.mode is Mode.PGPU or not of.gpu.mig_enabled
            expected = (100, of.gpu.memory_bytes) if container.whole else (container.cores, container.memory_bytes)
            assert (given_share.cores, given_share.memory_bytes) == expected
    for uuid, use in usage(request, answer).items():
        of = by_uuid[uuid]
        assert of.used.cores + use.cores <= 100
        assert of.used.memory_bytes + use.memory_bytes <= of.gpu.memory_bytes
        assert request.mode is not Mode.MPS or of.used.containers + use.containers <= 48


def test_a_whole_gpu_by_cores_leaves_an_init_containers_memory() -> None:
    """Kubelet gives the last container memory of the first GPU, which is full: no card can serve it."""
    request = pod(share(25, 1, INIT, "fetch"), whole(1, name="train"), share(25, 1, name="watch"))
    views = [GpuView(small_gpu(index, 8, "big"), HEALTHY, (13, 0)) for index in range(2)]
    answer = place(request, views, "n")
    assert isinstance(answer, Refusal)
    assert answer.reason == (
        'container "watch" needs 25 % and 1 GiB on GPU 0, where the init container before it ran; 0 % and 0 MiB free'
    )
    with_memory = pod(share(25, 1, INIT, "fetch"), whole(1, name="train", memory=8), share(25, 1, name="watch"))
    assert chosen(place(with_memory, views, "n")) == {"fetch": [0], "train": [0], "watch": [1]}


@given(views_of(), pods().filter(lambda request: request.mode is not Mode.PGPU), st.randoms(use_true_random=False))
def test_kubelet_can_follow(views: list[GpuView], request: PodRequest, random: Random) -> None:
    """Kubelet gives a container what init containers left first, any of it; the rest is ours to steer."""
    answer = place(request, views, "n")
    if isinstance(answer, Refusal):
        return
    left: dict[str, list[str]] = {"cores": [], "memory": []}  # a GPU's name for each id
    for container in request.containers:
        ours = [share.uuid for share in answer.containers[container.name]]
        amounts = {"cores": 100 * container.whole or container.cores, "memory": container.memory_bytes // GIB}
        for resource, amount in amounts.items():
            random.shuffle(left[resource])
            reused = left[resource][:amount]
            assert set(reused) <= set(ours)
            if container.kind is not INIT:
                del left[resource][:amount]
            else:
                had = Counter(left[resource])
                left[resource] += [uuid for uuid in ours for _ in range(amount // len(ours) - had[uuid])]


@given(questions, st.randoms(use_true_random=False))
def test_the_answer_does_not_depend_on_the_order_of_the_gpus(
    question: tuple[PodRequest, list[GpuView], Connectivity | None], random: Random
) -> None:
    request, views, connectivity = question
    answer = place(request, views, "n", connectivity)
    random.shuffle(views)
    if isinstance(answer, Assignment):
        assert place(request, views, "n", connectivity) == answer
    else:
        assert isinstance(place(request, views, "n", connectivity), Refusal)


def every_way(request: PodRequest, views: Sequence[GpuView]) -> Iterable[Assignment]:
    """All assignments that keep within every card, looked at one by one."""
    usable = [
        view.gpu
        for view in views
        if view.health is not LOST and (request.mode is Mode.PGPU or not view.gpu.mig_enabled)
    ]
    used = {view.gpu.uuid: view.used for view in views}
    memory = {gpu.uuid: gpu.memory_bytes for gpu in usable}
    options = [itertools.combinations(usable, container.whole or 1) for container in request.containers]
    for choice in itertools.product(*options):
        if any(
            container.whole and sum(memory[gpu.uuid] for gpu in gpus) < container.memory_bytes
            for container, gpus in zip(request.containers, choice, strict=True)
        ):
            continue
        containers = {
            container.name: tuple(
                Share(gpu.uuid, 100 if container.whole else container.cores,
                      gpu.memory_bytes if container.whole else container.memory_bytes)
                for gpu in gpus
            )
            for container, gpus in zip(request.containers, choice, strict=True)
        }  # fmt: skip
        assignment = Assignment("n", containers)
        if all(
            used[uuid].cores + use.cores <= 100
            and used[uuid].memory_bytes + use.memory_bytes <= memory[uuid]
            and (request.mode is not Mode.MPS or used[uuid].containers + use.containers <= 48)
            for uuid, use in usage(request, assignment).items()
        ):
            yield assignment


@given(views_of(most=4), pods(kinds=(APP, SIDECAR)))
def test_a_pod_is_refused_only_when_there_is_no_way(views: list[GpuView], request: PodRequest) -> None:
    possible = next(iter(every_way(request, views)), None) is not None
    assert isinstance(place(request, views, "n"), Assignment) == possible


@given(views_of(most=4), pods())
def test_a_refusal_is_resolvable_when_the_empty_node_has_room(views: list[GpuView], request: PodRequest) -> None:
    answer = place(request, views, "n")
    if isinstance(answer, Refusal):
        emptied = [replace(view, used=GpuUse()) for view in views]
        assert answer.resolvable == isinstance(place(request, emptied, "n"), Assignment)


one_share = pods(kinds=(APP,), most=1).filter(lambda request: not request.containers[0].whole)


@given(views_of(), one_share)
def test_binpack_leaves_no_worse_remainder(views: list[GpuView], request: PodRequest) -> None:
    def remainder(assignment: Assignment) -> tuple[bool, bool, float]:
        """Whether the GPU is of unknown health, whether a whole one is broken, and what is left of it."""
        (chosen_share,) = assignment.containers["c0"]
        of = next(view for view in views if view.gpu.uuid == chosen_share.uuid)
        left = (of.free_cores - chosen_share.cores) / 100 + (
            of.free_memory - chosen_share.memory_bytes
        ) / of.gpu.memory_bytes
        return of.doubtful, of.untouched, left

    ways = list(every_way(request, views))
    packed = place(replace(request, policy=BINPACK), views, "n")
    spread = place(replace(request, policy=SPREAD), views, "n")
    if ways:
        assert isinstance(packed, Assignment)
        assert isinstance(spread, Assignment)
        assert remainder(packed) == min(map(remainder, ways))
        doubtful, _, most = remainder(spread)
        assert (doubtful, -most) == min((way[0], -way[2]) for way in map(remainder, ways))


@given(
    st.integers(1, 6).flatmap(lambda n: st.tuples(st.just(board(*[(0, 0)] * n)), st.integers(1, n))),
    st.data(),
)
def test_whole_cards_are_connected_as_well_as_any(question: tuple[list[GpuView], int], data: st.DataObject) -> None:
    views, size = question
    busy = data.draw(st.sets(st.integers(0, len(views) - 1), max_size=len(views) - size))
    views = [view(index, 10 if index in busy else 0) for index in range(len(views))]
    connectivity = data.draw(links(views))
    answer = place(pod(whole(size)), views, "n", connectivity)
    assert isinstance(answer, Assignment)
    best = max(
        connectivity.weight(way)
        for way in itertools.combinations([view.gpu.uuid for view in views if view.untouched], size)
    )
    assert connectivity.weight([share.uuid for share in answer.containers["main"]]) >= 0.95 * best


def test_gpus_that_are_alike_are_tried_once() -> None:
    containers = [share(50, 1, name=f"c{number}") for number in range(9)]
    fitting = place(pod(*containers[:8]), board(*[(50, 0)] * 8), "n")
    assert sorted(chosen(fitting).values()) == [[index] for index in range(8)]
    assert refusal(place(pod(*containers), board(*[(50, 0)] * 8), "n")).reason == (
        'container "c8" needs 50 % and 1 GiB on one GPU; '
        "best has 0 % and 79 GiB free beside the pod's other containers (GPU 0)"
    )


def test_many_containers_take_bounded_effort() -> None:
    containers = [share(34, 1, name=f"c{number}") for number in range(33)]
    views = board(*[(0, index) for index in range(16)])
    answer = refusal(place(pod(*containers), views, "n"))
    assert answer.reason.endswith("together was found in 2000 tries")
