# SPDX-License-Identifier: Apache-2.0
"""Whose memory and time of a GPU it is. Pure.

A MIG device reports its own memory. A GPU that one container has alone is that container's, where processes cannot be
looked at. Otherwise a process is in the container that its cgroups name, and a container has the larger of two figures:
what NVML says of its processes, and what the interposer charged it. What an account says beyond NVML is taken from what
NVML gives to no container, so that nothing counts twice. What is not known is absent, and counted by reason.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from kube_accel.metrics.claims import Claim, divided
from kube_accel.metrics.sample import GpuSample
from kube_accel.metrics.tenancy import Container, Holding


class Outcome(StrEnum):
    """What became of the search for a process's owner."""

    CONTAINER = "container"
    HOST = "host"
    """A process of the node, in no pod."""
    MPS_SERVER = "mps_server"
    GONE = "gone"
    """It ended before it was looked at, or is in a PID namespace that is not seen here."""
    NO_POD = "no_pod"
    """It runs in a pod that is not known."""
    NOT_HELD = "not_held"
    """In a container that has nothing of this GPU."""
    NOT_VISIBLE = "not_visible"
    """Processes cannot be looked at, and several containers share the GPU."""
    UNKNOWN = "unknown"


_KNOWN = {Outcome.CONTAINER, Outcome.HOST, Outcome.MPS_SERVER}
_CLAIMED = ("unknown", "driver", "host")
"""Whose memory an account may turn out to be a container's, in this order: what is known least goes first."""
_NANOSECONDS = 1e9


@dataclass(frozen=True, slots=True)
class Owner:
    """The owner of a process."""

    outcome: Outcome
    container: Container | None = None


_SERVER = Owner(Outcome.MPS_SERVER)


@dataclass(frozen=True, slots=True)
class Figures:
    """What one container has of one GPU; None: not known."""

    memory_bytes: int | None = None
    busy_seconds: float | None = None
    processes: int | None = None


@dataclass(frozen=True, slots=True)
class Attributed:
    """One GPU at one collection."""

    containers: Mapping[Container, Figures]
    unattributed: Mapping[str, int]
    """Bytes in use that are no container's, by reason; a reason that is not known is absent."""
    outcomes: Mapping[tuple[str, str], int] = field(default_factory=dict)
    """How often which method came to what."""


def attribute(
    sample: GpuSample,
    holdings: Iterable[Holding],
    owners: Mapping[int, Owner] | None,
    claims: Mapping[Container, Claim],
) -> Attributed:
    """Divide the GPU of ``sample`` among its containers, in bytes and seconds, and give what no container has.

    ``owners`` by process id, of every process in the sample; None where processes cannot be looked at. ``claims`` are
    what the interposer charged containers on this GPU.
    """
    holdings = tuple(holdings)
    if sample.mig_memory is not None:
        return _mig(sample, holdings, sample.mig_memory)
    held = {holding.container: holding for holding in holdings}
    if owners is None:
        return _unseen(sample, held, claims)
    return _seen(sample, held, owners, claims)


def _mig(sample: GpuSample, holdings: Iterable[Holding], parts: Mapping[str, int]) -> Attributed:
    """Return what is known of a GPU in MIG mode, for which NVML reports neither time nor processes."""
    devices: defaultdict[Container, set[str]] = defaultdict(set)
    for holding in holdings:
        devices[holding.container].add(holding.device)
    tenants = Counter(device for held in devices.values() for device in held)
    found = {
        container: Figures(_sum(parts.get(device) if tenants[device] == 1 else None for device in held))
        for container, held in devices.items()
    }
    known = [figures.memory_bytes for figures in found.values() if figures.memory_bytes is not None]
    outcomes = {("mig", Outcome.CONTAINER.value): len(known), ("mig", Outcome.UNKNOWN.value): len(found) - len(known)}
    untold = {device for each, held in devices.items() if found[each].memory_bytes is None for device in held}
    shared = _sum(map(parts.get, untold))
    if shared is None or sample.used_bytes is None:
        return Attributed(found, {}, _positive(outcomes))
    together = {"shared": shared} if untold else {}
    return Attributed(found, _unknown(sample, sum(known) + shared) | together, _positive(outcomes))


