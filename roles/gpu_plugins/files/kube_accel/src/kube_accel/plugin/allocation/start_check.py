# SPDX-License-Identifier: Apache-2.0
"""What a container that is about to start has, as kubelet lists it, checked. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from itertools import chain

from kube_accel.kube.podresources import PodDevices
from kube_accel.model import Gpu, Share
from kube_accel.plugin.kubelet.device_exclusivity import StartRefused
from kube_accel.plugin.kubelet.holdings import Holder
from kube_accel.shared.quantity import human_bytes
from kube_accel.sharing.fraction import WHOLE, Kind, counts, gpu_of, resources, shares
from kube_accel.sharing.profile import Profile


@dataclass(frozen=True, slots=True)
class Started:
    """A container that may start."""

    holder: Holder | None
    """None for an init container, which kubelet does not list, and for one of several that have the same devices."""
    shares: tuple[Share, ...]
    """Empty where that is not known."""


Devices = Mapping[Kind, frozenset[str]]


def by_container(listed: Iterable[PodDevices], profile: Profile) -> dict[Holder, dict[Kind, frozenset[str]]]:
    """Return our devices of every container. Pure."""
    kinds = {name: kind for kind, name in resources(profile).items()}
    found: defaultdict[Holder, dict[Kind, frozenset[str]]] = defaultdict(dict)
    for entry in listed:
        if entry.resource in kinds:
            holder = Holder(entry.namespace, entry.pod, entry.container)
            found[holder][kinds[entry.resource]] = frozenset(entry.device_ids)
    return dict(found)


def held_shares(
    containers: Mapping[Holder, Devices], gpus: Mapping[str, Gpu], profile: Profile
) -> dict[Holder, tuple[Share, ...]]:
    """Return what every container has. One whose devices make no sense has what they come to, GPU by GPU. Pure."""
    found = {}
    for holder, devices in containers.items():
        amounts = {kind: _known(ids, kind, gpus, profile) for kind, ids in devices.items()}
        cores, memory = amounts.get(Kind.CORES, {}), amounts.get(Kind.MEMORY, {})
        try:
            found[holder] = tuple(shares(cores, memory, gpus, profile))
        except ValueError:
            found[holder] = tuple(
                Share(uuid, cores.get(uuid, 0), memory.get(uuid, 0) * profile.memory_unit_bytes)
                for uuid in sorted({*cores, *memory})
            )
    return found


def check_start(
    kind: Kind,
    ids: Collection[str],
    containers: Mapping[Holder, Devices],
    gpus: Mapping[str, Gpu],
    profile: Profile,
    most_containers: int | None = None,
) -> Started:
    """Check whether the container with exactly these devices of one kind may start. Pure. Raises StartRefused.

    ``most_containers`` may have a part of a GPU; None for as many as there are parts.
    """
    wanted = frozenset(ids)
    holders = [holder for holder, devices in containers.items() if devices.get(kind) == wanted]
    if not holders or (len(holders) > 1 and not identifies(kind, wanted)):
        # Only this much is known; the other resource is asked about in a call of its own.
        return _alone(kind, wanted, gpus, profile)
    # Of several that have the same only one starts.
    others = {other: devices for other, devices in containers.items() if other not in holders}
    found = {_own(holder, containers[holder], others, gpus, profile, most_containers) for holder in holders}
    if len(found) > 1:
        names = " and ".join(sorted({f"{holder.namespace}/{holder.pod}" for holder in holders}))
        remedy = "delete one that does not run, so that its replacement is placed again"
        raise StartRefused(
            f"kubelet gave the same {resources(profile)[kind]} to {names}, whose shares differ; {remedy}"
        )
    return Started(holders[0] if len(holders) == 1 else None, found.pop())


def identifies(kind: Kind, ids: Collection[str]) -> bool:
    """Return whether a container's files are kept by these: by its memory, and by cores that are whole GPUs."""
    return kind is Kind.MEMORY or len(ids) % WHOLE == 0


