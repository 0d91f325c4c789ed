# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kube_accel.metrics import families
from kube_accel.metrics.attribute import Attributed, Figures
from kube_accel.metrics.charge import charged
from kube_accel.metrics.containers import Containers, Kept
from kube_accel.metrics.exposition import Writer
from kube_accel.metrics.sample import Busy, GpuSample
from kube_accel.metrics.tenancy import Container, Holding, Refused
from unit.kube_accel.metrics.page import Page

GIB = 1 << 30
CARD = "GPU-0"
A, B = Container("team", "a", "main"), Container("team", "b", "main")


def half(container: Container, limited: bool = True, paddle: bool = False) -> Holding:
    return Holding(container, CARD, 0.5, 0.3, 40 * GIB, limited=limited, paddle=paddle)


def page(found: Containers, refusals: Mapping[Refused, int] | None = None) -> Page:
    made = Page(Writer().page(found.families({CARD: 80 * GIB, "GPU-1": 80 * GIB}, refusals or {})))
    made.lint()
    return made


def see(
    found: Containers,
    *holdings: Holding,
    now: float = 5.0,
    kept: Mapping[Container, Kept] | None = None,
    **figures: Figures,
) -> Mapping[int, int]:
    told = {{"a": A, "b": B}[name]: each for name, each in figures.items()}
    samples = {CARD: GpuSample(CARD, 80 * GIB, 0, 0, Busy(5.0, 10.0), None)} if told else {}
    by_key = {(CARD, container): each for container, each in (kept or {}).items()}
    return found.see({CARD: holdings}, samples, {CARD: Attributed(told, {})} if told else {}, by_key, now)


@pytest.fixture
def containers() -> Containers:
    return Containers("n", "vgpu")


def test_before_kubelet_has_told_nothing_is_said(containers: Containers) -> None:
    assert page(containers).families == {}


def test_what_containers_have_is_there_before_they_use_it(containers: Containers) -> None:
    see(containers, half(A), half(B))
    found = page(containers)
    assert found.value(families.CONTAINER_CORES, pod="a", namespace="team", container="main", mode="vgpu") == 0.3
    assert found.value(families.CONTAINER_REQUEST, pod="b") == 40 * GIB
    assert found.value(families.CONTAINER_ALLOCATED, pod="b") == 0.5
    assert found.value(families.GPU_ALLOCATED, uuid=CARD) == 80 * GIB
    assert found.value(families.GPU_UNALLOCATED, uuid=CARD) == 0
    assert found.value(families.GPU_UNALLOCATED, uuid="GPU-1") == 80 * GIB
    assert found.values(families.CONTAINER_FAILURES, pod="a") == [0, 0, 0]
    for family in (families.CONTAINER_USED, families.CONTAINER_BUSY, families.CONTAINER_UTILIZATION):
        assert not found.of(family)


def test_peak_and_time_add_up_over_collections(containers: Containers) -> None:
    see(containers, half(A), half(B), a=Figures(3 * GIB, 2.0, 1), b=Figures(0, 0.0, 0), now=7.0)
    see(containers, half(A), half(B), a=Figures(GIB, 1.5, 1), b=Figures(), now=17.0)
    found = page(containers)
    assert found.value(families.CONTAINER_USED, pod="a") == GIB
    assert found.value(families.CONTAINER_PEAK, pod="a") == 3 * GIB
    assert found.value(families.CONTAINER_BUSY, pod="a") == 3.5
    assert found.value(families.CONTAINER_UTILIZATION, pod="a") == 0.15
    assert found.value(families.CONTAINER_ACTIVE, pod="a") == 17.0
    assert found.value(families.CONTAINER_PROCESSES, pod="a") == 1
    # Known once and not since.
    assert found.value(families.CONTAINER_BUSY, pod="b") == 0
    for family in (families.CONTAINER_USED, families.CONTAINER_UTILIZATION, families.CONTAINER_ACTIVE):
        assert not found.values(family, pod="b")


def test_kept_peak_is_written_again_only_when_it_grows(containers: Containers) -> None:
    kept = {A: Kept(7, "u", 39 * GIB)}
    assert see(containers, half(A), kept=kept, a=Figures(2 * GIB, 1.0, 1)) == {}
    assert page(containers).value(families.CONTAINER_PEAK, pod="a") == 39 * GIB
    assert see(containers, half(A), kept=kept, a=Figures(40 * GIB, 1.0, 1)) == {7: 40 * GIB}
    # Not written, or not by all who write it.
    assert see(containers, half(A), kept=kept, a=Figures(GIB, 1.0, 1)) == {7: 40 * GIB}
    assert see(containers, half(A), kept={A: Kept(7, "u", 41 * GIB)}, a=Figures(GIB, 1.0, 1)) == {}
    assert page(containers).value(families.CONTAINER_PEAK, pod="a") == 41 * GIB


def test_what_nobody_keeps_is_remembered(containers: Containers) -> None:
    assert see(containers, half(A), kept={A: Kept(7, "u", 3 * GIB)}, a=Figures(GIB, 1.0, 1)) == {}
    assert see(containers, half(A), kept={}, a=Figures(4 * GIB, 1.0, 1)) == {}
    assert see(containers, half(A), kept={A: Kept(7, "u", 3 * GIB)}, a=Figures(GIB, 1.0, 1)) == {7: 4 * GIB}
    assert page(containers).value(families.CONTAINER_PEAK, pod="a") == 4 * GIB


