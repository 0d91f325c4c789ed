# SPDX-License-Identifier: Apache-2.0
"""A part of the hardware offered several times: its containers take turns without any limit, or share by MPS. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from heapq import heapify, heappop, heappush

from kube_accel.shared import offers
from kube_accel.shared.offers import Replication
from kube_accel.sharing.whole import Part


def replicated(
    resources: Mapping[str, tuple[Part, ...]], replications: Collection[Replication]
) -> dict[str, tuple[Part, ...]]:
    """Return the resources with the replicated ones in place of their source; a replica's id is ``<id>::<number>``.

    Raises TooManyError.
    """
    return {name: tuple(_copies(found)) for name, found in offers.replicated(resources, replications).items()}


def _copies(found: Iterable[tuple[Part, offers.Offered]]) -> Iterable[Part]:
    for part, how in found:
        one = replace(part, mps_replicas=how.replicas) if how.by_mps else part
        if how.replicas:
            yield from (replace(one, id=f"{part.id}::{number}") for number in range(how.replicas))
        else:
            yield one


def check_clients(resources: Mapping[str, tuple[Part, ...]], clients: int) -> None:
    """Raise TooManyError where more replicas would share a GPU by MPS than it takes ``clients`` (processes)."""
    most = {name: max((part.mps_replicas for part in parts), default=0) for name, parts in resources.items()}
    offers.check_clients(most, clients)


def spread(
    parts: Mapping[str, Part], available: Collection[str], required: Collection[str], size: int, pack: bool = False
) -> tuple[str, ...]:
    """Return ``size`` ids of ``available`` that include ``required``, each on the least used hardware by then.

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
