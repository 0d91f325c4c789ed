# SPDX-License-Identifier: Apache-2.0
"""Other limits than what a container was given, from an object that only administrators can write. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from kube_accel.enforce.policy import Limit
from kube_accel.shared.quantity import human_bytes, parse_quantity

_KEYS = {"cores", "softCores", "memory"}
_CONTAINER = re.compile(r"([a-z0-9-]{1,63})\.([a-z0-9.-]{1,253})\.([a-z0-9-]{1,63})")
_UID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_MOST_TEXT = 1024


@dataclass(frozen=True, slots=True)
class Override:
    """What replaces the limits of one container, or of every container of one pod; None leaves something as it is."""

    key: str
    memory_bytes: int | None = None
    cores: int | None = None
    soft_cores: int | None = None


@dataclass(frozen=True, slots=True)
class Tenant:
    """A container with a share of one GPU, as it was given."""

    key: str
    """Key of its files."""
    namespace: str
    pod: str
    container: str
    pod_uid: str
    limit: Limit


@dataclass(frozen=True, slots=True)
class Settled:
    """What holds for containers that an override names."""

    limits: Mapping[str, Limit]
    """By the key of their files."""
    refused: tuple[tuple[Tenant, str], ...]
    """Containers that keep what they were given, and why."""


def parse(key: str, text: object) -> Override:
    """Parse one entry: ``<namespace>.<pod>.<container>`` or a pod's uid, and ``{"memory": "6Gi", "cores": 20}``.

    Raises ValueError with what is wrong.
    """
    if not _CONTAINER.fullmatch(key) and not _UID.fullmatch(key):
        raise ValueError("it is neither <namespace>.<pod>.<container> nor the uid of a pod")
    if not isinstance(text, str) or len(text) > _MOST_TEXT:
        raise ValueError("its value is not a short text")
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f'its value is not JSON such as {{"memory": "6Gi", "cores": 20}}: {error}') from None
    if not isinstance(document, dict) or not document or not document.keys() <= _KEYS:
        raise ValueError("its value has to be an object with memory, cores or softCores, and nothing else")
    memory = parse_quantity(document["memory"]) if "memory" in document else None
    if memory == 0:
        raise ValueError("memory is 0, which would mean no limit; delete the pod instead")
    return Override(key, memory, _percent(document, "cores"), _percent(document, "softCores"))


def _percent(document: Mapping[str, object], key: str) -> int | None:
    value = document.get(key)
    if value is not None and (not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= 100):
        raise ValueError(f"{key} is not a whole number from 1 to 100")
    return value


def settle(
    overrides: Iterable[Override], tenants: Iterable[Tenant], memory_of: Mapping[str, int], cores_limited: bool
) -> Settled:
    """Return the limits of containers that overrides name, on cards with so much memory, by UUID.

    Less than what was given always goes. More goes while the card has it: as soon as another container gets it, that
    one has it. ``cores_limited`` is False where no setting limits cores.
    """
    given = list(tenants)
    limits = {tenant.key: tenant.limit for tenant in given}
    found: dict[str, Limit] = {}
    refused: list[tuple[Tenant, str]] = []
    by_key = {entry.key: entry for entry in overrides}
    wishes = [(tenant, entry) for tenant in given if (entry := _entry(tenant, by_key)) is not None]
    # Those that take less first: what they leave is there for the others.
    wishes.sort(key=lambda wish: (_more(*wish), wish[0].key))
    for tenant, entry in wishes:
        wanted = _wanted(tenant.limit, entry)
        problem = _problem(tenant, entry, wanted, limits, given, memory_of, cores_limited)
        if problem:
            refused.append((tenant, f"override {entry.key} is not applied: {problem}"))
        else:
            limits[tenant.key] = found[tenant.key] = wanted
    return Settled(found, tuple(refused))


def _entry(tenant: Tenant, by_key: Mapping[str, Override]) -> Override | None:
    """Return a container's own entry, or that of its pod."""
    own = by_key.get(f"{tenant.namespace}.{tenant.pod}.{tenant.container}")
    return own if own is not None else by_key.get(tenant.pod_uid)


def _wanted(limit: Limit, entry: Override) -> Limit:
    return replace(
        limit,
        memory_bytes=limit.memory_bytes if entry.memory_bytes is None else entry.memory_bytes,
        cores=limit.cores if entry.cores is None else entry.cores,
        soft_cores=limit.soft_cores if entry.soft_cores is None else entry.soft_cores,
    )


def _more(tenant: Tenant, entry: Override) -> bool:
    wanted = _wanted(tenant.limit, entry)
    return wanted.memory_bytes > tenant.limit.memory_bytes or wanted.cores > tenant.limit.cores


def _problem(
    tenant: Tenant,
    entry: Override,
    wanted: Limit,
    limits: Mapping[str, Limit],
    tenants: Iterable[Tenant],
    memory_of: Mapping[str, int],
    cores_limited: bool,
) -> str:
    """Return why a container cannot have these limits; empty when it can."""
    if tenant.limit.memory_bytes == 0:
        return "the container has a whole GPU, which is not limited"
    if not cores_limited and (entry.cores is not None or entry.soft_cores is not None):
        return "the limit of cores cannot change while the container runs"
    others = [
        limits[other.key] for other in tenants if other.key != tenant.key and other.limit.uuid == tenant.limit.uuid
    ]
    card = memory_of.get(wanted.uuid, 0)
    memory = card - sum(limit.memory_bytes for limit in others)
    if wanted.memory_bytes > max(memory, tenant.limit.memory_bytes):
        return f"{human_bytes(wanted.memory_bytes)} of its GPU, of which {human_bytes(max(memory, 0))} are left for it"
    cores = 100 - sum(limit.cores for limit in others)
    if wanted.cores > max(cores, tenant.limit.cores):
        return f"{wanted.cores} % of its GPU, of which {max(cores, 0)} % are left for it"
    if wanted.soft_cores and wanted.soft_cores < wanted.cores:
        return f"softCores {wanted.soft_cores} is less than cores {wanted.cores}"
    return ""
