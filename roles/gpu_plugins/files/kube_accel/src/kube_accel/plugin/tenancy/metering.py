# SPDX-License-Identifier: Apache-2.0
"""What metrics show of containers: from kubelet's lists, the ledger and the interposer's accounts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TYPE_CHECKING

from kube_accel.kube.cgroups import Place
from kube_accel.metrics.charge import Charge, Payer, State, memory_of
from kube_accel.metrics.containers import Kept, Key
from kube_accel.metrics.meterstate import decode, encode
from kube_accel.metrics.tenancy import Account, Charged, Container, Holding, Holdings, Refused, Tenancy
from kube_accel.model import Gpu, Share
from kube_accel.plugin.kubelet.holdings import Held, Holder
from kube_accel.sharing.fraction import WHOLE
from kube_accel.sharing.mig import share_of
from kube_accel.sharing.profile import Profile
from kube_accel.sharing.whole import Part

if TYPE_CHECKING:
    from kube_accel.plugin.allocation.ledger import Ledger
    from kube_accel.plugin.allocation.pods import NodePods
    from kube_accel.plugin.tenancy.tenants import Tenants

_ENDED = frozenset({"Succeeded", "Failed"})
_REASONS = {"limit": "quota"}
"""What metrics call the ledger's reasons, where that is another word."""


def whole_tenancy(held: Callable[[], Held | None], parts: Callable[[], Iterable[Part] | None]) -> Tenancy:
    """Return the tenancy of mode pgpu; None is what is not known.

    Pods are known by kubelet's lists alone, which do not have the UIDs that cgroups have.
    """

    def holdings() -> Holdings | None:
        found, known = held(), parts()
        return None if found is None or known is None else whole_holdings(found, known)

    return Tenancy(holdings)


def whole_holdings(held: Held, parts: Iterable[Part]) -> dict[str, tuple[Holding, ...]]:
    """Return GPUs, MIG devices and their replicas, by GPU. Pure."""
    known = {part.id: part for part in parts}
    replicas = Counter(part.uuid for part in known.values())
    found: dict[str, tuple[Holding, ...]] = {}
    for device, holders in held.items():
        if (part := known.get(device)) is None:
            continue
        gpu, shared = part.gpu, replicas[part.uuid] > 1
        mig = part.uuid != gpu.uuid
        size = gpu.memory_bytes if part.memory_bytes is None else part.memory_bytes
        for holder in holders:
            holding = Holding(
                container=Container(holder.namespace, holder.pod, holder.container),
                uuid=gpu.uuid,
                share=(_slices(gpu, part) if mig else 1.0) / replicas[part.uuid],
                cores=None if mig or shared else 1.0,
                memory_bytes=None if shared else size,
                device=part.uuid if mig else "",
            )
            found[gpu.uuid] = (*found.get(gpu.uuid, ()), holding)
    return found


def whole_shares(held: Held, parts: Iterable[Part]) -> dict[Holder, tuple[Share, ...]]:
    """Return the percentages and bytes of each GPU that the ledger has. Pure."""
    sums: dict[Holder, dict[str, tuple[float, int]]] = {}
    parts = tuple(parts)
    known = {part.gpu.uuid: part.gpu for part in parts}
    for uuid, holdings in whole_holdings(held, parts).items():
        for holding in holdings:
            found = sums.setdefault(Holder(*holding.container), {})
            share, memory = found.get(uuid, (0.0, 0))
            found[uuid] = share + holding.share, memory + memory_of(holding, known[uuid].memory_bytes)
    return {
        holder: tuple(
            Share(uuid, min(WHOLE, round(WHOLE * share)), min(memory, known[uuid].memory_bytes))
            for uuid, (share, memory) in found.items()
        )
        for holder, found in sums.items()
    }


def refused(ledger: Ledger) -> Mapping[Refused, int]:
    """Return how many allocations containers that run were refused, as metrics name them."""
    found: Counter[Refused] = Counter()
    for row in ledger.refusals():
        holder, share = row.allocation.holder, row.allocation.share
        container = Container(holder.namespace, holder.pod, holder.container)
        found[Refused(container, share.uuid, _REASONS.get(row.reason, row.reason))] += row.count
    return found


