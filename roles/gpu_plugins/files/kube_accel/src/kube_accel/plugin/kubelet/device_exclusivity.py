# SPDX-License-Identifier: Apache-2.0
"""Whether a container may start with devices that are for one pod at a time: kubelet may have given them to two.

Its PodResources.List forgets, when a pod has just ended, what it is allocating in that moment (UpdateAllocatedDevices,
1.25 to 1.36), and the next pod may be given the same. PreStartContainer names the devices and no pod. So of pods with
the same devices one is let start, whichever comes first, and from then on none until only one is left.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeVar

from kube_accel.kube.podresources import PodDevices, PodResourcesError
from kube_accel.plugin.kubelet.holdings import Holder, Lister

_T = TypeVar("_T")

_PAUSE = 0.1
_ATTEMPTS = 20
"""Kubelet allows few questions a second, and all its clients share them."""
_PATIENCE = 15.0
"""Seconds after which no further question is asked: kubelet waits 30 s for an answer, and a worker no longer."""
_MOST_USES = 4096
"""From so many on, those that kubelet lists for no container are forgotten."""

Pod = tuple[str, str]
"""Namespace and name."""

Claims = Mapping[str, str]
"""What of a container's devices only one pod at a time may have; each with a name for it."""


class StartRefused(Exception):  # noqa: N818 - an answer, not a failure
    """The container must not start; the text says why. ``holder`` is the container's, when that is known."""

    def __init__(self, reason: str, holder: Holder | None = None) -> None:
        super().__init__(reason)
        self.holder = holder


@dataclass(slots=True)
class _Use:
    """What became of a claim since kubelet registered us."""

    allocated: int = 0
    """How often it was handed to kubelet."""
    pods: frozenset[Pod] = frozenset()
    """The pods of which one was let start with it last."""


def each_device(ids: Collection[str]) -> Claims:
    """Claim each device for one pod at a time."""
    return {device: device for device in ids}


