# SPDX-License-Identifier: Apache-2.0
"""What containers are told of themselves that they cannot see: memory and GPU time as NVML has them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Set
from dataclasses import replace

from kube_accel.enforce.containers import Containers
from kube_accel.enforce.policy import Account, Feedback, Limit, Policy, feedback_for, uncounted
from kube_accel.model import Gpu, GpuUsage
from kube_accel.plugin.tenancy.running import Parts, Running, sharing_of, used_bytes

_NVML_SECONDS = 0.9
"""How long an answer may take: it would be of no use a second later."""

Policies = Mapping[str, Policy]
"""What containers were sent, by key."""

Accounts = Mapping[str, Account]
"""What they say of themselves."""

Usage = Callable[[Collection[str], float], Mapping[str, GpuUsage] | None]
"""What processes have of these GPUs; None when there is no answer within so many seconds."""

Owners = Callable[[Mapping[str, tuple[Running, ...]], GpuUsage], Mapping[int, str]]
"""Returns the key of the container that each process on a GPU belongs to, of those there, by the UID of their pod."""


class Feedbacks:
    """Not for several threads at a time, but for ``keep``."""

    def __init__(self, containers: Containers, usage: Usage, owners: Owners) -> None:
        self._containers = containers
        self._usage = usage
        self._owners = owners
        self._uncounted: dict[tuple[str, str], int] = {}
        self._resting: Set[str] = frozenset()
        """GPUs on which nothing ran at the last look."""
        self._sharing = sharing_of((), {})

    def keep(self, keys: Collection[str]) -> None:
        """Forget all other containers."""
        self._uncounted = {pair: found for pair, found in self._uncounted.items() if pair[0] in keys}

    def news(
        self,
        before: Policy,
        complete: bool,
        limits: tuple[Limit, ...],
        told: Mapping[str, Feedback],
        now: int,
    ) -> Callable[[Policy], Policy] | None:
        """Return what has to become of a container's policy; None when it says this already."""
        feedback = feedback_for([limit.uuid for limit in limits], told) if told else before.feedback
        # Feedback may grow old on a GPU where nothing runs: no process is there to read it.
        aged = told and not (told.keys() <= self._resting and feedback == before.feedback)
        if limits == before.limits and complete and not aged:
            return None

        def change(current: Policy) -> Policy:
            if not told:
                return replace(current, limits=limits)
            return Policy(limits, feedback, now, current.layout)

        return change

    def look(
        self, running: tuple[Running, ...], policies: Policies, gpus: Mapping[str, Gpu]
    ) -> tuple[Mapping[str, Mapping[str, Feedback]], Accounts]:
        """Return what NVML sees of containers, by key and then by UUID, and their accounts after that."""
        sharing = self._sharing
        if sharing.running != running or sharing.gpus != gpus:
            sharing = self._sharing = sharing_of(running, gpus)
        found: defaultdict[str, dict[str, Feedback]] = defaultdict(dict)
        for entry in running:
            for limit in policies[entry.key].limits:
                # No other container is there, whether NVML answers or not.
                if limit.soft_cores and len(sharing.on.get(limit.uuid, ())) == 1:
                    found[entry.key][limit.uuid] = Feedback(others_permille=0)
        # An account is of no interest while nothing runs.
        busy = {entry.key for uuid in sharing.watched if uuid not in self._resting for entry in sharing.on[uuid]}
        before = self._containers.accounts({key: policies[key] for key in busy})
        usage = (self._usage(sharing.watched, _NVML_SECONDS) if sharing.watched else None) or {}
        after = self._containers.accounts(policies)
        self._resting = {uuid for uuid, told in usage.items() if not told.memory and not told.time}
        for uuid, told in usage.items():
            resting = uuid in self._resting
            part = Parts(told, {} if resting else self._owners(sharing.pods.get(uuid, {}), told))
            for entry in sharing.on[uuid]:
                if not (entry.uid or resting):
                    continue  # which processes are its own is not known, and that is not none
                key, policy = entry.key, policies[entry.key]
                used = 0 if resting else used_bytes(policy, after.get(key), uuid)
                if used is not None:
                    first = used_bytes(policy, before.get(key), uuid)
                    told_of = self._feedback((key, uuid), part, used if first is None else first, used)
                    alone = len(sharing.on[uuid]) == 1
                    found[key][uuid] = told_of._replace(others_permille=0) if alone else told_of
        return found, after

    def _feedback(self, pair: tuple[str, str], part: Parts, before: int, after: int) -> Feedback:
        extra = None
        memory = part.memory.get(pair[0], 0)
        if memory is not None:
            extra = uncounted(memory, before, after, self._uncounted.get(pair))
            self._uncounted[pair] = max(0, memory - max(before, after))
        if part.total is None:
            return Feedback(extra)
        own = part.time.get(pair[0], 0)
        return Feedback(extra, min(1000, 10 * own), min(1000, 10 * (part.total - own)))