class LedgerBooks:
    """Keeps a meter and peaks in the ledger."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    @property
    def ledger(self) -> str:
        """Return the ledger's name."""
        return self._ledger.name

    def load(self) -> tuple[State | None, dict[Payer, Charge]]:
        """Return what was kept."""
        text, rows = self._ledger.charges()
        return decode(text) if text else None, {Payer(*row[:3]): Charge(*row[3:]) for row in rows}

    def save(self, state: State, charges: Mapping[Payer, Charge]) -> Collection[Payer]:
        """Keep this, and return those that are not kept any longer."""
        rows = ((*key, *(c.gpu_seconds, c.memory_byte_seconds, c.busy_seconds)) for key, c in charges.items())
        return [Payer(*key) for key in self._ledger.charge(encode(state), rows)]

    def peaks(self) -> dict[Key, Kept]:
        """Return the peaks of the allocations that last."""
        return {
            (gpu, Container(namespace, pod, container)): Kept(row, uid, peak)
            for row, namespace, pod, container, uid, gpu, peak in self._ledger.peaks()
        }

    def peaked(self, peaks: Mapping[int, int]) -> None:
        """Keep these peaks, by allocation."""
        self._ledger.peaked(peaks)


def _slices(gpu: Gpu, part: Part) -> float:
    return share_of(gpu, next(device for device in gpu.mig_devices if device.uuid == part.uuid))


class ShareTenancy:
    """Collects the tenancy of a mode that divides GPUs."""

    def __init__(
        self,
        profile: Profile,
        held: Callable[[], Mapping[Holder, tuple[Share, ...]] | None],
        gpus: Callable[[], Iterable[Gpu]],
        pods: NodePods,
        ledger: Ledger,
        tenants: Tenants,
        refuses: Callable[[], bool],
    ) -> None:
        """``refuses`` says whether the interposer enforces limits, and counts what it refuses."""
        self._profile = profile
        self._held = held
        self._gpus = gpus
        self._pods = pods
        self._ledger = ledger
        self._tenants = tenants
        self._refuses = refuses

    def tenancy(self) -> Tenancy:
        """Return what metrics are made of."""
        return Tenancy(self._holdings, self._owner, self._accounts, lambda: refused(self._ledger))

    def _holdings(self) -> Holdings | None:
        held = self._held()
        if held is None:
            return None
        capacity = {gpu.uuid: gpu.memory_bytes for gpu in self._gpus()}
        # Kubelet may go on listing pods that have ended.
        pods = self._pods.all()
        ended = {(pod.namespace, pod.name): pod.phase in _ENDED for pod in pods}
        paddle = {(pod.namespace, pod.name): pod.paddle for pod in pods}
        found: dict[str, tuple[Holding, ...]] = {}
        limited = self._refuses()
        for holder, shares in held.items():
            if ended.get((holder.namespace, holder.pod)):
                continue
            for share in shares:
                if size := capacity.get(share.uuid):
                    names = paddle.get((holder.namespace, holder.pod), frozenset())
                    holding = self._holding(holder, share, size, limited, holder.container in names)
                    found[share.uuid] = (*found.get(share.uuid, ()), holding)
        return found

    def _holding(self, holder: Holder, share: Share, size: int, limited: bool, paddle: bool) -> Holding:
        cores = min(1.0, share.cores / WHOLE)
        return Holding(
            container=Container(holder.namespace, holder.pod, holder.container),
            uuid=share.uuid,
            share=min(1.0, max(cores, share.memory_bytes / size)),
            cores=None if self._profile.core_resource is None else cores,
            memory_bytes=share.memory_bytes,
            limited=limited,
            paddle=paddle,
        )

    def _owner(self, place: Place) -> Container | None:
        found = self._pods.at(place)
        if found is None:
            return None
        pod, name = found
        return Container(pod.namespace, pod.name, name)

    def _accounts(self) -> Mapping[Account, Charged]:
        return {
            Account(Container(holder.namespace, holder.pod, holder.container), uuid): Charged(
                use.used_bytes, limit.memory_bytes, use.busy_ns
            )
            for (holder, uuid), (limit, use) in self._tenants.uses().items()
        }
