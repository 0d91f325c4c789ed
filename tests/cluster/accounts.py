# SPDX-License-Identifier: Apache-2.0
"""Who has how much of which GPU, as kubelet and the ledger tell it, and what may not be. Pure."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass
from typing import Any

from kube_accel.kube.podresources import PodDevices
from kube_accel.plugin.allocation.ledger import Allocation
from kube_accel.sharing.profile import Profile

WHOLE = 100
ENDED = ("Succeeded", "Failed")
_DEVICE = re.compile(r"(?P<gpu>GPU-[0-9a-f-]+)::(?P<kind>[cm])\d+")

Container = tuple[str, str]
"""Its pod's name and its own."""
Cards = Mapping[str, int]
"""Bytes of each GPU's memory, by UUID."""


@dataclass(frozen=True, slots=True, order=True)
class Part:
    """What a container has of a GPU."""

    pod: str
    container: str
    gpu: str
    cores: int
    """Percent."""
    memory: int
    """Bytes."""


def of_kubelet(entries: Iterable[PodDevices], profile: Profile, cards: Cards) -> list[Part]:
    """The parts that kubelet's device ids come to. Raises ValueError for an id that is none of ours."""
    units: defaultdict[tuple[str, str, str], Counter[str]] = defaultdict(Counter)
    for entry in entries:
        if entry.resource not in (profile.core_resource, profile.memory_resource):
            continue
        for device in entry.device_ids:
            if not (match := _DEVICE.fullmatch(device)):
                raise ValueError(f"{entry.pod} holds {device!r}")
            units[entry.pod, entry.container, match["gpu"]][match["kind"]] += 1
    return sorted(
        Part(*key, found["c"], cards[key[2]] if found["c"] == WHOLE else found["m"] * profile.memory_unit_bytes)
        for key, found in units.items()
        # Memory beside cores that are whole GPUs goes with them, whichever of them it is of.
        if found["c"] or not any(units[other]["c"] == WHOLE for other in units if other[:2] == key[:2])
    )


def of_ledger(rows: Iterable[Allocation]) -> list[Part]:
    """The parts that the ledger's open rows state."""
    return sorted(
        Part(row.holder.pod, row.holder.container, row.share.uuid, row.share.cores, row.share.memory_bytes)
        for row in rows
    )


def running(pods: Iterable[Mapping[str, Any]]) -> set[Container]:
    """The containers that the API server says to run."""
    return {
        (pod["metadata"]["name"], status["name"])
        for pod in pods
        for status in pod["status"].get("containerStatuses", ())
        if "running" in status.get("state", ())
    }


def of_running(parts: Iterable[Part], containers: Set[Container]) -> list[Part]:
    """What these containers have.

    Others are listed as well: kubelet may give a device to two pods, and one then waits for the other.
    """
    return [part for part in parts if (part.pod, part.container) in containers]


def overcommitted(parts: Iterable[Part], cards: Cards) -> list[str]:
    """GPUs of which more is held than there is, each with who holds it."""
    by_gpu: defaultdict[str, list[Part]] = defaultdict(list)
    for part in parts:
        by_gpu[part.gpu].append(part)
    found = []
    for gpu, held in sorted(by_gpu.items()):
        cores, memory = sum(part.cores for part in held), sum(part.memory for part in held)
        if cores > WHOLE or memory > cards.get(gpu, 0):
            found.append(f"{gpu}: {cores} %, {memory} bytes of {cards.get(gpu, 0)}: {held}")
    return found


def differences(ledger: Iterable[Part], kubelet: Iterable[Part]) -> list[str]:
    """What only one of the two says."""
    written, listed = set(ledger), set(kubelet)
    return [f"only in the ledger: {part}" for part in sorted(written - listed)] + [
        f"only with kubelet: {part}" for part in sorted(listed - written)
    ]


def unended(pods: Iterable[Mapping[str, Any]]) -> list[str]:
    """Pods that have not come to an end, each with what its status says."""
    found = []
    for pod in pods:
        status = pod["status"]
        if status["phase"] not in ENDED:
            said = [each.get("message", "") for each in status.get("conditions", ()) if each["status"] != "True"]
            states = [str(each.get("state")) for each in status.get("containerStatuses", ())]
            found.append(" ".join([pod["metadata"]["name"], status["phase"], *filter(None, said), *states]))
    return found
