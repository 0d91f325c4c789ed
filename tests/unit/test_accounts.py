# SPDX-License-Identifier: Apache-2.0
"""What ``cluster.accounts``, by which the churn on a real cluster is judged, finds wrong and what right."""

from __future__ import annotations

from typing import Any

import pytest

from cluster import accounts
from cluster.accounts import Part
from kube_accel.kube.podresources import PodDevices
from kube_accel.model import Mode, Share
from kube_accel.plugin.allocation.ledger import Allocation
from kube_accel.plugin.kubelet.holdings import Holder
from kube_accel.sharing.profile import PROFILES

GIB = 1 << 30
ONE, TWO = "GPU-00000000-0000-0000-0000-000000000001", "GPU-00000000-0000-0000-0000-000000000002"
CARDS = {ONE: 80 * GIB, TWO: 40 * GIB}
VGPU, CGPU = PROFILES[Mode.VGPU], PROFILES[Mode.CGPU]


def cores(pod: str, gpu: str, begin: int, count: int) -> PodDevices:
    ids = tuple(f"{gpu}::c{number}" for number in range(begin, begin + count))
    return PodDevices("default", pod, "c0", "tencent.com/vcuda-core", ids)


def memory(pod: str, gpu: str, begin: int, count: int, resource: str = "tencent.com/vcuda-memory") -> PodDevices:
    ids = tuple(f"{gpu}::m{number}" for number in range(begin, begin + count))
    return PodDevices("default", pod, "c0", resource, ids)


def test_kubelets_ids_come_to_parts_of_gpus() -> None:
    listed = [cores("a", ONE, 0, 30), memory("a", ONE, 0, 32), memory("other", TWO, 0, 5, "nvidia.com/gpu")]
    assert accounts.of_kubelet(listed, VGPU, CARDS) == [Part("a", "c0", ONE, 30, 8 * GIB)]
    gib = [memory("b", TWO, 0, 12, "aliyun.com/gpu-mem")]
    assert accounts.of_kubelet(gib, CGPU, CARDS) == [Part("b", "c0", TWO, 0, 12 * GIB)]


def test_whole_gpus_are_whole_whichever_of_them_the_memory_is_of() -> None:
    listed = [cores("a", ONE, 0, 100), cores("a", TWO, 0, 100), memory("a", ONE, 0, 4)]
    both = PodDevices("default", "a", "c0", "tencent.com/vcuda-core", listed[0].device_ids + listed[1].device_ids)
    expected = [Part("a", "c0", ONE, 100, 80 * GIB), Part("a", "c0", TWO, 100, 40 * GIB)]
    assert accounts.of_kubelet([both, listed[2]], VGPU, CARDS) == expected


def test_memory_of_another_gpu_than_the_cores_is_seen() -> None:
    listed = [cores("a", ONE, 0, 30), memory("a", TWO, 0, 4)]
    expected = [Part("a", "c0", ONE, 30, 0), Part("a", "c0", TWO, 0, GIB)]
    assert accounts.of_kubelet(listed, VGPU, CARDS) == expected


def test_a_strange_device_is_an_error() -> None:
    with pytest.raises(ValueError, match="a holds 'GPU-1'"):
        accounts.of_kubelet([PodDevices("default", "a", "c0", "tencent.com/vcuda-core", ("GPU-1",))], VGPU, CARDS)


def of(name: str, *states: str) -> dict[str, Any]:
    """A pod whose containers c0, c1 and so on are in these states."""
    statuses = [{"name": f"c{number}", "state": {state: {}}} for number, state in enumerate(states)]
    return {"metadata": {"name": name}, "status": {"phase": "Running", "containerStatuses": statuses}}


def test_running_containers_differ_from_waiting_and_ended_ones() -> None:
    unseen: dict[str, Any] = {"metadata": {"name": "unseen"}, "status": {"phase": "Pending"}}
    assert accounts.running([of("a", "running", "waiting"), of("b", "terminated"), unseen]) == {("a", "c0")}


def test_device_of_two_pods_is_fine_if_the_gpu_has_room_for_both() -> None:
    listed = accounts.of_kubelet([cores("a", ONE, 0, 30), cores("b", ONE, 29, 2)], VGPU, CARDS)
    both = accounts.running([of("a", "running"), of("b", "running")])
    assert accounts.overcommitted(accounts.of_running(listed, both), CARDS) == []


@pytest.mark.parametrize(("count", "wrong"), [(50, False), (51, True), (100, True)])
def test_what_two_pods_have_of_a_gpu_counts_once_both_run(count: int, wrong: bool) -> None:
    listed = accounts.of_kubelet([cores("a", ONE, 0, count), cores("b", ONE, 0, count)], VGPU, CARDS)
    one = accounts.running([of("a", "running"), of("b", "waiting")])
    assert accounts.overcommitted(accounts.of_running(listed, one), CARDS) == []
    both = accounts.running([of("a", "running"), of("b", "running")])
    assert bool(accounts.overcommitted(accounts.of_running(listed, both), CARDS)) is wrong


@pytest.mark.parametrize(
    ("parts", "wrong"),
    [
        ([(60, 10), (40, 70)], False),
        ([(60, 10), (41, 10)], True),
        ([(0, 50), (0, 31)], True),
        ([(100, 80), (0, 1)], True),
    ],
)
def test_a_gpu_of_which_more_is_held_than_there_is_is_found(parts: list[tuple[int, int]], wrong: bool) -> None:
    held = [Part(f"p{number}", "c0", ONE, share, gib * GIB) for number, (share, gib) in enumerate(parts)]
    found = accounts.overcommitted([*held, Part("fits", "c0", TWO, 100, 40 * GIB)], CARDS)
    assert [fault.partition(":")[0] for fault in found] == ([ONE] if wrong else [])


def test_a_gpu_that_there_is_not_has_room_for_nobody() -> None:
    assert accounts.overcommitted([Part("a", "c0", "GPU-3", 1, 1)], CARDS)


def test_the_ledger_and_kubelet_differ_both_ways() -> None:
    shares = [Share(ONE, 30, 8 * GIB), Share(TWO, 10, GIB)]
    rows = [Allocation(Mode.VGPU, Holder("default", "a", "c0"), "", share, 0, None) for share in shares]
    written = accounts.of_ledger(rows)
    assert written == [Part("a", "c0", ONE, 30, 8 * GIB), Part("a", "c0", TWO, 10, GIB)]
    assert accounts.differences(written, reversed(written)) == []
    other = Part("b", "c0", ONE, 30, 8 * GIB)
    assert accounts.differences(written[:1], [other]) == [
        f"only in the ledger: {written[0]}",
        f"only with kubelet: {other}",
    ]


def test_pods_that_have_not_ended_are_told_with_the_reason() -> None:
    waiting = {"type": "PodScheduled", "status": "False", "message": "no room"}
    made = {"state": {"waiting": {"reason": "CreateContainerError"}}}
    pods = [
        {"metadata": {"name": "waits"}, "status": {"phase": "Pending", "conditions": [waiting]}},
        {"metadata": {"name": "hangs"}, "status": {"phase": "Pending", "containerStatuses": [made]}},
        {"metadata": {"name": "over"}, "status": {"phase": "Succeeded"}},
    ]
    assert accounts.unended(pods) == [
        "waits Pending no room",
        "hangs Pending {'waiting': {'reason': 'CreateContainerError'}}",
    ]