def _unseen(sample: GpuSample, held: Mapping[Container, Holding], claims: Mapping[Container, Claim]) -> Attributed:
    busy = sample.busy.seconds if sample.busy is not None else None
    if len(held) == 1:
        figures = Figures(sample.used_bytes, busy)
        return Attributed(dict.fromkeys(held, figures), {}, {("sole", Outcome.CONTAINER.value): 1})
    claims = {container: claim for container, claim in claims.items() if container in held}
    spare = sample.capacity_bytes if sample.used_bytes is None else sample.used_bytes
    memory = divided({container: claim.memory_bytes for container, claim in claims.items()}, spare)
    time = _claimed_time(sample, {}, claims)
    found = {container: Figures(memory.get(container), time.get(container)) for container in held}
    outcomes = {
        ("account", Outcome.CONTAINER.value): len(memory),
        ("sole", Outcome.NOT_VISIBLE.value): len(held) - len(memory),
    }
    if not held or sample.used_bytes is None:
        return Attributed(found, _unknown(sample), _positive(outcomes))
    return Attributed(found, {"shared": sample.used_bytes - sum(memory.values())}, _positive(outcomes))


def _seen(
    sample: GpuSample,
    held: Mapping[Container, Holding],
    owners: Mapping[int, Owner],
    claims: Mapping[Container, Claim],
) -> Attributed:
    told = {*(sample.processes or ()), *(pid for pid, _, _ in sample.process_time or ())}
    matched = {pid: _matched(owners[pid], held) for pid in told & owners.keys()}
    outcomes: Counter[tuple[str, str]] = Counter()
    listed = sample.processes
    by_owner: defaultdict[Owner, list[int | None]] = defaultdict(list)
    for pid, used in (listed or {}).items():
        by_owner[matched[pid]].append(used)
        outcomes["cgroup", matched[pid].outcome.value] += 1
    all_known = listed is not None and all(owner.outcome in _KNOWN for owner in by_owner)
    claims = {container: claim for container, claim in claims.items() if container in held}
    busy = _claimed_time(sample, _busy(sample, held, matched, all_known, outcomes), claims)
    by_container = {container: by_owner.get(Owner(Outcome.CONTAINER, container)) for container in held}
    memory, unattributed = _memory(sample, by_container, by_owner, claims)
    found = {}
    for container, mine in by_container.items():
        if container in claims and memory[container] != _sum(mine or ()):
            outcomes["account", Outcome.CONTAINER.value] += 1
        idle = mine is None and container not in claims
        amount = (0 if all_known else None) if idle else memory[container]
        processes = len(mine) if mine is not None else 0 if all_known else None
        found[container] = Figures(amount, busy.get(container), processes)
    return Attributed(found, unattributed, outcomes)


def _memory(
    sample: GpuSample,
    by_container: Mapping[Container, list[int | None] | None],
    by_owner: Mapping[Owner, list[int | None]],
    claims: Mapping[Container, Claim],
) -> tuple[dict[Container, int | None], dict[str, int]]:
    """Return the bytes of each container, None where unknown, and the bytes of no container by reason."""
    told = {container: sum(used for used in mine or () if used is not None) for container, mine in by_container.items()}
    reasons = _reasons(sample, by_owner)
    listed = sum(used for amounts in by_owner.values() for used in amounts if used is not None)
    rest = (sample.capacity_bytes if sample.used_bytes is None else sample.used_bytes) - listed
    spare = {reason: reasons.get(reason, 0) for reason in _CLAIMED} | {"driver": max(0, rest)}
    # Processes whose memory NVML does not report go first: nothing may be left then for the others.
    silent = {each for each, mine in by_container.items() if sample.processes is None or (mine and None in mine)}
    given: dict[Container, int] = {}
    for first in (True, False):
        beyond = {
            container: claim.memory_bytes - told[container]
            for container, claim in claims.items()
            if (container in silent) == first
        }
        given |= divided(beyond, sum(spare.values()) - sum(given.values()))
    taken = sum(given.values())
    for reason in _CLAIMED:
        part = min(taken, spare[reason])
        taken -= part
        if reason in reasons:
            reasons[reason] -= part
    memory: dict[Container, int | None] = {
        container: told[container] + given[container] if container in given else _sum(mine or ())
        for container, mine in by_container.items()
    }
    return memory, reasons


