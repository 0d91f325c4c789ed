# SPDX-License-Identifier: Apache-2.0
"""Containers that run under a policy: what they are told while they run, and what they say of themselves."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Set
from dataclasses import dataclass, replace

from kube_accel.enforce.containers import Containers, key_of
from kube_accel.enforce.overrides import Override, Settled, Tenant, settle
from kube_accel.enforce.policy import Feedback, Limit, Policy, feedback_for, limits_for, uncounted
from kube_accel.kube.cgroups import Place
from kube_accel.model import Gpu, GpuUsage, Share
from kube_accel.plugin.holdings import Holder
from kube_accel.plugin.ledger import Ledger
from kube_accel.plugin.pods import NodePods
from kube_accel.plugin.prestart import Devices
from kube_accel.quantity import human_bytes
from kube_accel.sharing.fraction import WHOLE, Kind

_log = logging.getLogger(__name__)

_TICK_SECONDS = 1.0
_REST_SECONDS = 3.0
"""From one look to the next while there is nothing to tell."""
_NVML_SECONDS = 0.9
"""How long an answer may take: it would be of no use a second later."""

Usage = Callable[[Collection[str], float], Mapping[str, GpuUsage] | None]
"""What processes have of these GPUs; None when that is not told within so many seconds."""


@dataclass(frozen=True, slots=True)
class Running:
    """A container that kubelet lists."""

    key: str
    """Of its files."""
    holder: Holder
    uid: str
    """Of its pod; empty while that is not known."""
    shares: tuple[Share, ...]
    limits: tuple[Limit, ...]
    """Without any override."""


def keys_of(devices: Devices) -> set[str]:
    """Of the files that a container with these devices may have: by its memory, and by cores that are whole GPUs."""
    sets = [devices.get(Kind.MEMORY, frozenset())]
    if len(cores := devices.get(Kind.CORES, frozenset())) % WHOLE == 0:
        sets.append(cores)
    return {key_of(ids) for ids in sets if ids}


class Tenants:
    """All of them on a node; for any thread."""

    def __init__(
        self,
        containers: Containers,
        ledger: Ledger,
        pods: NodePods,
        usage: Usage,
        place_of: Callable[[int], Place | None],
        report: Callable[[Holder, str, str], None],
        limits_cores: bool,
        context_overhead_bytes: int,
    ) -> None:
        """``report`` takes an event: whose, its reason, its message. ``place_of`` finds the container of a process."""
        self._containers = containers
        self._ledger = ledger
        self._pods = pods
        self._usage = usage
        self._place_of = place_of
        self._report = report
        self._limits_cores = limits_cores
        self._overhead = context_overhead_bytes
        self._lock = threading.Lock()
        self._running: tuple[Running, ...] = ()
        self._gpus: Mapping[str, Gpu] = {}
        self._overrides: tuple[Override, ...] = ()
        self._uncounted: dict[tuple[str, str], int] = {}
        self._resting: Set[str] = frozenset()
        """GPUs on which nothing ran at the last look."""
        self._counted: dict[Holder, Mapping[str, Mapping[str, int]]] = {}
        self._wake = threading.Event()

    def override(self, overrides: Iterable[Override]) -> None:
        """From now on these hold, and no others."""
        self._overrides = tuple(overrides)
        self._wake.set()

    def limits(self, shares: Iterable[Share]) -> tuple[Limit, ...]:
        """What a container with these shares is limited to, without any override."""
        given = [(share.uuid, share.cores, share.memory_bytes) for share in shares]
        limits = limits_for(given, WHOLE, self._overhead)
        return limits if self._limits_cores else tuple(replace(limit, cores=0) for limit in limits)

    def start(
        self,
        holder: Holder | None,
        key: str,
        shares: tuple[Share, ...],
        write: Callable[[tuple[Limit, ...]], None],
    ) -> None:
        """Have ``write`` make the files of a container that is about to start, with its limits, overrides included."""
        if holder is None:
            write(self.limits(shares))
            return
        with self._lock:
            # What was refused to it until now counts; from here on it has a new account.
            self._count([entry for entry in self._running if entry.holder == holder])
            pod = self._pods.find(holder.namespace, holder.pod)
            new = Running(key, holder, pod.uid if pod is not None else "", shares, self.limits(shares))
            others = [entry for entry in self._running if entry.holder != holder]
            found = self._settled([*others, new]).limits.get(key)
            write(new.limits if found is None else (found,))
            self._counted.pop(holder, None)
            self._ledger.restarted(holder)

    def listed(
        self, containers: Mapping[Holder, Devices], held: Mapping[Holder, tuple[Share, ...]], gpus: Mapping[str, Gpu]
    ) -> None:
        """Kubelet lists these; before the ledger closes what has ended."""
        running = []
        for holder, devices in containers.items():
            pod = self._pods.find(holder.namespace, holder.pod)
            uid = pod.uid if pod is not None else ""
            shares = held.get(holder, ())
            limits = self.limits(shares)
            running += [Running(key, holder, uid, shares, limits) for key in keys_of(devices)]
        with self._lock:
            self._count(self._running)
            self._running, self._gpus = tuple(running), gpus
            keys = {entry.key for entry in running}
            self._counted = {holder: found for holder, found in self._counted.items() if holder in containers}
            self._uncounted = {pair: found for pair, found in self._uncounted.items() if pair[0] in keys}
        self._wake.set()

    def accounts(self) -> dict[tuple[Holder, str], int]:
        """Bytes that containers say to use, by GPU's UUID."""
        running = self._running
        policies = {entry.key: told for entry in running if (told := self._containers.policy(entry.key)) is not None}
        uuids = {limit.uuid for policy in policies.values() for limit in policy.limits}
        used = self._used([entry for entry in running if entry.key in policies], policies, uuids)
        holders = {entry.key: entry.holder for entry in running}
        return {(holders[key], uuid): amount for (key, uuid), amount in used.items()}

    def run(self, stop: threading.Event) -> None:
        """Look after them while there are any: once a second while something runs, for feedback to stay young."""
        while not stop.is_set():
            if not self._running:
                self._wake.wait()
            self._wake.clear()
            begin = time.monotonic()
            busy = self.tick()
            stop.wait(max(0.0, _TICK_SECONDS - (time.monotonic() - begin)))
            if not busy:
                self._wake.wait(_REST_SECONDS - _TICK_SECONDS)

    def tick(self) -> bool:
        """Tell them what they have to know now, and count what they say; whether there was anything to tell."""
        with self._lock:
            running, gpus = self._running, self._gpus
            settled = self._settled(running)
        read = {entry.key: found for entry in running if (found := self._containers.read(entry.key)) is not None}
        policies = {key: policy for key, (policy, _) in read.items()}
        for entry in running:
            if entry.key in settled.limits and entry.key not in policies:
                why = "an override is not followed: nothing that could be changed while it runs limits the container"
                self._report(entry.holder, "QuotaOverrideRefused", why)
        running = tuple(entry for entry in running if entry.key in policies)
        self._trim(running, policies)
        seen = self._look(running, policies, gpus)
        now = time.monotonic_ns()
        busy = False
        for entry in running:
            limits = self._wanted(entry, policies[entry.key], settled)
            busy |= self._tell(entry, *read[entry.key], limits, seen.get(entry.key, {}), now)
        with self._lock:
            self._count(running)
        for tenant, reason in settled.refused:
            self._report(Holder(tenant.namespace, tenant.pod, tenant.container), "QuotaOverrideRefused", reason)
        return busy

    def _wanted(self, entry: Running, policy: Policy, settled: Settled) -> tuple[Limit, ...]:
        """The limits that are to hold, in the order of the container's policy."""
        if entry.key not in settled.limits and entry.limits == policy.limits:
            return policy.limits
        own = {limit.uuid: limit for limit in entry.limits}
        if entry.key in settled.limits:
            own |= {settled.limits[entry.key].uuid: settled.limits[entry.key]}
        # What is charged for a context is the same for the life of a container.
        return tuple(
            replace(own[old.uuid], context_overhead_bytes=old.context_overhead_bytes) if old.uuid in own else old
            for old in policy.limits
        )

    def _tell(
        self,
        entry: Running,
        before: Policy,
        complete: bool,
        limits: tuple[Limit, ...],
        told: Mapping[str, Feedback],
        now: int,
    ) -> bool:
        """Have a container's policy say this; whether it had to be written."""
        feedback = feedback_for([limit.uuid for limit in limits], told) if told else before.feedback
        # Feedback may grow old on a GPU where nothing runs: nobody is there to read it.
        aged = told and not (told.keys() <= self._resting and feedback == before.feedback)
        if limits == before.limits and complete and not aged:
            return False

        def change(current: Policy) -> Policy:
            if not told:
                return replace(current, limits=limits)
            return replace(current, limits=limits, feedback=feedback, feedback_at_ns=now)

        try:
            self._containers.update(entry.key, change)
        except (OSError, ValueError) as error:
            extra = {"pod": f"{entry.holder.namespace}/{entry.holder.pod}", "reason": str(error)}
            _log.warning("a container's limits cannot be changed", extra=extra)
            return True
        if before.limits != limits:
            amounts = ", ".join(f"{human_bytes(limit.memory_bytes)} and {limit.cores} %" for limit in limits)
            _log.info(
                "limits of a container changed",
                extra={"pod": f"{entry.holder.namespace}/{entry.holder.pod}", "limits": amounts},
            )
        return True

    def _settled(self, running: Iterable[Running]) -> Settled:
        if not self._overrides:
            return Settled({}, ())
        tenants = []
        for entry in running:
            if len(entry.limits) == 1:
                names = (entry.holder.namespace, entry.holder.pod, entry.holder.container)
                tenants.append(Tenant(entry.key, *names, entry.uid, entry.limits[0]))
        memory = {uuid: gpu.memory_bytes for uuid, gpu in self._gpus.items()}
        return settle(self._overrides, tenants, memory, self._limits_cores)

    def _trim(self, running: Iterable[Running], policies: Mapping[str, Policy]) -> None:
        for entry in running:
            if grown := self._containers.trim(entry.key, policies[entry.key]):
                what = f"its account of GPU memory was {'grown' if grown > 0 else 'cut'} by {abs(grown)} bytes"
                self._report(entry.holder, "GpuAccountChanged", f"{what} from inside the container, and put right")

    def _look(
        self, running: tuple[Running, ...], policies: Mapping[str, Policy], gpus: Mapping[str, Gpu]
    ) -> Mapping[str, Mapping[str, Feedback]]:
        """What NVML sees of containers that share a GPU, by key and then by UUID."""
        count = Counter(uuid for entry in running for uuid in {share.uuid for share in entry.shares})
        shared = sorted(uuid for uuid, tenants in count.items() if tenants > 1 and uuid in gpus)
        found: defaultdict[str, dict[str, Feedback]] = defaultdict(dict)
        for entry in running:
            for limit in policies[entry.key].limits:
                # Nobody else is there: no need to ask.
                if limit.soft_cores and count[limit.uuid] == 1:
                    found[entry.key][limit.uuid] = Feedback(others_permille=0)
        # An account is of no interest while nothing runs.
        before = self._used(running, policies, set(shared) - self._resting)
        self._resting = frozenset()
        usage = self._usage(shared, _NVML_SECONDS) if shared else None
        if usage is None:
            return found
        self._resting = {uuid for uuid, told in usage.items() if not told.memory and not told.time}
        after = self._used(running, policies, usage.keys() - self._resting)
        owners = {uuid: self._owners(running, uuid, usage[uuid]) for uuid in usage.keys() - self._resting}
        for entry in running:
            for limit in policies[entry.key].limits:
                pair, told = (entry.key, limit.uuid), usage.get(limit.uuid)
                used = 0 if limit.uuid in self._resting else after.get(pair)
                if told is not None and used is not None:
                    seen = self._feedback(pair, told, owners.get(limit.uuid, {}), before.get(pair, used), used)
                    found[entry.key][limit.uuid] = seen
        return found

    def _feedback(
        self, pair: tuple[str, str], told: GpuUsage, owners: Mapping[int, str], before: int, after: int
    ) -> Feedback:
        own = {pid for pid, key in owners.items() if key == pair[0]}
        memory = [told.memory[pid] for pid in own & told.memory.keys()]
        known = [amount for amount in memory if amount is not None]
        extra = None
        if len(known) == len(memory):
            found = max(0, sum(known) - max(before, after))
            extra = uncounted(sum(known), before, after, self._uncounted.get(pair))
            self._uncounted[pair] = found
        if told.time is None:
            return Feedback(extra)
        busy = min(1000, 10 * sum(percent for pid, percent in told.time.items() if pid in own))
        others = min(1000, 10 * sum(percent for pid, percent in told.time.items() if pid not in own))
        return Feedback(extra, busy, others)

    def _used(
        self, running: Iterable[Running], policies: Mapping[str, Policy], uuids: Set[str]
    ) -> dict[tuple[str, str], int]:
        """What containers that have any of these GPUs say that they use, by key and UUID."""
        found: dict[tuple[str, str], int] = {}
        for entry in running if uuids else ():
            policy = policies[entry.key]
            wanted = any(limit.uuid in uuids for limit in policy.limits)
            account = self._containers.account(entry.key, policy) if wanted else None
            if account is not None:
                for limit, device in zip(policy.limits, account.devices, strict=True):
                    found[entry.key, limit.uuid] = device.used_bytes
        return found

    def _owners(self, running: Iterable[Running], uuid: str, told: GpuUsage) -> dict[int, str]:
        """The key of the container that each process on a GPU belongs to."""
        by_pod: defaultdict[str, list[Running]] = defaultdict(list)
        for entry in running:
            if entry.uid and any(share.uuid == uuid for share in entry.shares):
                by_pod[entry.uid].append(entry)
        found = {}
        for pid in {*told.memory, *(told.time or ())}:
            place = self._place_of(pid)
            candidates = by_pod.get(place.pod_uid, []) if place is not None else []
            if len(candidates) > 1 and place is not None:
                name = self._pods.container(place.pod_uid, place.container_id)
                candidates = [entry for entry in candidates if entry.holder.container == name]
            if len(candidates) == 1:
                found[pid] = candidates[0].key
        return found

    def _count(self, running: Iterable[Running]) -> None:
        """Add to the ledger what was refused since it was looked at last."""
        by_holder: defaultdict[Holder, list[Running]] = defaultdict(list)
        for entry in running:
            by_holder[entry.holder].append(entry)
        for holder, entries in by_holder.items():
            # A container with whole GPUs may have two sets of files, and uses one of them.
            counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
            limits: dict[str, Limit] = {}
            for entry in entries:
                policy = self._containers.policy(entry.key)
                account = self._containers.account(entry.key, policy) if policy is not None else None
                if policy is None or account is None:
                    continue
                for limit, device in zip(policy.limits, account.devices, strict=True):
                    limits[limit.uuid] = limit
                    counts[limit.uuid].update(limit=device.denied_limit, device=device.denied_device)
                counts[policy.limits[0].uuid]["policy"] += account.denied_policy
            if counts and counts != self._counted.get(holder):
                self._counted[holder] = counts
                for uuid, found in counts.items():
                    self._tell_refusals(holder, limits[uuid], self._ledger.refused(holder, uuid, found))

    def _tell_refusals(self, holder: Holder, limit: Limit, news: Collection[str]) -> None:
        gpu = self._gpus.get(limit.uuid)
        name = f"GPU {gpu.index}" if gpu is not None else limit.uuid
        sentences = {
            "limit": f"an allocation on {name} was refused: over the container's limit of "
            f"{human_bytes(limit.memory_bytes)}",
            "device": f"an allocation within the container's limit was refused: {name} itself is full",
            "policy": "an allocation was refused: its limits could not be read, or do not name the GPU",
        }
        for reason in sorted(news):
            self._report(holder, "GpuMemoryRefused", sentences[reason])
