# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from collections.abc import Mapping

import pytest

from kube_accel.kube.podresources import PodDevices, PodResourcesError
from kube_accel.model import Mode, Share
from kube_accel.plugin.allocation.start_check import Started, by_container, check_start, held_shares
from kube_accel.plugin.kubelet.device_exclusivity import StartRefused, listed_now
from kube_accel.plugin.kubelet.holdings import Holder
from kube_accel.sharing.fraction import Kind
from kube_accel.sharing.profile import PROFILES
from unit.kube_accel.plugin.fakes import inventory, uuid

PROFILE = PROFILES[Mode.VGPU]
UNIT = PROFILE.memory_unit_bytes
GPUS = {gpu.uuid: gpu for gpu in inventory(4).gpus}
MEMORY = GPUS[uuid(0)].memory_bytes
ONE, TWO = Holder("team", "one", "main"), Holder("team", "two", "main")


def ids(gpu: int, kind: Kind, first: int, count: int) -> frozenset[str]:
    return frozenset(f"{uuid(gpu)}::{kind.value}{number}" for number in range(first, first + count))


def both(gpu: int, cores: int, units: int, first: int = 0) -> dict[Kind, frozenset[str]]:
    return {Kind.CORES: ids(gpu, Kind.CORES, first, cores), Kind.MEMORY: ids(gpu, Kind.MEMORY, first, units)}


def start(
    devices: Mapping[Kind, frozenset[str]], others: Mapping[Holder, Mapping[Kind, frozenset[str]]] = {}
) -> object:
    """The outcome for each resource of a container that kubelet lists as pod one."""
    listed = {ONE: devices, **others}
    outcomes = {check_start(kind, found, listed, GPUS, PROFILE) for kind, found in devices.items()}
    (outcome,) = outcomes
    return outcome


def test_a_share_is_identified_by_either_resource() -> None:
    outcome = start(both(2, 30, 8), {TWO: both(2, 70, 300, first=30)})
    assert outcome.holder == ONE
    assert outcome.shares == (Share(uuid(2), 30, 8 * UNIT),)


def test_containers_on_a_gpu_do_not_exceed_mps_clients() -> None:
    others = {Holder("team", f"other-{n}", "main"): both(0, 1, 1, first=10 + n) for n in range(3)}
    listed = {ONE: both(0, 5, 5), **others, TWO: both(1, 1, 1)}
    ids = listed[ONE][Kind.CORES]
    assert check_start(Kind.CORES, ids, listed, GPUS, PROFILE, most_containers=4).holder == ONE
    with pytest.raises(StartRefused, match="3 containers share GPU 0, and its MPS server takes 3 clients") as refused:
        check_start(Kind.CORES, ids, listed, GPUS, PROFILE, most_containers=3)
    assert refused.value.holder == ONE


def test_whole_gpus_have_all_their_memory() -> None:
    outcome = start({Kind.CORES: ids(1, Kind.CORES, 0, 100) | ids(3, Kind.CORES, 0, 100)})
    assert outcome.shares == (Share(uuid(1), 100, MEMORY), Share(uuid(3), 100, MEMORY))


@pytest.mark.parametrize(
    ("devices", "reason"),
    [
        ({Kind.CORES: ids(0, Kind.CORES, 0, 30), Kind.MEMORY: ids(1, Kind.MEMORY, 0, 8)}, "of GPU 0 and its"),
        ({Kind.CORES: ids(0, Kind.CORES, 0, 30)}, "of no GPU; a share is of one GPU and has both"),
        ({Kind.MEMORY: ids(0, Kind.MEMORY, 0, 8)}, "of no GPU and its"),
        (
            {
                Kind.CORES: ids(0, Kind.CORES, 0, 30) | ids(1, Kind.CORES, 0, 30),
                Kind.MEMORY: ids(0, Kind.MEMORY, 0, 8),
            },
            "of GPU 0, GPU 1",
        ),
        ({Kind.CORES: ids(0, Kind.CORES, 0, 100), Kind.MEMORY: ids(1, Kind.MEMORY, 0, 8)}, "of the same GPUs"),
        ({Kind.CORES: frozenset({"GPU-gone::c0"}), Kind.MEMORY: ids(1, Kind.MEMORY, 0, 8)}, "'GPU-gone::c0'"),
        ({Kind.CORES: frozenset({f"{uuid(0)}::c100"}), Kind.MEMORY: ids(0, Kind.MEMORY, 0, 8)}, "::c100'"),
    ],
)
def test_devices_that_do_not_belong_together_do_not_start(devices: dict[Kind, frozenset[str]], reason: str) -> None:
    with pytest.raises(StartRefused, match="container main of team/one cannot start") as refused:
        start(devices)
    assert reason in str(refused.value)
    assert refused.value.holder == ONE


def test_share_of_anothers_whole_gpu_does_not_start() -> None:
    with pytest.raises(StartRefused, match="of which others have"):
        start(both(0, 20, 8), {TWO: {Kind.CORES: ids(0, Kind.CORES, 0, 100)}})


