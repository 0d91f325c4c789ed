# SPDX-License-Identifier: Apache-2.0
"""GPUs reserved for a pod before its bind, in the layout proxied, where any caller may ask and none says who it is.

Calls cannot add up to more than this: a pod's GPUs are kept on one node, for ``RESERVED_SECONDS`` from the first call
that kept them. Asking again changes neither node nor end. Where the pod is not bound by then, nothing is kept for it
for a pause, which is twice as long each time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from typing import Final

from kube_accel.extender.binder import RESERVED_SECONDS, Binder
from kube_accel.extender.cache import Cluster
from kube_accel.extender.node import Reservation
from kube_accel.extender.pods import Pod
from kube_accel.model import PodRequest

BIND_SECONDS: Final = 10.0
"""A bind may take so long. No pod is sent to GPUs that are kept for less."""
FIRST_PAUSE: Final = 15.0
LONGEST_PAUSE: Final = 3600.0

_DOUBLED = 8
"""After so many pauses they are the longest."""


class Keeper:
    """Reserves GPUs for pods. One thread at a time."""

    def __init__(self, cluster: Cluster, binder: Binder, clock: Callable[[], float] = time.monotonic) -> None:
        self._cluster = cluster
        self._binder = binder
        self._clock = clock

    def refusal(self, pod: Pod, names: Collection[str]) -> str:
        """Return why a call that names these nodes gets nothing for the pod at this time; empty when it may."""
        who, now = f"pod {pod.namespace}/{pod.name}", self._clock()
        held = self._cluster.reservation(pod.uid)
        if held is not None and (held.assignment.node not in names or now > held.expires - BIND_SECONDS):
            return (
                f"GPUs on {held.assignment.node} are reserved for {who}, until it is bound or {RESERVED_SECONDS:.0f} s "
                "after the first attempt; try again"
            )
        if pod.kept_until - BIND_SECONDS < now < pod.kept_until + pause(pod.kept_times):
            return (
                f"{who} was not bound within the {RESERVED_SECONDS:.0f} s for which GPUs were reserved for it; no GPU "
                f"is reserved for it for {pause(pod.kept_times):.0f} s; try again"
            )
        return ""

    def keep(self, pod: Pod, request: PodRequest, best: Sequence[str]) -> Reservation | None:
        """Reserve GPUs on the first of the ``best`` nodes that has room; None when none has. Ask ``refusal`` first.

        What is kept already stays where it is, if its node is among the ``best``.
        """
        held = self._cluster.reservation(pod.uid)
        if held is not None and held.assignment.node in best:
            return held
        now = self._clock()
        anew = now >= pod.kept_until
        until = now + RESERVED_SECONDS if anew else pod.kept_until
        for name in best:
            found = self._binder.reserve(pod, request, name, until)
            if not isinstance(found, str):
                pod.kept_until, pod.kept_times = until, pod.kept_times + anew
                return found
        return None


def pause(times: int) -> float:
    """Return the seconds without a reservation for a pod that had so many reservations and no bind."""
    return min(FIRST_PAUSE * 2 ** min(times - 1, _DOUBLED), LONGEST_PAUSE) if times else 0.0
