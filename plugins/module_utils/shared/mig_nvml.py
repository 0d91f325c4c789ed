# Apache License 2.0 (see https://www.apache.org/licenses/LICENSE-2.0)
# SPDX-License-Identifier: Apache-2.0
"""Reads and changes how GPUs are cut by MIG, through NVML by ctypes. What is to be done is planned in mig_geometry.

Names, numbers and structures are those of nvml.h; the versioned profile queries are in drivers from branch 510 on.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

from .gpu_exclusion import Exclusion, excluded_by
from .mig_geometry import (
    Card,
    GeometryError,
    Instance,
    Process,
    Profile,
    Step,
    described,
    difference,
    expected,
    memory_slices,
    plan,
    standard_starts,
)
from .nvml_library import MAX_MIG_DEVICES, Nvml, NvmlError, opened

_INVALID_ARGUMENT = 2
_NOT_SUPPORTED = 3
_NOT_FOUND = 6
_INSUFFICIENT_SIZE = 7
_FUNCTION_NOT_FOUND = 13
_RESET_REQUIRED = 16
_IN_USE = 19
_ABSENT = frozenset({_NOT_SUPPORTED, _FUNCTION_NOT_FOUND})
_EMPTY_SLOT = frozenset({_NOT_FOUND, _INVALID_ARGUMENT})
"""What drivers answer where no MIG device is."""

_GPU_PROFILES = 18
"""NVML_GPU_INSTANCE_PROFILE_COUNT."""
_COMPUTE_PROFILES = 9
"""NVML_COMPUTE_INSTANCE_PROFILE_COUNT."""
_MAX_COMPUTE_INSTANCES = 8
_ATTEMPTS = 16
"""To list processes, while new ones start."""
_NO_INSTANCE = 0xFFFFFFFF
_ENGINES = (
    ("multiprocessors", "multiprocessorCount"),
    ("engines.copy", "copyEngineCount"),
    ("engines.decoder", "decoderCount"),
    ("engines.encoder", "encoderCount"),
    ("engines.jpeg", "jpegCount"),
    ("engines.ofa", "ofaCount"),
)
"""Fields of a profile, by what an attribute of its MIG devices is called."""
Look = Callable[[], List[Card]]


class MigError(Exception):
    """A GPU could not be cut as wanted. Says which, why, what to do, and what became of the old geometry."""


@dataclass
class Outcome:
    """What was done."""

    before: List[Dict[str, Any]] = field(default_factory=list)
    after: List[Dict[str, Any]] = field(default_factory=list)
    changed: bool = False
    reset: List[str] = field(default_factory=list)
    """GPUs whose mode changes with their next reset."""
    reboot: List[str] = field(default_factory=list)
    """Those that only a reboot resets."""
    cut: List[str] = field(default_factory=list)
    """GPUs that something was done with, or would be."""
    in_use: List[str] = field(default_factory=list)
    """GPUs with processes in the way, each with a sentence's worth about them."""
    going: List[str] = field(default_factory=list)
    """UUIDs by which containers may hold what is taken away, of GPUs and of MIG devices."""


class _GpuProfile(ctypes.Structure):
    """nvmlGpuInstanceProfileInfo_v2_t."""

    _fields_ = (
        ("version", ctypes.c_uint),
        ("id", ctypes.c_uint),
        ("isP2pSupported", ctypes.c_uint),
        ("sliceCount", ctypes.c_uint),
        ("instanceCount", ctypes.c_uint),
        ("multiprocessorCount", ctypes.c_uint),
        ("copyEngineCount", ctypes.c_uint),
        ("decoderCount", ctypes.c_uint),
        ("encoderCount", ctypes.c_uint),
        ("jpegCount", ctypes.c_uint),
        ("ofaCount", ctypes.c_uint),
        ("memorySizeMB", ctypes.c_ulonglong),
        ("name", ctypes.c_char * 96),
    )


