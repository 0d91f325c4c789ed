# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kube_accel.sharing.timeslicing import Replication, replicated, spread
from kube_accel.sharing.whole import RESOURCE, Part, layout, whole
from unit.kube_accel.plugin.fakes import inventory, uuid

SHARED = "nvidia.com/gpu.shared"


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
