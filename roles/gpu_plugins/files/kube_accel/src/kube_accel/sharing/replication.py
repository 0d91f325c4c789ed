# SPDX-License-Identifier: Apache-2.0
"""A part of the hardware offered several times: its containers take turns without any limit, or share by MPS. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from heapq import heapify, heappop, heappush

from kube_accel.sharing.whole import Part

_LIST_BYTES = 4 << 20
"""Kubelet's gRPC client takes messages of that size (grpc-go, defaultClientMaxReceiveMessageSize)."""
_DEVICE_BYTES = 31
"""What a device takes in a list (v1beta1, ListAndWatchResponse) beside its id: lengths, health, a NUMA node."""


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
    by_mps: bool = False
    """Each replica has an equal part of the GPU's memory and threads, which MPS enforces; else they take turns."""

    def chosen(self, parts: Iterable[Part]) -> Collection[str]:
        """The ids of those of ``parts`` that are replicated: by MPS, whole GPUs alone."""
        ids = [part.id for part in parts if self._named(part)]
        return ids[: self.devices] if isinstance(self.devices, int) else ids

    def _named(self, part: Part) -> bool:
        if self.by_mps and part.uuid != part.gpu.uuid:
            return False
        return not isinstance(self.devices, tuple) or part.index in self.devices or part.uuid in self.devices


class TooManyError(ValueError):
    """Kubelet would not take the list of a resource's devices, or MPS not the clients; the message says how many."""


def replicated(
    resources: Mapping[str, tuple[Part, ...]], replications: Collection[Replication]
) -> dict[str, tuple[Part, ...]]:
    """The resources with what is replicated in place of what it was made of; a replica's id is ``<id>::<number>``.

    Parts that a replication leaves out stay what they were. Of several that take a part, the first names it, and of
    those by this name the one with most replicas counts. Raises TooManyError.
    """
    by_name: dict[str, list[tuple[Part, int]]] = {}
    for resource, parts in resources.items():
        chosen = [
            (replication, frozenset(replication.chosen(parts)))
            for replication in replications
            if replication.resource == resource
        ]
        for part in parts:
            taken = [replication for replication, ids in chosen if part.id in ids]
            name = taken[0].name if taken else resource
            count = max((each.replicas for each in taken if each.name == name), default=0)
            if count > 1 and taken[0].by_mps:
                part = replace(part, mps_replicas=count)
            by_name.setdefault(name, []).append((part, count))
    for name, counted in by_name.items():
        _check_length(name, counted)
    return {name: tuple(_copies(counted)) for name, counted in by_name.items()}


def _copies(counted: Iterable[tuple[Part, int]]) -> Iterable[Part]:
    for part, count in counted:
        if count:
            yield from (replace(part, id=f"{part.id}::{number}") for number in range(count))
        else:
            yield part


def check_clients(resources: Mapping[str, tuple[Part, ...]], clients: int) -> None:
    """Raise TooManyError where more replicas would share a GPU by MPS than it takes ``clients`` (processes)."""
    for resource, parts in resources.items():
        count = max((part.mps_replicas for part in parts), default=0)
        if count > clients:
            raise TooManyError(
                f"{count} replicas of a GPU, offered as {resource}, would share it by MPS, which takes {clients} "
                f"processes with this driver; configure at most {clients}"
            )


def _check_length(name: str, counted: Collection[tuple[Part, int]]) -> None:
    length = sum(max(count, 1) * (_DEVICE_BYTES + len(f"{part.id}::{count}")) for part, count in counted)
    if length > _LIST_BYTES:
        devices = sum(max(count, 1) for _, count in counted)
        most = max(count for _, count in counted) * _LIST_BYTES // length
        raise TooManyError(
            f"{name} would have {devices} devices, a list of {length / 2**20:.1f} MiB, and kubelet takes no more than "
            f"{_LIST_BYTES >> 20} MiB; configure at most {most} replicas"
        )


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