def test_a_pod_that_follows_one_of_its_name_begins_anew(containers: Containers) -> None:
    see(containers, half(A), kept={A: Kept(7, "first", None)}, a=Figures(39 * GIB, 2.0, 1))
    assert see(containers, half(A), kept={A: Kept(8, "second", None)}, a=Figures(GIB, 1.0, 1)) == {8: GIB}
    assert page(containers).value(families.CONTAINER_PEAK, pod="a") == GIB
    assert page(containers).value(families.CONTAINER_BUSY, pod="a") == 1.0
    # Where nobody knows UIDs what is kept says that it got the GPU anew.
    see(containers, half(A), kept={A: Kept(9, "", None)}, a=Figures(0, 0.0, 0))
    assert page(containers).value(families.CONTAINER_PEAK, pod="a") == 0


def test_a_pod_that_kubelet_forgot_for_a_moment_goes_on(containers: Containers) -> None:
    see(containers, half(A), kept={A: Kept(7, "", None)}, a=Figures(39 * GIB, 2.0, 1))
    see(containers, half(A), kept={A: Kept(7, "u", 39 * GIB)}, a=Figures(GIB, 2.0, 1))
    assert see(containers, half(A), kept={A: Kept(8, "u", None)}, a=Figures(GIB, 1.0, 1)) == {8: 39 * GIB}
    assert page(containers).value(families.CONTAINER_PEAK, pod="a") == 39 * GIB


def test_a_gpu_that_does_not_answer_leaves_what_was_counted(containers: Containers) -> None:
    see(containers, half(A), a=Figures(GIB, 2.0, 1))
    see(containers, half(A))
    found = page(containers)
    assert found.value(families.CONTAINER_BUSY, pod="a") == 2.0
    assert not found.of(families.CONTAINER_USED)


def test_a_container_that_ended_is_gone(containers: Containers) -> None:
    see(containers, half(A), a=Figures(GIB, 2.0, 1))
    see(containers, half(B))
    see(containers, half(A), a=Figures(GIB, 1.0, 1))
    assert page(containers).value(families.CONTAINER_BUSY, pod="a") == 1.0
    assert not page(containers).of(families.CONTAINER_USED)[1:]


def test_refusals_are_counted_by_reason(containers: Containers) -> None:
    see(containers, half(A), half(B, limited=False))
    found = page(containers, {Refused(A, CARD, "quota"): 3})
    assert found.value(families.CONTAINER_FAILURES, pod="a", reason="quota") == 3
    assert found.value(families.CONTAINER_FAILURES, pod="a", reason="device") == 0
    assert not found.values(families.CONTAINER_FAILURES, pod="b")


def test_refusals_are_shown_from_the_start_for_paddle_only(containers: Containers) -> None:
    see(containers, half(A, paddle=True), half(B))
    assert page(containers).value(families.PADDLE_FAILURES, pod="a") == 0
    found = page(
        containers, {Refused(A, CARD, "quota"): 3, Refused(A, CARD, "device"): 1, Refused(B, CARD, "quota"): 7}
    )
    assert found.value(families.PADDLE_FAILURES, pod="a") == 4
    assert not found.values(families.PADDLE_FAILURES, pod="b")
    see(containers, half(A, paddle=True, limited=False))
    assert not page(containers).of(families.PADDLE_FAILURES)


def test_who_has_which_mig_device_is_told(containers: Containers) -> None:
    see(containers, Holding(A, CARD, 0.5, None, 40 * GIB, "MIG-1"), half(B))
    ((labels, value),) = page(containers).families[families.CONTAINER_MIG.name]
    assert (labels["pod"], labels["device"], value) == ("a", "MIG-1", 1)


def test_a_container_with_several_replicas_has_the_sum(containers: Containers) -> None:
    replica = Holding(A, CARD, 0.25)
    see(containers, replica, replica)
    found = page(containers)
    assert found.value(families.CONTAINER_ALLOCATED, pod="a") == 0.5
    assert found.value(families.GPU_ALLOCATED, uuid=CARD) == 40 * GIB
    assert not found.of(families.CONTAINER_CORES)


@given(st.lists(st.floats(0.001, 1), min_size=1, max_size=20))
def test_shares_of_a_gpu_never_come_to_more_than_it(shares: list[float]) -> None:
    held = [Holding(Container("n", str(number), "c"), CARD, share) for number, share in enumerate(shares)]
    found = charged(held)
    assert sum(found.values()) <= 1 + 1e-9
    if sum(shares) <= 1:
        assert list(found.values()) == shares


HOLDINGS = st.lists(
    st.builds(
        Holding,
        st.builds(Container, st.just("n"), st.sampled_from("abcd"), st.just("c")),
        st.sampled_from([CARD, "GPU-1"]),
        st.floats(0, 1),
        memory_bytes=st.none() | st.integers(0, 80 * GIB),
    ),
    max_size=12,
)


@given(HOLDINGS)
def test_held_and_free_add_up_to_the_whole_gpu(holdings: list[Holding]) -> None:
    """Whoever allocated what, be it more than there is."""
    containers = Containers("n", "vgpu")
    by_gpu = {uuid: tuple(each for each in holdings if each.uuid == uuid) for uuid in (CARD, "GPU-1")}
    containers.see(by_gpu, {}, {}, {}, 5.0)
    found = page(containers)
    for uuid in by_gpu:
        shares = found.values(families.CONTAINER_ALLOCATED, uuid=uuid)
        assert sum(shares) <= 1 + 1e-9
        assert len(shares) == len({each.container for each in by_gpu[uuid]})
        taken, free = found.value(families.GPU_ALLOCATED, uuid=uuid), found.value(families.GPU_UNALLOCATED, uuid=uuid)
        assert taken >= 0 <= free
        assert taken + free == 80 * GIB
