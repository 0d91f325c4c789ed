# SPDX-License-Identifier: Apache-2.0
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from kube_accel.model import DriverState, GpuHealth, Health, Snapshot
from kube_accel.plugin.kubelet.devices import Device, device_list, healthy_gpus
from kube_accel.sharing.whole import RESOURCE, layout
from unit.kube_accel.plugin.fakes import LOST, STARTING, UNAVAILABLE, UNKNOWN, ready, uuid


def devices_of(snapshot: Snapshot, advertised: tuple[Device, ...] = ()) -> tuple[Device, ...]:
    good = healthy_gpus(snapshot, healthy_ids(advertised))
    return device_list(layout(snapshot.inventory)[RESOURCE], good) if snapshot.inventory is not None else ()


def healthy_ids(devices: tuple[Device, ...]) -> set[str]:
    return {device.id for device in devices if device.healthy}


def test_a_device_is_a_gpu_with_its_numa_node() -> None:
    assert devices_of(ready(2)) == (Device(uuid(0), True, 0), Device(uuid(1), True, 1))


def test_a_gpu_without_numa_node_has_none() -> None:
    assert devices_of(ready(1)) == (Device(uuid(0), True, None),)


def test_nothing_is_healthy_before_gpus_were_read() -> None:
    assert healthy_gpus(STARTING, {uuid(0)}) == frozenset()
    assert healthy_gpus(UNAVAILABLE, {uuid(0)}) == frozenset()


def test_a_lost_gpu_is_unhealthy_and_the_others_are_not() -> None:
    assert healthy_ids(devices_of(ready(4, {2: LOST}))) == {uuid(0), uuid(1), uuid(3)}


def test_unknown_health_keeps_what_was_advertised() -> None:
    before = devices_of(ready(3, {1: LOST}))
    wedged = replace(ready(3, dict.fromkeys(range(3), UNKNOWN)), driver_state=DriverState.WEDGED)
    assert devices_of(wedged, before) == before


def test_a_gpu_never_seen_healthy_is_not_offered() -> None:
    assert healthy_ids(devices_of(ready(2, {0: UNKNOWN}))) == {uuid(1)}
    assert healthy_ids(devices_of(replace(ready(2), health={}))) == set()


@given(st.lists(st.lists(st.sampled_from(Health), min_size=4, max_size=4), min_size=1))
def test_what_is_offered_is_what_was_last_known(history: list[list[Health]]) -> None:
    devices: tuple[Device, ...] = ()
    last_known = dict.fromkeys(range(4), False)
    for moment in history:
        devices = devices_of(ready(4, {i: GpuHealth(health) for i, health in enumerate(moment)}), devices)
        for i, health in enumerate(moment):
            if health is not Health.UNKNOWN:
                last_known[i] = health is Health.HEALTHY
        assert healthy_ids(devices) == {uuid(i) for i, good in last_known.items() if good}
