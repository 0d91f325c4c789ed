# SPDX-License-Identifier: Apache-2.0
"""Which GPUs of a node each container of a pod gets. Pure, deterministic, bounded."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from kube_accel.model import (
    Assignment,
    ContainerKind,
    ContainerRequest,
    Gpu,
    GpuConstraints,
    GpuHealth,
    GpuUse,
    Health,
    Mode,
    PlacementPolicy,
    PodRequest,
    Share,
)
from kube_accel.placement.topology import Connectivity, choose_connected
from kube_accel.shared.modes import CORES
from kube_accel.shared.offers import client_limit
from kube_accel.shared.quantity import human_bytes

WHOLE = CORES
"""Cores of a GPU."""

_TRIES = 2000
"""Choices looked at for the containers of one pod."""

_ANY = GpuConstraints()
_NONE = GpuUse()
_ZERO = (0, 0, 0)

_Amounts = tuple[int, int, int]
"""Cores, bytes and containers."""

_Left = tuple[int, int]
"""Cores and bytes whose devices a container before asked kubelet for."""


@dataclass(frozen=True, slots=True)
class GpuView:
    """One GPU as placement sees it: what it is, and what others have of it."""

    gpu: Gpu
    health: GpuHealth
    cuda_version: tuple[int, int]
    used: GpuUse = _NONE
    excluded: str = ""
    """Why the cluster's policy keeps this GPU from being handed out; empty when it does not."""
    free_cores: int = field(init=False)
    free_memory: int = field(init=False)
    """Bytes."""
    untouched: bool = field(init=False)
    """Nobody has any of it."""
    doubtful: bool = field(init=False)
    """Its health is not known: handed out last."""
    obstacle: str = field(init=False)
    """Why no pod gets any of it, MIG aside; empty for a GPU that can be handed out."""

    def __post_init__(self) -> None:
        cores, memory = self.used.cores, self.used.memory_bytes
        obstacle = self.excluded
        if self.health.health is Health.UNHEALTHY:
            obstacle = f"unhealthy: {self.health.reason}" if self.health.reason else "unhealthy"
        put = object.__setattr__
        put(self, "free_cores", max(0, WHOLE - cores))
        put(self, "free_memory", 0 if cores >= WHOLE else max(0, self.gpu.memory_bytes - memory))
        put(self, "untouched", not cores and not memory)
        put(self, "doubtful", self.health.health is Health.UNKNOWN)
        put(self, "obstacle", obstacle)


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a node has no room for a pod."""

    reason: str
    resolvable: bool
    """Whether there would be room if other pods went."""


def place(
    request: PodRequest, gpus: Sequence[GpuView], node: str, connectivity: Connectivity | None = None
) -> Assignment | Refusal:
    """Return the GPUs of ``node`` for the containers of a pod, or why there are none.

    A share goes to one GPU, by the request's policy: binpack to the GPU in use that is left with the least, and breaks
    a whole one, the least connected to the other whole ones, only when it must; spread to the GPU left with the most.
    Whole GPUs are the best connected ones, of one model if possible. GPUs whose health is unknown come last. What an
    init container had is used again by the containers after it, and only there: kubelet hands on its devices.
    """
    views = candidates(request, gpus)
    search = _Search(request, views, connectivity)
    chosen = search.run()
    if chosen is None:
        return Refusal(search.reason() + _left_out(request, gpus), _has_room_when_empty(request, views))
    return Assignment(
        node,
        {
            container.name: tuple(_share(container, views[position].gpu) for position in chosen[container.name])
            for container in request.containers
        },
    )


def candidates(request: PodRequest, gpus: Sequence[GpuView]) -> list[GpuView]:
    """Return the GPUs this pod may have some of, whatever is free of them, by index."""
    mig = request.mode is Mode.PGPU
    found = [view for view in gpus if not view.obstacle and (mig or not view.gpu.mig_enabled)]
    if request.constraints != _ANY:
        found = [view for view in found if not _unwanted(request.constraints, view)]
    found.sort(key=lambda view: (view.gpu.index, view.gpu.uuid))
    return found


def places(view: GpuView, mode: Mode) -> int:
    """Return how many more containers can have some of a GPU, whatever is free of it."""
    if mode is not Mode.MPS:
        return WHOLE
    return max(0, client_limit(view.cuda_version) - view.used.containers)


def usage(request: PodRequest, assignment: Assignment) -> dict[str, GpuUse]:
    """Return what the pod keeps of each GPU, by UUID: at its peak, so that init containers count until the pod is gone.

    The amounts are those of the request; of the assignment only the choice of GPUs is used, and the memory of whole
    ones. Raises ValueError when the assignment is not one of this request.
    """
    if assignment.containers.keys() != {container.name for container in request.containers}:
        raise ValueError("the assignment is for other containers")
    if len(request.containers) == 1:
        # As most pods are. Its peak is what it has.
        (container,) = request.containers
        (shares,) = assignment.containers.values()
        if len(shares) == 1 and not container.whole:
            return {shares[0].uuid: GpuUse(container.cores, container.memory_bytes, 1)}
    positions = {
        uuid: position
        for position, uuid in enumerate(
            {share.uuid: 0 for shares in assignment.containers.values() for share in shares}
        )
    }
    pod = _Pod()
    for container in request.containers:
        shares = assignment.containers[container.name]
        if len(shares) != (container.whole or 1):
            raise ValueError(f'the assignment gives container "{container.name}" {len(shares)} GPUs')
        pod = pod.with_container(
            container,
            {
                positions[share.uuid]: (WHOLE, share.memory_bytes, 1)
                if container.whole
                else (container.cores, container.memory_bytes, 1)
                for share in shares
            },
        )
    return {uuid: GpuUse(*pod.peak[position]) for uuid, position in positions.items()}


@dataclass(frozen=True, slots=True)
class _Pod:
    """What the containers placed until now have, by position of the GPU."""

    active: Mapping[int, _Amounts] = field(default_factory=dict)
    """Amounts of the containers that stay."""
    peak: Mapping[int, _Amounts] = field(default_factory=dict)
    """The most at any time, which is what kubelet keeps allocated."""
    left: Mapping[int, _Left] = field(default_factory=dict)
    """What kubelet still has of init containers, and gives to the next container before anything else."""

    def with_container(self, container: ContainerRequest, takes: Mapping[int, _Amounts]) -> _Pod:
        active, peak = dict(self.active), dict(self.peak)
        for position, (cores, memory, count) in takes.items():
            before, most = self.active.get(position, _ZERO), self.peak.get(position, _ZERO)
            now = (before[0] + cores, before[1] + memory, before[2] + count)
            peak[position] = (max(now[0], most[0]), max(now[1], most[1]), max(now[2], most[2]))
            if container.kind is not ContainerKind.INIT:
                active[position] = now
        return _Pod(active, peak, self._left_by(container, list(takes)))

    def handed_on(self, container: ContainerRequest) -> list[int]:
        """Return the GPUs of which kubelet has devices that it gives to this container first."""
        return sorted(
            position
            for position, (cores, memory) in self.left.items()
            if (cores and (container.whole or container.cores)) or (memory and container.memory_bytes)
        )

    def _left_by(self, container: ContainerRequest, positions: Sequence[int]) -> Mapping[int, _Left]:
        """Return what is left after this container. It takes the devices of what it asks for, and of nothing else."""
        cores, memory = WHOLE if container.whole else container.cores, container.memory_bytes // len(positions)
        left = dict(self.left)
        if container.kind is ContainerKind.INIT:
            for position in positions:
                before = left.get(position, (0, 0))
                left[position] = (max(before[0], cores), max(before[1], memory))
            return left
        if container.memory_bytes >= sum(left[position][1] for position in positions if position in left):
            memory = max((of_memory for _, of_memory in left.values()), default=0)
        for position in left.keys() & positions:
            before = left[position]
            left[position] = (max(0, before[0] - cores), max(0, before[1] - memory))
        return left


class _Search:
    """Depth first over the containers, best choice first, with a bound on the choices looked at."""

    def __init__(self, request: PodRequest, views: Sequence[GpuView], connectivity: Connectivity | None) -> None:
        self._request = request
        self._views = views
        self._connectivity = connectivity
        self._tries = 0
        self._furthest = -1
        self._failed: tuple[ContainerRequest, _Pod] | None = None
        self._order = request.containers
        if len(self._order) > 1 and all(container.kind is not ContainerKind.INIT for container in self._order):
            # Large shares are the hardest to place. Whole GPUs come last: any that shares leave untouched will do.
            self._order = tuple(sorted(self._order, key=lambda c: (c.whole, -c.cores, -c.memory_bytes, c.name)))

    def run(self) -> dict[str, tuple[int, ...]] | None:
        """Return positions of GPUs by container name; None when nothing was found."""
        return self._from(0, _Pod())

    def reason(self) -> str:
        """Return why nothing was found."""
        if not self._views:
            return "no GPU can be used"
        several = len(self._order) > 1
        if self._tries > _TRIES:
            return f"no room for the pod's {len(self._order)} containers together was found in {_TRIES} tries"
        assert self._failed is not None
        container, pod = self._failed
        text = self._whole_reason(container, pod) if container.whole else self._share_reason(container, pod)
        return f'container "{container.name}" {text}' if several else text

    def _from(self, depth: int, pod: _Pod) -> dict[str, tuple[int, ...]] | None:
        if depth == len(self._order):
            return {}
        container = self._order[depth]
        choices = self._whole_choices(container, pod) if container.whole else self._share_choices(container, pod)
        for chosen in choices:
            self._tries += 1
            if self._tries > _TRIES:
                return None
            if depth + 1 == len(self._order):
                return {container.name: chosen}
            takes = {
                position: (WHOLE, self._views[position].gpu.memory_bytes, 1)
                if container.whole
                else (container.cores, container.memory_bytes, 1)
                for position in chosen
            }
            rest = self._from(depth + 1, pod.with_container(container, takes))
            if rest is not None:
                return {container.name: chosen, **rest}
        if depth > self._furthest:
            self._furthest, self._failed = depth, (container, pod)
        return None

    def _share_choices(self, container: ContainerRequest, pod: _Pod) -> Iterator[tuple[int, ...]]:
        positions: Sequence[int] = range(len(self._views))
        if pod.left and (handed_on := pod.handed_on(container)):
            positions = handed_on if len(handed_on) == 1 else ()
        cores, memory = container.cores, container.memory_bytes
        sign = -1 if self._request.policy is PlacementPolicy.SPREAD else 1
        ranked = []
        for position in positions:
            view = self._views[position]
            left_cores, left_memory = view.free_cores - cores, view.free_memory - memory
            left_places = places(view, self._request.mode) - 1
            if pod.peak:
                own_cores, own_memory, own_containers = pod.active.get(position, _ZERO)
                left_cores, left_memory = left_cores - own_cores, left_memory - own_memory
                left_places -= own_containers
            if left_cores >= 0 and left_memory >= 0 and left_places >= 0:
                breaks = sign > 0 and view.untouched and position not in pod.peak
                left = sign * (left_cores / WHOLE + left_memory / view.gpu.memory_bytes)
                ranked.append((view.doubtful, breaks, left, 0, position))
        ranked.sort()
        if len(ranked) > 1 and ranked[0][1] and self._connectivity is not None:
            parted = self._parted([rank[4] for rank in ranked if rank[1]])
            ranked = sorted((*rank[:3], parted.get(rank[4], 0), rank[4]) for rank in ranked)
        seen = set()
        for *_, position in ranked:
            view = self._views[position]
            own = pod.active.get(position), pod.peak.get(position)
            room = places(view, self._request.mode)
            alike = (view.free_cores, view.free_memory, view.gpu.memory_bytes, view.untouched, room, own)
            if alike not in seen:
                seen.add(alike)
                yield (position,)

    def _parted(self, positions: Sequence[int]) -> dict[int, int]:
        """Return how much connection among these GPUs is lost with each of them."""
        assert self._connectivity is not None
        rows = {
            position: row
            for position in positions
            if (row := self._connectivity.position.get(self._views[position].gpu.uuid)) is not None
        }
        others = list(rows.values())
        return {position: sum(map(self._connectivity.unity[row].__getitem__, others)) for position, row in rows.items()}

    def _whole_choices(self, container: ContainerRequest, pod: _Pod) -> Iterator[tuple[int, ...]]:
        required = pod.handed_on(container)
        if len(required) > container.whole:
            if self._request.mode is not Mode.PGPU:
                return
            required = required[: container.whole]
        free = self._whole_free(pod)
        if not set(required) <= set(free):
            return
        known = [position for position in free if not self._views[position].doubtful or position in required]
        tried = set()
        for available in (known, free) if len(known) < len(free) else (free,):
            if len(available) >= container.whole:
                for chosen in self._whole_sets(available, required, container.whole):
                    if chosen not in tried and self._handed_out(chosen) >= container.memory_bytes:
                        tried.add(chosen)
                        yield chosen

    def _whole_free(self, pod: _Pod) -> list[int]:
        return [position for position, view in enumerate(self._views) if view.untouched and position not in pod.active]

    def _whole_sets(self, available: Sequence[int], required: Sequence[int], size: int) -> Iterator[tuple[int, ...]]:
        """Yield sets to try in turn: those of one model, best connected first; the best connected; the most memory."""
        models: defaultdict[tuple[str, int], list[int]] = defaultdict(list)
        for position in available:
            gpu = self._views[position].gpu
            models[gpu.model, gpu.memory_bytes].append(position)
        alike = []
        for (_, memory), positions in models.items():
            if len(positions) >= size and set(required) <= set(positions):
                chosen = self._connected(positions, required, size)
                alike.append((-self._weight(chosen), memory, chosen))
        for *_, chosen in sorted(alike):
            yield chosen
        if len(models) > 1:
            yield self._connected(available, required, size)
            largest = sorted(available, key=lambda p: (p not in required, -self._views[p].gpu.memory_bytes, p))
            yield tuple(sorted(largest[:size]))

    def _connected(self, available: Sequence[int], required: Sequence[int], size: int) -> tuple[int, ...]:
        if self._connectivity is None:
            return tuple(sorted(sorted(available, key=lambda position: (position not in required, position))[:size]))
        positions = {self._views[position].gpu.uuid: position for position in available}
        wanted = [self._views[position].gpu.uuid for position in required]
        return tuple(sorted(positions[uuid] for uuid in choose_connected(self._connectivity, positions, wanted, size)))

    def _weight(self, chosen: Iterable[int]) -> int:
        if self._connectivity is None:
            return 0
        return self._connectivity.weight([self._views[position].gpu.uuid for position in chosen])

    def _handed_out(self, chosen: Iterable[int]) -> int:
        """Return the bytes of these GPUs that the mode's unit of memory reaches."""
        unit = self._request.memory_unit
        return sum(self._views[position].gpu.memory_bytes // unit * unit for position in chosen)

    def _share_reason(self, container: ContainerRequest, pod: _Pod) -> str:
        needs = f"needs {self._amount(container.cores, container.memory_bytes)} on"
        handed_on = pod.handed_on(container)
        if len(handed_on) > 1:
            return f"{needs} one GPU; {_handed_on_reason(len(handed_on))}"

        def free(position: int) -> tuple[int, int]:
            view = self._views[position]
            cores, memory, _ = pod.active.get(position, _ZERO)
            return view.free_cores - cores, view.free_memory - memory

        def shortage(position: int) -> tuple[float, int]:
            cores, memory = free(position)
            short_memory = max(0, container.memory_bytes - memory) / self._views[position].gpu.memory_bytes
            return max(0, container.cores - cores) / WHOLE + short_memory, position

        if handed_on:
            name = f"GPU {self._views[handed_on[0]].gpu.index}"
            return f"{needs} {name}, where the init container before it ran; {self._amount(*free(handed_on[0]))} free"
        full = [position for position in range(len(self._views)) if not shortage(position)[0]]
        if full:
            where = [self._views[position] for position in full]
            most = client_limit(where[0].cuda_version)
            return (
                f"{needs} one GPU; free on {_names(v.gpu for v in where)}, where MPS takes no more than {most} clients"
            )
        best = min(range(len(self._views)), key=shortage)
        beside = " beside the pod's other containers" if pod.peak else ""
        index = self._views[best].gpu.index
        return f"{needs} one GPU; best has {self._amount(*free(best))} free{beside} (GPU {index})"

    def _whole_reason(self, container: ContainerRequest, pod: _Pod) -> str:
        needs = f"needs {_gpus(container.whole)}"
        handed_on = pod.handed_on(container)
        if len(handed_on) > container.whole and self._request.mode is not Mode.PGPU:
            return f"{needs}; {_handed_on_reason(len(handed_on))}"
        free = self._whole_free(pod)
        if not set(handed_on) <= set(free):
            names = _names(self._views[position].gpu for position in handed_on)
            return f"{needs}, {names} among them, where the init container before it ran; others have some of it"
        names = f" ({_names(self._views[position].gpu for position in free)})" if free else ""
        if len(free) < container.whole:
            return f"{needs}; {len(free)} free{names}"
        memory = human_bytes(container.memory_bytes)
        largest = sorted((self._handed_out([position]) for position in free), reverse=True)[: container.whole]
        return f"{needs} with {memory} in all; the largest free have {human_bytes(sum(largest))}{names}"

    def _amount(self, cores: int, memory: int) -> str:
        text = human_bytes(max(0, memory))
        return text if self._request.mode is Mode.CGPU else f"{max(0, cores)} % and {text}"


def _share(container: ContainerRequest, gpu: Gpu) -> Share:
    if container.whole:
        return Share(gpu.uuid, WHOLE, gpu.memory_bytes)
    return Share(gpu.uuid, container.cores, container.memory_bytes)


def _has_room_when_empty(request: PodRequest, views: Sequence[GpuView]) -> bool:
    if len(request.containers) == 1 and not request.containers[0].whole:
        return any(view.gpu.memory_bytes >= request.containers[0].memory_bytes for view in views)
    return _Search(request, [replace(view, used=_NONE) for view in views], None).run() is not None


def _unwanted(wanted: GpuConstraints, view: GpuView) -> str:
    """Return why the pod does not want this GPU; empty when it does."""
    gpu = view.gpu
    model, uuid = gpu.model.lower(), gpu.uuid.lower()
    if (wanted.models_in and not any(part in model for part in wanted.models_in)) or any(
        part in model for part in wanted.models_out
    ):
        return f"model {gpu.model} is not wanted"
    if (wanted.uuids_in and uuid not in wanted.uuids_in) or uuid in wanted.uuids_out:
        return "its UUID is not wanted"
    if wanted.min_compute_capability is not None and gpu.compute_capability < wanted.min_compute_capability:
        return f"compute capability {_version(gpu.compute_capability)} < {_version(wanted.min_compute_capability)}"
    if wanted.min_cuda is not None and view.cuda_version < wanted.min_cuda:
        return f"CUDA version {_version(view.cuda_version)} < {_version(wanted.min_cuda)}"
    return ""


def unwanted(request: PodRequest, gpus: Sequence[GpuView]) -> str:
    """Return why none of these GPUs is of those the pod wants; empty when one is."""
    reasons = [_unwanted(request.constraints, view) for view in gpus]
    return "" if not all(reasons) else reasons[0]


def _left_out(request: PodRequest, gpus: Sequence[GpuView]) -> str:
    """Return the GPUs that were no candidates, by what is in the way."""
    if not gpus:
        return ": the node has none"
    reasons: defaultdict[str, list[Gpu]] = defaultdict(list)
    for view in gpus:
        reason = view.obstacle or ("MIG mode" if view.gpu.mig_enabled and request.mode is not Mode.PGPU else "")
        if reason or (reason := _unwanted(request.constraints, view)):
            reasons[reason].append(view.gpu)
    return "".join(f"; {_names(left)} left out ({reason})" for reason, left in reasons.items())


def _handed_on_reason(count: int) -> str:
    return (
        f"the init container before it had {_gpus(count)}, and kubelet hands on their devices in any order: "
        "give both the same number of GPUs"
    )


def _gpus(count: int) -> str:
    return f"{count} whole GPU{'s' if count > 1 else ''}"


def _names(gpus: Iterable[Gpu]) -> str:
    indexes = [str(gpu.index) for gpu in gpus]
    return f"GPU{'s' if len(indexes) > 1 else ''} {', '.join(indexes)}"


def _version(version: tuple[int, int]) -> str:
    return f"{version[0]}.{version[1]}"
