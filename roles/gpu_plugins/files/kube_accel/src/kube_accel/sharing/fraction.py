# SPDX-License-Identifier: Apache-2.0
"""Shares of GPUs: device ids that are bound to a GPU, and what a container receives for them. Pure.

A GPU offers ``<uuid>::c0`` to ``<uuid>::c99``, one a percent, and ``<uuid>::m0`` and so on, one a unit of memory. So
kubelet's own accounting cannot hand out more of a GPU than there is.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum

from kube_accel.model import Gpu, Share
from kube_accel.shared import offers
from kube_accel.shared.modes import CORES
from kube_accel.sharing import whole
from kube_accel.sharing.delivery import Grant
from kube_accel.sharing.profile import Profile

WHOLE = CORES
"""Cores of a GPU."""

_DEVICE = re.compile(r"([A-Za-z0-9-]{1,64})::([cm])(0|[1-9][0-9]{0,5})")


class Kind(StrEnum):
    """What a device is a unit of; the letter of its id."""

    CORES = "c"
    MEMORY = "m"


def resources(profile: Profile) -> dict[Kind, str]:
    """Return the resources of a profile: cores first, if any, since their plugin names the GPU to the container."""
    found = {Kind.MEMORY: profile.memory_resource}
    return found if profile.core_resource is None else {Kind.CORES: profile.core_resource, **found}


def units(gpu: Gpu, kind: Kind, profile: Profile) -> int:
    """Return how many devices of this kind a GPU has; none in MIG mode."""
    return offers.units(gpu, None if kind is Kind.CORES else profile.memory_unit_bytes)


def device_ids(gpu: Gpu, kind: Kind, profile: Profile) -> list[str]:
    """Return the ids of a GPU's devices of this kind."""
    return [f"{gpu.uuid}::{kind.value}{number}" for number in range(units(gpu, kind, profile))]


def gpu_of(device: str) -> str:
    """Return the UUID in one of our ids."""
    return device.partition("::")[0]


def counts(devices: Iterable[str], kind: Kind, gpus: Mapping[str, Gpu], profile: Profile) -> dict[str, int]:
    """Return how many devices these are of each GPU, by UUID.

    Raises ValueError, naming the device, for one that no GPU of ``gpus`` has.
    """
    found: Counter[str] = Counter()
    for device in devices:
        match = _DEVICE.fullmatch(device)
        gpu = gpus.get(match[1]) if match else None
        if match is None or gpu is None or match[2] != kind.value or int(match[3]) >= units(gpu, kind, profile):
            raise ValueError(f"device {device!r} belongs to none of this node's GPUs")
        found[match[1]] += 1
    return dict(found)


def shares(
    cores: Mapping[str, int], memory: Mapping[str, int], gpus: Mapping[str, Gpu], profile: Profile
) -> list[Share]:
    """Return what a container has with so many devices of each GPU, by the GPUs' index.

    Raises ValueError with the reason when that is neither a share of one GPU nor whole GPUs.
    """
    names = sorted({*cores, *memory}, key=lambda uuid: gpus[uuid].index)
    if profile.core_resource is None:
        if len(names) > 1:
            raise ValueError(f"its {profile.memory_resource} is spread over {_names(names, gpus)}; a share is on one")
        return [Share(uuid, 0, memory[uuid] * profile.memory_unit_bytes) for uuid in names]
    if cores and set(cores.values()) == {WHOLE}:
        if not memory.keys() <= cores.keys():
            raise ValueError(
                f"it has all {profile.core_resource} of {_names(cores, gpus)} and {profile.memory_resource} of "
                f"{_names(memory, gpus)}; both must be of the same GPUs"
            )
        return [Share(uuid, WHOLE, gpus[uuid].memory_bytes) for uuid in names]
    if len(cores) != 1 or len(memory) != 1 or len(names) != 1:
        raise ValueError(
            f"its {profile.core_resource} is of {_names(cores, gpus)} and its {profile.memory_resource} of "
            f"{_names(memory, gpus)}; a share is of one GPU and has both"
        )
    (uuid,) = names
    return [Share(uuid, cores[uuid], memory[uuid] * profile.memory_unit_bytes)]


def grant(
    chosen: Mapping[str, int], kind: Kind, gpus: Mapping[str, Gpu], profile: Profile, node_exists: Callable[[str], bool]
) -> Grant:
    """Return what a container receives for devices of one kind, whatever it gets for the other.

    The GPU is named with the cores, and with the memory only where there are no cores: kubelet merges both answers
    and keeps the first of two values for one key, in random order.
    """
    if kind is Kind.MEMORY and profile.core_resource is not None:
        return Grant({}, ())
    return whole.grant([whole.whole(gpus[uuid]) for uuid in chosen], node_exists)


def _names(uuids: Iterable[str], gpus: Mapping[str, Gpu]) -> str:
    return ", ".join(f"GPU {index}" for index in sorted(gpus[uuid].index for uuid in uuids)) or "no GPU"
