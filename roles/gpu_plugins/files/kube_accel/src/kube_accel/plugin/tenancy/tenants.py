# SPDX-License-Identifier: Apache-2.0
"""Containers that run under a policy: what they are sent while they run, and what they say of themselves."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace

from kube_accel.enforce.accounts import Wrong
from kube_accel.enforce.containers import Containers
from kube_accel.enforce.overrides import Override, Settled, Tenant, settle
from kube_accel.enforce.policy import Limit, Policy, Use, limits_for
from kube_accel.kube.cgroups import Place
from kube_accel.model import Gpu, GpuUsage, Share
from kube_accel.plugin.allocation.ledger import Ledger
from kube_accel.plugin.allocation.pods import NodePods
from kube_accel.plugin.allocation.start_check import Devices
from kube_accel.plugin.kubelet.holdings import Holder
from kube_accel.plugin.node.pod_reporter import MEMORY_REFUSED
from kube_accel.plugin.tenancy.abuse import SENTENCES, Offences
from kube_accel.plugin.tenancy.feedback import Accounts, Feedbacks, Policies, Usage
from kube_accel.plugin.tenancy.running import Running, denied, keys_of, pod_of, refusal, refusals
from kube_accel.shared.quantity import human_bytes
from kube_accel.sharing.fraction import WHOLE

_log = logging.getLogger(__name__)

_TICK_SECONDS = 1.0
_REST_SECONDS = 3.0
"""Seconds from one look to the next while nothing is written."""
_LOOK_SECONDS = 2.5
"""Seconds from one look at the files to the next: no other process should have changed them."""


@dataclass(frozen=True, slots=True)
class Processes:
    """How processes on GPUs are found."""

    usage: Usage
    place_of: Callable[[int], Place | None]
    """Returns the container of a process."""


@dataclass(frozen=True, slots=True)
class Rules:
    """How shares become limits."""

    limits_cores: bool
    """Whether cores are limited."""
    context_overhead_bytes: int
    """Memory of a container's contexts that does not count."""


