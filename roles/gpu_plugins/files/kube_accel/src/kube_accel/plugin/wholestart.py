# SPDX-License-Identifier: Apache-2.0
"""Whether a container may start with the devices that it has to itself: kubelet may have given them to two pods.

Its PodResources.List forgets, when a pod has just ended, what it is allocating in that moment (UpdateAllocatedDevices,
1.36 at least), and the next pod may be given the same. PreStartContainer names the devices and no pod. So of pods with
the same devices one is let start, whichever comes first, and from then on none until only one is left.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass

from kube_accel.kube.podresources import PodDevices, PodResourcesError
from kube_accel.plugin.holdings import Lister
from kube_accel.plugin.prestart import StartRefused, listed_now

Pod = tuple[str, str]
"""Namespace and name."""


@dataclass(slots=True)
class _Use:
    """What became of a device since kubelet knows us."""

    allocated: int = 0
    """How often it was handed to kubelet."""
    pods: frozenset[Pod] = frozenset()
    """Whose container was let start with it last: one of these."""


class WholeStarts:
    """Lets containers start with the devices of one resource; for any thread."""

    def __init__(self, lister: Lister, on_refused: Callable[[str], None]) -> None:
        """``on_refused`` is told why a container was refused whose device others have too; it must be quick."""
        self._lister = lister
        self._on_refused = on_refused
        self._lock = threading.Lock()
        self._uses: defaultdict[str, _Use] = defaultdict(_Use)
        self._before: frozenset[Pod] | None = None
        """Pods of which nobody knows what they started before kubelet asked us."""

    def forget(self) -> None:
        """Kubelet gets to know us: from now on it asks before every start, and what was before is not known."""
        with self._lock:
            self._uses.clear()
            self._before = None
        # Else the first to start looks.
        with suppress(PodResourcesError):
            listed = self._lister.list(timeout=1)
            with self._lock:
                self._before = _pods(listed)

    def allocated(self, ids: Iterable[str]) -> None:
        """These are about to be handed to kubelet."""
        with self._lock:
            for device in ids:
                self._uses[device].allocated += 1

    def begin(self, ids: Collection[str]) -> None:
        """A container that has exactly these is about to start. Raises StartRefused."""
        wanted = frozenset(ids)
        while True:
            with self._lock:
                counts = self._counts(wanted)
            listed = listed_now(self._lister, ", ".join(sorted(wanted)))
            with self._lock:
                # An answer from before another pod got one of them does not tell of that pod.
                if self._counts(wanted) == counts:
                    refused = self._decide(wanted, listed)
                    break
        if refused:
            self._on_refused(refused)
            raise StartRefused(refused)

    def _counts(self, wanted: Iterable[str]) -> dict[str, int]:
        return {device: self._uses[device].allocated for device in wanted}

    def _decide(self, wanted: frozenset[str], listed: tuple[PodDevices, ...]) -> str:
        """Why not; empty when it may, and then that is noted."""
        if self._before is None:
            self._before = _pods(listed)
        entries = [entry for entry in listed if not wanted.isdisjoint(entry.device_ids)]
        holders = {device: _pods(entry for entry in entries if device in entry.device_ids) for device in wanted}
        pods = _pods(entries)
        callers = _pods(entry for entry in entries if wanted == set(entry.device_ids))
        if len(pods) > 1 and not (self._had_them(wanted, callers) or (callers and self._nobody_had(holders))):
            return _refusal(holders, {device: self._uses[device].pods & pods for device in wanted})
        for device in wanted:
            self._uses[device].pods = callers or pods
        return ""

    def _had_them(self, wanted: Iterable[str], callers: frozenset[Pod]) -> bool:
        """Whether it can only be who was let start with them before."""
        return len(callers) == 1 and all(self._uses[device].pods == callers for device in wanted)

    def _nobody_had(self, holders: Mapping[str, frozenset[Pod]]) -> bool:
        """Whether none of those who have a device may have started with it."""
        # Of pods from before kubelet's restart it may have told late; what they have it does not hand out after it.
        return all(
            self._uses[device].allocated and pods.isdisjoint(self._uses[device].pods | (self._before or frozenset()))
            for device, pods in holders.items()
        )


def _pods(entries: Iterable[PodDevices]) -> frozenset[Pod]:
    return frozenset((entry.namespace, entry.pod) for entry in entries)


def _refusal(holders: Mapping[str, frozenset[Pod]], begun: Mapping[str, frozenset[Pod]]) -> str:
    devices = sorted(device for device, pods in holders.items() if len(pods) > 1) or sorted(holders)
    pods = frozenset[Pod]().union(*holders.values())
    remedy = "delete one that does not run, so that it is placed anew"
    if len(has := begun[devices[0]]) == 1:
        remedy = f"{_names(has, '')} has it: delete {_names(pods - has, ', ')}, so that it is placed anew"
    given = f"kubelet gave {', '.join(devices)} to {_names(pods, ' and ')}"
    return f"{given}, and a device is for one pod at a time; {remedy}"


def _names(pods: Iterable[Pod], joined: str) -> str:
    return joined.join(f"{namespace}/{name}" for namespace, name in sorted(pods))