class _ComputeProfile(ctypes.Structure):
    """nvmlComputeInstanceProfileInfo_v2_t."""

    _fields_ = (
        ("version", ctypes.c_uint),
        ("id", ctypes.c_uint),
        ("sliceCount", ctypes.c_uint),
        ("instanceCount", ctypes.c_uint),
        ("multiprocessorCount", ctypes.c_uint),
        ("sharedCopyEngineCount", ctypes.c_uint),
        ("sharedDecoderCount", ctypes.c_uint),
        ("sharedEncoderCount", ctypes.c_uint),
        ("sharedJpegCount", ctypes.c_uint),
        ("sharedOfaCount", ctypes.c_uint),
        ("name", ctypes.c_char * 96),
    )


class _Placement(ctypes.Structure):
    """nvmlGpuInstancePlacement_t."""

    _fields_ = (("start", ctypes.c_uint), ("size", ctypes.c_uint))


class _GpuInstance(ctypes.Structure):
    """nvmlGpuInstanceInfo_t."""

    _fields_ = (
        ("device", ctypes.c_void_p),
        ("id", ctypes.c_uint),
        ("profileId", ctypes.c_uint),
        ("placement", _Placement),
    )


class _Process(ctypes.Structure):
    """nvmlProcessInfo_t."""

    _fields_ = (
        ("pid", ctypes.c_uint),
        ("usedGpuMemory", ctypes.c_ulonglong),
        ("gpuInstanceId", ctypes.c_uint),
        ("computeInstanceId", ctypes.c_uint),
    )


def carry_out(
    library: str, document: object, name: str, check: bool, exclusions: Sequence[Exclusion] = ()
) -> Dict[str, Any]:
    """Make the GPUs what the configuration says, or with ``check`` say what would be done. Excluded ones are not read.

    Returns an Outcome as plain data, or ``{"refused": why}`` when nothing, or nothing that lasted, was changed. Raises
    NoAnswer when NVML cannot be used.
    """
    nvml = opened(library)
    look = partial(read, nvml, exclusions)
    try:
        cards = look()
        steps = [step for step in plan(document, name, cards) if step.needed]
        outcome = Outcome(
            before=[described(card) for card in cards],
            cut=[step.card.uuid for step in steps],
            in_use=_users(steps),
            going=[uuid for step in steps for uuid in step.going],
        )
        if check:
            planned = {step.card.index: expected(step) for step in steps}
            outcome.after = [planned.get(card.index, described(card)) for card in cards]
            outcome.changed = bool(steps)
        elif outcome.in_use:
            return {"refused": refusal(outcome.in_use)}
        else:
            _apply(nvml, look, document, name, steps, outcome)
            outcome.after = [described(card) for card in look()]
    except (GeometryError, MigError, NvmlError) as error:
        return {"refused": str(error)}
    return dict(vars(outcome))


def _users(steps: Sequence[Step]) -> List[str]:
    return [
        f"{step.card} by {', '.join(f'{process.name} (pid {process.pid})' for process in step.in_the_way)}"
        for step in steps
        if step.in_the_way
    ]


def refusal(in_use: Sequence[str]) -> str:
    """Return why GPUs that are in use are not cut."""
    return f"in use: {'; '.join(in_use)}. End these processes, or drain the node; nothing was changed"


def _apply(nvml: Nvml, look: Look, document: object, name: str, steps: Sequence[Step], outcome: Outcome) -> None:
    """Do every step, or on failure none: what was changed is put back."""
    begun: List[Step] = []
    try:
        for step in steps:
            begun.append(step)
            _carry_out(nvml, look, step, document, name, outcome)
        _verify(look, document, name, outcome)
    except (GeometryError, MigError, NvmlError) as error:
        failed = _put_back(nvml, begun)
        state = f"the old geometry could not be put back ({failed})" if failed else "the old geometry is back"
        raise MigError(f"{error}; {state}") from error
    outcome.changed = bool(steps)


def _carry_out(nvml: Nvml, look: Look, step: Step, document: object, name: str, outcome: Outcome) -> None:
    handle = nvml.handle(step.card.index)
    destroy_instances(nvml, handle, step.card, step.destroy)
    if step.switches:
        status = set_mode(nvml, handle, step)
        if status:
            (outcome.reboot if status == _RESET_REQUIRED else outcome.reset).append(step.card.uuid)
            return
        # The driver reports where instances may be only in MIG mode.
        fresh = read_card(nvml, step.card.index)
        (step,) = (other for other in plan(document, name, _others(look, fresh)) if other.card.index == fresh.index)
        handle = nvml.handle(step.card.index)
    create_instances(nvml, handle, step.card, step.create)


