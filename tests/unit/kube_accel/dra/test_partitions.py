# SPDX-License-Identifier: Apache-2.0
"""What is published of GPUs of which MIG devices are made for claims."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kube_accel.dra.partitions import Divided, Partition, divided
from kube_accel.dra.slices import in_slices, is_counters
from kube_accel.shared.mig_geometry import Card, Profile
from sim.nvml import profiles
from sim.nvml.conftest import library  # noqa: F401
from sim.nvml.topology import MigProfile, edit
from unit.kube_accel.dra.mig_node import MigNode

MAKERS = (profiles.a100_40_mig, profiles.a100_80_mig, profiles.h100_mig, profiles.h200_mig)


def card(found: list[MigProfile]) -> Card:
    known = tuple(
        Profile(each.name, each.id, each.slices, each.size, tuple(map(int, each.starts.split(","))), each.count)
        for each in found
    )
    return Card(0, "GPU-0", "a model", 0, enabled=True, profiles=known)


def fits(gpu: Divided, chosen: Iterable[Partition]) -> bool:
    """Whether kube-scheduler allocates these devices at once."""
    taken = Counter[str]()
    for each in chosen:
        taken.update(each.counters)
    return all(number <= gpu.counters[name] for name, number in taken.items())


def can_be(gpu: Card, chosen: Iterable[Partition]) -> bool:
    """Whether the driver makes these devices at once, as NVML does."""
    places = [each.placement for each in chosen]
    overlap = any(one.overlaps(other.start, other.size) for one, other in combinations(places, 2))
    known = [gpu.profile(place.profile) for place in places]
    many = any(known.count(profile) > profile.count for profile in known)
    return not overlap and not many and sum(profile.slices for profile in known) <= gpu.slices


@pytest.mark.parametrize("maker", MAKERS)
@given(data=st.data())
def test_counters_allow_what_a_gpu_can_have_and_no_more(maker: Any, data: st.DataObject) -> None:
    gpu = card(maker("a model"))
    found = divided(gpu, [profile.name for profile in gpu.profiles], (), whole=True)
    chosen = data.draw(st.lists(st.sampled_from(found.partitions), unique_by=lambda each: each.device, max_size=8))
    assert fits(found, chosen) == can_be(gpu, chosen)


@pytest.mark.parametrize("engine", ["engines.jpeg", "engines.ofa", "engines.decoder"])
def test_profiles_with_the_only_engine_exclude_each_other(engine: str) -> None:
    places, none = (0, 1, 2, 3), ("1g.24gb-me", "2g.48gb-me")
    known = tuple(
        Profile(name, number, 1, 1, places, 4, engines=((engine, 0 if name in none else 1),))
        for number, name in enumerate(("1g.24gb+me", "2g.48gb+me", *none))
    )
    found = divided(replace(card([]), profiles=known), [each.name for each in known], (), whole=True)
    named = {each.device: each for each in found.partitions}
    assert len(named) == 16
    assert not fits(found, [named["gpu-00-mig-1g24gb-me-at-0"], named["gpu-00-mig-2g48gb-me-at-1"]])
    assert not fits(found, [replace(named["gpu-00-mig-1g24gb-me-at-0"], counters=found.counters)] * 2)


@pytest.fixture
def node(tmp_path: Path, library: Path, monkeypatch: pytest.MonkeyPatch) -> MigNode:  # noqa: F811
    monkeypatch.setenv("GPUSIM_FILE", str(tmp_path / "gpusim.conf"))
    offers = [{"gpus": list(range(1, 11)), "profiles": ["1g.10gb", "3g.40gb"]}]
    topology = profiles.h100("node")
    return MigNode(tmp_path / "node", library, tmp_path / "gpusim.conf", topology, offers)


def test_published_gpu_takes_all_of_its_counters(node: MigNode) -> None:
    found = node.published()
    counters = found["counters of gpu-01"]["counters"]
    assert {name: each["value"] for name, each in counters.items()} == {
        **{f"memory-slice-{number}": "1" for number in range(8)},
        "slices": "7",
    }
    assert found["gpu-01"]["consumesCounters"] == [{"counterSet": "gpu-01", "counters": counters}]
    assert "consumesCounters" not in found["gpu-00"]
    assert found["gpu-01"]["allowMultipleAllocations"]
    # A MIG device says what one that is there says, but for the UUID, which it has not got.
    made = found["gpu-01-mig-3g40gb-at-4"]
    taken = {name: each["value"] for name, each in made["consumesCounters"][0]["counters"].items()}
    assert taken == {"slices": "3", **{f"memory-slice-{number}": "1" for number in range(4, 8)}}
    attributes = made["attributes"]
    assert (attributes["type"], attributes["profile"]) == ({"string": "mig"}, {"string": "3g.40gb"})
    assert attributes["gpu.nvidia.com/parentUUID"] == found["gpu-01"]["attributes"]["uuid"]
    assert "uuid" not in attributes
    assert made["capacity"]["memory"] == {"value": "40448Mi"}
    assert made["capacity"]["gpu.nvidia.com/multiprocessors"] == {"value": "60"}
    assert "allowMultipleAllocations" not in made
    assert len(attributes) + len(made["capacity"]) <= 32


def test_counters_and_devices_are_in_slices_of_their_own(node: MigNode) -> None:
    found = in_slices(list(node.published().values()))
    kinds = [{is_counters(each) for each in slice_} for slice_ in found]
    assert kinds == [{True}, {False}, {False}]
    # 7 GPUs are offered, of which each is 9 MIG devices too.
    assert list(map(len, found)) == [7, 64, 8 + 7 * 9 - 64]


def test_gpu_that_changes_by_a_reset_only_is_offered_as_it_is(node: MigNode) -> None:
    with edit(node.conf) as topology:
        for gpu in topology.gpus[:4]:
            gpu.cc = "8.0"
        topology.gpus[2].mig = 1
    node.see()
    names = [name for name in node.published() if name.startswith(("gpu-01", "gpu-02"))]
    assert names[0] == "gpu-01"
    assert len(names) == 1 + 9
    assert not any(name == "gpu-02" for name in names)


def test_where_counters_are_lost_only_held_devices_are_offered(node: MigNode) -> None:
    assert list(node.published(allowed=False)) == [f"gpu-{index:02}" for index in range(8)]
    node.api.claim("a", "gpu-01-mig-1g10gb-at-0")
    node.preparer().prepare("uid-a", "team", "a")
    held = [name for name in node.published(allowed=False) if "01" in name]
    assert held == ["counters of gpu-01", "gpu-01", "gpu-01-mig-1g10gb-at-0"]


def test_gpu_with_devices_that_were_there_is_offered_after_them(node: MigNode) -> None:
    """A claim of one that an administrator has cut goes on as it is."""
    with edit(node.conf) as topology:
        topology.gpus[1].mig = 1
    node.see()
    gpu = node.topology.gpus[1].uuid
    node.partitioner()._do("make", {"gpu": gpu, "profile": "1g.10gb", "start": 3, "size": 1})
    node.offers = []
    node.see()
    node.api.claim("a", "gpu-01-mig-1g10gb-0")
    node.preparer().prepare("uid-a", "team", "a")
    node.offers = [{"profiles": ["1g.10gb"]}]
    assert [name for name in node.published(2) if name.startswith("gpu-01")] == ["gpu-01-mig-1g10gb-0"]