def test_whole_gpu_with_others_shares_does_not_start() -> None:
    with pytest.raises(StartRefused, match="of which others have 0 % and 2 GiB"):
        start({Kind.CORES: ids(0, Kind.CORES, 0, 100)}, {TWO: {Kind.MEMORY: ids(0, Kind.MEMORY, 0, 8)}})


def test_what_kubelet_gave_to_two_pods_counts_twice() -> None:
    three = Holder("team", "three", "main")
    others = {TWO: both(0, 20, 8), three: both(0, 20, 8)}
    assert start(both(0, 60, 8, first=20), others).shares == (Share(uuid(0), 60, 8 * UNIT),)
    with pytest.raises(StartRefused, match="it has 61 % and 2 GiB of GPU 0, of which others have 40 % and 4 GiB"):
        start(both(0, 61, 8, first=20), others)


def test_two_with_the_same_devices_are_unnamed_and_count_once() -> None:
    found = both(0, 60, 8)
    assert check_start(Kind.MEMORY, found[Kind.MEMORY], {ONE: found, TWO: found}, GPUS, PROFILE) == Started(
        None, (Share(uuid(0), 60, 8 * UNIT),)
    )
    three = {Holder("team", "three", "main"): both(0, 41, 8, first=59)}
    with pytest.raises(StartRefused, match="of which others have 41 %"):
        check_start(Kind.MEMORY, found[Kind.MEMORY], {ONE: found, TWO: found, **three}, GPUS, PROFILE)


def test_two_with_the_same_memory_have_unknown_limits() -> None:
    listed = {ONE: both(0, 20, 8), TWO: both(0, 30, 8)}
    with pytest.raises(StartRefused, match="vcuda-memory to team/one and team/two, whose shares differ; delete one"):
        check_start(Kind.MEMORY, listed[ONE][Kind.MEMORY], listed, GPUS, PROFILE)
    assert check_start(Kind.CORES, listed[ONE][Kind.CORES], listed, GPUS, PROFILE).holder == ONE


def test_two_with_the_same_cores_are_told_apart_by_memory() -> None:
    listed = {ONE: both(0, 50, 8), TWO: both(0, 50, 8) | {Kind.MEMORY: ids(0, Kind.MEMORY, 20, 9)}}
    assert check_start(Kind.CORES, listed[ONE][Kind.CORES], listed, GPUS, PROFILE) == Started(None, ())
    assert check_start(Kind.MEMORY, listed[TWO][Kind.MEMORY], listed, GPUS, PROFILE).holder == TWO
    listed |= {holder: devices | {Kind.CORES: ids(0, Kind.CORES, 0, 51)} for holder, devices in listed.items()}
    with pytest.raises(StartRefused, match=r"it has 51 % and 2\.25 GiB of GPU 0, of which others have 51 %"):
        check_start(Kind.MEMORY, listed[TWO][Kind.MEMORY], listed, GPUS, PROFILE)


def test_containers_that_use_devices_in_turn_count_once() -> None:
    others = {TWO: both(0, 40, 8), Holder("team", "two", "first"): both(0, 40, 8)}
    assert start(both(0, 60, 8, first=40), others).shares == (Share(uuid(0), 60, 8 * UNIT),)


def test_unlisted_init_container_starts_with_good_devices() -> None:
    listed = {ONE: both(0, 20, 8)}
    longer = ids(0, Kind.CORES, 0, 40)
    assert check_start(Kind.CORES, longer, listed, GPUS, PROFILE).holder is None
    with pytest.raises(StartRefused, match="of 2 GPUs"):
        check_start(Kind.CORES, longer | ids(1, Kind.CORES, 0, 1), listed, GPUS, PROFILE)


def test_the_devices_of_a_gpu_that_was_replaced_count_for_nobody() -> None:
    devices = {Kind.CORES: frozenset({"GPU-gone::c0"}), Kind.MEMORY: ids(1, Kind.MEMORY, 0, 8)}
    assert held_shares({ONE: devices}, GPUS, PROFILE) == {ONE: (Share(uuid(1), 0, 8 * UNIT),)}


class Lister:
    def __init__(self, failures: int) -> None:
        self.failures = failures

    def list(self, timeout: float) -> tuple[PodDevices, ...]:
        self.failures -= 1
        if self.failures >= 0:
            raise PodResourcesError("rejected by rate limit")
        return (
            PodDevices("team", "one", "main", PROFILE.memory_resource, (f"{uuid(0)}::m0",)),
            PodDevices("team", "one", "main", "example.com/nic", ("nic-0",)),
        )


def test_a_kubelet_that_limits_the_rate_is_asked_again() -> None:
    found = by_container(listed_now(Lister(3), "it", pause=lambda seconds: None), PROFILE)
    assert found == {ONE: {Kind.MEMORY: frozenset({f"{uuid(0)}::m0"})}}


def test_a_kubelet_that_does_not_answer_stops_the_start() -> None:
    with pytest.raises(StartRefused, match="the holder of it is not known: rejected by rate limit") as refused:
        listed_now(Lister(1000), "it", pause=lambda seconds: None)
    assert refused.value.holder is None
