# SPDX-License-Identifier: Apache-2.0
"""Which extender binds: the one that holds a Lease, and knows of every bind of those that held it before.

kube-scheduler's own election does not settle that: a leader that was frozen calls its extender before it sees that it
leads no more, and requests of its time may still be on their way. Three rules do, whatever clocks say:

1. A bind names the pod's resourceVersion; the API server refuses it once the pod has changed.
2. A bind needs the Lease to name us in an answer that was asked for when we knew that resourceVersion.
3. Whoever takes the Lease changes every waiting pod before it binds one. What a former holder has bound by then shows
   in the answers. What it sends later names a resourceVersion that is gone (1), or a pod made since, which (2) forbids.

A pod that cannot be changed, since a webhook refuses it or for want of an answer, is unfenced: a former holder may
yet bind it, to GPUs that nobody else knows. It does not keep the others waiting. Until its resourceVersion is another
than it was under our Lease, by whomever (1, 2), or it is seen bound, or gone, it is not bound by us and room for it is
left on each GPU of its mode, so that whatever the former holder chose is still free.

Time decides only when a Lease may be taken that another one holds.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any, Protocol

from kube_accel.extender.cache import Cluster
from kube_accel.extender.pods import TAKEN, Pod, Version
from kube_accel.extender.wire import BindArguments
from kube_accel.kube.api import ApiError, ApiRefusedError, ApiUnreachableError, pod_path
from kube_accel.shared.api_json import ApiJsonError, checked

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
"""Duration of the Lease in seconds, for people who read it; nothing depends on it."""
_WRITERS = 8
_UNANSWERED = 8
"""Changes of a namespace's pods after which the others of it are left for later."""
_THROTTLED = 2.0
"""Seconds in which a change is tried again that the API server was too busy for: at a takeover it often is."""
_TOO_MANY = 429
_BACK_OFF = 0.2
"""Seconds after which one asks again that got no answer, or no good one."""


class NotOursError(Exception):
    """This extender does not bind, at least for the time being. Says why."""


class Api(Protocol):
    """What holding a Lease needs of ``kube_accel.kube.client.KubeClient``."""

    def get(self, path: str, query: Mapping[str, str] | None = None) -> dict[str, Any]:
        """Return the object at ``path``. Raises ApiError."""

    def put(self, path: str, body: object) -> dict[str, Any]:
        """Replace the object at ``path``, or create it. Raises ApiError."""

    def patch(self, path: str, body: object) -> dict[str, Any]:
        """Merge into the object at ``path``. Raises ApiError."""


@dataclass(frozen=True, slots=True)
class _Unfenced:
    """A pod that a former holder may bind."""

    pod: Pod
    version: str
    """Its resourceVersion as it was read under our Lease; empty: not read yet."""
    problem: str


