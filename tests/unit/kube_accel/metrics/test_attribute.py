# SPDX-License-Identifier: Apache-2.0
"""What other exporters get wrong, one test each: an unknown process is nobody's idleness, and nothing counts twice."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kube_accel.metrics.attribute import Attributed, Figures, Outcome, Owner, attribute
from kube_accel.metrics.claims import Claim
from kube_accel.metrics.sample import Busy, GpuSample
from kube_accel.metrics.tenancy import Container, Holding

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
    claims: Mapping[Container, Claim] | None = None,
) -> Attributed:
    return attribute(found, map(holds, held), owners, claims or {})


def memory(found: Attributed) -> dict[str, int | None]:
    return {container.pod: figures.memory_bytes for container, figures in found.containers.items()}


def seconds(found: Attributed) -> dict[str, float | None]:
    return {container.pod: figures.busy_seconds for container, figures in found.containers.items()}


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


def test_unreadable_processes_leave_memory_to_all_sharers() -> None:
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


def test_what_containers_have_together_is_used_by_all_of_them() -> None:
    both = Container("team", "resourceclaim/x", "")
    holding = Holding(both, CARD, 0.5, among=(A, B))
    owners = {1: owned(A), 2: owned(B), 3: owned(B, ""), 4: owned(SIDE)}
    found = attribute(sample(7 * GIB, {1: GIB, 2: 2 * GIB, 3: GIB, 4: 3 * GIB}), [holding], owners, {})
    assert memory(found) == {"resourceclaim/x": 4 * GIB}
    assert found.outcomes["cgroup", "not_held"] == 1, "a container of the pod without it"


def test_a_pod_with_one_container_on_the_gpu_is_enough_to_know() -> None:
    """The API server tells of a container's id later than the container starts."""
    assert told(sample(GIB, {1: GIB}), {1: owned(A, "")}, A, B).containers[A].memory_bytes == GIB
    found = told(sample(GIB, {1: GIB}), {1: owned(A, "")}, A, SIDE)
    assert found.containers == {A: Figures(), SIDE: Figures()}


def test_a_container_with_two_parts_of_a_gpu_counts_once() -> None:
    found = attribute(sample(GIB, {1: GIB}), [holds(A), holds(A)], {1: owned(A)}, {})
    assert found.containers == {A: Figures(GIB, 5.0, 1)}


def test_unknown_memory_is_the_accounts_or_unattributed() -> None:
    found = sample(9 * GIB, {1: None, 2: GIB}, time={1: 1})
    owners = {1: owned(A), 2: owned(B)}
    assert told(found, owners, A, B).containers[A].memory_bytes is None
    with_account = told(found, owners, A, B, claims={A: Claim(7 * GIB), B: Claim(GIB)})
    assert memory(with_account) == {"a": 7 * GIB, "b": GIB}
    assert "driver" not in with_account.unattributed
    assert with_account.outcomes["account", "container"] == 1


@pytest.mark.attack
def test_unknown_memory_precedes_an_account_above_the_drivers() -> None:
    owners = {1: owned(A), 2: owned(B)}
    found = told(sample(9 * GIB, {1: None, 2: GIB}), owners, A, B, claims={A: Claim(7 * GIB), B: Claim(20 * GIB)})
    assert memory(found) == {"a": 7 * GIB, "b": 2 * GIB}


@pytest.mark.parametrize("nvml", [{}, {1: 0}, {1: GIB}])
def test_the_larger_of_what_nvml_and_the_account_say_holds(nvml: Mapping[int, int]) -> None:
    found = told(sample(3 * GIB, nvml), {1: owned(A)}, A, B, claims={A: Claim(3 * GIB), B: Claim(0)})
    assert memory(found) == {"a": 3 * GIB, "b": 0}
    assert found.unattributed == {"host": 0, "driver": 0, "mps_server": 0, "unknown": 0}