class Tenants:
    """All containers of a node that run under a policy; for any thread."""

    def __init__(
        self,
        containers: Containers,
        ledger: Ledger,
        pods: NodePods,
        processes: Processes,
        rules: Rules,
        report: Callable[[Holder, str, str], None],
        abused: Callable[[Holder, Collection[Wrong]], None] = lambda holder, wrong: None,
    ) -> None:
        """``report`` takes an event: the pod, its reason, its message.

        ``abused`` is called with containers that misuse their account again and again, and what they did last.
        """
        self._containers = containers
        self._ledger = ledger
        self._pods = pods
        self._place_of = processes.place_of
        self._rules = rules
        self._report = report
        self._abused = abused
        self._offences = Offences()
        self._started: dict[str, Holder] = {}
        """Holders of the files, by key, by the last start: kubelet may not list them yet."""
        self._lock = threading.Lock()
        self._listed: tuple[Running, ...] = ()
        self._running: tuple[Running, ...] = ()
        """The same, and of several that kubelet gave the same devices one."""
        self._gpus: Mapping[str, Gpu] = {}
        self._pods_version = -1
        """Version of the pods at the last look."""
        self._overrides: tuple[Override, ...] = ()
        self._feedbacks = Feedbacks(containers, processes.usage, self._owners)
        self._look_at = -math.inf
        self._counted: dict[str, tuple[int, ...]] = {}
        """Refusals that were counted last, by key."""
        self._wake = threading.Event()

    def override(self, overrides: Iterable[Override]) -> None:
        """Apply these overrides from now on, and no others."""
        self._overrides = tuple(overrides)
        self._wake.set()

    def limits(self, shares: Iterable[Share]) -> tuple[Limit, ...]:
        """Return what a container with these shares is limited to, without any override."""
        given = [(share.uuid, share.cores, share.memory_bytes) for share in shares]
        limits = limits_for(given, WHOLE, self._rules.context_overhead_bytes)
        return limits if self._rules.limits_cores else tuple(replace(limit, cores=0) for limit in limits)

    def start(
        self,
        holder: Holder | None,
        key: str,
        shares: tuple[Share, ...],
        write: Callable[[tuple[Limit, ...]], None],
    ) -> None:
        """Have ``write`` make the files of a container that is about to start, with its limits, overrides included."""
        if holder is None:
            with self._lock:
                self._started.pop(key, None)
            write(self.limits(shares))
            self._wake.set()
            return
        with self._lock:
            # What was refused to it until now counts, and to who had its devices; from here on it has a new account.
            before = [entry for entry in self._running if holder == entry.holder or key == entry.key]
            self._count(before, *self._read(before))
            # Kubelet may list who had them for a moment more.
            self._listed = tuple(entry for entry in self._listed if holder == entry.holder or key != entry.key)
            self._running = self._one_each(self._listed)
            pod = self._pods.find(holder.namespace, holder.pod)
            new = Running(key, holder, pod.uid if pod is not None else "", shares, self.limits(shares))
            others = [entry for entry in self._running if entry.holder != holder]
            found = self._settled([*others, new]).limits.get(key)
            write(new.limits if found is None else (found,))
            self._started[key] = holder
            for entry in (*before, new):
                self._counted.pop(entry.key, None)
            self._look_at = -math.inf
            self._ledger.restarted(holder)
        self._wake.set()

    def listed(
        self, containers: Mapping[Holder, Devices], held: Mapping[Holder, tuple[Share, ...]], gpus: Mapping[str, Gpu]
    ) -> None:
        """Take in what kubelet lists; call it before the ledger closes what has ended."""
        running = []
        for holder, devices in containers.items():
            shares = held.get(holder, ())
            limits = self.limits(shares)
            running += [Running(key, holder, "", shares, limits) for key in keys_of(devices)]
        with self._lock:
            self._count(self._running, *self._read(self._running))
            self._listed, self._gpus, self._look_at = tuple(running), gpus, -math.inf
            self._meet_pods()
            keys = {entry.key for entry in running}
            self._counted = {key: found for key, found in self._counted.items() if key in keys}
            self._feedbacks.keep(keys)
        self._wake.set()

    def _meet_pods(self) -> None:
        """Take in what is known of their pods by now: kubelet may have listed them before the API server was heard."""
        self._pods_version = self._pods.version
        uids = {(pod.namespace, pod.name): pod.uid for pod in self._pods.all()}
        self._listed = tuple(
            entry if uid == entry.uid else replace(entry, uid=uid)
            for entry in self._listed
            for uid in [uids.get((entry.holder.namespace, entry.holder.pod), entry.uid)]
        )
        self._running = self._one_each(self._listed)

    def _one_each(self, listed: tuple[Running, ...]) -> tuple[Running, ...]:
        """Keep, of several containers with the same files, the one whose pod runs: no other was let start."""
        found: dict[str, Running] = {}
        for entry in listed:
            known = found.get(entry.key)
            if known is None or self._waits(known.holder):
                found[entry.key] = entry
        return tuple(found.values()) if len(found) < len(listed) else listed

    def _waits(self, holder: Holder) -> bool:
        pod = self._pods.find(holder.namespace, holder.pod)
        return pod is not None and pod.waiting

    def uses(self) -> dict[tuple[Holder, str], tuple[Limit, Use]]:
        """Return what containers are limited to and say that they use, by GPU's UUID."""
        running = self._running
        policies = {key: policy for key, (policy, _) in self._containers.read_all([e.key for e in running]).items()}
        uses = self._containers.uses(policies)
        return {
            (entry.holder, limit.uuid): (limit, use)
            for entry in running
            if entry.key in uses
            for limit, use in zip(policies[entry.key].limits, uses[entry.key], strict=True)
        }

    def _read(self, running: Iterable[Running]) -> tuple[Policies, Accounts]:
        told = self._containers.read_all([entry.key for entry in running])
        policies = {key: policy for key, (policy, _) in told.items()}
        found = {key: self._containers.account(key, policy) for key, policy in policies.items()}
        return policies, {key: account for key, account in found.items() if account is not None}

    def run(self, stop: threading.Event) -> None:
        """Look after them while there are any: once a second while something runs, for feedback to stay young."""
        while not stop.is_set():
            if not self._running and not self._containers.keys():
                self._wake.wait()
            self._wake.clear()
            begin = time.monotonic()
            busy = self.tick()
            stop.wait(max(0.0, _TICK_SECONDS - (time.monotonic() - begin)))
            if not busy:
                self._wake.wait(_REST_SECONDS - _TICK_SECONDS)

    def tick(self) -> bool:
        """Write what containers have to know now, and count what they report; return whether anything was written."""
        with self._lock:
            thorough = time.monotonic() >= self._look_at
            if thorough:
                self._look_at = time.monotonic() + _LOOK_SECONDS
            if self._pods.version != self._pods_version:
                self._meet_pods()
            running, gpus = self._running, self._gpus
            settled = self._settled(running)
        keys = [entry.key for entry in running]
        read = self._containers.read_all(keys) if thorough else self._containers.last_read(keys)
        policies = {key: policy for key, (policy, _) in read.items()}
        for entry in running:
            if entry.key in settled.limits and entry.key not in policies:
                why = "an override is not applied: the container's limits cannot change while it runs"
                self._report(entry.holder, "QuotaOverrideRefused", why)
        if thorough:
            self._trim(running, policies)
        running = tuple([entry for entry in running if entry.key in policies])
        seen, accounts = self._feedbacks.look(running, policies, gpus)
        now = time.monotonic_ns()
        news = []
        for entry in running:
            if entry.key in self._containers.kept_from_us:
                continue  # tried again at the next look
            limits = self._wanted(entry, policies[entry.key], settled)
            change = self._feedbacks.news(*read[entry.key], limits, seen.get(entry.key, {}), now)
            if change is not None:
                news.append((entry, limits, change))
        if news:
            self._write(news, policies)
        with self._lock:
            self._count(running, policies, accounts)
        for tenant, reason in settled.refused:
            self._report(Holder(tenant.namespace, tenant.pod, tenant.container), "QuotaOverrideRefused", reason)
        return bool(news)

    def _wanted(self, entry: Running, policy: Policy, settled: Settled) -> tuple[Limit, ...]:
        """Return the limits that are to hold, in the order of the container's policy."""
        if entry.key not in settled.limits and entry.limits == policy.limits:
            return entry.limits
        own = {limit.uuid: limit for limit in entry.limits}
        if entry.key in settled.limits:
            own |= {settled.limits[entry.key].uuid: settled.limits[entry.key]}
        # What is charged for a context is the same for the life of a container.
        return tuple(
            replace(own[old.uuid], context_overhead_bytes=old.context_overhead_bytes) if old.uuid in own else old
            for old in policy.limits
        )

    def _write(
        self,
        news: Iterable[tuple[Running, tuple[Limit, ...], Callable[[Policy], Policy]]],
        policies: Policies,
    ) -> None:
        """Change these policies."""
        try:
            with self._containers.updating() as update:
                for entry, limits, change in news:
                    try:
                        update(entry.key, change)
                    except (OSError, ValueError) as error:
                        extra = {"pod": pod_of(entry), "reason": str(error)}
                        _log.warning("a container's limits cannot be changed", extra=extra)
                        continue
                    if policies[entry.key].limits != limits:
                        amounts = ", ".join(f"{human_bytes(one.memory_bytes)} and {one.cores} %" for one in limits)
                        _log.info("limits of a container changed", extra={"pod": pod_of(entry), "limits": amounts})
        except OSError as error:
            _log.warning("no container's limits can be changed", extra={"reason": str(error)})

    def _settled(self, running: Iterable[Running]) -> Settled:
        if not self._overrides:
            return Settled({}, ())
        tenants = []
        for entry in running:
            if len(entry.limits) == 1:
                names = (entry.holder.namespace, entry.holder.pod, entry.holder.container)
                tenants.append(Tenant(entry.key, *names, entry.uid, entry.limits[0]))
        memory = {uuid: gpu.memory_bytes for uuid, gpu in self._gpus.items()}
        return settle(self._overrides, tenants, memory, self._rules.limits_cores)

    def _trim(self, running: Iterable[Running], policies: Policies) -> None:
        """Have accounts repaired, those too of init containers, which kubelet does not list."""
        keys = {entry.key for entry in running} | self._containers.keys()
        self._started = {key: holder for key, holder in self._started.items() if key in keys}
        # A start is newer than what kubelet listed: the devices may have been another's then.
        holders = {entry.key: entry.holder for entry in running} | self._started
        found = self._containers.trim({key: policies.get(key) or Policy(()) for key in keys})
        self._offences.keep(set(holders.values()))
        for key, wrong in found.items():
            holder = holders.get(key)
            if holder is None:
                extra = {"key": key, "reason": ", ".join(sorted(wrong))}
                _log.warning("the account of a container that kubelet does not list was changed", extra=extra)
                continue
            for one in sorted(wrong):
                self._report(holder, "GpuAccountChanged", SENTENCES[one])
            if self._offences.count(holder):
                self._abused(holder, wrong)

    def _owners(self, pods: Mapping[str, tuple[Running, ...]], told: GpuUsage) -> dict[int, str]:
        """Return the key of the container that each process on a GPU belongs to, of those of these pods."""
        found = {}
        for pid in {*told.memory, *(told.time or ())}:
            if (place := self._place_of(pid)) is None:
                continue
            pod, name = self._pods.at(place) or (None, "")
            candidates = pods.get(pod.uid if pod is not None else place.pod_uid, ())
            if len(candidates) > 1:
                candidates = tuple(entry for entry in candidates if entry.holder.container == name)
            if len(candidates) == 1:
                found[pid] = candidates[0].key
        return found

    def _count(self, running: Collection[Running], policies: Policies, accounts: Accounts) -> None:
        """Add to the ledger what was refused since it was looked at last."""
        news = set()
        for entry in running:
            account = accounts.get(entry.key)
            if account is not None and (refused := refusals(account)) != self._counted.get(entry.key):
                self._counted[entry.key] = refused
                news.add(entry.holder)
        for holder in news:
            # A container with whole GPUs may have two sets of files, and uses one of them.
            keys = [entry.key for entry in running if entry.holder == holder and entry.key in accounts]
            limits = {limit.uuid: limit for key in keys for limit in policies[key].limits}
            for uuid, found in denied((policies[key], accounts[key]) for key in keys).items():
                self._report_refusals(holder, limits[uuid], self._ledger.refused(holder, uuid, found))

    def _report_refusals(self, holder: Holder, limit: Limit, news: Collection[str]) -> None:
        gpu = self._gpus.get(limit.uuid)
        name = f"GPU {gpu.index}" if gpu is not None else limit.uuid
        for reason in sorted(news):
            self._report(holder, MEMORY_REFUSED, refusal(reason, name, limit.memory_bytes))
