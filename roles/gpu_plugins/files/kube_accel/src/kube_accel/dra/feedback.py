# SPDX-License-Identifier: Apache-2.0
"""What the containers of a claim are told of their GPUs: memory and GPU time that only NVML on the host has."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from kube_accel.dra.checkpoint import PreparedClaim
from kube_accel.dra.pods import ClaimPods
from kube_accel.dra.shares import Shares
from kube_accel.dra.tenants import Tenant
from kube_accel.enforce.containers import Containers
from kube_accel.enforce.policy import Policy
from kube_accel.kube.cgroups import Place
from kube_accel.metrics.tenancy import Container
from kube_accel.model import Gpu, GpuUsage, Share
from kube_accel.plugin.kubelet.holdings import Holder
from kube_accel.plugin.tenancy.feedback import Feedbacks, Usage
from kube_accel.plugin.tenancy.running import Running

_log = logging.getLogger(__name__)

_TICK: Final = 1.0
_REST: Final = 3.0
"""Seconds from one look to the next while nothing is written."""

Seen = tuple[Mapping[str, PreparedClaim], Mapping[str, Tenant]]
"""The prepared claims, and the tenant of each, both by the claim's UID."""


class ClaimFeedback:
    """Looks after the policies of prepared shares, as a plugin of mode vgpu does. For one thread."""

    def __init__(
        self,
        shares: Shares,
        containers: Containers,
        seen: Callable[[], Seen],
        gpus: Callable[[], Iterable[Gpu] | None],
        pods: ClaimPods,
        processes: tuple[Usage, Callable[[int], Place | None]],
    ) -> None:
        """``processes`` is what processes have of GPUs, and what finds the container of one."""
        self._shares = shares
        self._containers = containers
        self._seen = seen
        self._gpus = gpus
        self._pods = pods
        usage, self._place_of = processes
        self._feedbacks = Feedbacks(containers, usage, self._owners)
        self._having: dict[str, frozenset[Container]] = {}
        """The containers that use a policy, by its key."""

    def run(self, stop: threading.Event) -> None:
        """Look until stopped: once a second while something runs, for feedback to stay young."""
        pause = _REST
        while not stop.wait(pause):
            pause = _TICK if self.tick() else _REST

    def tick(self) -> bool:
        """Write what containers have to know now; return whether anything was written."""
        claims, tenants = self._seen()
        told = self._shares.policies(claims)
        policies = {key: policy for key, (_, policy, _) in told.items()}
        owners = [uid for uid, _, _ in told.values()]
        self._having = {key: frozenset(tenants[uid].among) for key, (uid, _, _) in told.items() if uid in tenants}
        running = tuple(
            self._running(key, tenants[uid], policy, uid if owners.count(uid) == 1 else "")
            for key, (uid, policy, _) in told.items()
            if uid in tenants
        )
        self._feedbacks.keep(policies.keys())
        if not running:
            return False
        gpus = {gpu.uuid: gpu for gpu in self._gpus() or ()}
        seen, _accounts = self._feedbacks.look(running, policies, gpus)
        now, written = time.monotonic_ns(), False
        for entry in running:
            _, policy, complete = told[entry.key]
            change = self._feedbacks.news(policy, complete, policy.limits, seen.get(entry.key, {}), now)
            written |= change is not None and self._write(entry.key, change)
        return written

    def _running(self, key: str, tenant: Tenant, policy: Policy, uid: str) -> Running:
        """Return the containers of a policy as one; without a UID, it is not known which processes are theirs.

        Of a claim with several requests for shares nobody says which container has which.
        """
        known = all(self._pods.uid(one.namespace, one.pod) for one in tenant.among)
        shares = tuple(Share(limit.uuid, limit.cores, limit.memory_bytes) for limit in policy.limits)
        return Running(key, Holder(*tenant.name), uid if tenant.among and known else "", shares, policy.limits)

    def _owners(self, pods: Mapping[str, tuple[Running, ...]], told: GpuUsage) -> dict[int, str]:
        entries = [entry for several in pods.values() for entry in several]
        found = {}
        for pid in {*told.memory, *(told.time or ())}:
            place = self._place_of(pid)
            container = self._pods.owner(place) if place is not None else None
            keys = [entry.key for entry in entries if container in self._having.get(entry.key, ())]
            if len(keys) == 1:
                found[pid] = keys[0]
        return found

    def _write(self, key: str, change: Callable[[Policy], Policy]) -> bool:
        try:
            return self._containers.update(key, change)
        except (OSError, ValueError) as error:
            _log.warning("the policy of a claim cannot be written", extra={"key": key, "reason": str(error)})
            return False
