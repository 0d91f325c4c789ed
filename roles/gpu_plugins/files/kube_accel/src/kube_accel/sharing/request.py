# SPDX-License-Identifier: Apache-2.0
"""What a pod asks for, read from its object. Pure; the pod's annotations are hints of a tenant and read as such."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Container, Iterable, Iterator, Mapping
from typing import Any, TypeVar

from kube_accel.model import (
    ContainerKind,
    ContainerRequest,
    GpuConstraints,
    Mode,
    PlacementPolicy,
    PodRequest,
)
from kube_accel.shared.asked import asked as asked_of
from kube_accel.shared.quantity import parse_quantity
from kube_accel.shared.wishes import (
    AVOID_MODEL,
    AVOID_UUID,
    MIN_COMPUTE_CAPABILITY,
    MIN_CUDA,
    PLACEMENT,
    USE_MODEL,
    USE_UUID,
)
from kube_accel.sharing.profile import PROFILES, WHOLE_GPU_RESOURCE, Profile

_MAX_ENTRIES = 32
"""Most entries of a list in an annotation: each is compared with every GPU of the cluster."""
_MAX_ENTRY = 128
_VERSION = re.compile(r"([0-9]{1,3})(?:\.([0-9]{1,3}))?")

_SHM = "/dev/shm"  # noqa: S108

_T = TypeVar("_T")


class RequestRefused(ValueError):  # noqa: N818 - an answer, not a failure
    """The pod asks for something no GPU can ever give. The text says what, and what to ask for instead."""


def pod_request(
    pod: Mapping[str, Any],
    profiles: Mapping[Mode, Profile] = PROFILES,
    policy: PlacementPolicy = PlacementPolicy.BINPACK,
) -> PodRequest | None:
    """Return the request of a pod object; None for a pod that asks for nothing of ours.

    ``policy`` holds for pods without an annotation of their own. Raises RequestRefused.
    """
    offers = {WHOLE_GPU_RESOURCE: Mode.PGPU}
    for profile in profiles.values():
        offers[profile.memory_resource] = profile.mode
        if profile.core_resource is not None:
            offers[profile.core_resource] = profile.mode
    asked = [
        (name, kind, amounts, mounts)
        for name, kind, container, mounts in _containers(pod)
        if (amounts := _amounts(name, container, offers))
    ]
    if not asked:
        return None
    used = sorted({resource for _, _, amounts, _ in asked for resource in amounts})
    modes = {offers[resource] for resource in used}
    if len(modes) > 1:
        raise RequestRefused(
            f"the pod asks for {' and '.join(used)}, which no one node offers; use the resources of one mode"
        )
    mode = modes.pop()
    annotations = _child(_child(pod, "metadata", dict, {}), "annotations", dict, {})
    if mode is Mode.PGPU:
        containers = tuple(
            ContainerRequest(name, kind, whole=amounts[WHOLE_GPU_RESOURCE]) for name, kind, amounts, _ in asked
        )
        unit = 1
    else:
        if mode is Mode.MPS and not _child(_child(pod, "spec", dict, {}), "nodeName", str, ""):
            # One that has its node runs already, as it was let in.
            for name, _, amounts, mounts in asked:
                _check_mps(name, amounts, mounts, profiles[mode])
        containers = tuple(_share(name, kind, amounts, profiles[mode]) for name, kind, amounts, _ in asked)
        unit = profiles[mode].memory_unit_bytes
    return PodRequest(mode, containers, _policy(annotations, policy), _constraints(annotations), unit)


def _containers(pod: Mapping[str, Any]) -> Iterator[tuple[str, ContainerKind, Mapping[str, Any], list[Any]]]:
    """Yield name, kind, object and mounts of the containers, in the order kubelet admits them."""
    spec = _child(pod, "spec", dict, {})
    for key in ("initContainers", "containers"):
        for container in _child(spec, key, list, []):
            if not isinstance(container, dict):
                raise RequestRefused(f"spec.{key} of the pod holds something that is not a container")
            kind = ContainerKind.APP
            if key == "initContainers":
                kind = ContainerKind.SIDECAR if container.get("restartPolicy") == "Always" else ContainerKind.INIT
            yield _child(container, "name", str, ""), kind, container, _child(container, "volumeMounts", list, [])


def _child(parent: Mapping[str, Any], key: str, kind: type[_T], absent: _T) -> _T:
    value = parent.get(key)
    if value is None:
        return absent
    if not isinstance(value, kind):
        raise RequestRefused(f"{key} of the pod is not a {kind.__name__}")
    return value


def _amounts(name: str, container: Mapping[str, Any], ours: Container[str]) -> dict[str, int]:
    try:
        found = asked_of(container, ours.__contains__)
    except ValueError as error:
        raise RequestRefused(f'container "{name}": {error}') from error
    amounts = {}
    for resource, amount in found.items():
        try:
            amounts[resource] = parse_quantity(amount)
        except ValueError as error:
            raise RequestRefused(f'container "{name}": {resource}: {error}') from error
    return amounts


def _check_mps(name: str, amounts: Mapping[str, int], mounts: Iterable[Any], profile: Profile) -> None:
    """Refuse what MPS cannot give."""
    cores = amounts.get(profile.core_resource or "", 0)
    if cores > 100:
        raise RequestRefused(
            f'container "{name}" asks for {cores} {profile.core_resource}; MPS serves a container from one GPU. '
            f"Ask for 1 to 99 (percent of the GPU), or 100 for all of it. For several GPUs, use {WHOLE_GPU_RESOURCE}"
        )
    paths = (str(mount.get("mountPath")) for mount in mounts if isinstance(mount, dict))
    if _SHM in map(posixpath.normpath, paths):
        raise RequestRefused(
            f'container "{name}" mounts a volume at {_SHM}, which hides the one that MPS needs there; leave the '
            "volume out, or mount it elsewhere"
        )


def _share(name: str, kind: ContainerKind, amounts: Mapping[str, int], profile: Profile) -> ContainerRequest:
    memory = amounts.get(profile.memory_resource, 0) * profile.memory_unit_bytes
    if profile.core_resource is None:
        return ContainerRequest(name, kind, memory_bytes=memory)
    cores = amounts.get(profile.core_resource, 0)
    asks = f'container "{name}" asks for {cores} {profile.core_resource}'
    whole = "100 for a whole GPU" if profile.mode is Mode.MPS else "a multiple of 100 for whole GPUs"
    if cores == 0:
        raise RequestRefused(
            f'container "{name}" asks for {profile.memory_resource} without {profile.core_resource}; '
            f"add 1 to 99 (percent of one GPU), or {whole}"
        )
    if cores % 100 == 0:
        return ContainerRequest(name, kind, whole=cores // 100, memory_bytes=memory)
    if cores > 100:
        raise RequestRefused(f"{asks}; ask for 1 to 99 (percent of one GPU), or {whole}")
    if memory == 0:
        raise RequestRefused(f"{asks} and no {profile.memory_resource}; a share of a GPU needs some of its memory")
    return ContainerRequest(name, kind, cores=cores, memory_bytes=memory)


def _policy(annotations: Mapping[str, Any], default: PlacementPolicy) -> PlacementPolicy:
    text = annotations.get(PLACEMENT)
    if text is None:
        return default
    try:
        return PlacementPolicy(text)
    except ValueError:
        known = " or ".join(policy.value for policy in PlacementPolicy)
        raise RequestRefused(f"annotation {PLACEMENT} of the pod: write {known}") from None


def _constraints(annotations: Mapping[str, Any]) -> GpuConstraints:
    return GpuConstraints(
        models_in=_entries(annotations, USE_MODEL),
        models_out=_entries(annotations, AVOID_MODEL),
        uuids_in=_entries(annotations, USE_UUID),
        uuids_out=_entries(annotations, AVOID_UUID),
        min_compute_capability=_version(annotations, MIN_COMPUTE_CAPABILITY),
        min_cuda=_version(annotations, MIN_CUDA),
    )


def _entries(annotations: Mapping[str, Any], key: str) -> frozenset[str]:
    text = annotations.get(key)
    if text is None:
        return frozenset()
    entries = [entry.strip().lower() for entry in text.split(",")] if isinstance(text, str) else []
    if not 0 < len(entries) <= _MAX_ENTRIES or not all(0 < len(entry) <= _MAX_ENTRY for entry in entries):
        raise RequestRefused(
            f"annotation {key} of the pod: write 1 to {_MAX_ENTRIES} entries with a comma between, "
            f"none empty or longer than {_MAX_ENTRY} characters"
        )
    return frozenset(entries)


def _version(annotations: Mapping[str, Any], key: str) -> tuple[int, int] | None:
    text = annotations.get(key)
    if text is None:
        return None
    match = _VERSION.fullmatch(text) if isinstance(text, str) else None
    if match is None:
        raise RequestRefused(f"annotation {key} of the pod: write a version such as 8.0")
    return int(match[1]), int(match[2] or 0)
