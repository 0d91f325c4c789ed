# SPDX-License-Identifier: Apache-2.0
"""Who holds which device, as kubelet lists it."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Protocol

from kube_accel.kube.podresources import PodDevices, PodResourcesError
from kube_accel.sharing.fraction import gpu_of

_log = logging.getLogger(__name__)

_INTERVALS = (1.0, 10.0)
"""Least and most seconds from one question to the next."""
_LATE = 1 / 15
"""Part of the time since the last allocation after which kubelet is asked again: as late may a pod's end be seen."""
_AFTER_ALLOCATE = 0.5
"""Seconds from an allocation to the look at its result: kubelet lists a pod once all of it is admitted."""


class Lister(Protocol):
    """Kubelet's PodResources."""

    def list(self, timeout: float) -> tuple[PodDevices, ...]:
        """Return every container with devices. Raises PodResourcesError."""


@dataclass(frozen=True, slots=True, order=True)
class Holder:
    """A container that holds a device."""

    namespace: str
    pod: str
    container: str


Held = Mapping[str, tuple[Holder, ...]]
"""Holders by device id; a device without a holder is absent."""


def holders(listed: tuple[PodDevices, ...], ours: Callable[[str], bool]) -> Held:
    """Return the holders of the devices of those resources that are ``ours``. Pure."""
    held: dict[str, tuple[Holder, ...]] = {}
    for entry in listed:
        if ours(entry.resource):
            # Thousands of devices, and one holder of nearly each.
            alone = (Holder(entry.namespace, entry.pod, entry.container),)
            for device in entry.device_ids:
                held[device] = alone if device not in held else tuple(sorted(held[device] + alone))
    return held


def strangers(listed: Iterable[PodDevices], foreign: Callable[[str], bool]) -> dict[str, str]:
    """Return which GPUs pods hold as a ``foreign`` resource, by UUID, each with a sentence. Pure."""
    return {
        gpu_of(device): f"pod {entry.namespace}/{entry.pod} holds it as {entry.resource}, from when this node served "
        "another mode; offered when that pod has ended"
        for entry in listed
        if foreign(entry.resource)
        for device in entry.device_ids
    }


class HoldingsReader:
    """Asks kubelet shortly after an allocation, often at first and less and less, so that what is charged is right."""

    def __init__(self, lister: Lister, ours: Callable[[str], bool], on_change: Callable[[], None]) -> None:
        """``ours`` are the resources whose devices count."""
        self._lister = lister
        self._ours = ours
        self._on_change = on_change
        self._allocations: SimpleQueue[tuple[str, ...]] = SimpleQueue()
        self._allocated_at = -math.inf
        self._held: Held | None = None
        self._listed: tuple[PodDevices, ...] = ()
        self.listed_at = -math.inf
        """When kubelet was asked for the last answer, by ``time.monotonic``."""
        self._error: str | None = None
        self.asked = False
        """Whether kubelet has been asked at least once, successfully or not."""

    @property
    def held(self) -> Held | None:
        """Return the last answer; None before the first. A kubelet that does not answer has not taken anything back."""
        return self._held

    @property
    def listed(self) -> tuple[PodDevices, ...] | None:
        """Return the last answer as kubelet gave it; None before the first."""
        return None if self._held is None else self._listed

    @property
    def allocated_lately(self) -> bool:
        """Return whether devices were handed to kubelet that it need not list yet."""
        return time.monotonic() - self._allocated_at < 2 * _AFTER_ALLOCATE

    def allocated(self, devices: tuple[str, ...]) -> None:
        """Note that devices have just been handed to kubelet. Returns at once."""
        self._allocated_at = time.monotonic()
        self._allocations.put(devices)

    def run(self) -> None:
        """Ask for ever."""
        while True:
            self._ask()
            least, most = _INTERVALS
            pause = min(max(least, (time.monotonic() - self._allocated_at) * _LATE), most)
            with suppress(Empty):
                told = [self._allocations.get(timeout=pause)]
                # Nothing is done in the moment in which the answer goes to kubelet: it would have to wait for us.
                while (left := self._allocated_at + _AFTER_ALLOCATE - time.monotonic()) > 0:
                    time.sleep(left)
                told += [self._allocations.get_nowait() for _ in range(self._allocations.qsize())]
                for devices in told:
                    _log.info("devices handed out", extra=_shown(devices))

    def _ask(self) -> None:
        begin = time.monotonic()
        try:
            listed = self._lister.list(timeout=5)
        except PodResourcesError as error:
            if str(error) != self._error:
                _log.warning("holdings are not known", extra={"reason": str(error)})
            self._error = str(error)
            changed = False
        else:
            self._error = None
            held = holders(listed, self._ours)
            changed = held != self._held
            self._listed, self._held, self.listed_at = listed, held, begin
        first, self.asked = not self.asked, True
        if first or changed:
            self._on_change()


def _shown(devices: tuple[str, ...]) -> dict[str, object]:
    """Shorten devices for the log: those of a share are counted, not listed."""
    if any("::" in device for device in devices):
        return {"devices": len(devices), "gpus": sorted({device.partition("::")[0] for device in devices})}
    return {"devices": list(devices)}