def _others(look: Look, fresh: Card) -> List[Card]:
    return [fresh if card.index == fresh.index else card for card in look()]


def _verify(look: Look, document: object, name: str, outcome: Outcome) -> None:
    waiting = {*outcome.reset, *outcome.reboot}
    wrong = [step for step in plan(document, name, look()) if step.needed and step.card.uuid not in waiting]
    if wrong:
        raise MigError(f"{', '.join(str(step.card) for step in wrong)}: NVML shows another geometry than it accepted")


def _put_back(nvml: Nvml, begun: Sequence[Step]) -> str:
    """Restore the GPUs as they were before their steps; return why that failed, empty when it did not."""
    failures = []
    for begun_step in reversed(begun):
        before = begun_step.card
        wanted = [replace(instance, whole=True) for instance in before.instances]
        try:
            handle = nvml.handle(before.index)
            back = difference(read_card(nvml, before.index), bool(before.enabled), wanted)
            destroy_instances(nvml, handle, back.card, back.destroy)
            if back.switches and set_mode(nvml, handle, back):
                failures.append(f"{before} needs a reset")
                continue
            handle = nvml.handle(before.index)
            create_instances(nvml, handle, before, back.create)
        except (NvmlError, MigError) as error:
            failures.append(f"{before}: {error}")
    return "; ".join(failures)


def set_mode(nvml: Nvml, handle: ctypes.c_void_p, step: Step) -> int:
    """Return 0, or why the mode is only pending: NVML's code for a GPU in use or one that cannot be reset from here."""
    status = ctypes.c_uint()
    nvml.call("nvmlDeviceSetMigMode", handle, ctypes.c_uint(int(step.enabled)), ctypes.byref(status))
    if status.value in (0, _IN_USE, _RESET_REQUIRED):
        return status.value
    raise NvmlError(status.value, f"MIG mode of {step.card} was set and not activated")


def destroy_instances(nvml: Nvml, handle: ctypes.c_void_p, card: Card, instances: Sequence[Instance]) -> None:
    """Destroy these of a GPU's instances. Raises NvmlError."""
    # The driver lists instances in MIG mode only.
    found = {info.id: cell for cell, info in _instances(nvml, handle, card.profiles)} if instances else {}
    for instance in instances:
        cell = found[instance.number]
        for compute, _slices in _compute_instances(nvml, cell):
            nvml.call("nvmlComputeInstanceDestroy", compute)
        nvml.call("nvmlGpuInstanceDestroy", cell)


def create_instances(nvml: Nvml, handle: ctypes.c_void_p, card: Card, instances: Sequence[Instance]) -> None:
    """Make these, each with one compute instance. Raises NvmlError, MigError."""
    for instance in instances:
        profile = card.profile(instance.profile)
        cell, compute = ctypes.c_void_p(), ctypes.c_void_p()
        place = _Placement(instance.start, instance.size)
        number = ctypes.c_uint(profile.number)
        nvml.call("nvmlDeviceCreateGpuInstanceWithPlacement", handle, number, ctypes.byref(place), ctypes.byref(cell))
        whole = [info for info in _compute_profiles(nvml, cell) if info.sliceCount == profile.slices]
        if not whole:
            raise MigError(f"{card}: {profile.name} offers no compute instance of {profile.slices} slices")
        number = ctypes.c_uint(whole[0].id)
        nvml.call("nvmlGpuInstanceCreateComputeInstance", cell, number, ctypes.byref(compute))


# --- reading ----------------------------------------------------------------------------------------------------------


def read(nvml: Nvml, exclusions: Sequence[Exclusion] = ()) -> List[Card]:
    """Return all GPUs but those excluded.

    Raises MigError naming the first that cannot be read, NvmlError when none can.
    """
    cards = []
    for index in range(nvml.number("nvmlDeviceGetCount_v2")):
        if excluded_by(exclusions, index):
            continue
        try:
            handle = nvml.handle(index)
            address = nvml.pci_address("nvmlDeviceGetPciInfo_v3", handle)
            model = nvml.text("nvmlDeviceGetName", handle)
            if not excluded_by(exclusions, index, nvml.text("nvmlDeviceGetUUID", handle), address, model):
                cards.append(read_card(nvml, index))
        except NvmlError as error:
            raise MigError(f"GPU {index} cannot be read: {error}") from error
        except Exception as error:  # an answer that makes no sense
            raise MigError(f"GPU {index} cannot be read: NVML's answer cannot be used: {error!r}") from error
    return cards


