# SPDX-License-Identifier: Apache-2.0
"""MIG devices that are made when a claim has them, and the counters by which they exclude each other. Pure.

A GPU has a set of counters: its slices of cores, each slice of its memory, and what limits single profiles. The whole
GPU takes all of it, once however many shares it is given in, and a MIG device what its place takes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from kube_accel.shared.claim_devices import AT, MIG, gpu_device
from kube_accel.shared.mig_geometry import Card, Profile

_ENGINES: Final = ("engines.decoder", "engines.encoder", "engines.jpeg", "engines.ofa")
"""Of which a GPU has so few that profiles with them exclude each other: of a profile, ``+me`` is for these."""


@dataclass(frozen=True, slots=True)
class Placement:
    """Where on its GPU a MIG device is; slices of memory."""

    profile: str
    start: int
    size: int

    def overlaps(self, start: int, size: int) -> bool:
        """Return whether both take a slice."""
        return start < self.start + self.size and self.start < start + size


@dataclass(frozen=True, slots=True)
class Partition:
    """A MIG device that can be made."""

    device: str
    placement: Placement
    counters: Mapping[str, int]
    """What it takes of its GPU."""
    memory_bytes: int
    engines: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class Divided:
    """A GPU of which claims may have MIG devices that are made for them."""

    name: str
    """Of its set of counters: the device of the whole GPU."""
    counters: Mapping[str, int]
    partitions: tuple[Partition, ...]
    whole: bool
    """Whether claims may have all of it, too: MIG mode ends with the last device."""


def label(profile: str) -> str:
    """Return a profile as a part of a device's name: ``1g.10gb+me`` as ``1g10gb-me``.

    ``1g.10gb-me`` is another, ``1g10gb-no-me``.
    """
    return re.sub(r"[^a-z0-9]+", "-", profile.replace(".", "").replace("-", "-no-"))


def device_name(gpu: str, placement: Placement) -> str:
    """Return the name of a MIG device on the GPU with this device."""
    return f"{gpu}{MIG}{label(placement.profile)}{AT}{placement.start}"


def divided(card: Card, profiles: Iterable[str], held: Iterable[Placement], whole: bool) -> Divided:
    """Return what there is of a GPU by these profiles, which it has or not, and where claims hold some already."""
    name = gpu_device(card.index)
    wanted, places = set(profiles), dict.fromkeys(held)
    known = {profile.name: profile for profile in card.profiles}
    for profile in card.profiles:
        if profile.name in wanted:
            places |= dict.fromkeys(Placement(profile.name, start, profile.size) for start in profile.starts)
    partitions = tuple(
        _partition(name, place, known[place.profile]) for place in sorted(places, key=_order) if place.profile in known
    )
    return Divided(name, _counters(card, partitions), partitions, whole)


def lacking(card: Card, profiles: Iterable[str]) -> str:
    """Return which of the profiles a GPU does not have, and what it has; empty where it has all of them."""
    known = [profile.name for profile in card.profiles]
    missing = [name for name in profiles if name not in known]
    return f"it has no MIG profile {', '.join(missing)}; it has {', '.join(known) or 'none'}" if missing else ""


def _order(place: Placement) -> tuple[int, str, int]:
    return place.size, place.profile, place.start


def _partition(gpu: str, place: Placement, profile: Profile) -> Partition:
    return Partition(
        device_name(gpu, place), place, dict(_taken(profile, place)), profile.memory_mib << 20, profile.engines
    )


def _taken(profile: Profile, place: Placement) -> Iterator[tuple[str, int]]:
    yield "slices", profile.slices
    for number in range(place.start, place.start + place.size):
        yield f"memory-slice-{number}", 1
    if profile.count < len(profile.starts):
        yield _own(profile), 1
    engines = dict(profile.engines)
    for name in _ENGINES:
        if engines.get(name):
            yield name.replace(".", "-"), engines[name]


def _counters(card: Card, partitions: Iterable[Partition]) -> dict[str, int]:
    """Return what a GPU has of all that its partitions take: of engines, as much as the profile with the most."""
    most: dict[str, int] = {"slices": card.slices}
    for profile in card.profiles:
        if profile.count < len(profile.starts):
            most[_own(profile)] = profile.count
        for name, number in profile.engines:
            key = name.replace(".", "-")
            most[key] = max(most.get(key, 0), number)
    taken = sorted({name for partition in partitions for name in partition.counters})
    return {name: most.get(name, 1) for name in taken}


def _own(profile: Profile) -> str:
    """Return the counter of a profile of which a GPU can have fewer than places."""
    return f"of-{label(profile.name)}"


def counter_set(gpu: Divided) -> dict[str, Any]:
    """Return the item of a slice's ``sharedCounters``."""
    return {"name": gpu.name, "counters": _values(gpu.counters)}


def consumed(gpu: Divided, counters: Mapping[str, int]) -> list[dict[str, Any]]:
    """Return the ``consumesCounters`` of a device."""
    return [{"counterSet": gpu.name, "counters": _values(counters)}]


def _values(counters: Mapping[str, int]) -> dict[str, Any]:
    return {name: {"value": str(number)} for name, number in counters.items()}
