# SPDX-License-Identifier: Apache-2.0
"""What is taken of each GPU of a node: from what kubelet handed out, else what was assigned, else what may be. Pure."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from kube_accel.extender.pods import Held, Pod, Uses, staying, uses_of
from kube_accel.model import ContainerKind, Gpu, GpuHealth, GpuUse, Mode, PodRequest
from kube_accel.placement.choose import WHOLE, GpuView, Refusal, place
from kube_accel.placement.room import Room
from kube_accel.placement.topology import Connectivity
from kube_accel.sharing.inventory_annotation import NodeInventory

_DIVIDED = "handed out in parts"
_Taken = tuple[int, int, int]
"""Cores, bytes and containers."""

_NOTHING: _Taken = (0, 0, 0)
NO_USE = GpuUse(*_NOTHING)
_ANY_CARD = 1 << 50
"""Bytes: more than any GPU has."""
_KINDS = 10_000
"""Different nodes that are remembered."""


@lru_cache(1024)
def _shared(names: frozenset[str]) -> frozenset[str]:
    """Return equal names as one object: pods mostly have one container, of a few names."""
    return names


@dataclass(frozen=True, slots=True)
class NodeGpus:
    """A node's GPUs as its annotation reports them."""

    mode: Mode
    cuda_version: tuple[int, int]
    gpus: tuple[Gpu, ...]
    health: tuple[GpuHealth, ...]
    position: Mapping[str, int]
    """Position of each UUID."""
    connectivity: Connectivity
    held: Mapping[tuple[str, str], Held]
    """By namespace and name of the pod. A pod that is absent may hold something all the same, and one that is there may
    have ended since."""
    divided: frozenset[str]
    """UUIDs of GPUs that are not handed out as a whole where whole ones are."""

    def leaves(self, request: PodRequest | None) -> bool:
        """Return whether such a pod is kubelet's to serve here: ``nvidia.com/gpu`` is the whole of no GPU."""
        ours = request is None or request.mode is not Mode.PGPU or self.mode is not Mode.PGPU
        return not ours and bool(self.gpus) and self.divided >= self.position.keys()

    @classmethod
    def of(cls, node: NodeInventory) -> NodeGpus:
        """Return the GPUs of a decoded annotation."""
        gpus = node.inventory.gpus
        found: dict[tuple[str, str], tuple[set[str], dict[str, tuple[int, int, int]]]] = {}
        for uuid, holdings in (node.held or {}).items():
            for holding in holdings:
                containers, uses = found.setdefault((sys.intern(holding.namespace), holding.pod), (set(), {}))
                containers.add(sys.intern(holding.container))
                cores, memory, count = uses.get(uuid, _NOTHING)
                uses[uuid] = cores + holding.cores, memory + holding.memory_bytes, count + 1
        return cls(
            mode=node.mode,
            cuda_version=node.inventory.cuda_version,
            gpus=gpus,
            health=tuple(node.health[gpu.uuid] for gpu in gpus),
            position={gpu.uuid: place for place, gpu in enumerate(gpus)},
            connectivity=Connectivity.of(node.inventory),
            held={
                key: Held(_shared(frozenset(containers)), tuple((uuid, *amounts) for uuid, amounts in uses.items()))
                for key, (containers, uses) in found.items()
            },
            divided=node.divided,
        )


@dataclass(frozen=True, slots=True)
class NodeView:
    """A node at one moment: what placement chooses from."""

    node: NodeGpus
    gpus: tuple[GpuView, ...]
    room: Room
    kind: int
    """Nodes with the same number differ in the UUIDs of their GPUs alone, as far as placement can see."""
    sums: bool = False
    """What is taken of each GPU is the sum of what is known of pods and reservations: nothing was guessed."""


class Kinds:
    """Numbers what nodes are like. Threads may share it."""

    def __init__(self) -> None:
        self._numbers = itertools.count()
        self._known: dict[object, int] = {}

    def number(self, node: NodeGpus, gpus: Iterable[GpuView]) -> int:
        """Return a number that nodes have in common if they are alike, and only then."""
        known = self._known
        if len(known) >= _KINDS:
            known = self._known = {}
        alike = (
            node.mode,
            node.cuda_version,
            node.connectivity.weights,
            tuple([(*_description(view.gpu), view.used, bool(view.obstacle), view.doubtful) for view in gpus]),
        )
        return known.setdefault(alike, next(self._numbers))


def _description(gpu: Gpu) -> tuple[object, ...]:
    return gpu.index, gpu.model, gpu.memory_bytes, gpu.compute_capability, gpu.mig_enabled


def view(
    node: NodeGpus,
    name: str,
    pods: Iterable[Pod],
    reserved: Iterable[Uses],
    kinds: Kinds,
    unfenced: GpuUse = NO_USE,
) -> NodeView:
    """Return the node with these pods and reservations; ``unfenced`` pods take so much of any GPU."""
    taken, unknown = _known(node, pods, reserved)
    _guess_all(node, name, unknown, taken)
    gpus = _views(node, [_beside(gpu, GpuUse(*use), unfenced) for gpu, use in zip(node.gpus, taken, strict=True)])
    sums = not unknown and unfenced == NO_USE
    return NodeView(node, gpus, Room.of(gpus, node.mode), kinds.number(node, gpus), sums)