def read_card(nvml: Nvml, index: int) -> Card:
    """Return one GPU. Raises NvmlError."""
    handle = nvml.handle(index)
    uuid, model = nvml.text("nvmlDeviceGetUUID", handle), nvml.text("nvmlDeviceGetName", handle)
    pci_id, subsystem_id = nvml.pci_ids(handle)
    card = Card(index, uuid, model, pci_id, subsystem_id=subsystem_id)
    current, pending = ctypes.c_uint(), ctypes.c_uint()
    try:
        nvml.call("nvmlDeviceGetMigMode", handle, ctypes.byref(current), ctypes.byref(pending))
    except NvmlError as error:
        if error.code not in _ABSENT:
            raise
        return card
    enabled = bool(current.value)
    profiles = _profiles(nvml, handle, enabled)
    instances = tuple(_read_instances(nvml, handle, profiles)) if enabled else ()
    return replace(
        card,
        enabled=enabled,
        pending=bool(pending.value),
        profiles=profiles,
        instances=instances,
        processes=_processes(nvml, handle),
    )


def _profiles(nvml: Nvml, handle: ctypes.c_void_p, enabled: bool) -> Tuple[Profile, ...]:
    found = []
    for kind in range(_GPU_PROFILES):
        info = _GpuProfile(version=2 << 24 | ctypes.sizeof(_GpuProfile))
        if _supported(nvml, "nvmlDeviceGetGpuInstanceProfileInfoV", handle, ctypes.c_uint(kind), ctypes.byref(info)):
            found.append(info)
    compute = max((info.sliceCount for info in found), default=0)
    largest = max((info.memorySizeMB for info in found), default=0)
    memory = 1
    while memory < compute:
        memory *= 2
    profiles = []
    for info in found:
        size = memory_slices(info.memorySizeMB / largest, memory)
        starts = standard_starts(info.sliceCount, size, compute, memory)
        if enabled:
            size, starts = _placements(nvml, handle, info)
        name = info.name.decode().replace("MIG ", "", 1)
        engines = tuple((key, getattr(info, field_)) for key, field_ in _ENGINES)
        profiles.append(
            Profile(name, info.id, info.sliceCount, size, starts, info.instanceCount, info.memorySizeMB, engines)
        )
    return tuple(sorted(profiles, key=lambda profile: (profile.slices, profile.size, profile.name)))


def _supported(nvml: Nvml, name: str, *arguments: Any) -> bool:  # noqa: ANN401
    try:
        nvml.call(name, *arguments)
    except NvmlError as error:
        # A kind of profile that is younger than the driver is no argument to it.
        if error.code not in (_NOT_SUPPORTED, _INVALID_ARGUMENT):
            raise
        return False
    return True


def _placements(nvml: Nvml, handle: ctypes.c_void_p, info: _GpuProfile) -> Tuple[int, Tuple[int, ...]]:
    function, number, count = "nvmlDeviceGetGpuInstancePossiblePlacements_v2", ctypes.c_uint(info.id), ctypes.c_uint()
    nvml.call(function, handle, number, None, ctypes.byref(count))
    places = (_Placement * count.value)()
    nvml.call(function, handle, number, places, ctypes.byref(count))
    if not count.value:
        return 0, ()
    return places[0].size, tuple(sorted(place.start for place in places[: count.value]))


def _instances(
    nvml: Nvml, handle: ctypes.c_void_p, profiles: Sequence[Profile]
) -> List[Tuple[ctypes.c_void_p, _GpuInstance]]:
    found = []
    for profile in profiles:
        cells, count = (ctypes.c_void_p * profile.count)(), ctypes.c_uint(profile.count)
        nvml.call("nvmlDeviceGetGpuInstances", handle, ctypes.c_uint(profile.number), cells, ctypes.byref(count))
        for cell in cells[: count.value]:
            info = _GpuInstance()
            nvml.call("nvmlGpuInstanceGetInfo", ctypes.c_void_p(cell), ctypes.byref(info))
            found.append((ctypes.c_void_p(cell), info))
    return found


