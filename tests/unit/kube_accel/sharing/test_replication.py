# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from collections import Counter
from contextlib import nullcontext
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kube_accel.kube.deviceplugin import UNHEALTHY
from kube_accel.kube.proto import deviceplugin_pb2 as pb
from kube_accel.shared.offers import Replication, TooManyError
from kube_accel.sharing.replication import check_clients, replicated, spread
from kube_accel.sharing.whole import RESOURCE, Part, layout, whole
from unit.kube_accel.plugin.fakes import inventory, uuid

SHARED = "nvidia.com/gpu.shared"
ON_A_NODE = pb.TopologyInfo(nodes=[pb.NUMANode(ID=1)])


def replicas(gpus: int, each: int) -> dict[str, Part]:
    parts = replicated(layout(inventory(gpus)), [Replication(RESOURCE, RESOURCE, each)])[RESOURCE]
    return {part.id: part for part in parts}


def slices(gpus: int, each: int) -> dict[str, Part]:
    """GPUs that hardware has cut into pieces."""
    found = {}
    for gpu in inventory(gpus).gpus:
        for number in range(each):
            name = f"MIG-{gpu.index}-{number}"
            found[name] = replace(whole(gpu), id=name, uuid=name, index=f"{gpu.index}:{number}")
    return found


def ids(parts: tuple[Part, ...]) -> list[str]:
    return [part.id for part in parts]


def test_a_replica_is_the_gpu_under_another_id() -> None:
    found = replicated(layout(inventory(2)), [Replication(RESOURCE, SHARED, 2)])
    assert found.keys() == {SHARED}
    assert ids(found[SHARED]) == [f"{uuid(0)}::0", f"{uuid(0)}::1", f"{uuid(1)}::0", f"{uuid(1)}::1"]
    assert {(part.uuid, part.gpu.uuid) for part in found[SHARED]} == {(uuid(0), uuid(0)), (uuid(1), uuid(1))}


@pytest.mark.parametrize("devices", [2, ("0", "1"), (uuid(0), "1")])
def test_what_is_not_chosen_stays_whole(devices: int | tuple[str, ...]) -> None:
    found = replicated(layout(inventory(4)), [Replication(RESOURCE, SHARED, 2, devices)])
    assert ids(found[RESOURCE]) == [uuid(2), uuid(3)]
    assert ids(found[SHARED]) == [f"{uuid(gpu)}::{number}" for gpu in (0, 1) for number in (0, 1)]


def test_without_another_name_one_resource_has_both() -> None:
    found = replicated(layout(inventory(2)), [Replication(RESOURCE, RESOURCE, 2, ("1",))])
    assert ids(found[RESOURCE]) == [uuid(0), f"{uuid(1)}::0", f"{uuid(1)}::1"]


def test_a_replica_by_mps_knows_how_many_share_its_gpu() -> None:
    found = replicated(layout(inventory(2)), [Replication(RESOURCE, SHARED, 4, by_mps=True)])
    assert [part.mps_replicas for part in found[SHARED]] == [4] * 8
    once = replicated(layout(inventory(2)), [Replication(RESOURCE, SHARED, 1, by_mps=True)])
    assert [part.mps_replicas for part in once[SHARED]] == [0, 0], "nobody to share with"


def test_mps_shares_no_mig_device() -> None:
    pieces = tuple(slices(1, 2).values())
    found = replicated(
        {RESOURCE: (*pieces, whole(inventory(2).gpus[1]))}, [Replication(RESOURCE, SHARED, 2, by_mps=True)]
    )
    assert ids(found[RESOURCE]) == ids(pieces)
    assert ids(found[SHARED]) == [f"{uuid(1)}::0", f"{uuid(1)}::1"]


def test_no_more_replicas_share_a_gpu_by_mps_than_it_takes() -> None:
    for replication, refused in (
        (Replication(RESOURCE, SHARED, 48, by_mps=True), False),
        (Replication(RESOURCE, SHARED, 49, by_mps=True), True),
        (Replication(RESOURCE, SHARED, 49), False),
    ):
        offered = replicated(layout(inventory(1)), [replication])
        with pytest.raises(TooManyError, match="configure at most 48") if refused else nullcontext():
            check_clients(offered, 48)


