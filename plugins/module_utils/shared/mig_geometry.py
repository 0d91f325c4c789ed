# Apache License 2.0 (see https://www.apache.org/licenses/LICENSE-2.0)
# SPDX-License-Identifier: Apache-2.0
"""How GPUs are cut by MIG: reads a ``mig-configs`` document and plans the difference from what is there. Pure.

The document is that of nvidia-mig-parted: ``version: v1`` and ``mig-configs``, which names configurations; each is a
list of entries with ``device-filter``, ``devices``, ``mig-enabled`` and ``mig-devices``. A GPU has slices of compute
and of memory; a profile takes some of both, at one of its placements. Starts and sizes count slices of memory.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple

VERSION = "v1"
_PROFILE = re.compile(r"[1-9][0-9]*g\.[1-9][0-9]*gb(?:[+-][a-z.]+)*")
_PART = re.compile(r"[1-9][0-9]*c\..+")
_PCI_ID = re.compile(r"(0[xX][0-9A-Fa-f]{1,8})(?::(0[xX][0-9A-Fa-f]{1,8}))?")
_ENTRY_KEYS = ("device-filter", "devices", "mig-enabled", "mig-devices")


class GeometryError(ValueError):
    """A layout that a GPU cannot have, with all that is wrong and what fits instead."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("; ".join(problems))


@dataclass(frozen=True)
class Profile:
    """One way to cut a piece off a GPU."""

    name: str
    number: int
    """NVML's id."""
    slices: int
    """How many compute slices it has."""
    size: int
    starts: Tuple[int, ...]
    count: int
    """How many of it a GPU can have."""
    memory_mib: int = 0
    engines: Tuple[Tuple[str, int], ...] = ()
    """Its multiprocessors and engines, as attributes of MIG devices are named."""


@dataclass(frozen=True)
class Instance:
    """A GPU instance."""

    profile: str
    start: int
    size: int
    number: int = field(default=-1, compare=False)
    """NVML's id, -1 for one that is still to be made."""
    whole: bool = True
    """One compute instance takes all of it, so that it is one device."""
    devices: Tuple[str, ...] = field(default=(), compare=False)
    """UUIDs of its MIG devices."""


@dataclass(frozen=True)
class Process:
    """Somebody who uses a GPU."""

    pid: int
    name: str
    instance: Optional[int] = None
    """Number of the GPU instance it is in, None for the GPU."""


@dataclass(frozen=True)
class Card:
    """One GPU as NVML describes it."""

    index: int
    uuid: str
    model: str
    pci_id: int
    """Device id and vendor id, as 0x233510DE."""
    enabled: Optional[bool] = None
    """MIG mode, None where there is none."""
    pending: Optional[bool] = None
    """The mode after the next reset."""
    profiles: Tuple[Profile, ...] = ()
    instances: Tuple[Instance, ...] = ()
    processes: Tuple[Process, ...] = ()
    subsystem_id: int = 0
    """Device id and vendor id of the board, as 0x14A910DE."""

    def __str__(self) -> str:
        return f"GPU {self.index} ({self.model}, {self.uuid})"

    @property
    def slices(self) -> int:
        """Return how many compute slices the GPU has."""
        return max((profile.slices for profile in self.profiles), default=0)

    def profile(self, name: str) -> Profile:
        """Return the profile of this name. Raises KeyError."""
        for profile in self.profiles:
            if profile.name == name:
                return profile
        raise KeyError(name)


@dataclass(frozen=True)
class Model:
    """Some of the GPUs that there are, by their PCI ids."""

    pci_id: int
    subsystem_id: Optional[int] = None
    """None for every board."""

    def includes(self, card: Card) -> bool:
        """Return whether a GPU is one of these."""
        return self.pci_id == card.pci_id and self.subsystem_id in (None, card.subsystem_id)


@dataclass(frozen=True)
class Entry:
    """What some of a machine's GPUs are to be."""

    enabled: bool
    devices: Optional[Tuple[int, ...]] = None
    """Indexes; None for all."""
    models: Tuple[Model, ...] = ()
    """Those it is about; empty for all."""
    counts: Tuple[Tuple[str, int], ...] = ()

    def concerns(self, card: Card) -> bool:
        """Return whether this GPU is one of them."""
        if self.models and not any(model.includes(card) for model in self.models):
            return False
        return self.devices is None or card.index in self.devices


