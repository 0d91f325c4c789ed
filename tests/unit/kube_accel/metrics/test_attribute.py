# SPDX-License-Identifier: Apache-2.0
"""What other exporters get wrong, one test each: an unknown process is nobody's idleness, and nothing counts twice."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kube_accel.metrics.attribute import Attributed, Figures, Outcome, Owner, attribute
from kube_accel.metrics.sample import Busy, GpuSample
from kube_accel.metrics.tenancy import Account, Container, Holding

GIB = 1 << 30
CARD = "GPU-0"
A, B = Container("team", "a", "main"), Container("team", "b", "main")
SIDE = Container("team", "a", "side")
HOST, GONE, SERVER = Owner(Outcome.HOST), Owner(Outcome.GONE), Owner(Outcome.MPS_SERVER)


def holds(container: Container, device: str = "") -> Holding:
    return Holding(container, CARD, 0.25, 0.25, 20 * GIB, device)


def owned(container: Container, name: str | None = None) -> Owner:
    return Owner(Outcome.CONTAINER, container if name is None else container._replace(name=name))


def sample(
    used: int | None = 0,
    processes: Mapping[int, int | None] | None = None,
    busy: Busy | None = Busy(5.0, 10.0),  # noqa: B008 - frozen
    time: Mapping[int, int] | None = None,
    mig: Mapping[str, int] | None = None,
) -> GpuSample:
    samples = tuple((pid, 1, percent) for pid, percent in (time or {}).items())
    return GpuSample(CARD, 80 * GIB, used, 0, busy, None, processes=processes, process_time=samples, mig_memory=mig)


def told(
    found: GpuSample,
    owners: Mapping[int, Owner] | None,
    *held: Container,
    accounts: Mapping[Account, int] | None = None,
) -> Attributed:
    return attribute(found, map(holds, held), owners, accounts or {})


def test_every_container_has_what_its_processes_have() -> None:
    found = told(
        sample(11 * GIB, {1: 2 * GIB, 2: 3 * GIB, 3: 4 * GIB, 9: GIB}, time={1: 10, 3: 30}),
        {1: owned(A), 2: owned(A), 3: owned(B), 9: HOST},
        A,
        B,
    )
    assert found.containers == {A: Figures(5 * GIB, 1.25, 2), B: Figures(4 * GIB, 3.75, 1)}
    assert found.unattributed == {"host": GIB, "driver": GIB, "mps_server": 0, "unknown": 0}
    assert found.outcomes == {("cgroup", "container"): 3, ("cgroup", "host"): 1, ("time", "container"): 1}


@pytest.mark.parametrize("stranger", [GONE, Owner(Outcome.NO_POD), owned(Container("team", "c", "main"))])
def test_who_may_own_an_unknown_process_is_not_called_idle(stranger: Owner) -> None:
    found = told(sample(5 * GIB, {1: 2 * GIB, 2: 3 * GIB}, time={1: 50, 2: 50}), {1: owned(A), 2: stranger}, A, B)
    assert found.containers == {A: Figures(2 * GIB, 2.5, 1), B: Figures()}
    assert found.unattributed["unknown"] == 3 * GIB
    assert sum(count for (_, outcome), count in found.outcomes.items() if outcome != "container") == 1


def test_who_has_no_process_is_idle_where_every_process_is_known() -> None:
    assert told(sample(2 * GIB, {1: 2 * GIB}, time={1: 50}), {1: owned(A)}, A, B).containers[B] == Figures(0, 0.0, 0)


def test_processes_that_cannot_be_looked_at_leave_the_memory_to_the_sharers_together() -> None:
    found = told(sample(5 * GIB, {}), None, A, B)
    assert found.containers == {A: Figures(), B: Figures()}
    assert found.unattributed == {"shared": 5 * GIB}
    assert found.outcomes == {("sole", "not_visible"): 2}


def test_a_gpu_that_one_container_has_alone_is_that_containers() -> None:
    found = told(sample(5 * GIB, {}), None, A)
    assert found.containers == {A: Figures(5 * GIB, 5.0)}
    assert found.unattributed == {}


def test_a_gpu_that_nobody_has_is_not_known_to_be_anybodys() -> None:
    assert told(sample(5 * GIB, {}), None) == Attributed({}, {"unknown": 5 * GIB}, {})


def test_containers_of_one_pod_are_told_apart() -> None:
    processes = {1: GIB, 2: 2 * GIB}
    found = told(sample(3 * GIB, processes), {1: owned(A), 2: owned(SIDE)}, A, SIDE)
    assert [figures.memory_bytes for figures in found.containers.values()] == [GIB, 2 * GIB]


def test_a_pod_with_one_container_on_the_gpu_is_enough_to_know() -> None:
    """The API server tells of a container's id later than the container starts."""
    assert told(sample(GIB, {1: GIB}), {1: owned(A, "")}, A, B).containers[A].memory_bytes == GIB
    found = told(sample(GIB, {1: GIB}), {1: owned(A, "")}, A, SIDE)
    assert found.containers == {A: Figures(), SIDE: Figures()}


