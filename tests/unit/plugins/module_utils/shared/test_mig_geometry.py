# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from ansible_collections.accel.kubernetes.plugins.module_utils.shared.mig_geometry import (
    Card,
    GeometryError,
    Instance,
    Process,
    Profile,
    Step,
    memory_slices,
    parse,
    plan,
    standard_starts,
    step,
)
from hypothesis import given
from hypothesis import strategies as st

from sim.nvml import profiles as cards
from sim.nvml.topology import MigProfile

A100, A100_80, H100, H200 = 0x20B010DE, 0x20B210DE, 0x233010DE, 0x233510DE


def profile(record: MigProfile) -> Profile:
    starts = tuple(int(start) for start in record.starts.split(","))
    return Profile(record.name, record.id, record.slices, record.size, starts, record.count)


def card(index: int = 0, *, pci_id: int = H200, **changes: Any) -> Card:
    table = {A100: cards.a100_40_mig, A100_80: cards.a100_80_mig, H100: cards.h100_mig, H200: cards.h200_mig}
    made = Card(
        index,
        f"GPU-{index}",
        f"Model {pci_id:x}",
        pci_id,
        enabled=True,
        pending=True,
        profiles=tuple(profile(record) for record in table[pci_id]("model")),
    )
    return replace(made, **changes)


T4 = Card(1, "GPU-t4", "Tesla T4", 0x1EB810DE)


def document(*entries: dict[str, Any], name: str = "x") -> dict[str, Any]:
    return {"version": "v1", "mig-configs": {name: list(entries)}}


def entry(devices: object = "all", enabled: object = True, /, **counts: int) -> dict[str, Any]:
    return {"devices": devices, "mig-enabled": enabled, "mig-devices": {k.replace("_", "."): counts[k] for k in counts}}


def made(step: Step) -> Card:
    """The GPU after the step."""
    left = [instance for instance in step.card.instances if instance not in step.destroy]
    numbered = [replace(instance, number=100 + i) for i, instance in enumerate(step.create)]
    return replace(step.card, enabled=step.enabled, pending=step.enabled, instances=(*left, *numbered))


def overlap(instances: list[Instance]) -> bool:
    return any(
        a.start < b.start + b.size and b.start < a.start + a.size for a, b in itertools.combinations(instances, 2)
    )


def fits(of: Card, counts: dict[str, int]) -> bool:
    """By trying everything."""
    wanted = [of.profile(name) for name, count in counts.items() for _ in range(count)]
    if sum(profile.slices for profile in wanted) > of.slices or any(counts[p.name] > p.count for p in wanted):
        return False
    return any(
        not overlap([Instance(p.name, start, p.size) for p, start in zip(wanted, starts, strict=True)])
        for starts in itertools.product(*(profile.starts for profile in wanted))
    )


@st.composite
def counts_of(draw: st.DrawFn, of: Card) -> dict[str, int]:
    names = draw(st.lists(st.sampled_from([p.name for p in of.profiles]), max_size=4, unique=True))
    return {name: draw(st.integers(1, min(3, of.profile(name).count + 1))) for name in names}


@st.composite
def cut_cards(draw: st.DrawFn) -> Card:
    """A GPU with some instances, wherever they may be; some not whole."""
    made = card(pci_id=draw(st.sampled_from([A100, A100_80, H100, H200])))
    instances: list[Instance] = []
    for number in range(draw(st.integers(0, 7))):
        profile = draw(st.sampled_from(made.profiles))
        new = Instance(
            profile.name, draw(st.sampled_from(profile.starts)), profile.size, number, draw(st.integers(0, 4)) > 0
        )
        slices = sum(made.profile(instance.profile).slices for instance in [*instances, new])
        same = sum(instance.profile == profile.name for instance in instances)
        if not overlap([*instances, new]) and slices <= made.slices and same < profile.count:
            instances.append(new)
    return replace(made, instances=tuple(instances))


