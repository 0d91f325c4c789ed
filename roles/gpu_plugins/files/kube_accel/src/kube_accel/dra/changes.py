# SPDX-License-Identifier: Apache-2.0
"""What has to be written so that the API server has a node's slices. Pure.

Who reads slices takes those of the highest generation of a pool, and none unless all of them are there. So a change of
one slice keeps the generation, and any other gives all slices the next one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from kube_accel.dra.slices import DRIVER, Device, is_counters
from kube_accel.shared.modes import dra_pool

Slice = Mapping[str, Any]
"""A ResourceSlice as the API server has it."""

_DEVICES: Final = "devices"
COUNTERS: Final = "sharedCounters"
"""The fields of which a slice has one."""
_TYPE: Final = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice"}


@dataclass(frozen=True, slots=True)
class Changes:
    """To be made in this order."""

    delete: tuple[Slice, ...]
    writes: Mapping[int, Slice]
    """By place in the pool, whole objects: to be replaced where they have a name, to be created where they have none,
    then without an owner."""


def changes(
    stored: Iterable[Slice], wanted: Sequence[Sequence[Device]], accepted: Sequence[Sequence[Device]], node: str
) -> Changes:
    """Return what makes the stored slices of our pool the wanted ones.

    ``accepted`` is what the API server makes of the wanted devices: it leaves out what it does not know.
    """
    found = list(stored)
    generation = max((_generation(each) for each in found), default=0)
    current: dict[int, Slice] = {}
    for each in sorted(found, key=lambda each: str(each["metadata"]["name"])):
        place = _place(each["metadata"]["name"])
        if place is not None and place < len(wanted) and _generation(each) == generation:
            current.setdefault(place, each)
    kept = {id(each) for each in current.values()}
    described = {"name": dra_pool(node), "generation": generation, "resourceSliceCount": len(wanted)}
    changed = {
        place
        for place, each in current.items()
        if each["spec"]["pool"] != described or not same(contents(each), accepted[place])
    }
    missing = [place for place in range(len(wanted)) if place not in current]
    if missing or len(changed) > 1:
        described["generation"] = generation + 1
        changed = set(current)
    return Changes(
        delete=tuple(each for each in found if id(each) not in kept),
        writes={place: _updated(current[place], described, wanted[place]) for place in sorted(changed)}
        | {place: _created(place, described, wanted[place], node) for place in missing},
    )


def contents(each: Slice) -> Sequence[Device]:
    """Return a slice's devices, or its sets of counters."""
    found: Sequence[Device] = each["spec"].get(COUNTERS) or each["spec"].get(_DEVICES) or ()
    return found


def _written(items: Sequence[Device]) -> dict[str, list[Device]]:
    return {COUNTERS if items and is_counters(items[0]) else _DEVICES: list(items)}


def same(one: Iterable[Device], other: Iterable[Device]) -> bool:
    """Return whether devices are alike, but for when they were tainted, which the API server notes."""
    return [_untimed(device) for device in one] == [_untimed(device) for device in other]


def dropped(wanted: Sequence[Device], stored: Sequence[Device]) -> frozenset[str]:
    """Return the fields of devices that were not stored as they were sent.

    Where whole ones were not, it is the field of the slice that has them.
    """
    if [device["name"] for device in wanted] != [device.get("name") for device in stored]:
        return frozenset(_written(wanted))
    pairs = [(_untimed(sent), _untimed(kept)) for sent, kept in zip(wanted, stored, strict=True)]
    return frozenset(key for sent, kept in pairs for key in sent if sent[key] != kept.get(key))


def _untimed(device: Device) -> dict[str, Any]:
    taints = [
        {key: value for key, value in taint.items() if key != "timeAdded"} for taint in device.get("taints") or ()
    ]
    return {**device, "taints": taints} if taints else {key: device[key] for key in device if key != "taints"}


def _generation(each: Slice) -> int:
    return int(each["spec"]["pool"]["generation"])


def _place(name: str) -> int | None:
    """Return a slice's place in the pool, with which we begin its name."""
    number, dash, _ = name.partition("-")
    with suppress(ValueError):
        return int(number, 16) if dash and len(number) == 2 else None
    return None


def _updated(current: Slice, described: Mapping[str, Any], devices: Sequence[Device]) -> Slice:
    times = {
        (device["name"], taint["key"]): taint["timeAdded"]
        for device in current["spec"].get("devices") or ()
        for taint in device.get("taints") or ()
        if "timeAdded" in taint
    }
    # An item of a list has no type.
    rest = {key: value for key, value in current["spec"].items() if key not in (_DEVICES, COUNTERS)}
    return {**_TYPE, **current, "spec": {**rest, "pool": dict(described), **_written(_since(devices, times))}}


def _since(devices: Iterable[Device], times: Mapping[tuple[str, str], str]) -> list[Device]:
    """Return devices whose taints are as old as they were."""
    found = []
    for device in devices:
        taints = [
            {**taint, **({"timeAdded": times[key]} if (key := (device["name"], taint["key"])) in times else {})}
            for taint in device.get("taints", ())
        ]
        found.append({**device, "taints": taints} if taints else device)
    return found


def _created(place: int, described: Mapping[str, Any], devices: Sequence[Device], node: str) -> Slice:
    return {
        **_TYPE,
        # By their names slices are gone through when devices are allocated.
        "metadata": {"generateName": f"{place:02x}-{DRIVER}-{node}-"},
        "spec": {"driver": DRIVER, "nodeName": node, "pool": dict(described), **_written(devices)},
    }