def test_gpus_of_one_resource_may_differ_in_replicas() -> None:
    each = [Replication(RESOURCE, RESOURCE, 2, ("0",)), Replication(RESOURCE, RESOURCE, 3, ("1",))]
    found = replicated(layout(inventory(3)), each)[RESOURCE]
    assert Counter(part.uuid for part in found) == {uuid(0): 2, uuid(1): 3, uuid(2): 1}


def test_a_gpu_that_two_replications_take_is_offered_once() -> None:
    each = [Replication(RESOURCE, SHARED, 2), Replication(RESOURCE, RESOURCE, 9, 1), Replication(RESOURCE, SHARED, 3)]
    found = replicated(layout(inventory(1)), each)
    assert {name: ids(parts) for name, parts in found.items()} == {SHARED: [f"{uuid(0)}::{n}" for n in range(3)]}


def test_a_list_that_kubelet_would_not_take_is_refused() -> None:
    """16,384 replicas fit for one GPU, and for eight they do not, however many are asked for."""
    assert len(replicated(layout(inventory(1)), [Replication(RESOURCE, RESOURCE, 16384)])[RESOURCE]) == 16384
    for count in (16384, 10**30):
        with pytest.raises(TooManyError, match="configure at most") as caught:
            replicated(layout(inventory(8)), [Replication(RESOURCE, RESOURCE, count)])
    most = int(str(caught.value).split("at most ")[1].split()[0])
    parts = replicated(layout(inventory(8)), [Replication(RESOURCE, RESOURCE, most)])[RESOURCE]
    devices = [pb.Device(ID=part.id, health=UNHEALTHY, topology=ON_A_NODE) for part in parts]
    assert len(pb.ListAndWatchResponse(devices=devices).SerializeToString()) <= 4 << 20


def test_a_resource_that_the_node_lacks_is_not_made() -> None:
    found = replicated(layout(inventory(1)), [Replication("nvidia.com/mig-1g.10gb", SHARED, 2)])
    assert found.keys() == {RESOURCE}


def test_slices_of_one_gpu_are_not_taken_before_those_of_others() -> None:
    parts = slices(4, 7)
    assert {parts[device].gpu.index for device in spread(parts, list(parts), [], 4)} == {0, 1, 2, 3}
    assert {parts[device].gpu.index for device in spread(parts, list(parts), [], 7, pack=True)} == {0}


def test_the_gpu_in_use_is_avoided_or_filled() -> None:
    parts = replicas(3, 4)
    available = [device for device in parts if device != f"{uuid(0)}::2"]
    assert spread(parts, available, [], 2) == (f"{uuid(1)}::0", f"{uuid(2)}::0")
    assert spread(parts, available, [], 2, pack=True) == (f"{uuid(0)}::0", f"{uuid(0)}::1")


def step_by_step(parts: dict[str, Part], available: list[str], required: list[str], size: int, pack: bool) -> set[str]:
    """What the definition says, with everything counted anew for each device."""
    taken = set(required)
    while len(taken) < size and set(available) - taken:
        gone = [part for part in parts.values() if part.id in taken or part.id not in {*available, *required}]
        used, gpu_used = Counter(part.uuid for part in gone), Counter(part.gpu.uuid for part in gone)
        sign = -1 if pack else 1
        taken.add(
            min(
                (device for device in parts if device in set(available) - taken),
                key=lambda device: (sign * used[parts[device].uuid], sign * gpu_used[parts[device].gpu.uuid]),
            )
        )
    return taken


@given(st.data())
def test_it_takes_the_least_or_the_most_used_each_time(data: st.DataObject) -> None:
    make = data.draw(st.sampled_from((replicas, slices)))
    parts = make(data.draw(st.integers(1, 4)), data.draw(st.integers(1, 4)))
    available = data.draw(st.lists(st.sampled_from(sorted(parts)), unique=True))
    required = data.draw(st.lists(st.sampled_from(available), unique=True)) if available else []
    size, pack = data.draw(st.integers(0, 17)), data.draw(st.booleans())
    chosen = spread(parts, available, required, size, pack)
    assert len(chosen) == len(set(chosen)) == max(len(required), min(size, len(available)))
    assert set(chosen) == step_by_step(parts, available, required, size, pack)