@given(data=st.data(), before=cut_cards())
def test_a_step_leads_there_keeps_what_it_can_and_is_done_once(data: st.DataObject, before: Card) -> None:
    counts = data.draw(counts_of(before))
    if not fits(before, counts):
        with pytest.raises(GeometryError, match="does not fit"):
            step(before, True, counts)
        return
    todo = step(before, True, counts)
    after = made(todo)
    assert Counter(instance.profile for instance in after.instances) == Counter(counts)
    assert not overlap(list(after.instances))
    assert all(instance.start in after.profile(instance.profile).starts for instance in after.instances)
    assert all(instance.whole for instance in after.instances)
    assert not step(after, True, counts).needed


@given(data=st.data(), before=cut_cards())
def test_what_is_there_stays_when_more_is_asked_for(data: st.DataObject, before: Card) -> None:
    before = replace(before, instances=tuple(instance for instance in before.instances if instance.whole))
    have = Counter(instance.profile for instance in before.instances)
    assert not step(before, True, have).needed
    fewer = data.draw(st.sampled_from(sorted(have))) if have else None
    todo = step(before, True, have - Counter([fewer]))
    assert (len(todo.destroy), todo.create) == (1 if fewer else 0, ())


@given(before=cut_cards())
def test_a_gpu_is_made_whole(before: Card) -> None:
    todo = step(before, False, {})
    assert todo.destroy == before.instances
    assert made(todo).enabled is False


@pytest.mark.parametrize("pci_id", [A100, A100_80, H100, H200])
def test_placements_match_those_the_driver_reports_later(pci_id: int) -> None:
    for found in card(pci_id=pci_id).profiles:
        assert standard_starts(found.slices, found.size, 7, 8) == found.starts


@pytest.mark.parametrize("table", [cards.a100_40_mig, cards.a100_80_mig, cards.h100_mig, cards.h200_mig])
def test_the_slices_of_a_profile_follow_from_its_memory(table: Any) -> None:
    records = table("model")
    largest = max(record.mem for record in records)
    assert [memory_slices(record.mem / largest, 8) for record in records] == [record.size for record in records]


def test_every_gpu_gets_the_entry_that_concerns_it() -> None:
    text = document(
        {**entry([0], True, **{"7g_141gb": 1}), "device-filter": "0x233510DE"},
        {**entry("all", True, **{"1g_10gb": 7}), "device-filter": ["0x233010de", "0x20B210DE"]},
    )
    steps = plan(text, "x", [card(0), card(1), card(2, pci_id=H100)])
    assert [(todo.card.index, [instance.profile for instance in todo.create]) for todo in steps] == [
        (0, ["7g.141gb"]),
        (2, ["1g.10gb"] * 7),
    ]


def test_a_filter_with_a_board_takes_that_board_alone() -> None:
    """As nvidia-mig-parted 0.15 has it: ``<device and vendor>:<the board's>``."""
    text = document(
        {**entry("all", True, **{"1g_18gb": 1}), "device-filter": "0x233510DE:0x18BE10DE"},
        {**entry("all", True, **{"1g_18gb": 2}), "device-filter": ["0x233510de:0x0", "0x20B210DE:0x14A910DE"]},
    )
    boards = [replace(card(index), subsystem_id=board) for index, board in enumerate((0x18BE10DE, 0x18BF10DE, 0))]
    assert [(todo.card.index, len(todo.create)) for todo in plan(text, "x", boards)] == [(0, 1), (2, 2)]


ENTRIES = st.lists(
    st.builds(
        lambda devices, count: entry(devices, bool(count), **({"1g_18gb": count} if count else {})),
        st.one_of(st.just("all"), st.lists(st.integers(0, 2), max_size=3)),
        st.integers(0, 2),
    ),
    min_size=1,
    max_size=4,
)


@given(entries=ENTRIES)
def test_of_several_entries_for_a_gpu_the_last_one_stays(entries: list[dict[str, Any]]) -> None:
    expected: dict[int, int] = {}
    for each in entries:
        for index in range(3) if each["devices"] == "all" else each["devices"]:
            expected[index] = sum((each.get("mig-devices") or {}).values())
    steps = plan(document(*entries), "x", [card(index) for index in range(3)])
    assert {todo.card.index: len(todo.create) for todo in steps} == expected
    assert all(todo.enabled is bool(expected[todo.card.index]) for todo in steps)


def test_a_gpu_without_mig_mode_is_whole_already() -> None:
    steps = plan(document(entry("all", False)), "x", [card(0), T4])
    assert [todo.needed for todo in steps] == [True, False]