class LeaderLease:
    """The time in which this extender holds the Lease. Threads may share it; one calls ``run``, or ``step``."""

    def __init__(
        self,
        api: Api,
        cluster: Cluster,
        following: Callable[[], bool] = lambda: True,
        pause: Callable[[], None] = lambda: time.sleep(0.005),
        clock: Callable[[], float] = time.monotonic,
        writers: int = _WRITERS,
    ) -> None:
        """``following`` says whether the watch of pods is past its list. ``pause`` lets it go on.

        ``writers``: so many pods are changed at once.
        """
        self._api = api
        self._cluster = cluster
        self._following = following
        self._pause = pause
        self._clock = clock
        self._writers = writers
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
        self._begun = 0
        """When we took the Lease, in moments of the cluster."""
        self._changed: set[str] = set()
        """UIDs of the pods changed since the Lease is ours."""
        self._unfenced: dict[str, _Unfenced] = {}
        """By UID, while we bind."""

    def called(self) -> None:
        """Note that kube-scheduler has called, with whatever verb."""
        self._last_call = self._clock()
        if not self._serving:
            self._ask()

    def idle(self) -> bool:
        """Return whether kube-scheduler has not called for a while."""
        return self._clock() > self._last_call + _SILENCE

    def prepare(self, pod: Pod) -> None:
        """Note that this pod may be bound soon."""
        if not self._proves(pod.version):
            self._ask()

    def unfenced_pod(self, pod: Pod) -> str:
        """Return why we cannot bind this pod, though others can; empty when we can."""
        unfenced = self._unfenced.get(pod.uid)
        if unfenced is None:
            return ""
        # kube-scheduler writes this into the pod's status: as it differs from takeover to takeover, that changes it.
        return (
            f"pod {pod.namespace}/{pod.name} could not be changed when {self.identity} took the Lease at moment "
            f"{self._begun}, so the previous extender may still bind it: {unfenced.problem}. Delete the pod, or let "
            "the admission webhook admit changes of metadata.labels"
        )

    def proven(self, pod: Pod) -> str:
        """Return what ``wait`` would without waiting; empty when it has to wait."""
        version = pod.version
        return version[0] if self._proves(version) else ""

    def wait(self, pod: Pod) -> str:
        """Wait until a pod may be bound, with every other bind known, and return the resourceVersion to name.

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
        """Change a pod, so that no bind on its way binds it, and return it; None when it is gone. Raises ApiError."""
        body = {"metadata": {"uid": pod.uid, "labels": {TAKEN: mark or secrets.token_hex(8)}}}
        try:
            item = self._api.patch(pod_path(pod.namespace, pod.name), body)
        except ApiRefusedError as error:
            if error.status in (404, 409):  # 409: another one has its name by now
                return None
            raise
        self._cluster.hear_of(_whole(item))
        return item

    def look(self, pod: Pod | BindArguments) -> dict[str, Any] | None:
        """Return the pod's object; None when it is gone. Raises ApiError."""
        try:
            item = self._api.get(pod_path(pod.namespace, pod.name))
        except ApiRefusedError as error:
            if error.status == 404:
                return None
            raise
        return item if _whole(item)["metadata"].get("uid") == pod.uid else None

    def retry_unfenced(self) -> None:
        """Try the unfenced again. Raises ApiError when the API server is not reached."""
        unfenced = self._unfenced
        if not unfenced or not self._serving:
            return
        left = self._change([one.pod for one in unfenced.values()], secrets.token_hex(8), set(), unfenced)[1]
        with self._state:
            if self._unfenced is unfenced:
                self._set_unfenced(left)

    def run(self, stop: threading.Event) -> None:
        """Look at the Lease whenever a bind waits for that, and now and then, until ``stop`` is set."""
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
        now, version = self._clock(), lease["metadata"].get("resourceVersion", "")
        if version != self._seen:
            self._seen, self._seen_at = version, now
        holder = str(lease["spec"].get("holderIdentity") or "")
        if self._serving and holder == self.identity:
            with self._state:
                self._proven = begun
                self._answers.notify_all()
            if not self.idle() and now >= self._renewed + _RENEWAL:
                self._hold(lease)
            return
        if self._serving:
            self._leave(f"extender {holder or '(none)'} has taken the Lease")
        if now > self._last_call + PATIENCE:
            return
        if holder not in ("", self.identity) and now < self._seen_at + HOLD:
            self._problem = f"{holder} holds the Lease {NAMESPACE}/{NAME} and binds; try again"
            return
        if holder != self.identity:
            self._changed, self._begun = set(), begun
        self._hold(lease)
        self._catch_up()

    def release(self) -> None:
        """Let another extender have the Lease at once."""
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
            self._set_unfenced({})

    def _read(self) -> dict[str, Any]:
        """Return the Lease; one without a holder when there is none."""
        try:
            lease = self._api.get(_PATH)
        except ApiRefusedError as error:
            if error.status != 404:
                raise
            labels = {"app.kubernetes.io/managed-by": "accel.kubernetes", "app.kubernetes.io/component": "extender"}
            metadata = {"name": NAME, "namespace": NAMESPACE, "labels": labels}
            lease = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata}
        return {**_whole(lease), "spec": lease.get("spec") or {}}

    def _hold(self, lease: dict[str, Any]) -> None:
        self._write(lease, self.identity)
        self._renewed = self._clock()

    def _write(self, lease: dict[str, Any], holder: str) -> None:
        """Write the Lease unless it has changed meanwhile: its resourceVersion goes along."""
        spec, now = lease["spec"], datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        changed: dict[str, Any] = {"holderIdentity": holder, "renewTime": now, "leaseDurationSeconds": _DURATION}
        if spec.get("holderIdentity") != holder:
            times = spec.get("leaseTransitions")
            changed |= {"acquireTime": now, "leaseTransitions": (times if type(times) is int else 0) + bool(holder)}
        self._api.put(_PATH, {**lease, "spec": {**spec, **changed}})

    def _catch_up(self) -> None:
        """Learn of every bind made under the Lease before it was ours, and make sure that no other follows."""
        mark, waiting = secrets.token_hex(8), self._waiting()
        begin = self._clock()
        # What an attempt before this one has changed stays changed; but one pod has to carry this one's mark.
        again = [pod for pod in waiting if pod.uid in self._changed][:1]
        rest = [pod for pod in waiting if pod.uid not in self._changed]
        marked, unfenced = self._change(again + rest, mark, self._changed)
        if not marked and unfenced:
            raise ApiError(f"no pod that waits can be changed: {next(iter(unfenced.values())).problem}")
        if not marked:
            return
        changed = self._clock()
        # Once our watch reports one of these changes it has reported all pods that a former holder may bind.
        while self._cluster.mark != mark or not self._following():
            if self._clock() > changed + PATIENCE:
                raise ApiUnreachableError("the watch of pods is behind")
            self._pause()
        known = self._changed | unfenced.keys()
        rest = [pod for pod in self._waiting() if pod.uid not in known]
        unfenced |= self._change(rest, mark, self._changed)[1]
        for one in list(unfenced.values())[:1]:
            name = f"{one.pod.namespace}/{one.pod.name}"
            extra = {"pods": len(unfenced), "pod": name, "reason": one.problem}
            _log.warning("room is left everywhere for pods that could not be changed", extra=extra)
        waited, self._changed = len(self._changed), set()
        _log.info("binds from now on", extra={"waiting": waited, "seconds": round(self._clock() - begin, 3)})
        with self._state:
            self._set_unfenced(unfenced)
            self._serving = self._asked = True

    def _set_unfenced(self, unfenced: dict[str, _Unfenced]) -> None:
        """Replace the unfenced pods. Hold ``_state``."""
        self._unfenced = unfenced
        self._cluster.leave_room(one.pod for one in unfenced.values())

    def _change(
        self, pods: list[Pod], mark: str, changed: set[str], before: Mapping[str, _Unfenced] = MappingProxyType({})
    ) -> tuple[bool, dict[str, _Unfenced]]:
        """Change pods and add their UIDs to ``changed``; return whether one was, and those that others may still bind.

        ``before``: what was known of these. Raises ApiError when the API server is not reached.
        """
        until = time.monotonic() + (0 if before else _THROTTLED)
        silent: Counter[str] = Counter()
        """How many changes were not answered in a namespace. That takes long, and as a rule none of its pods' are."""

        def change(pod: Pod) -> bool | _Unfenced:
            problem = "it changes all the time"
            try:
                if silent[pod.namespace] >= _UNANSWERED and (changed or before):  # one at least has to carry the mark
                    problem = f"changes of other pods of namespace {pod.namespace} were not answered"
                elif self._insist(pod, mark, until) is not None:
                    changed.add(pod.uid)
                    return True
            except ApiError as error:
                problem = str(error)
                if isinstance(error, ApiUnreachableError):
                    silent[pod.namespace] += 1
            return self._still_unfenced(pod, before.get(pod.uid), problem)

        with ThreadPoolExecutor(self._writers) as pool:
            found = list(pool.map(change, pods))
        return True in found, {one.pod.uid: one for one in found if isinstance(one, _Unfenced)}

    def _insist(self, pod: Pod, mark: str, until: float) -> dict[str, Any] | None:
        """Repeat ``change`` while the API server is too busy, until that time. Raises ApiError."""
        while True:
            try:
                return self.change(pod, mark)
            except ApiRefusedError as error:
                if error.status != _TOO_MANY or time.monotonic() > until:
                    raise
            time.sleep(_BACK_OFF)

    def _still_unfenced(self, pod: Pod, before: _Unfenced | None, problem: str) -> bool | _Unfenced:
        """Return what a pod is that could not be changed; False: no other extender can bind it any more."""
        try:
            item = self.look(pod)
        except ApiRefusedError:
            return before or _Unfenced(pod, "", problem)
        if item is None:
            return False
        version = str(item["metadata"].get("resourceVersion", ""))
        if (item.get("spec") or {}).get("nodeName") or (before is not None and before.version not in ("", version)):
            self._cluster.hear_of(item)
            return False
        return _Unfenced(pod, version, problem)

    def _waiting(self) -> list[Pod]:
        return [pod for pod in list(self._cluster.pods.values()) if not pod.node]


def _whole(item: dict[str, Any]) -> dict[str, Any]:
    """Return the object that the API server answered with. Raises ApiRefusedError for what is none."""
    try:
        return checked(item)
    except ApiJsonError as error:
        raise ApiRefusedError(200, f"with what cannot be read: {error}") from error