def _claimed_time(
    sample: GpuSample, told: Mapping[Container, float], claims: Mapping[Container, Claim]
) -> Mapping[Container, float]:
    """Return the GPU time, with what accounts say beyond NVML taken from time that NVML gives to no container."""
    if sample.busy is None or sample.busy.seconds == 0:
        return told
    measured = {container: claim.busy_seconds for container, claim in claims.items() if claim.busy_seconds}
    beyond = {
        container: int((min(seconds, sample.busy.seconds) - told.get(container, 0.0)) * _NANOSECONDS)
        for container, seconds in measured.items()
    }
    given = divided(beyond, int((sample.busy.seconds - sum(told.values())) * _NANOSECONDS))
    return {**told, **{each: told.get(each, 0.0) + more / _NANOSECONDS for each, more in given.items()}}


def _matched(owner: Owner, held: Mapping[Container, Holding]) -> Owner:
    """Return the owner among those who hold the GPU: the container of this name, or its pod's only one."""
    if owner.outcome is not Outcome.CONTAINER or owner.container is None:
        return owner
    mine = owner.container
    names = [
        each
        for each, holding in held.items()
        if any(one[:2] == mine[:2] and mine.name in ("", one.name) for one in holding.among or (each,))
    ]
    return Owner(Outcome.CONTAINER, names[0]) if len(names) == 1 else Owner(Outcome.NOT_HELD)


def _busy(
    sample: GpuSample,
    held: Mapping[Container, Holding],
    matched: Mapping[int, Owner],
    all_known: bool,
    outcomes: Counter[tuple[str, str]],
) -> Mapping[Container, float]:
    """Return the GPU's time, divided as its processes' samples are: never more together than the GPU was busy."""
    if sample.busy is None:
        return {}
    if sample.busy.seconds == 0:
        return dict.fromkeys(held, 0.0) if sample.busy.known > 0 else {}
    weights: Counter[Owner] = Counter()
    for pid, _, percent in sample.process_time or ():
        weights[matched.get(pid, Owner(Outcome.GONE))] += percent
    total = sum(weights.values())
    running = {owner for pid, owner in matched.items() if pid in (sample.processes or {})}
    if total:
        outcomes["time", Outcome.CONTAINER.value] += 1
        known = all(owner.outcome in _KNOWN for owner, weight in weights.items() if weight)
        idle = set(held) if known else set()
        if weights[_SERVER]:
            # Its clients' work.
            clients = {owner.container for owner in running if owner.container is not None}
            idle = idle - clients if clients else set()
            if all_known and len(clients) == 1:
                weights[Owner(Outcome.CONTAINER, *clients)] += weights[_SERVER]
        mine = {container: weights[Owner(Outcome.CONTAINER, container)] for container in held}
        # A container without any time may own the process whose owner is unknown.
        return {each: sample.busy.seconds * weight / total for each, weight in mine.items() if weight or each in idle}
    if all_known and len(running) == 1 and (container := next(iter(running)).container) is not None:
        outcomes["time", Outcome.CONTAINER.value] += 1
        return dict.fromkeys(held, 0.0) | {container: sample.busy.seconds}
    outcomes["time", Outcome.UNKNOWN.value] += 1
    return {}


def _reasons(sample: GpuSample, by_owner: Mapping[Owner, list[int | None]]) -> dict[str, int]:
    """Return the bytes that NVML gives to no container, by reason; absent where one of its processes is unknown."""
    if sample.processes is None:
        return {}
    found: dict[str, int] = {}
    rest = sample.used_bytes
    reasons: defaultdict[str, list[int | None]] = defaultdict(list, host=[], mps_server=[], unknown=[])
    for owner, amounts in by_owner.items():
        used = _sum(amounts)
        rest = None if rest is None or used is None else rest - used
        if owner.outcome is not Outcome.CONTAINER:
            reasons[owner.outcome.value if owner.outcome in _KNOWN else "unknown"] += amounts
    for reason, amounts in reasons.items():
        if (used := _sum(amounts)) is not None:
            found[reason] = used
    return found if rest is None else found | {"driver": max(0, rest)}


def _unknown(sample: GpuSample, known: int = 0) -> dict[str, int]:
    """Return what no owner is known of in the memory in use; nothing where NVML does not report that."""
    return {} if sample.used_bytes is None else {"unknown": max(0, sample.used_bytes - known)}


def _sum(amounts: Iterable[int | None]) -> int | None:
    """Return the sum; None where one of them is not known."""
    total = 0
    for amount in amounts:
        if amount is None:
            return None
        total += amount
    return total


def _positive(outcomes: Mapping[tuple[str, str], int]) -> dict[tuple[str, str], int]:
    return {key: count for key, count in outcomes.items() if count}
