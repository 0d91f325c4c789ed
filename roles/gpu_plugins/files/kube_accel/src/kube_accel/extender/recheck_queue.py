# SPDX-License-Identifier: Apache-2.0
"""Pods that were refused a moment ago, looked at once more.

kube-scheduler tries pods again when it hears of something new. Where it hears of it before we do, we refuse for want of
what is free by then, and nothing more need happen for minutes: it has to be asked then.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from kube_accel.extender.cache import Cluster
from kube_accel.extender.pods import Pod

_CALM, _LATE = 0.5, 3.0
"""Seconds in which kube-scheduler may not be done with a refusal, and by which all that it knew has come to us too."""
_MOST = 16
"""Pods looked at. Of those that are tried after the same news, the first can be too early."""


class RecheckQueue:
    """Watches over pods that were refused. Threads may share it."""

    def __init__(
        self, cluster: Cluster, has_room: Callable[[Pod, list[str]], bool], clock: Callable[[], float] = time.monotonic
    ) -> None:
        """``has_room`` says whether one of these nodes would pass now."""
        self._cluster = cluster
        self._has_room = has_room
        self._clock = clock
        self._lock = threading.Lock()
        self._refused: dict[str, tuple[Pod, list[str], float]] = {}

    def answered(self, pod: Pod, names: list[str], passed: bool) -> None:
        """Note whether one of these nodes passed for the pod."""
        with self._lock:
            if passed:
                self._refused.pop(pod.uid, None)
            elif pod.uid in self._refused or len(self._refused) < _MOST:
                self._refused[pod.uid] = pod, names, self._clock()

    def look(self) -> list[Pod]:
        """Return the pods for which there is room now. They leave the queue until they are refused again."""
        now = self._clock()
        with self._lock:
            entries = list(self._refused.items())
        found = []
        for uid, entry in entries:
            pod, names, at = entry
            over = pod.node or uid not in self._cluster.pods or now > at + _LATE
            room = not over and now >= at + _CALM and self._has_room(pod, names)
            if room:
                found.append(pod)
            if over or room:
                with self._lock:
                    if self._refused.get(uid) is entry:
                        del self._refused[uid]
        return found
