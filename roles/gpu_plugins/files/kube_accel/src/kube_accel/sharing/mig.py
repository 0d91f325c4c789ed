# SPDX-License-Identifier: Apache-2.0
"""What a node offers of GPUs in MIG mode, by the strategies of NVIDIA's device plugin. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from enum import StrEnum

from kube_accel.model import Gpu, Inventory, MigDevice
from kube_accel.sharing import whole

_REMEDY = "cut all GPUs alike, or use the strategy mixed"
_CUT = "create MIG devices, or take the GPU out of MIG mode"


class Strategy(StrEnum):
    """What becomes of GPUs in MIG mode."""

    NONE = "none"
    """They are offered as if they were whole; a container sees the first device of each."""
    SINGLE = "single"
    """All GPUs are cut into devices of one profile, and those are ``nvidia.com/gpu``."""
    MIXED = "mixed"
    """Each profile is a resource, ``nvidia.com/mig-1g.18gb``; GPUs that are not cut stay ``nvidia.com/gpu``."""


def part(gpu: Gpu, device: MigDevice) -> whole.Part:
    """A MIG device for one container at a time."""
    capabilities = (f"nvidia-caps/nvidia-cap{number}" for number in device.capabilities)
    nodes = (f"nvidia{gpu.minor}", *capabilities)
    return whole.Part(device.uuid, gpu, device.uuid, nodes, f"{gpu.index}:{device.slot}", device.memory_bytes)


def resource(profile: str) -> str:
    """The name of a profile's resource; a resource's name has no plus."""
    return f"nvidia.com/mig-{profile.replace('+', '.')}"


def layout(strategy: Strategy) -> whole.Layout:
    """How this strategy lays out a node: nothing of one that has a ``problem``, and no GPU that is ``left_out``."""

    def parts(inventory: Inventory) -> Mapping[str, tuple[whole.Part, ...]]:
        if problem(strategy, inventory):
            return {}
        odd = left_out(strategy, inventory)
        found: defaultdict[str, list[whole.Part]] = defaultdict(list)
        for gpu in inventory.gpus:
            if gpu.uuid in odd:
                continue
            if strategy is Strategy.NONE or not gpu.mig_enabled:
                found[whole.RESOURCE].append(whole.whole(gpu))
            for device in gpu.mig_devices if strategy is not Strategy.NONE else ():
                name = whole.RESOURCE if strategy is Strategy.SINGLE else resource(device.profile)
                found[name].append(part(gpu, device))
        return {name: tuple(listed) for name, listed in found.items()}

    return parts


def problem(strategy: Strategy, inventory: Inventory) -> str:
    """Why nothing of the node can be offered by this strategy, with the remedy; empty when it can."""
    if strategy is Strategy.MIXED and inventory.gpus and all(map(_uncut, inventory.gpus)):
        return f"MIG strategy mixed: every GPU is in MIG mode, and none has MIG devices; {_CUT}"
    if strategy is not Strategy.SINGLE or not any(gpu.mig_enabled for gpu in inventory.gpus):
        return ""
    profiles = sorted({device.profile for gpu in inventory.gpus for device in gpu.mig_devices})
    if len(profiles) == 1:
        return ""
    if not profiles:
        return f"MIG strategy single: no GPU has MIG devices, and some are in MIG mode; {_REMEDY}"
    return f"MIG strategy single: there are devices of several profiles, {', '.join(profiles)}; {_REMEDY}"


def left_out(strategy: Strategy, inventory: Inventory) -> Mapping[str, str]:
    """Why a GPU is not offered although others of its node are, by UUID: one that a reset took its devices from."""
    if strategy is Strategy.MIXED and not problem(strategy, inventory):
        return {
            gpu.uuid: f"MIG strategy mixed: GPU {gpu.index} ({gpu.uuid}) is in MIG mode and has no MIG devices; {_CUT}"
            for gpu in inventory.gpus
            if _uncut(gpu)
        }
    if strategy is not Strategy.SINGLE or not any(gpu.mig_devices for gpu in inventory.gpus):
        return {}
    return {
        gpu.uuid: f"MIG strategy single: GPU {gpu.index} ({gpu.uuid}) "
        f"{'has no MIG devices' if gpu.mig_enabled else 'is not in MIG mode'} and others have; {_REMEDY}"
        for gpu in inventory.gpus
        if not gpu.mig_devices
    }


def _uncut(gpu: Gpu) -> bool:
    return gpu.mig_enabled and not gpu.mig_devices
