# SPDX-License-Identifier: Apache-2.0
"""What a node offers of GPUs in MIG mode, by the strategies of NVIDIA's device plugin. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from kube_accel.model import Gpu, Inventory, MigDevice
from kube_accel.shared.offers import laid_out
from kube_accel.sharing import whole

_SLICES, _A30_SLICES = 7, 4
"""Slices of the cores that MIG cuts a GPU into."""


class Strategy(StrEnum):
    """What becomes of GPUs in MIG mode."""

    NONE = "none"
    """They are offered as if they were whole; a container sees the first device of each."""
    SINGLE = "single"
    """All GPUs are cut into devices of one profile, and those are ``nvidia.com/gpu``."""
    MIXED = "mixed"
    """Each profile is a resource, ``nvidia.com/mig-1g.18gb``; GPUs that are not cut stay ``nvidia.com/gpu``."""


def part(gpu: Gpu, device: MigDevice) -> whole.Part:
    """Return a MIG device for one container at a time."""
    capabilities = (f"nvidia-caps/nvidia-cap{number}" for number in device.capabilities)
    nodes = (f"nvidia{gpu.minor}", *capabilities)
    return whole.Part(device.uuid, gpu, device.uuid, nodes, f"{gpu.index}:{device.slot}", device.memory_bytes)


def share_of(gpu: Gpu, device: MigDevice) -> float:
    """Return the part of a GPU that a MIG device is: the larger of its parts of the cores and of the memory."""
    slices = dict(device.attributes).get("slices.gi", 0)
    cores = slices / (_A30_SLICES if "A30" in gpu.model else _SLICES)
    return min(1.0, max(cores, device.memory_bytes / gpu.memory_bytes))


def layout(strategy: Strategy) -> whole.Layout:
    """Return how this strategy lays out a node: nothing with a ``problem``, and no GPU that is ``left_out``."""

    def parts(inventory: Inventory) -> Mapping[str, tuple[whole.Part, ...]]:
        return {
            name: tuple(whole.whole(gpu) if one is None else part(gpu, gpu.mig_devices[one]) for gpu, one in found)
            for name, found in laid_out(strategy, inventory.gpus).items()
        }

    return parts
