# SPDX-License-Identifier: Apache-2.0
"""Who has which part of which GPU by claims. Pure.

A claim is one tenant however many containers use it: it has one share, with one account. It is told of by the container
that has it. If several of a pod have it, by the pod; if several pods have it or none is known, by the claim.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from kube_accel.dra.checkpoint import PreparedClaim, PreparedDevice
from kube_accel.kube.podresources import PodClaim
from kube_accel.metrics.charge import memory_of
from kube_accel.metrics.tenancy import Container, Holding
from kube_accel.model import Gpu, Share
from kube_accel.plugin.kubelet.holdings import Holder
from kube_accel.shared.claim_view import CLAIM
from kube_accel.shared.modes import CORES

Paddle = Mapping[tuple[str, str], frozenset[str]]
"""Containers that run PaddlePaddle, by namespace and pod."""


@dataclass(frozen=True, slots=True)
class Tenant:
    """A claim, as it is told of."""

    name: Container
    among: tuple[Container, ...]
    """The containers that have it, in order."""


def tenants(claims: Mapping[str, PreparedClaim], listed: Iterable[PodClaim]) -> dict[str, Tenant]:
    """Return the tenant of each claim, by the claim's UID; ``listed`` is what kubelet says."""
    found: dict[tuple[str, str], set[Container]] = {}
    for each in listed:
        mine = Container(each.namespace, each.pod, each.container)
        found.setdefault((each.namespace, each.claim), set()).add(mine)
    return {
        uid: _tenant(claim, tuple(sorted(found.get((claim.namespace, claim.name), ()))))
        for uid, claim in claims.items()
    }


def _tenant(claim: PreparedClaim, having: Iterable[Container]) -> Tenant:
    among = tuple(sorted(having))
    if len(among) == 1:
        return Tenant(among[0], among)
    pods = {container.pod for container in among}
    pod = pods.pop() if len(pods) == 1 else f"{CLAIM}{claim.name}"
    return Tenant(Container(claim.namespace, pod, ""), among)


def holdings(
    claims: Mapping[str, PreparedClaim], known: Mapping[str, Tenant], gpus: Iterable[Gpu], paddle: Paddle
) -> dict[str, tuple[Holding, ...]]:
    """Return what claims have of these GPUs, by GPU. What watches over a GPU by adminAccess has nothing of it."""
    sizes = {gpu.uuid: gpu.memory_bytes for gpu in gpus}
    found: dict[str, tuple[Holding, ...]] = {}
    for uid, claim in claims.items():
        for device in claim.devices:
            if not device.admin and (size := sizes.get(device.uuid)):
                found[device.uuid] = (*found.get(device.uuid, ()), _holding(device, known[uid], size, paddle))
    return found


def _holding(device: PreparedDevice, tenant: Tenant, size: int, paddle: Paddle) -> Holding:
    portion = device.portion
    cores, memory = (1.0, size) if portion is None else (min(1.0, portion.cores / CORES), portion.memory_bytes)
    return Holding(
        container=tenant.name,
        uuid=device.uuid,
        share=min(1.0, max(cores, memory / size)),
        cores=cores,
        memory_bytes=memory,
        limited=portion is not None,
        paddle=any(one.name in paddle.get(one[:2], ()) for one in tenant.among),
        among=tenant.among,
    )


def shares(found: Mapping[str, tuple[Holding, ...]], gpus: Iterable[Gpu]) -> dict[Holder, tuple[Share, ...]]:
    """Return the percentages and bytes of each GPU that the ledger has; several of one tenant are one."""
    sums: dict[Holder, dict[str, tuple[int, int]]] = {}
    sizes = {gpu.uuid: gpu.memory_bytes for gpu in gpus}
    for uuid, held in found.items():
        for holding in held:
            mine = sums.setdefault(Holder(*holding.container), {})
            cores, memory = mine.get(uuid, (0, 0))
            more = memory_of(holding, sizes[uuid])
            mine[uuid] = cores + round(CORES * (holding.cores or 0.0)), memory + more
    return {
        holder: tuple(
            Share(uuid, min(CORES, cores), min(sizes[uuid], memory)) for uuid, (cores, memory) in mine.items()
        )
        for holder, mine in sums.items()
    }
