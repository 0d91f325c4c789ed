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
from kube_accel.model import Gpu, MigDevice, Share
from kube_accel.plugin.kubelet.holdings import Holder
from kube_accel.shared.claim_view import CLAIM
from kube_accel.shared.modes import CORES
from kube_accel.sharing.mig import share_of

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
    whole: dict[str, tuple[Gpu, MigDevice | None]] = {gpu.uuid: (gpu, None) for gpu in gpus}
    parts = whole | {mig.uuid: (gpu, mig) for gpu, _ in whole.values() for mig in gpu.mig_devices}
    found: dict[str, tuple[Holding, ...]] = {}
    for uid, claim in claims.items():
        for device in claim.devices:
            if not device.admin and device.uuid in parts:
                gpu, mig = parts[device.uuid]
                tenant = known[uid]
                holding = _holding(device, tenant, gpu, paddle) if mig is None else _of_mig(mig, tenant, gpu, paddle)
                found[gpu.uuid] = (*found.get(gpu.uuid, ()), holding)
    return found


def _of_mig(mig: MigDevice, tenant: Tenant, gpu: Gpu, paddle: Paddle) -> Holding:
    return Holding(
        container=tenant.name,
        uuid=gpu.uuid,
        share=share_of(gpu, mig),
        memory_bytes=mig.memory_bytes,
        device=mig.uuid,
        paddle=_runs_paddle(tenant, paddle),
        among=tenant.among,
    )


def _runs_paddle(tenant: Tenant, paddle: Paddle) -> bool:
    return any(one.name in paddle.get(one[:2], ()) for one in tenant.among)


def _holding(device: PreparedDevice, tenant: Tenant, gpu: Gpu, paddle: Paddle) -> Holding:
    portion, size = device.portion, gpu.memory_bytes
    cores, memory = (1.0, size) if portion is None else (min(1.0, portion.cores / CORES), portion.memory_bytes)
    return Holding(
        container=tenant.name,
        uuid=device.uuid,
        share=min(1.0, max(cores, memory / size)),
        cores=cores,
        memory_bytes=memory,
        limited=portion is not None,
        paddle=_runs_paddle(tenant, paddle),
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
            part = holding.share if holding.cores is None else holding.cores
            mine[uuid] = cores + round(CORES * part), memory + more
    return {
        holder: tuple(
            Share(uuid, min(CORES, cores), min(sizes[uuid], memory)) for uuid, (cores, memory) in mine.items()
        )
        for holder, mine in sums.items()
    }