@dataclass(frozen=True)
class Step:
    """What is to be done with one GPU: destroy, set the mode, create."""

    card: Card
    enabled: bool
    destroy: Tuple[Instance, ...] = ()
    create: Tuple[Instance, ...] = ()

    @property
    def switches(self) -> bool:
        """Return whether the mode has to be set."""
        return self.card.enabled is not None and (self.card.enabled, self.card.pending) != (self.enabled, self.enabled)

    @property
    def needed(self) -> bool:
        """Return whether there is anything to do."""
        return self.switches or bool(self.destroy) or bool(self.create)

    @property
    def going(self) -> Tuple[str, ...]:
        """UUIDs by which containers may hold what this would take away: MIG devices, and the GPU itself."""
        devices = tuple(uuid for instance in self.destroy for uuid in instance.devices)
        return (self.card.uuid, *devices) if self.switches or self.destroy else ()

    @property
    def in_the_way(self) -> Tuple[Process, ...]:
        """Return the processes that use what this step would remove."""
        gone = {instance.number for instance in self.destroy}
        return tuple(
            process
            for process in self.card.processes
            if self.switches or (process.instance is None and self.destroy) or process.instance in gone
        )


# --- the document -----------------------------------------------------------------------------------------------------


def parse(document: object) -> Dict[str, Tuple[Entry, ...]]:
    """Return the configurations by name. Raises GeometryError with everything that is wrong with the document."""
    problems: List[str] = []
    if not isinstance(document, Mapping):
        raise GeometryError(["a mig-configs document is a mapping with the keys version and mig-configs"])
    problems += _unknown(document, ("version", "mig-configs"), "the document")
    if document.get("version") != VERSION:
        problems.append(f"version is {document.get('version')!r} and has to be {VERSION}")
    configs = document.get("mig-configs")
    found: Dict[str, Tuple[Entry, ...]] = {}
    if not isinstance(configs, Mapping) or not configs:
        problems.append("mig-configs has to name at least one configuration")
    else:
        for name, entries in configs.items():
            found[str(name)] = tuple(_entries(str(name), entries, problems))
    if problems:
        raise GeometryError(problems)
    return found


def profile_problem(profile: object) -> str:
    """Return why this is not the name of a profile that makes a device of a whole GPU instance; empty if it is one."""
    if isinstance(profile, str) and _PART.fullmatch(profile):
        return f"{profile} is a part of a GPU instance; only whole ones are supported"
    if not isinstance(profile, str) or not _PROFILE.fullmatch(profile):
        return f"{profile!r} is not the name of a MIG profile, as 1g.18gb or 1g.18gb+me"
    return ""


def _unknown(mapping: Mapping[Any, Any], known: Sequence[str], what: str) -> List[str]:
    return [f"{what} has the unknown key {key!r} (known: {', '.join(known)})" for key in mapping if key not in known]


def _entries(name: str, entries: object, problems: List[str]) -> Iterator[Entry]:
    if not isinstance(entries, list) or not entries:
        problems.append(f"configuration {name} has to be a list with at least one entry")
        return
    for number, entry in enumerate(entries, 1):
        what = f"entry {number} of configuration {name}"
        if not isinstance(entry, Mapping):
            problems.append(f"{what} has to be a mapping")
            continue
        before = len(problems)
        problems += _unknown(entry, _ENTRY_KEYS, what)
        enabled = entry.get("mig-enabled")
        if not isinstance(enabled, bool):
            problems.append(f"{what}: mig-enabled is required, true or false")
        models = _models(entry.get("device-filter"), what, problems)
        devices = _devices(entry.get("devices"), what, problems)
        counts = _counts(entry.get("mig-devices"), enabled, what, problems)
        if len(problems) == before:
            yield Entry(bool(enabled), devices, models, counts)


