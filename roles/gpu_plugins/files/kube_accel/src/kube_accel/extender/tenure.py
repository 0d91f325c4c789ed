# SPDX-License-Identifier: Apache-2.0
"""Which extender binds: the one that holds a Lease, and knows of every bind of those that held it before.

kube-scheduler's own election does not settle that: a leader that was frozen calls its extender before it sees that it
leads no more, and requests of its time may still be on their way. Three rules do, whatever clocks say:

1. A bind names the pod's resourceVersion; the API server refuses it once the pod has changed.
2. A bind needs the Lease to name us in an answer that was asked for when we knew that resourceVersion.
3. Whoever takes the Lease changes every waiting pod before it binds one. What a former holder has bound by then shows
   in the answers. What it sends later names a resourceVersion that is gone (1), or a pod made since, which (2) forbids.

Time decides only when a Lease may be taken that another one holds.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any, Protocol

from kube_accel.extender.cache import Cluster
from kube_accel.extender.pods import TAKEN, Pod, Version, pod_path
from kube_accel.kube.api import ApiError, ApiRefusedError, ApiUnreachableError

_log = logging.getLogger(__name__)

NAMESPACE, NAME = "kube-system", "kube-accel-extender"
_PATH = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases/{NAME}"

PATIENCE = 4.0
"""Seconds a bind waits for the Lease; kube-scheduler gives up after 5 by default."""
_SILENCE = 2.0
"""Seconds after a call in which kube-scheduler is taken to want us."""
_RENEWAL = 1.0
"""Seconds between two looks at the Lease, and between two renewals while we are called."""
HOLD = 3.0
"""Seconds without a renewal after which a Lease may be taken."""
_DURATION = 15
"""Of the Lease, in seconds, as people read it; nothing depends on it."""
_WRITERS = 8
_BACK_OFF = 0.2
"""Seconds after which one asks again that got no answer, or no good one."""


class NotOursError(Exception):
    """We do not bind, at least for the time being. Says why."""


class Api(Protocol):
    """What holding a Lease needs of ``kube_accel.kube.client.KubeClient``."""

    def get(self, path: str, query: Mapping[str, str] | None = None) -> dict[str, Any]:
        """The object at ``path``. Raises ApiError."""

    def put(self, path: str, body: object) -> dict[str, Any]:
        """Replace the object at ``path``, or create it. Raises ApiError."""

    def patch(self, path: str, body: object) -> dict[str, Any]:
        """Merge into the object at ``path``. Raises ApiError."""


class Tenure:
    """Our time as the holder of the Lease. Threads may share it; one calls ``run``, or ``step``."""

    def __init__(
        self,
        api: Api,
        cluster: Cluster,
        following: Callable[[], bool] = lambda: True,
        pause: Callable[[], None] = lambda: time.sleep(0.005),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``following``: whether the watch of pods is past its list. ``pause``: let it go on."""
        self._api = api
        self._cluster = cluster
        self._following = following
        self._pause = pause
        self._clock = clock
        self.identity = f"extender-{secrets.token_hex(8)}"
        self._state = threading.Lock()
        # Two, so that those who wait for an answer do not wake each other when they ask for one.
        self._questions, self._answers = threading.Condition(self._state), threading.Condition(self._state)
        self._asked = False
        self._serving = False
        self._proven = -1
        """We held the Lease at this moment of the cluster's."""
        self._problem = "the Lease has not been read yet"
        self._last_call = float("-inf")
        self._seen = ""
        """The Lease's resourceVersion, and since when."""
        self._seen_at = float("-inf")
        self._renewed = float("-inf")

    def called(self) -> None:
        """kube-scheduler has called, with whatever verb."""
        self._last_call = self._clock()
        if not self._serving:
            self._ask()

    def idle(self) -> bool:
        """Nobody has called for a while."""
        return self._clock() > self._last_call + _SILENCE

    def prepare(self, pod: Pod) -> None:
        """This pod may be bound soon."""
        if not self._proves(pod.version):
            self._ask()

    def wait(self, pod: Pod) -> str:
        """Wait until a pod may be bound, knowing of every other bind; the resourceVersion to name.

        Raises NotOursError.
        """
        deadline = time.monotonic() + PATIENCE
        with self._state:
            while not self._proves(version := pod.version):
                if (left := deadline - time.monotonic()) <= 0:
                    raise NotOursError(self._problem)
                self._asked = True
                self._questions.notify()
                self._answers.wait(min(left, _BACK_OFF))
        return version[0]

    def change(self, pod: Pod, mark: str = "") -> dict[str, Any] | None:
        """Change a pod, so that no bind on its way binds it; its object, None when it is gone. Raises ApiError."""
        body = {"metadata": {"uid": pod.uid, "annotations": {TAKEN: mark or secrets.token_hex(8)}}}
        try:
            item = self._api.patch(pod_path(pod.namespace, pod.name), body)
        except ApiRefusedError as error:
            if error.status in (404, 409):  # 409: another one has its name by now
                return None
            raise
        self._cluster.keep_pod(item)
        return item

    def run(self, stop: threading.Event) -> None:
        """Look at the Lease whenever somebody waits for that, and now and then, until ``stop`` is set."""
        while not stop.is_set():
            with self._state:
                self._questions.wait_for(lambda: self._asked, _RENEWAL)
                self._asked = False
            try:
                self.step()
            except ApiError as error:
                self._problem = f"the Lease {NAMESPACE}/{NAME} cannot be held: {error}"
                stop.wait(_BACK_OFF)

    def step(self) -> None:
        """Look at the Lease once, and take or renew it where that is due. Raises ApiError."""
        begun = self._cluster.moment()
        lease = self._read()
        now, version = self._clock(), str(lease["metadata"].get("resourceVersion", ""))
        if version != self._seen:
            self._seen, self._seen_at = version, now
        holder = lease["spec"].get("holderIdentity") or ""
        if self._serving and holder == self.identity:
            with self._state:
                self._proven = begun
                self._answers.notify_all()
            if not self.idle() and now >= self._renewed + _RENEWAL:
                self._hold(lease)
            return
        if self._serving:
            self._leave(f"extender {holder or 'nobody'} has taken the Lease")
        if now > self._last_call + PATIENCE:
            return
        if holder not in ("", self.identity) and now < self._seen_at + HOLD:
            self._problem = f"{holder} holds the Lease {NAMESPACE}/{NAME} and binds; try again"
            return
        self._hold(lease)
        self._catch_up()

    def release(self) -> None:
        """Let another one have the Lease at once."""
        if not self._serving:
            return
        self._leave("this extender ends")
        try:
            lease = self._read()
            if lease["spec"].get("holderIdentity") == self.identity:
                self._write(lease, "")
        except ApiError as error:
            _log.warning("the Lease is not released", extra={"reason": str(error)})

    def _proves(self, version: Version) -> bool:
        return self._serving and version[0] != "" and version[1] < self._proven

    def _ask(self) -> None:
        with self._state:
            self._asked = True
            self._questions.notify()

    def _leave(self, problem: str) -> None:
        with self._state:
            if self._serving:
                _log.warning("binds no more", extra={"reason": problem})
            self._serving, self._proven, self._problem = False, -1, problem

    def _read(self) -> dict[str, Any]:
        """The Lease; one that nobody holds when there is none."""
        try:
            lease = self._api.get(_PATH)
        except ApiRefusedError as error:
            if error.status != 404:
                raise
            labels = {"app.kubernetes.io/managed-by": "accel.kubernetes", "app.kubernetes.io/component": "extender"}
            metadata = {"name": NAME, "namespace": NAMESPACE, "labels": labels}
            lease = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata}
        return {**lease, "spec": lease.get("spec") or {}}

    def _hold(self, lease: dict[str, Any]) -> None:
        self._write(lease, self.identity)
        self._renewed = self._clock()

    def _write(self, lease: dict[str, Any], holder: str) -> None:
        """Only if nobody has changed it: its resourceVersion goes along."""
        spec, now = lease["spec"], datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        changed: dict[str, Any] = {"holderIdentity": holder, "renewTime": now, "leaseDurationSeconds": _DURATION}
        if spec.get("holderIdentity") != holder:
            changed |= {"acquireTime": now, "leaseTransitions": (spec.get("leaseTransitions") or 0) + bool(holder)}
        self._api.put(_PATH, {**lease, "spec": {**spec, **changed}})

    def _catch_up(self) -> None:
        """The Lease is ours: learn of every bind made under it before, and make sure that no other follows."""
        mark = secrets.token_hex(8)
        begin = self._clock()
        # Once our watch tells of this change it has told of all pods that a former holder may bind.
        first = next((pod for pod in self._waiting() if self.change(pod, mark) is not None), None)
        if first is None:
            return
        while self._cluster.mark != mark or not self._following():
            if self._clock() > begin + PATIENCE:
                raise ApiUnreachableError("the watch of pods is behind")
            self._pause()
        waiting = [pod for pod in self._waiting() if pod is not first]
        with ThreadPoolExecutor(_WRITERS) as pool:
            for _ in pool.map(lambda pod: self.change(pod, mark), waiting):
                pass
        _log.info("binds from now on", extra={"waiting": len(waiting) + 1, "seconds": round(self._clock() - begin, 3)})
        with self._state:
            self._serving = self._asked = True

    def _waiting(self) -> list[Pod]:
        return [pod for pod in list(self._cluster.pods.values()) if not pod.node]
