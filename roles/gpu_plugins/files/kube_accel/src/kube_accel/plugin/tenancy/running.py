# SPDX-License-Identifier: Apache-2.0
"""The containers that kubelet lists, by GPU and pod, and what NVML and their accounts report of them. Pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from kube_accel.enforce.containers import key_of
from kube_accel.enforce.policy import Account, Limit, Policy
from kube_accel.model import Gpu, GpuUsage, Share
from kube_accel.plugin.allocation.start_check import Devices, identifies
from kube_accel.plugin.kubelet.holdings import Holder
from kube_accel.shared.quantity import human_bytes


@dataclass(frozen=True, slots=True)
class Running:
    """A container that kubelet lists."""

    key: str
    """Key of its files."""
    holder: Holder
    uid: str
    """UID of its pod; empty while that is not known."""
    shares: tuple[Share, ...]
    limits: tuple[Limit, ...]
    """Without any override."""


def keys_of(devices: Devices) -> set[str]:
    """Return the keys of the files that a container with these devices may have."""
    return {key_of(ids) for kind, ids in devices.items() if ids and identifies(kind, ids)}


@dataclass(frozen=True, slots=True)
class Sharing:
    """The containers on each GPU, for as long as kubelet lists the same."""

    running: tuple[Running, ...]
    gpus: Mapping[str, Gpu]
    on: Mapping[str, tuple[Running, ...]]
    """By UUID."""
    watched: tuple[str, ...]
    """GPUs of several, and those of one that is limited: what a container may have is the same with neighbors."""
    pods: Mapping[str, Mapping[str, tuple[Running, ...]]]
    """By UUID, and by the UID of a pod, as far as that is known."""


def sharing_of(running: tuple[Running, ...], gpus: Mapping[str, Gpu]) -> Sharing:
    """Return who is on which GPU."""
    on: defaultdict[str, tuple[Running, ...]] = defaultdict(tuple)
    pods: defaultdict[str, defaultdict[str, tuple[Running, ...]]] = defaultdict(lambda: defaultdict(tuple))
    for entry in running:
        for uuid in {share.uuid for share in entry.shares}:
            on[uuid] += (entry,)
            if entry.uid:
                pods[uuid][entry.uid] += (entry,)
    limited = {limit.uuid for entry in running for limit in entry.limits if limit.memory_bytes}
    watched = tuple(sorted(uuid for uuid, all_ in on.items() if uuid in gpus and (len(all_) > 1 or uuid in limited)))
    return Sharing(running, gpus, on, watched, pods)


def used_bytes(policy: Policy, account: Account | None, uuid: str) -> int | None:
    """Return what a container says that it uses of a GPU."""
    for limit, device in zip(policy.limits, account.devices if account is not None else (), strict=False):
        if limit.uuid == uuid:
            return device.used_bytes
    return None


def pod_of(entry: Running) -> str:
    """Return ``<namespace>/<name>`` of a container's pod."""
    return f"{entry.holder.namespace}/{entry.holder.pod}"


def refusals(account: Account) -> tuple[int, ...]:
    """Return the counters of refused allocations: by policy, then by limit and by device for each GPU."""
    return account.denied_policy, *[count for one in account.devices for count in (one.denied_limit, one.denied_device)]


def denied(pairs: Iterable[tuple[Policy, Account]]) -> dict[str, Counter[str]]:
    """Return how many allocations the accounts of one container say were refused, by GPU and the ledger's reason."""
    found: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for policy, account in pairs:
        for limit, device in zip(policy.limits, account.devices, strict=True):
            found[limit.uuid].update(limit=device.denied_limit, device=device.denied_device)
        found[policy.limits[0].uuid]["policy"] += account.denied_policy
    return found


def refusal(reason: str, gpu: str, limit_bytes: int, whose: str = "container's") -> str:
    """Return what the ledger's reason of a refused allocation is in words; ``whose`` is who the limit is of."""
    return {
        "limit": f"an allocation on {gpu} was refused: over the {whose} limit of {human_bytes(limit_bytes)}",
        "device": f"an allocation within the {whose} limit was refused: {gpu} itself is full",
        "policy": "an allocation was refused: its limits could not be read, or do not name the GPU",
    }[reason]


class Parts:
    """What NVML reported of a GPU, by the key of the container that has it."""

    def __init__(self, told: GpuUsage, owners: Mapping[int, str]) -> None:
        self.memory: dict[str, int | None] = {}
        """None where one of its processes does not report it."""
        for pid, amount in told.memory.items():
            if (key := owners.get(pid)) is not None:
                sum_of = self.memory.get(key, 0)
                self.memory[key] = None if amount is None or sum_of is None else sum_of + amount
        self.time: dict[str, int] = {}
        """Percent."""
        self.total: int | None = None if told.time is None else sum(told.time.values())
        """Time of all processes; None where that is not known."""
        for pid, percent in (told.time or {}).items():
            if (key := owners.get(pid)) is not None:
                self.time[key] = self.time.get(key, 0) + percent
