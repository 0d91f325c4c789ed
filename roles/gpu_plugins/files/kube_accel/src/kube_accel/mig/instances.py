# SPDX-License-Identifier: Apache-2.0
"""Makes and destroys single MIG devices: a GPU instance with one compute instance that takes all of it.

Each may be asked for again, after a kill at any point: it goes on from what is there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, Final

from kube_accel.shared.gpu_exclusion import Exclusion, excluded_by
from kube_accel.shared.mig_geometry import Card, Instance, Process, Profile, Step
from kube_accel.shared.mig_nvml import MigError, create_instances, destroy_instances, read_card, refusal, set_mode
from kube_accel.shared.nvml_library import Nvml, NvmlError, opened

_GPU_IS_LOST: Final = 15


def carry_out(library: str, what: str, arguments: Mapping[str, Any], excluded: Sequence[Exclusion]) -> dict[str, Any]:
    """Do one of ``cards``, ``make``, and ``remove``.

    Returns ``{"refused": why}`` when nothing, or nothing that lasted, was changed. Raises NoAnswer when NVML cannot be
    used.
    """
    nvml = opened(library)
    try:
        if what == "cards":
            return {"cards": [asdict(card) for card in _cards(nvml, excluded)]}
        index = _index(nvml, arguments["gpu"])
        if what == "remove":
            return _remove(nvml, index, **arguments)
        if index is None:
            return {"refused": f"GPU {arguments['gpu']} is not there"}
        return _make(nvml, index, **arguments)
    except (MigError, NvmlError) as error:
        return {"refused": str(error)}


def card_of(document: Mapping[str, Any]) -> Card:
    """Return a GPU from what ``cards`` says of it."""
    profiles = tuple(
        Profile(**{**each, "starts": tuple(each["starts"]), "engines": tuple(map(tuple, each["engines"]))})
        for each in document["profiles"]
    )
    instances = tuple(Instance(**{**each, "devices": tuple(each["devices"])}) for each in document["instances"])
    processes = tuple(Process(**each) for each in document["processes"])
    return Card(**{**document, "profiles": profiles, "instances": instances, "processes": processes})


def _cards(nvml: Nvml, excluded: Sequence[Exclusion]) -> Iterable[Card]:
    """Yield the GPUs that can be read: a sick one is in the way of no other."""
    for index in range(nvml.number("nvmlDeviceGetCount_v2")):
        try:
            handle = nvml.handle(index)
            address = nvml.pci_address("nvmlDeviceGetPciInfo_v3", handle)
            card = read_card(nvml, index)
        except NvmlError:
            continue
        if not excluded_by(excluded, index, card.uuid, address, card.model):
            yield card


def _index(nvml: Nvml, uuid: str) -> int | None:
    """Return a GPU's index; None where it is not there, or is lost."""
    for index in range(nvml.number("nvmlDeviceGetCount_v2")):
        try:
            if nvml.text("nvmlDeviceGetUUID", nvml.handle(index)) == uuid:
                return index
        except NvmlError as error:
            if error.code != _GPU_IS_LOST:
                raise
    return None


def _make(nvml: Nvml, index: int, gpu: str, profile: str, start: int, size: int) -> dict[str, Any]:
    """Make a device at a place, with the GPU put into MIG mode if need be; return its UUID. One that is there is it."""
    card = read_card(nvml, index)
    wanted = Instance(profile, start, size)
    there = [each for each in card.instances if (each.profile, each.start) == (profile, start)]
    if there and there[0].whole and there[0].devices:
        return {"uuid": there[0].devices[0]}
    if there and there[0].devices:
        return {"refused": f"{card} has an instance of {profile} at {start} that is divided; destroy that"}
    # A GPU instance without a device is what a kill left of this.
    step = Step(card, enabled=True, destroy=tuple(there), create=(wanted,))
    if step.in_the_way:
        return {"refused": refusal([_users(step)])}
    destroy_instances(nvml, nvml.handle(index), card, step.destroy)
    if step.switches:
        _switch(nvml, index, card, enabled=True)
        card = read_card(nvml, index)
    if profile not in {each.name for each in card.profiles}:
        return {"refused": f"{card} has no MIG profile {profile}"}
    try:
        create_instances(nvml, nvml.handle(index), card, step.create)
    except (MigError, NvmlError):
        _clean(nvml, index, wanted)
        raise
    found = [each for each in read_card(nvml, index).instances if each == wanted and each.devices]
    if not found:
        raise MigError(f"{card}: NVML does not show the instance of {profile} that it made")
    return {"uuid": found[0].devices[0]}


def _clean(nvml: Nvml, index: int, wanted: Instance) -> None:
    card = read_card(nvml, index)
    begun = [each for each in card.instances if (each.profile, each.start) == (wanted.profile, wanted.start)]
    destroy_instances(nvml, nvml.handle(index), card, [each for each in begun if not each.devices])


def _remove(nvml: Nvml, index: int | None, gpu: str, uuid: str, profile: str, start: int, off: bool) -> dict[str, Any]:
    """Destroy a device, known by its UUID, or while it has none by its place; ``off`` ends MIG mode after the last one.

    Returns whether the GPU is ``enabled`` still, and ``kept``, why it is though it was to be ended. A GPU that is gone
    took its devices along. Without a profile nothing is destroyed.
    """
    if index is None:
        return {"enabled": False, "kept": ""}
    card = read_card(nvml, index)
    # A GPU instance without a device is what a kill left of this.
    going = tuple(
        each
        for each in card.instances
        if uuid in each.devices or ((each.profile, each.start) == (profile, start) and not (uuid and each.devices))
    )
    step = Step(card, enabled=True, destroy=going)
    users = [each for each in step.in_the_way if each.instance is not None]
    if users:
        return {"refused": refusal([f"{card} by {_named(users)}"])}
    destroy_instances(nvml, nvml.handle(index), card, going)
    left = len(card.instances) - len(going)
    kept = ""
    if off and card.enabled and left:
        kept = f"{card} has {left} more instances"
    elif off and card.enabled:
        try:
            _switch(nvml, index, read_card(nvml, index), enabled=False)
        except (MigError, NvmlError) as error:
            kept = str(error)
    return {"enabled": bool(read_card(nvml, index).enabled), "kept": kept}


def _switch(nvml: Nvml, index: int, card: Card, enabled: bool) -> None:
    """Set the MIG mode of an idle GPU. Raises MigError where it would change with a reset only, and then never does."""
    step = Step(card, enabled)
    if step.in_the_way:
        raise MigError(refusal([_users(step)]))
    if set_mode(nvml, nvml.handle(index), step):
        set_mode(nvml, nvml.handle(index), Step(card, bool(card.enabled)))
        raise MigError(
            f"the MIG mode of {card} does not change while something on the host holds it open; stop that"
            " (nvidia-dcgm, nvidia-persistenced)"
        )


def _users(step: Step) -> str:
    return f"{step.card} by {_named(step.in_the_way)}"


def _named(processes: Iterable[Process]) -> str:
    return ", ".join(f"{process.name} (pid {process.pid})" for process in processes)