def view_with(before: NodeView, uses: Uses, kinds: Kinds) -> NodeView | None:
    """Return what ``view`` would with one reservation more; None where that takes looking at all of it again."""
    node = before.node
    if not before.sums:
        return None
    gpus = list(before.gpus)
    for uuid, cores, memory, count in uses:
        place = node.position.get(uuid)
        if place is not None:
            seen = gpus[place]
            use = GpuUse(seen.used.cores + cores, seen.used.memory_bytes + memory, seen.used.containers + count)
            gpus[place] = GpuView(seen.gpu, seen.health, seen.cuda_version, use, seen.excluded)
    return NodeView(node, tuple(gpus), Room.of(gpus, node.mode), kinds.number(node, gpus), sums=True)


def anywhere(pods: Iterable[Pod]) -> dict[Mode, GpuUse]:
    """Return what pods take of a GPU at most, all on the same one, by the mode of the nodes they may go to."""
    found: dict[Mode, GpuUse] = {}
    for pod in pods:
        if pod.request is None:
            continue
        before = found.get(pod.request.mode, NO_USE)
        cores, memory = before.cores, before.memory_bytes
        for container in pod.request.containers:
            cores += WHOLE if container.whole else container.cores
            memory += _ANY_CARD if container.whole else container.memory_bytes
        found[pod.request.mode] = GpuUse(cores, memory, before.containers + len(pod.request.containers))
    return found


def _beside(gpu: Gpu, use: GpuUse, unfenced: GpuUse) -> GpuUse:
    if unfenced == NO_USE:
        return use
    return GpuUse(
        max(use.cores, min(WHOLE, use.cores + unfenced.cores)),
        max(use.memory_bytes, min(gpu.memory_bytes, use.memory_bytes + unfenced.memory_bytes)),
        use.containers + unfenced.containers,
    )


def _views(node: NodeGpus, used: Iterable[GpuUse]) -> tuple[GpuView, ...]:
    """Return the node's GPUs with so much taken of each."""
    return tuple(
        GpuView(gpu, health, node.cuda_version, use, _DIVIDED if gpu.uuid in node.divided else "")
        for gpu, health, use in zip(node.gpus, node.health, used, strict=True)
    )


def account(node: NodeGpus, name: str, pods: Iterable[Pod], reserved: Iterable[Uses]) -> list[GpuUse]:
    """Return what is taken of each GPU, in the order of the node's GPUs.

    A pod of which nothing is known is counted where ``place`` would put it, or, where that finds no room, on the GPUs
    that have the most left: it runs somewhere.
    """
    taken, unknown = _known(node, pods, reserved)
    _guess_all(node, name, unknown, taken)
    return [GpuUse(*amounts) for amounts in taken]


def _known(node: NodeGpus, pods: Iterable[Pod], reserved: Iterable[Uses]) -> tuple[list[_Taken], list[Pod]]:
    """Return what is taken of each GPU as far as that is known, and the pods of which it is not."""
    taken, unknown = [_NOTHING] * len(node.gpus), []
    for pod in pods:
        uses = known_uses(node, pod)
        if uses is None:
            unknown.append(pod)
        else:
            _take(node, uses, taken)
    for uses in reserved:
        _take(node, uses, taken)
    return taken, unknown


def _guess_all(node: NodeGpus, name: str, unknown: Iterable[Pod], taken: list[_Taken]) -> None:
    for pod in sorted(unknown, key=lambda pod: pod.uid):
        if pod.request is not None and not node.leaves(pod.request):
            _take(node, _guess(node, name, pod.request, taken), taken)


def _take(node: NodeGpus, uses: Uses, taken: list[_Taken]) -> None:
    for uuid, cores, memory, count in uses:
        place = node.position.get(uuid)
        if place is not None:
            before = taken[place]
            taken[place] = before[0] + cores, before[1] + memory, before[2] + count


def known_uses(node: NodeGpus, pod: Pod) -> Uses | None:
    """Return what a pod has of this node's GPUs, as far as kubelet or the assignment says; None when neither does."""
    assigned = pod.uses
    if assigned is not None and not all(uuid in node.position for uuid, *_ in assigned):
        assigned = None
    held = node.held.get((pod.namespace, pod.name))
    if held is None or held == pod.stale:
        return assigned
    if assigned is None or pod.request is None:
        return held.uses
    if held.containers >= staying(pod.request) and not _has_init(pod.request):
        return held.uses
    # Some containers are still to come, or have left devices to later ones that kubelet does not list.
    most = {uuid: (cores, memory, count) for uuid, cores, memory, count in assigned}
    for uuid, cores, memory, count in held.uses:
        before = most.get(uuid, _NOTHING)
        most[uuid] = max(before[0], cores), max(before[1], memory), max(before[2], count)
    return tuple((uuid, *amounts) for uuid, amounts in most.items())


def _has_init(request: PodRequest) -> bool:
    return any(container.kind is ContainerKind.INIT for container in request.containers)


def _guess(node: NodeGpus, name: str, request: PodRequest, taken: Sequence[_Taken]) -> Uses:
    gpus = _views(node, [GpuUse(*amounts) for amounts in taken])
    found = place(request, gpus, name, node.connectivity)
    if not isinstance(found, Refusal):
        return uses_of(request, found)
    freest = sorted(gpus, key=lambda gpu: (-gpu.free_cores, -gpu.free_memory, gpu.gpu.index))
    uses = []
    for container in request.containers:
        cores = WHOLE if container.whole else container.cores
        for gpu in freest[: container.whole or 1]:
            uses.append((gpu.gpu.uuid, cores, gpu.gpu.memory_bytes if container.whole else container.memory_bytes, 1))
    return tuple(uses)