def test_an_account_that_says_less_than_nvml_changes_nothing() -> None:
    found = told(sample(3 * GIB, {1: 3 * GIB}), {1: owned(A)}, A, B, claims={A: Claim(GIB), B: Claim(0)})
    assert (memory(found), found.outcomes["account", "container"]) == ({"a": 3 * GIB, "b": 0}, 0)


def test_memory_in_cgroups_without_a_pod_counts_once() -> None:
    """Two pods of 3 GiB each, with contexts of 500 MiB, that an odd runtime put outside of the cgroups of pods."""
    context = 500 << 20
    processes = {1: 3 * GIB + context, 2: 3 * GIB + context, 9: GIB}
    claims = {A: Claim(3 * GIB), B: Claim(3 * GIB)}
    found = told(sample(7 * GIB + 2 * context, processes), dict.fromkeys(processes, HOST), A, B, claims=claims)
    assert memory(found) == {"a": 3 * GIB, "b": 3 * GIB}
    assert found.unattributed == {"host": GIB + 2 * context, "driver": 0, "mps_server": 0, "unknown": 0}


def test_what_is_known_least_is_the_accounts_first() -> None:
    processes, owners = {1: GIB, 2: GIB, 3: GIB}, {1: GONE, 2: HOST, 3: SERVER}
    parts = [
        told(sample(4 * GIB, processes), owners, A, B, claims={A: Claim(gib * GIB)}).unattributed for gib in range(5)
    ]
    assert [[part[each] // GIB for each in ("unknown", "driver", "host", "mps_server")] for part in parts] == [
        [1, 1, 1, 1],
        [0, 1, 1, 1],
        [0, 0, 1, 1],
        [0, 0, 0, 1],
        [0, 0, 0, 1],
    ], "the server's memory is no client's"


def test_containers_of_unreadable_processes_have_their_accounts() -> None:
    found = told(sample(6 * GIB, {}), None, A, B, claims={A: Claim(2 * GIB, 1.0), B: Claim(3 * GIB, 2.0)})
    assert found.containers == {A: Figures(2 * GIB, 1.0), B: Figures(3 * GIB, 2.0)}
    assert found.unattributed == {"shared": GIB}
    assert found.outcomes == {("account", "container"): 2}


@pytest.mark.attack
def test_an_account_is_a_tenants_word() -> None:
    found = told(sample(9 * GIB, None), {}, A, claims={A: Claim(80 * GIB)})
    assert found.containers[A].memory_bytes == 9 * GIB, "as much as is in use"
    found = told(sample(None, None), {}, A, claims={A: Claim(2**60)})
    assert found.containers[A].memory_bytes == 80 * GIB, "as much as there is"


@pytest.mark.attack
def test_an_account_takes_nothing_from_a_neighbor() -> None:
    processes, owners = {1: 5 * GIB, 2: 0}, {1: owned(A), 2: owned(B)}
    found = told(sample(5 * GIB, processes, time={1: 50}), owners, A, B, claims={B: Claim(20 * GIB, 10.0)})
    assert (memory(found), seconds(found)) == ({"a": 5 * GIB, "b": 0}, {"a": 5.0, "b": 0.0})
    unseen = told(sample(6 * GIB, {}), {}, A, B, claims={A: Claim(2 * GIB, 1.0), B: Claim(20 * GIB, 1e9)})
    assert (memory(unseen), seconds(unseen)) == ({"a": 2 * GIB, "b": 4 * GIB}, {"a": 1.0, "b": 4.0})


def test_gpu_time_is_the_larger_of_what_nvml_and_the_account_say() -> None:
    processes, owners = {1: GIB, 2: GIB, 3: GIB}, {1: owned(A), 2: owned(B), 3: GONE}
    claims = {A: Claim(GIB, 2.0), B: Claim(GIB, 0.5)}
    found = told(sample(3 * GIB, processes, time={1: 10, 2: 30, 3: 60}), owners, A, B, claims=claims)
    assert seconds(found) == {"a": 2.0, "b": 1.5}
    nobody_told = told(sample(3 * GIB, processes), owners, A, B, SIDE, claims=claims)
    busy = {container: figures.busy_seconds for container, figures in nobody_told.containers.items()}
    assert busy == {A: 2.0, B: 0.5, SIDE: None}


def test_an_account_that_measures_no_time_calls_nobody_idle() -> None:
    """Containers without a limit of GPU time are not measured."""
    processes, owners = {1: GIB, 2: GIB}, {1: owned(A), 2: owned(B)}
    for measured in (None, 0.0):
        found = told(sample(2 * GIB, processes), owners, A, B, claims={A: Claim(GIB, measured)})
        assert seconds(found) == {"a": None, "b": None}


def test_time_of_the_mps_server_is_its_clients() -> None:
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


def test_no_mps_client_is_called_idle_if_none_is_listed() -> None:
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


def test_container_has_the_sum_of_its_mig_devices() -> None:
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


def test_mig_device_held_as_two_replicas_counts_once() -> None:
    held = [holds(A, "MIG-1"), holds(A, "MIG-1")]
    found = attribute(sample(3 * GIB, None, None, mig={"MIG-1": 2 * GIB}), held, None, {})
    assert found.containers == {A: Figures(2 * GIB)}


OWNERS = [owned(A), owned(B), owned(A, ""), HOST, SERVER, GONE, Owner(Outcome.NO_POD)]
CLAIMS = st.dictionaries(
    st.sampled_from([A, B, SIDE]), st.builds(Claim, st.integers(0, 2**60), st.none() | st.floats(0, 1e9)), max_size=3
)


@given(
    st.lists(st.tuples(st.integers(0, 20 * GIB), st.integers(0, 100), st.sampled_from(OWNERS)), max_size=8),
    st.integers(0, 80 * GIB),
    st.floats(0, 10),
    CLAIMS,
)
def test_nothing_counts_twice_and_nothing_is_lost(
    processes: list[tuple[int, int, Owner]], driver: int, busy: float, claims: Mapping[Container, Claim]
) -> None:
    listed = {pid: each[0] for pid, each in enumerate(processes)}
    used = sum(listed.values()) + driver
    owners = {pid: each[2] for pid, each in enumerate(processes)}
    gpu = sample(used, listed, Busy(busy, 10.0), {pid: each[1] for pid, each in enumerate(processes)})
    by_nvml, found = (told(gpu, owners, A, B, claims=each) for each in ({}, claims))
    figures = found.containers.values()
    assert sum(each.memory_bytes or 0 for each in figures) + sum(found.unattributed.values()) == used
    assert min(found.unattributed.values()) >= 0
    assert sum(each.busy_seconds or 0 for each in figures) <= busy + 1e-9
    assert sum(each.processes or 0 for each in figures) <= len(processes)
    for container, after in found.containers.items():
        before, claim = by_nvml.containers[container], claims.get(container, Claim(0))
        least, least_time = before.memory_bytes or 0, before.busy_seconds or 0
        assert least <= (after.memory_bytes or 0) <= max(least, claim.memory_bytes)
        assert least_time <= (after.busy_seconds or 0) <= max(least_time, claim.busy_seconds or 0) + 1e-9
    assert found.unattributed["mps_server"] == by_nvml.unattributed["mps_server"]


@given(st.integers(0, 80 * GIB), st.floats(0, 10), CLAIMS)
def test_unreadable_processes_make_nothing_count_twice(
    used: int, busy: float, claims: Mapping[Container, Claim]
) -> None:
    found = told(sample(used, {}, Busy(busy, 10.0)), None, A, B, SIDE, claims=claims)
    figures = found.containers.values()
    assert sum(each.memory_bytes or 0 for each in figures) + found.unattributed["shared"] == used
    assert min(each.memory_bytes or 0 for each in figures) >= 0
    assert sum(each.busy_seconds or 0 for each in figures) <= busy + 1e-9