def _read_instances(nvml: Nvml, handle: ctypes.c_void_p, profiles: Sequence[Profile]) -> List[Instance]:
    by_number = {profile.number: profile for profile in profiles}
    devices = _devices(nvml, handle)
    found = []
    for cell, info in _instances(nvml, handle, profiles):
        profile = by_number[info.profileId]
        whole = [slices for _compute, slices in _compute_instances(nvml, cell)] == [profile.slices]
        found.append(
            Instance(profile.name, info.placement.start, info.placement.size, info.id, whole, devices.get(info.id, ()))
        )
    return sorted(found, key=lambda instance: instance.start)


def _devices(nvml: Nvml, handle: ctypes.c_void_p) -> Dict[int, Tuple[str, ...]]:
    """UUIDs of the MIG devices by the GPU instance they are in."""
    found: Dict[int, Tuple[str, ...]] = {}
    for slot in range(min(nvml.number("nvmlDeviceGetMaxMigDeviceCount", handle), MAX_MIG_DEVICES)):
        device = ctypes.c_void_p()
        try:
            nvml.call("nvmlDeviceGetMigDeviceHandleByIndex", handle, ctypes.c_uint(slot), ctypes.byref(device))
        except NvmlError as error:
            if error.code not in _EMPTY_SLOT:
                raise
            continue
        instance = nvml.number("nvmlDeviceGetGpuInstanceId", device)
        found[instance] = (*found.get(instance, ()), nvml.text("nvmlDeviceGetUUID", device))
    return found


def _compute_profiles(nvml: Nvml, cell: ctypes.c_void_p) -> List[_ComputeProfile]:
    found = []
    function = "nvmlGpuInstanceGetComputeInstanceProfileInfoV"
    for kind in range(_COMPUTE_PROFILES):
        info = _ComputeProfile(version=2 << 24 | ctypes.sizeof(_ComputeProfile))
        if _supported(nvml, function, cell, ctypes.c_uint(kind), ctypes.c_uint(0), ctypes.byref(info)):
            found.append(info)
    return found


def _compute_instances(nvml: Nvml, cell: ctypes.c_void_p) -> List[Tuple[ctypes.c_void_p, int]]:
    """Return the compute instances of a GPU instance, with their slices."""
    found = []
    for info in _compute_profiles(nvml, cell):
        cells, count = (ctypes.c_void_p * _MAX_COMPUTE_INSTANCES)(), ctypes.c_uint(_MAX_COMPUTE_INSTANCES)
        nvml.call("nvmlGpuInstanceGetComputeInstances", cell, ctypes.c_uint(info.id), cells, ctypes.byref(count))
        found += [(ctypes.c_void_p(compute), info.sliceCount) for compute in cells[: count.value]]
    return found


def _processes(nvml: Nvml, handle: ctypes.c_void_p) -> Tuple[Process, ...]:
    found: Dict[int, Process] = {}
    for kind in ("Compute", "Graphics", "MPSCompute"):
        for info in _running(nvml, f"nvmlDeviceGet{kind}RunningProcesses_v3", handle):
            instance: Optional[int] = None if info.gpuInstanceId == _NO_INSTANCE else info.gpuInstanceId
            found[info.pid] = Process(info.pid, _name_of(info.pid), instance)
    return tuple(found.values())


def _running(nvml: Nvml, function: str, handle: ctypes.c_void_p) -> List[_Process]:
    count = ctypes.c_uint()
    infos: Any = None
    for _attempt in range(_ATTEMPTS):
        try:
            nvml.call(function, handle, ctypes.byref(count), infos)
        except NvmlError as error:
            if error.code in _ABSENT:
                return []
            if error.code != _INSUFFICIENT_SIZE:
                raise
            count.value += 8  # some may start meanwhile
            infos = (_Process * count.value)()
        else:
            return list(infos[: count.value]) if infos else []
    raise NvmlError(_INSUFFICIENT_SIZE, f"{function} failed {_ATTEMPTS} times")


def _name_of(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/comm", encoding="utf-8", errors="replace") as file:
            return file.read().strip()
    except OSError:
        return "a process of another PID namespace"
