# SPDX-License-Identifier: Apache-2.0
"""Which GPU a container's devices come from, worked out from calls that do not say whose they are. Pure.

Kubelet admits one pod after the other, its containers in order, and for each container the resources in any order. Of
a container it says only how many devices of which resource it wants. What has been handed out and is not settled yet
is therefore read as the admission of pods that are known to be bound here; the next call then belongs to a container
of one of them, and goes to the GPU that pod was assigned. The second resource of a container always follows the first.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice

from kube_accel.model import (
    Assignment,
    ContainerKind,
    ContainerRequest,
    Gpu,
    GpuHealth,
    GpuUse,
    Health,
    Inventory,
    PlacementPolicy,
    PodRequest,
    Share,
)
from kube_accel.placement.choose import GpuView, Refusal, place, usage
from kube_accel.placement.topology import Connectivity
from kube_accel.sharing.fraction import WHOLE, Kind, gpu_of, resources, units
from kube_accel.sharing.profile import Profile

_TRIES = 2000
"""Steps of one search for whose call it is."""
_READINGS = 16
"""Different answers to that question that are looked at."""


@dataclass(frozen=True, slots=True)
class PendingPod:
    """A pod bound to this node that kubelet may be about to admit."""

    uid: str
    request: PodRequest
    assigned: Mapping[str, tuple[str, ...]] | None = None
    """UUIDs by container; None while none was assigned."""


@dataclass(frozen=True, slots=True)
class Call:
    """What kubelet asks: ``size`` devices out of ``available``, ``required`` among them."""

    kind: Kind
    size: int
    available: frozenset[str]
    required: frozenset[str]
    by_gpu: Mapping[str, frozenset[str]]
    """All these, by UUID."""

    @classmethod
    def of(
        cls,
        kind: Kind,
        size: int,
        rows: Mapping[str, frozenset[str]],
        available: frozenset[str],
        required: frozenset[str] = frozenset(),
    ) -> Call:
        """Return the call with these devices; ``rows`` are all devices of the kind by UUID, these among them."""
        # Thousands of ids a call: nothing here may be done id by id.
        offered = available | required
        return cls(kind, size, available, required, {uuid: row & offered for uuid, row in rows.items()})

    @property
    def whole(self) -> int:
        """Return the number of whole GPUs, when that many cores are asked for."""
        return self.size // WHOLE if self.kind is Kind.CORES and self.size % WHOLE == 0 else 0


@dataclass(frozen=True, slots=True)
class Grant:
    """Devices handed to a container, of which kubelet has not said yet whose they are."""

    kind: Kind
    ids: frozenset[str]
    joined: bool = False
    """The container got devices of the other resource just before."""

    @property
    def gpus(self) -> tuple[str, ...]:
        """Return the UUIDs of the GPUs."""
        return tuple(sorted({gpu_of(device) for device in self.ids}))


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """A way to understand a call."""

    pod: PendingPod
    container: ContainerRequest
    partner: Grant | None
    """What this container already got of the other resource."""


@dataclass(frozen=True, slots=True)
class NodeGpus:
    """The GPUs as they are now."""

    inventory: Inventory
    health: Mapping[str, GpuHealth]
    connectivity: Connectivity

    def gpu(self, uuid: str) -> Gpu | None:
        """Return the GPU with this UUID, or None."""
        return self.inventory.gpu(uuid)


def amounts(container: ContainerRequest, profile: Profile) -> dict[Kind, int]:
    """Return the devices a container asks kubelet for, of each kind it asks for at all."""
    cores = 0 if profile.core_resource is None else container.whole * WHOLE or container.cores
    found = {Kind.CORES: cores, Kind.MEMORY: container.memory_bytes // profile.memory_unit_bytes}
    return {kind: size for kind, size in found.items() if size}


class CallMatcher:
    """What has been handed out lately, and where the next call is to go. Not for several threads at once."""

    def __init__(self, profile: Profile) -> None:
        self._profile = profile
        self._kinds = tuple(resources(profile))
        self._grants: list[Grant] = []
        self._open: Grant | None = None
        """The last grant, while its container may still get the other resource."""
        self._held: Mapping[tuple[str, Kind], set[str]] = {}
        self._containers: Mapping[str, int] = {}

    @property
    def grants(self) -> tuple[Grant, ...]:
        """Return what was allocated and not settled, first to last."""
        return tuple(self._grants)

    def granted(self, kind: Kind, ids: Iterable[str]) -> None:
        """Note that kubelet has taken these devices for a container."""
        grant = Grant(kind, frozenset(ids))
        if self._open is not None and self._open.kind is not kind and set(self._open.gpus) & set(grant.gpus):
            grant = replace(grant, joined=True)
        self._grants.append(grant)
        self._open = None if grant.joined or len(self._kinds) == 1 else grant

    def settle(
        self, held: Mapping[tuple[str, Kind], set[str]], admitted: Iterable[str], containers: Mapping[str, int]
    ) -> None:
        """Forget grants that kubelet lists as ``held``; devices in ``admitted`` belong to admitted pods.

        ``held`` is by UUID and kind; ``containers`` are how many have a part of each GPU, by UUID.
        """
        self._containers = containers
        self._held = held
        done = frozenset(admitted)
        self._grants = [grant for grant in self._grants if grant.ids.isdisjoint(done)]
        if self._open is not None and not self._open.ids.isdisjoint(done):
            self._open = None

    def match(self, call: Call, pods: Sequence[PendingPod], gpus: NodeGpus, strict: bool = True) -> tuple[str, ...]:
        """Return the devices for a call that is of one of ``pods``, first come first; empty when it is of none of them.

        ``strict``: everything handed out must be explained by these pods as well. Otherwise some of it may be of pods
        that failed halfway, or that are not known yet.
        """
        self._forget_freed(call)
        readings = list(islice(self._hypotheses(call, pods, strict), _READINGS))
        answers = []
        for hypothesis in readings:
            chosen = self._chosen(call, hypothesis, gpus)
            ids = _take(call, chosen) if chosen else ()
            if ids:
                answers.append((hypothesis, chosen, ids))
        views = self._views(call, gpus)
        for hypothesis, chosen, ids in answers:
            # Should this be another pod than it seems, then that one's other resource needs room there as well.
            if all(self._has_room(other, call.kind, chosen, views) for other in readings if not other.partner):
                return self._answer(hypothesis, ids)
        for hypothesis, chosen, ids in answers:
            if hypothesis.partner or call.required or self._has_room(hypothesis, call.kind, chosen, views):
                return self._answer(hypothesis, ids)
        return ()

    def candidates(self, call: Call, pods: Sequence[PendingPod], strict: bool = True) -> list[PendingPod]:
        """Return the pods whose call this may be, most likely first."""
        readings = islice(self._hypotheses(call, pods, strict), _READINGS)
        return list({hypothesis.pod.uid: hypothesis.pod for hypothesis in readings}.values())

    def split_across_gpus(self, kind: Kind, ids: Iterable[str]) -> str:
        """Return why a container cannot take these devices after what it has got already; empty when it can."""
        before = self._open
        if before is None or before.kind is kind or (before.kind is Kind.CORES and len(before.ids) % WHOLE == 0):
            return ""
        if set(before.gpus) & {gpu_of(device) for device in ids}:
            return ""
        self._open = None
        return f"GPU {', '.join(before.gpus)}, of which the container already has a part, has not enough left"

    def _answer(self, hypothesis: Hypothesis, ids: tuple[str, ...]) -> tuple[str, ...]:
        if hypothesis.partner is None:
            # So whatever came before belongs to another container.
            self._open = None
        return ids

    def assign(self, pod: PendingPod, others: Sequence[PendingPod], gpus: NodeGpus) -> PendingPod:
        """Return the pod with GPUs chosen here, beside what others were assigned: the extender has chosen none."""
        views = self._views(None, gpus, others)
        found = place(pod.request, list(views.values()), "", gpus.connectivity)
        if isinstance(found, Refusal):
            return replace(pod, assigned=None)
        return replace(pod, assigned={name: tuple(s.uuid for s in got) for name, got in found.containers.items()})

    def partner_devices(self, call: Call) -> tuple[str, ...]:
        """Return the devices that go with what the container got a moment ago; empty when it got nothing."""
        self._forget_freed(call)
        if self._open is None or self._open.kind is call.kind:
            return ()
        return _take(call, self._open.gpus)

    def choose(self, call: Call, gpus: NodeGpus) -> tuple[str, ...]:
        """Return the devices for a call of an unknown pod; empty when no choice is a good one."""
        if partner := self.partner_devices(call):
            return partner
        views = self._views(call, gpus)
        if call.required:
            here = tuple(sorted({gpu_of(device) for device in call.required}))
            if len(here) >= max(call.whole, 1):
                return _take(call, here)
        container = self._guess(call)
        # Memory that comes before its cores goes where the most is left: the cores that follow are not known yet.
        blind = call.kind is Kind.MEMORY and len(self._kinds) > 1
        policy = PlacementPolicy.SPREAD if blind else PlacementPolicy.BINPACK
        unit = self._profile.memory_unit_bytes
        request = PodRequest(self._profile.mode, (container,), policy, memory_unit=unit)
        found = place(request, list(views.values()), "", gpus.connectivity)
        if not isinstance(found, Refusal):
            return _take(call, tuple(share.uuid for share in found.containers[""]))
        if blind:
            # More than one GPU has: it is for whole ones.
            whole: list[str] = []
            for view in views.values():
                if view.untouched and not view.obstacle:
                    whole.append(view.gpu.uuid)
                    if ids := _take(call, tuple(whole)):
                        return ids
        return ()

    def _guess(self, call: Call) -> ContainerRequest:
        unit = self._profile.memory_unit_bytes
        if call.whole:
            return ContainerRequest("", ContainerKind.APP, whole=call.whole)
        if call.kind is Kind.CORES:
            return ContainerRequest("", ContainerKind.APP, cores=call.size, memory_bytes=unit)
        cores = 0 if len(self._kinds) == 1 else 1
        return ContainerRequest("", ContainerKind.APP, cores=cores, memory_bytes=call.size * unit)

    def _forget_freed(self, call: Call) -> None:
        """Forget grants that kubelet offers again: the pod that had them failed."""
        kept: list[Grant] = []
        dropped = False
        for grant in self._grants:
            freed = (
                grant.kind is call.kind
                and not grant.ids.isdisjoint(call.available)
                and grant.ids.isdisjoint(call.required)
            )
            if not freed:
                # What came after a resource of a failed pod was the first of the next one.
                kept.append(replace(grant, joined=False) if dropped and grant.joined else grant)
            dropped = freed
        if len(kept) < len(self._grants):
            last = kept[-1] if kept else None
            self._open = last if last is not None and not last.joined and last.kind is not call.kind else None
        self._grants = kept

    def _hypotheses(self, call: Call, pods: Sequence[PendingPod], strict: bool) -> Iterator[Hypothesis]:
        """Yield the ways to understand the call that explain most of the grants."""
        for start in range(1 if strict else len(self._grants) + 1):
            if start < len(self._grants) and self._grants[start].joined:
                continue
            search = _Search(self._grants[start:], call, pods, self._profile, anywhere=start > 0)
            found = False
            for hypothesis in search.run():
                found = True
                yield hypothesis
            if found:
                return

    def _chosen(self, call: Call, hypothesis: Hypothesis, gpus: NodeGpus) -> tuple[str, ...]:
        """Return the GPUs a container is to be on: those it has devices of already, else the assigned ones."""
        size = hypothesis.container.whole or 1
        bound = {gpu_of(device) for device in call.required}.union(
            hypothesis.partner.gpus if hypothesis.partner else ()
        )
        assigned = (hypothesis.pod.assigned or {}).get(hypothesis.container.name, ())
        if len(assigned) == size and bound <= set(assigned):
            return assigned
        if len(bound) == size or not bound:
            return tuple(sorted(bound))
        views = self._views(call, gpus).values()
        free = [view.gpu.uuid for view in views if view.untouched and not view.obstacle and view.gpu.uuid not in bound]
        return (*sorted(bound), *free[: size - len(bound)]) if len(bound) < size <= len(bound) + len(free) else ()

    def _has_room(
        self, hypothesis: Hypothesis, asked: Kind, chosen: tuple[str, ...], views: Mapping[str, GpuView]
    ) -> bool:
        """Return whether the other resource of a container finds room on the GPUs as well."""
        for kind, size in amounts(hypothesis.container, self._profile).items():
            if kind is not asked:
                free = {
                    Kind.CORES: sum(views[uuid].free_cores for uuid in chosen),
                    Kind.MEMORY: sum(
                        (views[uuid].gpu.memory_bytes - views[uuid].used.memory_bytes)
                        // self._profile.memory_unit_bytes
                        for uuid in chosen
                    ),
                }
                if free[kind] < size:
                    return False
        return True

    def _views(self, call: Call | None, gpus: NodeGpus, pods: Iterable[PendingPod] = ()) -> dict[str, GpuView]:
        """Return the GPUs, with what is held, handed out, assigned to these pods, and not offered to this call."""
        taken = {key: set(ids) for key, ids in self._held.items()}
        for grant in self._grants:
            for device in grant.ids:
                taken.setdefault((gpu_of(device), grant.kind), set()).add(device)
        used = {key: len(ids) for key, ids in taken.items()}
        # What was handed out and is listed already counts twice for a moment.
        containers = Counter(self._containers)
        containers.update(uuid for grant in self._grants if not grant.joined for uuid in grant.gpus)
        if call is not None:
            for gpu in gpus.inventory.gpus:
                free = len(call.by_gpu.get(gpu.uuid, ()))
                used[gpu.uuid, call.kind] = units(gpu, call.kind, self._profile) - free
        reserved: defaultdict[str, GpuUse] = defaultdict(GpuUse)
        for pod in pods:
            for uuid, use in self._usage(pod, gpus).items():
                before = reserved[uuid]
                reserved[uuid] = GpuUse(
                    before.cores + use.cores,
                    before.memory_bytes + use.memory_bytes,
                    before.containers + use.containers,
                )
        views = {}
        for gpu in gpus.inventory.gpus:
            more = reserved[gpu.uuid]
            use = GpuUse(
                used.get((gpu.uuid, Kind.CORES), 0) + more.cores,
                used.get((gpu.uuid, Kind.MEMORY), 0) * self._profile.memory_unit_bytes + more.memory_bytes,
                containers[gpu.uuid] + more.containers,
            )
            health = gpus.health.get(gpu.uuid, GpuHealth(Health.UNKNOWN))
            views[gpu.uuid] = GpuView(gpu, health, gpus.inventory.cuda_version, use)
        return views

    def _usage(self, pod: PendingPod, gpus: NodeGpus) -> Mapping[str, GpuUse]:
        """Return what a pod was assigned, by the amounts it asks for; nothing when that makes no sense here."""
        containers = {}
        for name, uuids in (pod.assigned or {}).items():
            known = [gpu for uuid in uuids if (gpu := gpus.gpu(uuid)) is not None]
            containers[name] = tuple(Share(gpu.uuid, 0, gpu.memory_bytes) for gpu in known)
        try:
            return usage(pod.request, Assignment("", containers))
        except ValueError:
            return {}


class _Search:
    """Reads grants and a call as the admission of pods, one container after the other; depth first."""

    def __init__(
        self,
        grants: Sequence[Grant],
        call: Call,
        pods: Sequence[PendingPod],
        profile: Profile,
        anywhere: bool,
    ) -> None:
        """``anywhere`` lets the first of the grants be of any container: those before it are not known any more."""
        self._grants, self._call, self._pods, self._profile = grants, call, pods, profile
        self._anywhere = anywhere
        self._tries = 0

    def run(self) -> Iterator[Hypothesis]:
        yield from self._from(0, None, 0, frozenset())

    def _from(self, at: int, pod: PendingPod | None, container: int, seen: frozenset[str]) -> Iterator[Hypothesis]:
        grant = self._grants[at] if at < len(self._grants) else None
        following = self._grants[at + 1] if at + 1 < len(self._grants) else None
        for candidate, index in self._next(at, pod, container, seen, grant):
            self._tries += 1
            if self._tries > _TRIES:
                return
            wanted = candidate.request.containers[index]
            left = amounts(wanted, self._profile)
            now_seen = seen | {candidate.uid}
            if grant is None:
                if left.get(self._call.kind) == self._call.size:
                    yield Hypothesis(candidate, wanted, None)
                continue
            if left.pop(grant.kind, None) != len(grant.ids):
                continue
            if not left:
                yield from self._from(at + 1, candidate, index + 1, now_seen)
                continue
            ((other, size),) = left.items()
            if following is None:
                if (self._call.kind, self._call.size) == (other, size):
                    yield Hypothesis(candidate, wanted, grant)
            elif (following.kind, len(following.ids)) == (other, size):
                yield from self._from(at + 2, candidate, index + 1, now_seen)

    def _next(
        self, at: int, pod: PendingPod | None, container: int, seen: frozenset[str], grant: Grant | None
    ) -> Iterator[tuple[PendingPod, int]]:
        if pod is not None and container < len(pod.request.containers):
            yield pod, container
            return
        fresh = [candidate for candidate in self._pods if candidate.uid not in seen]
        if grant is not None:
            # The container that was assigned these very GPUs has most likely got them.
            fresh.sort(key=lambda candidate: not _assigned_to(candidate, grant))
        for candidate in fresh:
            yield candidate, 0
        if self._anywhere and at == 0:
            for candidate in fresh:
                yield from ((candidate, index) for index in range(1, len(candidate.request.containers)))


def _assigned_to(pod: PendingPod, grant: Grant) -> bool:
    first = pod.request.containers[0].name
    return set(grant.gpus) <= set((pod.assigned or {}).get(first, ()))


def _take(call: Call, chosen: tuple[str, ...]) -> tuple[str, ...]:
    """Take ``size`` available devices of these GPUs, the required ones among them; empty if there are not enough."""
    rows = [call.by_gpu.get(uuid, frozenset()) for uuid in chosen]
    if sum(map(len, rows)) < call.size or not {gpu_of(device) for device in call.required} <= set(chosen):
        return ()
    if call.whole:
        enough = len(chosen) == call.whole and all(len(row) == WHOLE for row in rows)
        return tuple(device for row in rows for device in sorted(row)) if enough else ()
    taken = sorted(call.required)
    rest = [sorted(row - call.required) for row in rows]
    while len(taken) < call.size:
        # In turn, so that each of several whole GPUs has its part.
        for row in rest:
            if row and len(taken) < call.size:
                taken.append(row.pop(0))
    return tuple(taken)
