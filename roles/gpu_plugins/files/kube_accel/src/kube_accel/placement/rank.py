# SPDX-License-Identifier: Apache-2.0
"""In which order a pod's policy has nodes that have room for it, and that order as kube-scheduler takes it. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kube_accel.model import Assignment, ContainerRequest, Mode, PlacementPolicy, PodRequest
from kube_accel.placement.choose import WHOLE, GpuView
from kube_accel.placement.demand import demand
from kube_accel.placement.room import Room

BEST = 10
"""The most points that an extender may give a node (MaxExtenderPriority in k8s.io/kube-scheduler/extender/v1)."""

Rank = tuple[float, ...]
"""Where a node stands for a request: the greater, the better. Ranks for other requests do not compare with it."""

LAST: Rank = ()
"""Of a node of which nothing is known but that the pod may go there."""


def rank(request: PodRequest, room: Room, left: float, closeness: float | None = None) -> Rank:
    """Return where a node stands for a pod that fits there, by the pod's policy.

    Binpack has nodes in use before untouched ones. Among these it has first the node where the pod uses up a GPU, then
    the one where it breaks no untouched GPU, the fullest one, and the one whose GPU is ``left`` with the least. For
    whole GPUs the node comes first that has the fewest others. Spread has untouched nodes first, then the emptiest.
    ``left`` is what ``left_of`` and ``left_with`` return. ``closeness``, 0 to 1, says how well connected the GPUs are
    that one container gets several of. It counts twice as much as how full the node is, and before all else.
    """
    full = _fullness(request, room)
    spread = request.policy is PlacementPolicy.SPREAD
    connected = 0.0 if closeness is None else 2 * closeness + (1 - full if spread else full)
    in_use = room.whole < room.gpus
    if spread:
        return (connected, not in_use, -full)
    whole = sum(container.whole for container in request.containers)
    return (connected, in_use, left == 0, left < _BREAKS, -room.whole if whole else 0, full, -left)


_BREAKS = 10.0
"""Added to what is left of a GPU that was untouched: more than any GPU has."""


def left_of(container: ContainerRequest, room: Room, mode: Mode) -> float:
    """Return what a share leaves of the GPU it gets, 0 to 2: the part of its cores and that of its memory.

    It is 0 where the share takes the last cores, as nobody can use the rest; in cGPU, the last memory. Where the share
    has to break an untouched GPU, it is more than that of any GPU in use.
    """
    if container.whole:
        return 0.0
    offers = [offer for offer in room.partial if offer[0] >= container.cores and offer[1] >= container.memory_bytes]
    if offers:
        return min(_left(container, *offer, mode) for offer in offers)
    card = room.memory_bytes / room.gpus
    return _BREAKS + _left(container, WHOLE, card, card, mode)


def left_with(request: PodRequest, found: Assignment, gpus: Sequence[GpuView]) -> float:
    """Return what the shares of a pod leave of the GPUs it was found, as ``left_of``, added up."""
    views = {view.gpu.uuid: view for view in gpus}
    total, broken = 0.0, set()
    for container in request.containers:
        if not container.whole:
            (share,) = found.containers[container.name]
            view = views[share.uuid]
            total += _left(container, view.free_cores, view.free_memory, view.gpu.memory_bytes, request.mode)
            if view.untouched:
                broken.add(share.uuid)
    return total + _BREAKS * len(broken)


def points(ranks: Mapping[str, Rank], policy: PlacementPolicy) -> dict[str, int]:
    """Return the points of each node, 0 to 10: 10 for the best alone, and the others below in their order.

    Of equals, binpack has the first by name for the best. Pods that are scheduled at once then go to one node, though
    none of them is seen there yet. Spread gives equals the same points, so that such pods part.
    """
    # Alike nodes share one rank as a rule, and to find that out by comparison is what takes time with many.
    different = {id(each): each for each in ranks.values()}
    order = sorted(set(different.values()), reverse=True)
    below = len(order) - 1
    given = {each: round((BEST - 1) * (below - place) / below) if place else BEST for place, each in enumerate(order)}
    of = {key: given[each] for key, each in different.items()}
    found = {name: of[id(each)] for name, each in ranks.items()}
    if policy is PlacementPolicy.BINPACK:
        equals = [name for name, got in found.items() if got == BEST]
        found.update(dict.fromkeys(equals, BEST - 1))
        found.update({min(equals): BEST} if equals else {})
    return found


def _left(container: ContainerRequest, cores: float, memory: float, card: float, mode: Mode) -> float:
    memory_left = (memory - container.memory_bytes) / card
    if mode is Mode.CGPU:
        return memory_left
    cores_left = (cores - container.cores) / WHOLE
    return cores_left + memory_left if cores_left else 0.0


def _fullness(request: PodRequest, room: Room) -> float:
    """Return how full a node's GPUs are with the pod, 0 to 1: cores and memory alike, in cGPU memory alone."""
    wanted = demand(request, room.memory_bytes // room.gpus)
    full = min(1.0, 1 - (room.free_memory - wanted.memory_bytes) / room.memory_bytes)
    if request.mode is Mode.CGPU:
        return full
    return (full + min(1.0, 1 - (room.free_cores - wanted.cores) / (WHOLE * room.gpus))) / 2