def test_a_container_with_two_parts_of_a_gpu_counts_once() -> None:
    found = attribute(sample(GIB, {1: GIB}), [holds(A), holds(A)], {1: owned(A)}, {})
    assert found.containers == {A: Figures(GIB, 5.0, 1)}


def test_memory_that_the_driver_does_not_tell_is_the_accounts_or_nobodys() -> None:
    found = sample(9 * GIB, {1: None, 2: GIB}, time={1: 1})
    owners = {1: owned(A), 2: owned(B)}
    assert told(found, owners, A, B).containers[A].memory_bytes is None
    accounts = {Account(A, CARD): 7 * GIB, Account(B, CARD): 2**60}
    with_account = told(found, owners, A, B, accounts=accounts)
    assert [figures.memory_bytes for figures in with_account.containers.values()] == [7 * GIB, GIB]
    assert "driver" not in with_account.unattributed
    assert with_account.outcomes["account", "container"] == 1


@pytest.mark.attack
def test_an_account_is_a_tenants_word() -> None:
    found = told(sample(9 * GIB, None), {}, A, accounts={Account(A, CARD): 2**60})
    assert found.containers[A].memory_bytes == 80 * GIB


def test_time_that_the_driver_gives_to_the_server_of_mps_is_its_clients() -> None:
    two = {1: owned(A), 2: owned(B), 3: SERVER}
    found = told(sample(3 * GIB, dict.fromkeys(two, GIB), time={3: 80}), two, A, B, SIDE)
    busy = {container: figures.busy_seconds for container, figures in found.containers.items()}
    assert busy == {A: None, B: None, SIDE: 0.0}, "of two clients nobody knows which; who has no process does nothing"
    found = told(sample(3 * GIB, dict.fromkeys(two, GIB), time={1: 20, 3: 60}), two, A, B)
    busy = {container: figures.busy_seconds for container, figures in found.containers.items()}
    assert busy == {A: 1.25, B: None}
    one = {1: owned(A), 3: SERVER}
    found = told(sample(2 * GIB, dict.fromkeys(one, GIB), time={3: 80}), one, A, B)
    busy = {container: figures.busy_seconds for container, figures in found.containers.items()}
    assert busy == {A: 5.0, B: 0.0}, "its only client"


def test_where_the_driver_lists_no_client_of_mps_nobody_is_called_idle() -> None:
    found = told(sample(GIB, {3: GIB}, time={3: 80}), {3: SERVER}, A, B)
    assert {container: figures.busy_seconds for container, figures in found.containers.items()} == {A: None, B: None}


def test_the_server_of_mps_is_no_container() -> None:
    found = told(sample(3 * GIB, {1: GIB, 2: 2 * GIB}), {1: SERVER, 2: owned(A)}, A, B)
    assert found.unattributed == {"mps_server": GIB, "host": 0, "unknown": 0, "driver": 0}
    assert found.containers[B].memory_bytes == 0


