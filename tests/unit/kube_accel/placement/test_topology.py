# SPDX-License-Identifier: Apache-2.0
"""Which GPUs go together: by example on machines that exist, and by property on any."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from random import Random

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kube_accel.model import Ancestor, Gpu, GpuLink, Inventory
from kube_accel.placement.topology import Connectivity, choose_connected


def inventory(count: int, link: Callable[[int, int], GpuLink | None], numa: Callable[[int], int | None]) -> Inventory:
    gpus = tuple(
        Gpu(
            uuid=name(index),
            index=index,
            minor=index,
            model="model",
            memory_bytes=1,
            compute_capability=(9, 0),
            pci_address=f"0000:{index:02x}:00.0",
            numa_node=numa(index),
            mig_enabled=False,
        )
        for index in range(count)
    )
    links = {
        frozenset((name(left), name(right))): found
        for left, right in itertools.combinations(range(count), 2)
        if (found := link(left, right)) is not None
    }
    return Inventory("580.1", (13, 0), gpus, links)


def name(index: int) -> str:
    return f"GPU-{index:02d}"


def names(*indexes: int) -> tuple[str, ...]:
    return tuple(map(name, indexes))


def halves(index: int) -> int:
    return index // 4


NVSWITCH_8 = inventory(
    8, lambda a, b: GpuLink(Ancestor.NODE if halves(a) == halves(b) else Ancestor.SYSTEM, nvlinks=18), halves
)
"""An HGX board: every pair over NVSwitch, four GPUs a socket."""

PCIE_16 = inventory(
    16,
    lambda a, b: GpuLink(
        Ancestor.SINGLE_SWITCH if a // 4 == b // 4 else Ancestor.NODE if a // 8 == b // 8 else Ancestor.SYSTEM, 0
    ),
    lambda index: index // 8,
)
"""Four PCIe switches of four GPUs, two a socket, no NVLink."""

BRIDGES_4 = inventory(
    4, lambda a, b: GpuLink(Ancestor.SYSTEM if (a, b) in {(0, 2), (1, 3)} else Ancestor.NODE, 4 * (a + b == 3)), halves
)
"""NVLink bridges 0-3 and 1-2, against the order of the indexes."""


@pytest.mark.parametrize(
    ("topology", "available", "required", "size", "chosen"),
    [
        pytest.param(NVSWITCH_8, range(8), [], 2, names(0, 1), id="pair within one socket"),
        pytest.param(NVSWITCH_8, range(8), [], 4, names(0, 1, 2, 3), id="half within one socket"),
        pytest.param(NVSWITCH_8, range(8), [], 8, names(*range(8)), id="whole board"),
        pytest.param(NVSWITCH_8, range(1, 8), [], 2, names(1, 2), id="pair from the broken socket"),
        pytest.param(NVSWITCH_8, range(1, 8), [], 4, names(4, 5, 6, 7), id="four from the whole socket"),
        pytest.param(NVSWITCH_8, [0, 1, 2, 3, 7], [], 1, names(7), id="single GPU leaves the socket whole"),
        pytest.param(NVSWITCH_8, range(8), [6], 3, names(4, 5, 6), id="around a required one"),
        pytest.param(PCIE_16, range(16), [], 4, names(0, 1, 2, 3), id="one switch"),
        pytest.param(PCIE_16, [1, 2, 3, *range(8, 16)], [], 3, names(1, 2, 3), id="uses up the broken switch"),
        pytest.param(PCIE_16, [3, 4, 5, 6, 7, 8, 9], [], 1, names(3), id="single GPU from the emptiest switch"),
        pytest.param(PCIE_16, range(3, 16), [], 8, names(*range(8, 16)), id="one socket"),
        pytest.param(PCIE_16, [0, 1, *range(4, 16)], [], 6, names(0, 1, 4, 5, 6, 7), id="one socket to the last GPU"),
        pytest.param(BRIDGES_4, range(4), [], 2, names(0, 3), id="a bridge before PCIe and socket"),
        pytest.param(BRIDGES_4, range(4), [2], 2, names(1, 2), id="the required one's bridge"),
        pytest.param(BRIDGES_4, [0, 1, 2], [], 1, names(0), id="single GPU leaves the bridge"),
    ],
)
def test_choice(
    topology: Inventory, available: list[int], required: list[int], size: int, chosen: tuple[str, ...]
) -> None:
    assert choose_connected(topology, names(*available), names(*required), size) == chosen


def test_pair_nothing_is_known_of_is_taken_last() -> None:
    unread = {frozenset(names(0, 1)), frozenset(names(0, 2))}
    topology = inventory(
        3, lambda a, b: None if frozenset(names(a, b)) in unread else GpuLink(Ancestor.SYSTEM, 0), lambda _: None
    )
    assert choose_connected(topology, names(0, 1, 2), (), 2) == names(1, 2)


def test_same_numa_node_decides_between_equals() -> None:
    topology = inventory(4, lambda a, b: GpuLink(Ancestor.NODE, 0), lambda index: index % 2)
    assert choose_connected(topology, names(0, 1, 2, 3), (), 2) == names(0, 2)


def test_gpus_the_topology_lacks_are_taken_last() -> None:
    available = ("GPU-new", *names(5, 6))
    assert choose_connected(NVSWITCH_8, available, (), 2) == names(5, 6)
    assert choose_connected(NVSWITCH_8, available, (), 3) == (*names(5, 6), "GPU-new")


@pytest.mark.parametrize("size", [0, 1])
def test_more_required_than_asked_for(size: int) -> None:
    assert choose_connected(NVSWITCH_8, names(0, 1, 2), names(7, 1), size) == names(1, 7)


def test_nothing_available() -> None:
    assert choose_connected(NVSWITCH_8, (), (), 3) == ()
    assert choose_connected(Inventory("580.1", (13, 0), ()), (), (), 1) == ()


def topologies(count: int) -> st.SearchStrategy[Inventory]:
    pairs = list(itertools.combinations(range(count), 2))
    link = st.none() | st.builds(GpuLink, st.sampled_from(Ancestor), st.sampled_from([0, 0, 1, 2, 4, 18]))
    numa = st.lists(st.sampled_from([None, 0, 1]), min_size=count, max_size=count)
    return st.builds(
        lambda links, nodes: inventory(count, lambda a, b: links[pairs.index((a, b))], nodes.__getitem__),
        st.lists(link, min_size=len(pairs), max_size=len(pairs)),
        numa,
    )


@st.composite
def questions(draw: st.DrawFn, max_gpus: int = 16) -> tuple[Inventory, list[str], list[str], int]:
    count = draw(st.integers(1, max_gpus))
    everything = names(*range(count))
    available = draw(st.lists(st.sampled_from(everything), unique=True))
    required = draw(st.lists(st.sampled_from(available), unique=True)) if available else []
    return draw(topologies(count)), available, required, draw(st.integers(0, count + 1))


@given(questions(), st.randoms(use_true_random=False))
def test_answer_is_well_formed_and_independent_of_order(
    question: tuple[Inventory, list[str], list[str], int], random: Random
) -> None:
    topology, available, required, size = question
    chosen = choose_connected(topology, available, required, size)
    assert set(required) <= set(chosen) <= set(available)
    assert len(chosen) == len(set(chosen)) == min(len(available), max(size, len(required)))
    random.shuffle(available)
    random.shuffle(required)
    assert choose_connected(Connectivity.of(topology), available, required, size) == chosen


@st.composite
def brute_forced(draw: st.DrawFn) -> tuple[Inventory, list[str], int]:
    count = draw(st.sampled_from([3, 5, 8, 12]))
    return (
        draw(topologies(count)),
        draw(st.lists(st.sampled_from(names(*range(count))), max_size=2)),
        draw(st.integers(2, count)),
    )


@given(brute_forced())
@example((PCIE_16, [], 6))
@example((PCIE_16, [*names(1, 5)], 10))
def test_no_set_is_better_connected(question: tuple[Inventory, list[str], int]) -> None:
    topology, required, size = question
    connectivity = Connectivity.of(topology)
    everything = [gpu.uuid for gpu in topology.gpus]
    best = max(
        connectivity.weight(subset) for subset in itertools.combinations(everything, size) if set(required) <= {*subset}
    )
    assert connectivity.weight(choose_connected(topology, everything, required, size)) == best


@given(topologies(16), st.integers(5, 11))
def test_no_exchange_of_one_gpu_is_better_on_sixteen(topology: Inventory, size: int) -> None:
    connectivity = Connectivity.of(topology)
    everything = {gpu.uuid for gpu in topology.gpus}
    chosen = set(choose_connected(topology, everything, (), size))
    score = connectivity.weight(chosen)
    for out, taken in itertools.product(chosen, everything - chosen):
        assert connectivity.weight(chosen - {out} | {taken}) <= score


def test_every_sequence_of_pairs_packs_a_board() -> None:
    free = {gpu.uuid for gpu in NVSWITCH_8.gpus}
    for expected in (names(0, 1), names(2, 3), names(4, 5), names(6, 7)):
        assert choose_connected(NVSWITCH_8, free, (), 2) == expected
        free -= set(expected)


def pair(ancestor: Ancestor, nvlinks: int = 0) -> Inventory:
    return inventory(2, lambda a, b: GpuLink(ancestor, nvlinks), halves)


def test_closeness_compares_gpus_of_different_nodes() -> None:
    rising = [
        inventory(2, lambda a, b: None, halves),
        *(pair(ancestor) for ancestor in sorted(Ancestor, reverse=True)),
        *(pair(Ancestor.SYSTEM, nvlinks) for nvlinks in (1, 2, 18)),
    ]
    found = [Connectivity.of(topology).closeness(names(0, 1)) for topology in rising]
    assert found == sorted(set(found))
    assert all(0 <= closeness < 1 for closeness in found)
    assert found[7] - found[6] >= 0.5, "NVLink or none is half of it"


def test_closeness_is_of_all_pairs_and_of_known_gpus() -> None:
    half = Connectivity.of(inventory(3, lambda a, b: GpuLink(Ancestor.NODE, 4) if b < 2 else None, halves))
    near = half.closeness(names(0, 1))
    assert half.closeness(names(0, 1, 2)) == pytest.approx(near / 3)
    assert half.closeness(["GPU-00", "GPU-unknown"]) == half.closeness(names(0)) == 0