def _alone(kind: Kind, ids: Collection[str], gpus: Mapping[str, Gpu], profile: Profile) -> Started:
    try:
        amounts = counts(ids, kind, gpus, profile)
        whole = kind is Kind.CORES and set(amounts.values()) == {WHOLE}
        if len(amounts) > 1 and not whole and (kind is Kind.CORES or profile.core_resource is None):
            raise ValueError(f"its {resources(profile)[kind]} is of {len(amounts)} GPUs; a share is of one")
    except ValueError as error:
        raise _senseless(None, error) from error
    return Started(None, ())


def _own(
    holder: Holder,
    devices: Devices,
    others: Mapping[Holder, Devices],
    gpus: Mapping[str, Gpu],
    profile: Profile,
    most_containers: int | None,
) -> tuple[Share, ...]:
    """Return what a container has, if its GPUs have that beside what others have. Raises StartRefused."""
    try:
        amounts = {kind: counts(found, kind, gpus, profile) for kind, found in devices.items()}
        own = shares(amounts.get(Kind.CORES, {}), amounts.get(Kind.MEMORY, {}), gpus, profile)
    except ValueError as error:
        raise _senseless(holder, error) from error
    for share in own:
        _check_card(share, holder, devices, others, gpus[share.uuid], profile)
        if most_containers is not None:
            _check_count(share, holder, others, gpus[share.uuid], most_containers)
    return tuple(own)


def _senseless(holder: Holder | None, error: ValueError) -> StartRefused:
    return StartRefused(
        f"{_who(holder)} cannot start: {error}; delete the pod, so that its replacement is placed again", holder
    )


def _known(ids: Iterable[str], kind: Kind, gpus: Mapping[str, Gpu], profile: Profile) -> dict[str, int]:
    """Return the devices of GPUs that are there, without those of a GPU that was replaced."""
    return counts([device for device in ids if gpu_of(device) in gpus], kind, gpus, profile)


def _check_card(
    share: Share,
    holder: Holder,
    devices: Devices,
    others: Mapping[Holder, Devices],
    gpu: Gpu,
    profile: Profile,
) -> None:
    """Refuse a GPU that would be handed out more than once.

    Amounts count, pod by pod, and not how many ids there are: kubelet may give an id to two pods (see ``starts``).
    """
    taken: dict[Kind, dict[tuple[str, str], set[str]]] = {kind: defaultdict(set) for kind in Kind}
    for other, found in others.items():
        # Containers of one pod may use the same devices, one after the other.
        pod = (other.namespace, other.pod)
        own_pod = pod == (holder.namespace, holder.pod)
        for kind, ids in found.items():
            shared = devices.get(kind, frozenset()) if own_pod else frozenset()
            taken[kind][pod] |= {device for device in ids - shared if gpu_of(device) == gpu.uuid}
    cores = sum(map(len, taken[Kind.CORES].values()))
    memory = sum(map(len, taken[Kind.MEMORY].values())) * profile.memory_unit_bytes
    if cores >= WHOLE:
        memory = gpu.memory_bytes
    if share.cores + cores > WHOLE or share.memory_bytes + memory > gpu.memory_bytes:
        raise StartRefused(
            f"{_who(holder)} cannot start: it has {share.cores} % and {human_bytes(share.memory_bytes)} of GPU "
            f"{gpu.index}, of which others have {cores} % and {human_bytes(memory)}; delete the pod, so that its "
            "replacement is placed again",
            holder,
        )


def _check_count(share: Share, holder: Holder, others: Mapping[Holder, Devices], gpu: Gpu, most: int) -> None:
    """Refuse a GPU that so many containers have a part of already."""
    beside = sum(any(gpu_of(device) == share.uuid for device in chain(*found.values())) for found in others.values())
    if beside >= most:
        raise StartRefused(
            f"{_who(holder)} cannot start: {beside} containers share GPU {gpu.index}, and its MPS server takes {most} "
            "clients; delete the pod, so that its replacement is placed again",
            holder,
        )


def _who(holder: Holder | None) -> str:
    return "the container" if holder is None else f"container {holder.container} of {holder.namespace}/{holder.pod}"