def _models(value: object, what: str, problems: List[str]) -> Tuple[Model, ...]:
    names = [value] if isinstance(value, str) else value
    if names is None or names == [""]:
        return ()
    matches = [_PCI_ID.fullmatch(str(name)) for name in names] if isinstance(names, list) else [None]
    if None in matches:
        problems.append(
            f"{what}: device-filter is a PCI device id as 0x233510DE, one with its board's as 0x25B610DE:0x14A910DE, "
            "or a list of such"
        )
    found = [match.groups() for match in matches if match is not None]
    return tuple(Model(int(device, 16), int(board, 16) if board else None) for device, board in found)


def _is_number(value: object) -> bool:
    """Zero or more; YAML's true and false are integers to Python."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _devices(value: object, what: str, problems: List[str]) -> Optional[Tuple[int, ...]]:
    if value == "all":
        return None
    good = isinstance(value, list) and all(_is_number(index) for index in value)
    if not good:
        problems.append(f"{what}: devices is required, all or a list of GPU numbers")
        return None
    return tuple(value)  # type: ignore[arg-type]


def _counts(value: object, enabled: object, what: str, problems: List[str]) -> Tuple[Tuple[str, int], ...]:
    if value is None:
        if enabled is True:
            problems.append(f"{what}: mig-devices is required where mig-enabled is true; {{}} for none")
        return ()
    if not isinstance(value, Mapping):
        problems.append(f"{what}: mig-devices says how many of which profile, as 1g.18gb: 7")
        return ()
    if value and enabled is False:
        problems.append(f"{what}: mig-devices are named although mig-enabled is false")
    for profile, count in value.items():
        problem = profile_problem(profile)
        problems += [f"{what}: {problem}"] if problem else []
        if not _is_number(count):
            problems.append(f"{what}: {profile}: {count!r} is not a number of devices")
    if problems:
        return ()
    return tuple((profile, count) for profile, count in value.items() if count)


# --- what is to be done -----------------------------------------------------------------------------------------------


def plan(document: object, name: str, cards: Sequence[Card]) -> Tuple[Step, ...]:
    """Return what to do so that the GPUs are as the configuration says; GPUs it does not name are left alone.

    Raises GeometryError with all that cannot be: nothing has to be touched to find out.
    """
    configs = parse(document)
    if name not in configs:
        raise GeometryError([f"there is no configuration {name}; there are {', '.join(sorted(configs))}"])
    problems = [
        f"configuration {name} names GPU {index}, and the last one is {len(cards) - 1}"
        for entry in configs[name]
        for index in entry.devices or ()
        if index >= len(cards)
    ]
    steps: List[Step] = []
    for card in cards:
        # Entries are applied in their order: the last one stays.
        concerning = [entry for entry in configs[name] if entry.concerns(card)][-1:]
        for entry in concerning:
            try:
                steps.append(step(card, entry.enabled, dict(entry.counts)))
            except GeometryError as error:
                problems.append(str(error))
    if problems:
        raise GeometryError(problems)
    return tuple(steps)


def step(card: Card, enabled: bool, counts: Mapping[str, int]) -> Step:
    """Return what to do with one GPU so that it has so many of each profile; instances that can stay do.

    Raises GeometryError when it has no such profile or not that much room, naming what it has.
    """
    if not enabled:
        return difference(card, False, ())
    if card.enabled is None:
        raise GeometryError([f"{card} has no MIG mode; name the GPUs that have one by device-filter or devices"])
    missing = [name for name in counts if name not in {profile.name for profile in card.profiles}]
    if missing:
        has = ", ".join(profile.name for profile in card.profiles)
        raise GeometryError([f"{card} has no MIG profile {', '.join(missing)}; it has {has}"])
    chosen = layout(card, counts)
    if chosen is None:
        asked = ", ".join(f"{count} x {name}" for name, count in counts.items())
        room = ", ".join(f"{profile.count} x {profile.name}" for profile in card.profiles)
        fitting = ", ".join(f"{count} x {name}" for name, count in _largest_part(card, counts).items()) or "none"
        raise GeometryError([f"{asked} does not fit {card}; of these {fitting} would, and of one profile alone {room}"])
    return difference(card, True, chosen)


def difference(card: Card, enabled: bool, wanted: Sequence[Instance]) -> Step:
    """Return what to do with a GPU so that it has exactly these instances, at these places."""
    stay = [instance for instance in card.instances if instance.whole and instance in wanted]
    destroy = tuple(instance for instance in card.instances if instance not in stay)
    create = tuple(instance for instance in wanted if instance not in stay)
    return Step(card, enabled and card.enabled is not None, destroy, create)


def layout(card: Card, counts: Mapping[str, int]) -> Optional[Tuple[Instance, ...]]:
    """Return where so many of each profile go, with as many as possible of the GPU's instances in it; None: no room."""
    wanted = Counter({name: count for name, count in counts.items() if count})
    if any(count > card.profile(name).count for name, count in wanted.items()):
        return None
    if sum(card.profile(name).slices * count for name, count in wanted.items()) > card.slices:
        return None
    usable = [instance for instance in card.instances if instance.whole and instance.profile in wanted]
    for kept in itertools.chain.from_iterable(
        itertools.combinations(usable, length) for length in range(len(usable), -1, -1)
    ):
        rest = wanted.copy()
        rest.subtract(instance.profile for instance in kept)
        if min(rest.values(), default=0) < 0:
            continue
        profiles = sorted(
            (card.profile(name) for name in rest.elements()), key=lambda profile: (-profile.size, profile.name)
        )
        placed = _place(profiles, kept)
        if placed is not None:
            return placed
    return None