class DeviceExclusivity:
    """Lets containers start with the devices of one resource; for any thread."""

    def __init__(
        self,
        lister: Lister,
        on_refused: Callable[[str], None],
        claims: Callable[[Collection[str]], Claims] = each_device,
    ) -> None:
        """``on_refused`` gets the reason of a refusal when others have the devices too; it must be quick."""
        self._lister = lister
        self._on_refused = on_refused
        self._claims = claims
        self._lock = threading.Lock()
        self._uses: defaultdict[str, _Use] = defaultdict(_Use)
        self._before: frozenset[Pod] | None = None
        """Pods that may have started with a claim before kubelet asked us."""

    def forget(self) -> None:
        """Forget every use: kubelet registers us, and asks before every start from now on."""
        with self._lock:
            self._uses.clear()
            self._before = None
        # Else the first to start looks.
        with suppress(PodResourcesError):
            listed = self._lister.list(timeout=1)
            with self._lock:
                self._before = _pods(listed)

    def allocated(self, ids: Collection[str]) -> None:
        """Note that a container's devices are about to be handed to kubelet."""
        claims = self._claims(ids)
        with self._lock:
            for claim in claims:
                self._uses[claim].allocated += 1

    def admit(self, ids: Collection[str], check: Callable[[tuple[PodDevices, ...]], _T]) -> _T:
        """Let the container with exactly these devices start, and return what ``check`` makes of kubelet's list.

        Raises StartRefused, as ``check`` may: a container that it refuses has not started.
        """
        wanted = frozenset(ids)
        claims = self._claims(wanted)
        while True:
            with self._lock:
                counts = self._counts(claims)
            listed = listed_now(self._lister, ", ".join(sorted(claims.values())) or "these devices")
            with self._lock:
                # An answer from before another pod got one of them lacks that pod.
                if self._counts(claims) != counts:
                    continue
                holders, callers = self._holders(wanted, claims, listed)
                if refused := self._decide(claims, holders, callers, listed):
                    self._on_refused(refused)
                    raise StartRefused(refused)
                try:
                    found = check(listed)
                except StartRefused as error:
                    if claims and len(callers) > 1:
                        self._on_refused(str(error))
                    raise
                self._note(claims, holders, callers, listed)
                return found

    def _counts(self, claims: Claims) -> dict[str, int]:
        return {claim: self._uses[claim].allocated for claim in claims}

    def _holders(
        self, wanted: frozenset[str], claims: Claims, listed: Iterable[PodDevices]
    ) -> tuple[dict[str, frozenset[Pod]], frozenset[Pod]]:
        """Return the pods that have each of the claims, and those that may be the one that asks."""
        entries = [
            (entry, self._claims(entry.device_ids)) for entry in listed if not wanted.isdisjoint(entry.device_ids)
        ]
        holders = {claim: _pods(entry for entry, theirs in entries if claim in theirs) for claim in claims}
        return holders, _pods(entry for entry, _ in entries if wanted == set(entry.device_ids))

    def _decide(
        self,
        claims: Claims,
        holders: Mapping[str, frozenset[Pod]],
        callers: frozenset[Pod],
        listed: tuple[PodDevices, ...],
    ) -> str:
        """Return why the container may not start; empty when it may."""
        if self._before is None:
            self._before = _pods(listed)
        pods = frozenset[Pod]().union(*holders.values())
        if len(pods) < 2 or self._had_them(claims, callers) or (callers and self._none_had(holders)):
            return ""
        return _refusal(claims, holders, {claim: self._uses[claim].pods & pods for claim in claims})

    def _note(
        self,
        claims: Claims,
        holders: Mapping[str, frozenset[Pod]],
        callers: frozenset[Pod],
        listed: tuple[PodDevices, ...],
    ) -> None:
        """Note that the container starts."""
        pods = callers or frozenset[Pod]().union(*holders.values())
        for claim in claims:
            self._uses[claim].pods = pods
        if len(self._uses) > _MOST_USES:
            left = {claim for entry in listed for claim in self._claims(entry.device_ids)}
            for claim in self._uses.keys() - left:
                del self._uses[claim]

    def _had_them(self, claims: Iterable[str], callers: frozenset[Pod]) -> bool:
        """Return whether it can only be the pod that was let start with them before."""
        return len(callers) == 1 and all(self._uses[claim].pods == callers for claim in claims)

    def _none_had(self, holders: Mapping[str, frozenset[Pod]]) -> bool:
        """Return whether none of the pods that have a claim may have started with it."""
        # Pods from before kubelet's restart may have been listed late; what they have it does not hand out after it.
        return all(
            self._uses[claim].allocated and pods.isdisjoint(self._uses[claim].pods | (self._before or frozenset()))
            for claim, pods in holders.items()
        )


def listed_now(lister: Lister, what: str, pause: Callable[[float], None] = time.sleep) -> tuple[PodDevices, ...]:
    """Return kubelet's list. Raises StartRefused, about ``what`` is asked for, without one in kubelet's time."""
    reason = ""
    begin = time.monotonic()
    for attempt in range(_ATTEMPTS):
        if attempt:
            pause(_PAUSE)
        try:
            return lister.list(timeout=5)
        except PodResourcesError as error:
            reason = str(error)
        if time.monotonic() - begin > _PATIENCE:
            break
    raise StartRefused(f"the holder of {what} is not known: {reason}")


def _pods(entries: Iterable[PodDevices]) -> frozenset[Pod]:
    return frozenset((entry.namespace, entry.pod) for entry in entries)


def _refusal(claims: Claims, holders: Mapping[str, frozenset[Pod]], begun: Mapping[str, frozenset[Pod]]) -> str:
    twice = sorted(claim for claim, pods in holders.items() if len(pods) > 1) or sorted(holders)
    pods = frozenset[Pod]().union(*holders.values())
    remedy = "delete one that does not run, so that its replacement is placed again"
    if len(has := begun[twice[0]]) == 1:
        remedy = f"{_names(has, '')} has it: delete {_names(pods - has, ', ')}, so that its replacement is placed again"
    given = f"kubelet gave {', '.join(claims[claim] for claim in twice)} to {_names(pods, ' and ')}"
    return f"{given}, and a device is for one pod at a time; {remedy}"


def _names(pods: Iterable[Pod], joined: str) -> str:
    return joined.join(f"{namespace}/{name}" for namespace, name in sorted(pods))