def test_time_without_samples_of_processes_is_the_only_ones() -> None:
    assert told(sample(GIB, {1: GIB}), {1: owned(A)}, A, B).containers == {A: Figures(GIB, 5.0, 1), B: Figures(0, 0, 0)}
    several = told(sample(GIB, {1: GIB, 2: GIB}), {1: owned(A), 2: owned(B)}, A, B)
    assert [figures.busy_seconds for figures in several.containers.values()] == [None, None]
    assert several.outcomes["time", "unknown"] == 1


def test_a_gpu_that_tells_no_time_leaves_time_unknown() -> None:
    found = told(sample(GIB, {1: GIB}, busy=None, time={1: 50}), {1: owned(A)}, A)
    assert found.containers[A].busy_seconds is None


def test_of_a_gpu_that_tells_no_use_nothing_is_left_over() -> None:
    seen = told(sample(None, {1: GIB, 2: GIB}), {1: owned(A), 2: GONE}, A)
    assert (seen.containers[A].memory_bytes, seen.unattributed) == (GIB, {"host": 0, "mps_server": 0, "unknown": GIB})
    unseen = told(sample(None, None), None, A)
    assert (unseen.containers[A].memory_bytes, unseen.unattributed) == (None, {})


def test_mig_devices_tell_their_own_memory() -> None:
    held = [holds(A, "MIG-1"), holds(B, "MIG-2"), holds(SIDE, "MIG-2")]
    found = attribute(sample(5 * GIB, None, None, mig={"MIG-1": 2 * GIB, "MIG-2": GIB}), held, None, {})
    assert found.containers == {A: Figures(2 * GIB), B: Figures(), SIDE: Figures()}
    assert found.unattributed == {"shared": GIB, "unknown": 2 * GIB}


def test_a_container_with_several_mig_devices_of_a_gpu_has_their_sum() -> None:
    held = [holds(A, "MIG-1"), holds(A, "MIG-2"), holds(B, "MIG-3"), holds(B, "MIG-4"), holds(SIDE, "MIG-4")]
    parts = {"MIG-1": 20 * GIB, "MIG-2": 10 * GIB, "MIG-3": 2 * GIB, "MIG-4": GIB}
    found = attribute(sample(33 * GIB, None, None, mig=parts), held, None, {})
    assert found.containers == {A: Figures(30 * GIB), B: Figures(), SIDE: Figures()}
    assert found.unattributed == {"shared": 3 * GIB, "unknown": 0}
    assert found.outcomes == {("mig", "container"): 1, ("mig", "unknown"): 2}
    del parts["MIG-2"]
    found = attribute(sample(33 * GIB, None, None, mig=parts), held, None, {})
    assert found.containers[A] == Figures(), "of one nothing is told"
    assert found.unattributed == {}


def test_a_mig_device_of_which_a_container_has_two_replicas_counts_once() -> None:
    held = [holds(A, "MIG-1"), holds(A, "MIG-1")]
    found = attribute(sample(3 * GIB, None, None, mig={"MIG-1": 2 * GIB}), held, None, {})
    assert found.containers == {A: Figures(2 * GIB)}


OWNERS = [owned(A), owned(B), owned(A, ""), HOST, SERVER, GONE, Owner(Outcome.NO_POD)]


@given(
    st.lists(st.tuples(st.integers(0, 20 * GIB), st.integers(0, 100), st.sampled_from(OWNERS)), max_size=8),
    st.integers(0, 80 * GIB),
    st.floats(0, 10),
)
def test_nothing_counts_twice_and_nothing_is_lost(
    processes: list[tuple[int, int, Owner]], driver: int, busy: float
) -> None:
    memory = {pid: each[0] for pid, each in enumerate(processes)}
    used = sum(memory.values()) + driver
    found = told(
        sample(used, memory, Busy(busy, 10.0), {pid: each[1] for pid, each in enumerate(processes)}),
        {pid: each[2] for pid, each in enumerate(processes)},
        A,
        B,
    )
    figures = found.containers.values()
    assert sum(each.memory_bytes or 0 for each in figures) + sum(found.unattributed.values()) == used
    assert sum(each.busy_seconds or 0 for each in figures) <= busy + 1e-9
    assert sum(each.processes or 0 for each in figures) <= len(processes)
