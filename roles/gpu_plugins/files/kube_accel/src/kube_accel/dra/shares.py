# SPDX-License-Identifier: Apache-2.0
"""The files of prepared shares: one policy and one account for each request of a claim, whatever containers have it."""

from __future__ import annotations

import logging
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from itertools import groupby
from typing import Any, Final

from kube_accel.dra.checkpoint import PreparedClaim, PreparedDevice
from kube_accel.dra.claims import ClaimError
from kube_accel.dra.portions import Portion
from kube_accel.enforce.backend import EnforceError
from kube_accel.enforce.containers import Containers, key_of
from kube_accel.enforce.interposer import Interposer
from kube_accel.enforce.policy import Account, Limit, Policy, Use, share_limit
from kube_accel.model import Inventory
from kube_accel.plugin.tenancy.running import denied

_log = logging.getLogger(__name__)

_LOOK: Final = 3.0
"""Seconds from one look at the accounts to the next."""


class Shares:
    """Called by who has the checkpoint locked, but for ``see`` and ``mend``."""

    def __init__(self, interposer: Interposer | None, context_overhead_bytes: int = 0, sized: bool = True) -> None:
        """Without an ``interposer`` GPUs are not shared, and if not ``sized``, in fixed shares alone."""
        self._sized = sized
        self._interposer = interposer
        self._overhead = context_overhead_bytes
        self.problem = "shares are off" if interposer is None else "the GPUs were not read yet"
        """Why no share can be given; empty when one can."""

    @property
    def enforced(self) -> bool:
        """Return whether an administrator wants shares of any kind to be offered."""
        return self._interposer is not None

    @property
    def wanted(self) -> bool:
        """Return whether claims are to say how much of a GPU they want."""
        return self.enforced and self._sized

    def see(self, inventory: Inventory) -> bool:
        """Find out whether shares can be enforced with the driver as it is; return whether that changed."""
        if self._interposer is None:
            return False
        before, self.problem = self.problem, self._interposer.unfit(inventory)
        if self.problem != before and self.problem:
            _log.error("shares cannot be enforced and are not offered", extra={"reason": self.problem})
        return self.problem != before

    def edits(self, uid: str, claim: PreparedClaim, new: bool) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield by request CDI's edits for containers with a share; files of a ``new`` claim are made anew.

        Raises ClaimError.
        """
        for request, devices in _requests(claim):
            if self._interposer is None or self.problem:
                raise ClaimError(f"shares cannot be given on this node: {self.problem}; delete the pod")
            try:
                yield request, self._interposer.keep(_key(uid, request), self._limits(request, devices), new)
            except EnforceError as error:
                raise ClaimError(f"request {request}: {error}") from error

    def around(self) -> object:
        """Return what all edits are made of, to compare; None where none is made. Raises OSError."""
        return self._interposer.around() if self._interposer is not None and not self.problem else None

    def kept(self, uid: str, claim: PreparedClaim) -> bool:
        """Return whether all shares of a claim have their policies and accounts. Raises ClaimError."""
        return all(
            self._interposer is not None and self._interposer.kept(_key(uid, request), self._limits(request, devices))
            for request, devices in _requests(claim)
        )

    def remove(self, uid: str, claim: PreparedClaim) -> None:
        """Remove the files of a claim that was released. Raises OSError."""
        if self._interposer is not None:
            self._interposer.containers.remove(_key(uid, request) for request, _ in _requests(claim))

    def prune(self, claims: Iterable[tuple[str, PreparedClaim]]) -> None:
        """Forget the files of all other claims."""
        if self._interposer is not None:
            self._interposer.prune({_key(uid, request) for uid, claim in claims for request, _ in _requests(claim)})

    def parts(self, stop: threading.Event) -> Iterator[tuple[str, Callable[[], None]]]:
        """Yield threads to run, each with a name."""
        if self._interposer is not None:
            yield "accounts", partial(self._mend_until, stop)
            yield "spares", partial(self._interposer.containers.spares.run, stop)

    def _mend_until(self, stop: threading.Event) -> None:
        while not stop.wait(_LOOK):
            self.mend()

    def mend(self) -> None:
        """Put right accounts that containers changed: one could fill the file system with its own."""
        if self._interposer is None:
            return
        containers = self._interposer.containers
        read = containers.read_all(containers.keys())
        for key, wrong in containers.trim({key: policy for key, (policy, _) in read.items()}).items():
            _log.warning("the account of a claim was changed", extra={"key": key, "reason": ", ".join(sorted(wrong))})

    def uses(self, claims: Mapping[str, PreparedClaim]) -> dict[tuple[str, str], tuple[Limit, Use]]:
        """Return what claims are limited to and say that they use, by UID of the claim and UUID of the GPU.

        Several requests of a claim on one GPU are one.
        """
        found: dict[tuple[str, str], tuple[Limit, Use]] = {}
        for uid, key, policy, containers in self._policies(claims):
            for limit, use in zip(policy.limits, containers.uses({key: policy}).get(key, ()), strict=False):
                before = found.get((uid, limit.uuid))
                found[uid, limit.uuid] = (limit, use) if before is None else _sum(before, (limit, use))
        return found

    def refusals(self, claims: Mapping[str, PreparedClaim]) -> dict[str, dict[str, Counter[str]]]:
        """Return how many allocations claims say were refused, by the claim's UID, GPU, and the ledger's reason."""
        pairs: defaultdict[str, list[tuple[Policy, Account]]] = defaultdict(list)
        for uid, key, policy, containers in self._policies(claims):
            account = containers.account(key, policy)
            if account is not None:
                pairs[uid].append((policy, account))
        return {uid: denied(mine) for uid, mine in pairs.items()}

    @property
    def containers(self) -> Containers | None:
        """Return the files of all shares; None where there are none."""
        return self._interposer.containers if self._interposer is not None else None

    def policies(self, claims: Mapping[str, PreparedClaim]) -> dict[str, tuple[str, Policy, bool]]:
        """Return the policies there are, by the key of their files: the claim's UID, the policy, if it is complete."""
        if self._interposer is None:
            return {}
        keys = {_key(uid, request): uid for uid, claim in claims.items() for request, _ in _requests(claim)}
        read = self._interposer.containers.read_all(keys)
        return {key: (keys[key], policy, complete) for key, (policy, complete) in read.items() if policy.limits}

    def _policies(self, claims: Mapping[str, PreparedClaim]) -> Iterator[tuple[str, str, Policy, Containers]]:
        """Yield the policies there are: the claim's UID, the key of the files, what they say, and who reads them."""
        if self.containers is not None:
            for key, (uid, policy, _) in self.policies(claims).items():
                yield uid, key, policy, self.containers

    def _limits(self, request: str, devices: Iterable[PreparedDevice]) -> tuple[Limit, ...]:
        return tuple(self._limit(request, uuid, portions) for uuid, portions in _by_gpu(devices).items())

    def _limit(self, request: str, uuid: str, portions: Iterable[Portion | None]) -> Limit:
        sizes = [(portion.cores, portion.memory_bytes) for portion in portions if portion is not None]
        if not sizes:
            raise ClaimError(f"request {request} has a share and a whole GPU; use a request for each")
        cores, memory = map(sum, zip(*sizes, strict=True))
        return share_limit(uuid, cores, memory, self._overhead)


def _by_gpu(devices: Iterable[PreparedDevice]) -> dict[str, list[Portion | None]]:
    """Return what a request has of each GPU, of which it may have several fixed shares."""
    found: dict[str, list[Portion | None]] = {}
    for device in devices:
        found.setdefault(device.uuid, []).append(device.portion)
    return found


def _requests(claim: PreparedClaim) -> Iterator[tuple[str, tuple[PreparedDevice, ...]]]:
    """Yield the requests for shares, and what each has."""
    ordered = sorted(claim.devices, key=lambda device: device.request)
    for request, devices in groupby(ordered, key=lambda device: device.request):
        found = tuple(devices)
        if any(device.portion is not None for device in found):
            yield request, found


def _sum(one: tuple[Limit, Use], other: tuple[Limit, Use]) -> tuple[Limit, Use]:
    limit = replace(one[0], memory_bytes=one[0].memory_bytes + other[0].memory_bytes)
    return limit, Use(one[1].used_bytes + other[1].used_bytes, one[1].busy_ns + other[1].busy_ns)


def _key(uid: str, request: str) -> str:
    return key_of((uid, request))