def test_a_pending_mode_is_set_again() -> None:
    waiting = card(enabled=False, pending=True)
    assert step(waiting, True, {}).switches
    assert step(waiting, False, {}).switches


def test_a_process_is_in_the_way_of_what_it_uses() -> None:
    instances = (Instance("1g.18gb", 0, 1, 7), Instance("3g.71gb", 4, 4, 2))
    mine, other = Process(11, "train", 2), Process(12, "serve", 7)
    used = card(instances=instances, processes=(mine, other))
    assert step(used, True, {"1g.18gb": 2, "3g.71gb": 1}).in_the_way == ()
    assert step(used, True, {"1g.18gb": 1}).in_the_way == (mine,)
    assert step(used, False, {}).in_the_way == (mine, other)
    whole = card(enabled=False, pending=False, processes=(Process(13, "x"),))
    assert step(whole, True, {}).in_the_way == (Process(13, "x"),)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        pytest.param([], ["mapping"], id="no document"),
        pytest.param({"mig-configs": {"x": [entry()]}}, ["version"], id="no version"),
        pytest.param({"version": "v2", "mig-configs": {"x": [entry()]}}, ["'v2'", "v1"], id="another version"),
        pytest.param({**document(entry()), "colour": 1}, ["'colour'", "mig-configs"], id="unknown key"),
        pytest.param({"version": "v1"}, ["mig-configs"], id="no configurations"),
        pytest.param({"version": "v1", "mig-configs": {"x": []}}, ["configuration x"], id="no entries"),
        pytest.param(document({**entry(), "mig-device": 1}), ["entry 1", "'mig-device'"], id="unknown key in entry"),
        pytest.param(document({"devices": "all", "mig-devices": {}}), ["mig-enabled"], id="no mode"),
        pytest.param(document(entry("some")), ["devices"], id="devices by word"),
        pytest.param(document(entry([True])), ["devices"], id="devices by flag"),
        pytest.param(document({"devices": "all", "mig-enabled": True}), ["mig-devices"], id="no devices"),
        pytest.param(document(entry("all", False, **{"1g_18gb": 1})), ["mig-enabled is false"], id="cut and whole"),
        pytest.param(document({**entry(), "device-filter": "H200"}), ["device-filter", "0x"], id="filter by name"),
        pytest.param(document({**entry(), "device-filter": ["0x233510DE:"]}), ["device-filter"], id="no board"),
        pytest.param(document({**entry(), "device-filter": "0x1:0x2:0x3"}), ["device-filter"], id="three ids"),
        pytest.param(document({**entry(), "device-filter": [0x233510DE]}), ["device-filter"], id="filter by number"),
        pytest.param(document(entry("all", True, small=1)), ["'small'"], id="not a profile"),
        pytest.param(document(entry("all", True, **{"1c_3g_71gb": 1})), ["1c.3g.71gb", "whole"], id="compute slice"),
        pytest.param(document(entry("all", True, **{"1g_18gb": -1})), ["-1"], id="negative"),
    ],
)
def test_a_document_that_is_wrong(text: Any, words: list[str]) -> None:
    with pytest.raises(GeometryError) as caught:
        parse(text)
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        pytest.param(document(entry(), name="y"), ["no configuration x", "y"], id="no such configuration"),
        pytest.param(document(entry([2], False)), ["GPU 2", "1"], id="no such GPU"),
        pytest.param(
            document(entry([0], True, **{"1g_10gb": 1})), ["1g.10gb", "it has 1g.18gb, 1g.18gb+me"], id="other card's"
        ),
        pytest.param(
            document(entry([0], True, **{"3g_71gb": 2, "1g_18gb": 1})),
            ["does not fit", "of these 2 x 3g.71gb would", "7 x 1g.18gb"],
            id="does not fit",
        ),
        pytest.param(document(entry([1], True)), ["Tesla T4", "no MIG mode"], id="no MIG mode"),
    ],
)
def test_what_cannot_be(text: Any, words: list[str]) -> None:
    with pytest.raises(GeometryError) as caught:
        plan(text, "x", [card(), T4])
    for word in words:
        assert word in str(caught.value)
