# SPDX-License-Identifier: Apache-2.0
"""Time-slicing: a part of the hardware offered several times, its containers taking turns without any limit. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from heapq import heapify, heappop, heappush

from kube_accel.sharing.whole import Part


@dataclass(frozen=True, slots=True)
class Replication:
    """What is offered several times."""

    resource: str
    """The parts of this resource."""
    name: str
    """As parts of this one; the same, or another."""
    replicas: int
    devices: int | tuple[str, ...] | None = None
    """So many of them, those with these indices or UUIDs, or (None) all."""

    def chosen(self, parts: Iterable[Part]) -> Collection[str]:
        """The ids of those of ``parts`` that are replicated."""
        ids = [part.id for part in parts if self._named(part)]
        return ids[: self.devices] if isinstance(self.devices, int) else ids

    def _named(self, part: Part) -> bool:
        return not isinstance(self.devices, tuple) or part.index in self.devices or part.uuid in self.devices


def replicated(
    resources: Mapping[str, tuple[Part, ...]], replications: Iterable[Replication]
) -> dict[str, tuple[Part, ...]]:
    """The resources with what is replicated in place of what it was made of; a replica's id is ``<id>::<number>``.

    Parts that a replication leaves out stay what they were.
    """
    by_resource = {replication.resource: replication for replication in replications}
    found: dict[str, list[Part]] = {}
    for resource, parts in resources.items():
        replication = by_resource.get(resource)
        chosen = replication.chosen(parts) if replication is not None else ()
        for part in parts:
            if replication is None or part.id not in chosen:
                found.setdefault(resource, []).append(part)
                continue
            copies = (replace(part, id=f"{part.id}::{number}") for number in range(replication.replicas))
            found.setdefault(replication.name, []).extend(copies)
    return {resource: tuple(parts) for resource, parts in found.items()}


def spread(
    parts: Mapping[str, Part], available: Collection[str], required: Collection[str], size: int, pack: bool = False
) -> tuple[str, ...]:
    """``size`` ids of ``available`` that include ``required``, each on the hardware that is least used by then.

    How much is used tells what of ``parts``, by id, is missing in ``available``: first of what the part is a replica
    of, then of its GPU. With ``pack`` it is the most used. Among equals the first in the order of ``parts`` goes.
    Fewer ids than ``size``: all. More required than ``size``: these. Raises KeyError for an id that ``parts`` lacks.
    """
    order = {device: number for number, device in enumerate(parts)}
    taken = sorted(set(required), key=order.__getitem__)
    free: dict[str, list[str]] = {}
    """What is left of each piece of hardware, the first at the end."""
    siblings: dict[str, set[str]] = {}
    used, gpu_used = Counter(part.uuid for part in parts.values()), Counter(part.gpu.uuid for part in parts.values())
    for device in sorted(set(available).difference(taken), key=order.__getitem__, reverse=True):
        part = parts[device]
        used[part.uuid] -= 1
        gpu_used[part.gpu.uuid] -= 1
        free.setdefault(part.uuid, []).append(device)
        siblings.setdefault(part.gpu.uuid, set()).add(part.uuid)
    rank = -1 if pack else 1

    def entry(uuid: str) -> tuple[int, int, int, str]:
        device = free[uuid][-1]
        return rank * used[uuid], rank * gpu_used[parts[device].gpu.uuid], order[device], uuid

    heap = [entry(uuid) for uuid in free]
    heapify(heap)
    while heap and len(taken) < size:
        found = heappop(heap)
        uuid = found[-1]
        if not free[uuid] or found != entry(uuid):
            continue  # its GPU has been used more since, and a newer entry says so
        device = free[uuid].pop()
        taken.append(device)
        gpu = parts[device].gpu.uuid
        used[uuid] += 1
        gpu_used[gpu] += 1
        for other in siblings[gpu]:
            if free[other]:
                heappush(heap, entry(other))
    return tuple(taken)
