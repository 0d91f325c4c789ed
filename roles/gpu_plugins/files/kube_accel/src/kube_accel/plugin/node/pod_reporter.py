# SPDX-License-Identifier: Apache-2.0
"""What a node reports about its pods, and removes of them: events, and pods that can never run as they are."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping
from queue import SimpleQueue
from typing import Protocol

from kube_accel.kube import events
from kube_accel.kube.api import ApiError, ApiRefusedError, pod_path
from kube_accel.kube.client import KubeClient
from kube_accel.plugin.allocation.pods import NodePod

_log = logging.getLogger(__name__)

MEMORY_REFUSED = "GpuMemoryRefused"
"""Reason of the event about an allocation that was refused."""
_BURST = 5
_EVERY = 2.0
"""Seconds from one pod removed to the next, once the burst is used up: a controller must not be driven in a loop."""
_NOT_FOUND, _CONFLICT = 404, 409
_GRACE_SECONDS = 1
"""What a container has to end in whose pod is deleted for what it did."""


class Named(Protocol):
    """A pod that an event is about."""

    @property
    def uid(self) -> str:
        """Return its UID."""

    @property
    def namespace(self) -> str:
        """Return its namespace."""

    @property
    def name(self) -> str:
        """Return its name."""


class Reporter:
    """Talks to the API server from a thread of its own; whatever is put in here returns at once."""

    def __init__(self, client: KubeClient, node: str, resources: Collection[str] = ()) -> None:
        """``resources`` are those over which a pod may fail admission."""
        self._client = client
        self._node = node
        self._resources = resources
        self._work: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._removed: set[str] = set()
        self._said: dict[tuple[str, str, str], None] = {}
        self._bucket = TokenBucket(_BURST, _EVERY)

    def event(self, pod: Named, reason: str, message: str) -> None:
        """Queue an Event of type Warning about a pod. The same one is sent once."""
        key = (pod.uid, reason, message)
        if key not in self._said:
            if len(self._said) >= 1000:
                self._said.clear()
            self._said[key] = None
            self._work.put(lambda: self._send_event(pod, reason, message))

    def failed(self, pod: NodePod) -> None:
        """Remove the pod if it failed admission over our resources and a controller makes another."""
        if pod.failure and pod.controlled and any(name in pod.failure for name in self._resources):
            self.remove(pod, f"failed admission: {pod.failure}")

    def remove(self, pod: NodePod, why: str) -> None:
        """Delete a pod that a controller replaces, soon."""
        if pod.uid in self._removed or not pod.controlled:
            return
        if len(self._removed) >= 1000:
            self._removed.clear()
        self._removed.add(pod.uid)
        said = f"{why}; removed, so that its controller makes another pod"
        self._work.put(lambda: self._remove(pod, why, "RemovedForReplacement", said, {}))

    def end(self, pod: NodePod, reason: str, why: str) -> None:
        """Delete a pod, with or without a controller, within seconds, and send an Event about that first."""
        if pod.uid in self._removed:
            return
        if len(self._removed) >= 1000:
            self._removed.clear()
        self._removed.add(pod.uid)
        self._work.put(lambda: self._remove(pod, why, reason, why, {"gracePeriodSeconds": _GRACE_SECONDS}))

    def run(self) -> None:
        """Work for ever."""
        while True:
            self._do(self._work.get())

    def _do(self, work: Callable[[], None]) -> None:
        try:
            work()
        except ApiError as error:
            _log.warning("not told to the API server", extra={"reason": str(error)})

    def _remove(self, pod: NodePod, why: str, reason: str, said: str, options: Mapping[str, int]) -> None:
        self._bucket.take()
        self._report_removal(pod, reason, said)
        path = pod_path(pod.namespace, pod.name)
        try:
            self._client.send("DELETE", path, {"preconditions": {"uid": pod.uid}, **options})
        except ApiRefusedError as error:
            if error.status not in (_NOT_FOUND, _CONFLICT):
                self._removed.discard(pod.uid)
                raise
        except ApiError:
            self._removed.discard(pod.uid)
            raise
        _log.info("a pod was removed", extra={"pod": f"{pod.namespace}/{pod.name}", "uid": pod.uid, "reason": why})

    def _report_removal(self, pod: NodePod, reason: str, said: str) -> None:
        try:
            self._send_event(pod, reason, said)
        except ApiError as error:
            # A namespace may be full of events: the pod goes all the same.
            _log.warning("not told to the API server", extra={"reason": str(error)})

    def _send_event(self, pod: Named, reason: str, message: str) -> None:
        about = {"kind": "Pod", "namespace": pod.namespace, "name": pod.name, "uid": pod.uid}
        events.send(self._client, events.body(about, "Warning", reason, message, self._node))


class TokenBucket:
    """``burst`` at once, then one every ``every`` seconds."""

    def __init__(
        self,
        burst: int,
        every: float,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._ahead = (burst - 1) * every
        self._every = every
        self._clock, self._sleep = clock, sleep
        self._next = clock() - self._ahead

    def take(self) -> None:
        """Wait for a token."""
        now = self._clock()
        self._next = max(self._next, now - self._ahead)
        if self._next > now:
            self._sleep(self._next - now)
        self._next += self._every