def _place(profiles: Sequence[Profile], taken: Tuple[Instance, ...]) -> Optional[Tuple[Instance, ...]]:
    """Return places for the instances, the largest first. Equal ones ascend, so that each layout is tried once."""
    if not profiles:
        return taken
    profile = profiles[0]
    last = taken[-1] if taken and taken[-1].profile == profile.name and taken[-1].number == -1 else None
    for start in sorted(profile.starts):
        if last is not None and start < last.start:
            continue
        if all(start >= other.start + other.size or other.start >= start + profile.size for other in taken):
            found = _place(profiles[1:], (*taken, Instance(profile.name, start, profile.size)))
            if found is not None:
                return found
    return None


def _largest_part(card: Card, counts: Mapping[str, int]) -> Dict[str, int]:
    """Returns as much of what was asked for as fits, most compute first."""
    best: Dict[str, int] = {}
    names = sorted(counts, key=lambda name: -card.profile(name).slices)
    for name in names:
        for count in range(min(counts[name], card.profile(name).count), 0, -1):
            if layout(card, {**best, name: count}) is not None:
                best[name] = count
                break
    return best


def standard_starts(slices: int, size: int, compute: int, memory: int) -> Tuple[int, ...]:
    """Return where a profile goes on GPUs whose driver reports it only while MIG mode is on.

    An instance begins at a multiple of its size, and there is one slice less of compute than of memory, or as many.
    """
    return tuple(start for start in range(0, memory, size) if start + size <= memory and start + slices <= compute)


def memory_slices(fraction: float, memory: int) -> int:
    """Return the slices of memory of a profile with this part of the largest profile's bytes: a power of two."""
    size = 1
    while size < fraction * memory - 0.1:
        size *= 2
    return size


def described(card: Card) -> Dict[str, Any]:
    """Return a GPU's geometry for people."""
    return {
        "index": card.index,
        "uuid": card.uuid,
        "model": card.model,
        "mig_enabled": bool(card.enabled),
        "mig_devices": dict(sorted(Counter(instance.profile for instance in card.instances).items())),
    }


def as_document(name: str, geometry: Sequence[Mapping[str, Any]]) -> Dict[str, Any]:
    """Return a mig-configs document with one configuration of this name: the geometry from ``described``."""
    entries = [
        {
            "devices": [gpu["index"]],
            "mig-enabled": gpu["mig_enabled"],
            **({"mig-devices": gpu["mig_devices"]} if gpu["mig_enabled"] else {}),
        }
        for gpu in geometry
    ]
    return {"version": VERSION, "mig-configs": {name: entries}}


def expected(step: Step) -> Dict[str, Any]:
    """Return the geometry a step leads to."""
    left = [instance for instance in step.card.instances if instance not in step.destroy]
    devices = Counter(instance.profile for instance in (*left, *step.create))
    return {**described(step.card), "mig_enabled": step.enabled, "mig_devices": dict(sorted(devices.items()))}
