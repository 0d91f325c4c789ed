# SPDX-License-Identifier: Apache-2.0
"""The cluster as the extender knows it: nodes with their GPUs, pods that ask for some, reservations of binds under way.

Fed by watches, read by requests. Each node has a lock. Those for who is nominated and who has left are taken before a
node's, never after; those of charges and quotas within it. None is held during a request to anybody.
"""

from __future__ import annotations

import itertools
import logging
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from kube_accel.extender.accounting import Kinds, anywhere
from kube_accel.extender.charges import Charges
from kube_accel.extender.node import Node, Reservation
from kube_accel.extender.pods import (
    Pod,
    PodReader,
    Uses,
    assignment_text,
    is_running,
    nominated_node,
    stated_uses,
)
from kube_accel.kube.watch import passing_over
from kube_accel.model import GpuUse, Mode
from kube_accel.sharing.inventory_annotation import ANNOTATION

_log = logging.getLogger(__name__)

_GONE = 10_000
"""Pods remembered after they are gone, against news that come late."""


class Cluster:
    """All nodes and all pods that ask for GPUs."""

    def __init__(
        self,
        reader: PodReader,
        changed: Callable[[str], None] = lambda name: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``changed`` is called with a node's name, under its lock, whenever its room may have changed."""
        self._reader = reader
        self._node_changed = changed
        self._clock = clock
        self._kinds = Kinds()
        self.nodes: dict[str, Node] = {}
        self.pods: dict[str, Pod] = {}
        self.bound: Callable[[Pod, Reservation | None], None] = lambda pod, reservation: None
        """Called once for every pod that is seen bound, with what was reserved for it."""
        self.charges = Charges()
        self.mark = ""
        """The last mark of an extender that the watch has reported."""
        self._moments = itertools.count(1)
        self._reserved_on: dict[str, str] = {}
        self._gone: OrderedDict[str, None] = OrderedDict()
        self.contested: set[str] = set()
        """The names of nodes with nominated pods."""
        self._nominating = threading.Lock()
        self._news = threading.Condition()
        self._unfenced: Mapping[Mode, GpuUse] = {}

    @contextmanager
    def node(self, name: str) -> Iterator[Node]:
        """Yield the node of this name under its lock. It is made when unknown, and forgotten when it is empty.

        Nothing may be written to a node that was found in another way: it may be forgotten by now.
        """
        while True:
            node = self.nodes.get(name)
            if node is None:
                fresh = Node(sys.intern(name), self._kinds, self._node_changed, lambda: self._unfenced)
                node = self.nodes.setdefault(fresh.name, fresh)
            with node.lock:
                if self.nodes.get(name) is not node:
                    continue
                try:
                    yield node
                finally:
                    if node.empty():
                        node.changed()
                        del self.nodes[node.name]
            return

    def leave_room(self, pods: Iterable[Pod]) -> None:
        """Leave room for these waiting pods, and for no others, on each GPU: others may bind them."""
        found = anywhere(pods)
        if found == self._unfenced:
            return
        self._unfenced = found
        for node in list(self.nodes.values()):
            with node.lock:
                node.changed()

    def moment(self) -> int:
        """Return a number greater than every earlier one."""
        return next(self._moments)

    def asks(self, item: Mapping[str, Any]) -> bool:
        """Return whether a pod object asks for GPUs."""
        return self._reader.read(item) is not None

    def keep_pod(self, item: dict[str, Any]) -> str | None:
        """Take a pod object that exists, and return its UID if it asks for GPUs."""
        pod = self._reader.read(item)
        if pod is None or pod.uid in self._gone:
            return None
        known = self.pods.get(pod.uid)
        text = assignment_text(item)
        if known is None:
            known = self.pods.setdefault(pod.uid, pod)
            with self._news:
                self._news.notify_all()
        elif not known.node:
            known.request, known.refused, known.read = pod.request, pod.refused, pod.read
            self._let_go(known, pod.schedulable)
        self._nominate(known, nominated_node(item))
        if not pod.node:
            self._know(known, item)
        else:
            self._bound(known, pod.node, text)
            if is_running(item):
                known.runs_since = min(known.runs_since, self._clock())
        if pod.uid in self._gone:
            # It went while another thread brought it here.
            self.drop_pod(pod.uid)
            return None
        return pod.uid

    def hear_of(self, item: dict[str, Any]) -> None:
        """Take a pod object that exists; one that cannot be read changes nothing, and the log names it."""
        with passing_over(item, "/api/v1/pods"):
            self.keep_pod(item)

    def _know(self, pod: Pod, item: Mapping[str, Any]) -> None:
        version = (item.get("metadata") or {}).get("resourceVersion")
        if isinstance(version, str) and version != pod.version[0]:
            pod.version = version, self.moment()

    def _let_go(self, pod: Pod, schedulable: bool) -> None:
        if pod.schedulable is not schedulable:
            with self._news:
                pod.schedulable = schedulable
                self._news.notify_all()

    def meet(self, pod: Pod, item: Mapping[str, Any]) -> Pod:
        """Return a pod that kube-scheduler asks about, and know it from now on: the watch may not have shown it yet."""
        if pod.uid in self._gone:
            return pod
        known = self.pods.setdefault(pod.uid, pod)
        if not known.node:
            known.request, known.refused, known.read = pod.request, pod.refused, pod.read
            if not known.version[0]:
                self._know(known, item)
        return known

    def _nominate(self, pod: Pod, name: str) -> None:
        """Note that the pod is to go to this node, or to none in particular."""
        if pod.nominated == name:
            return
        with self._nominating:
            before, pod.nominated = pod.nominated, name
            if before:
                with self.node(before) as node:
                    node.nominated.pop(pod.uid, None)
                    if not node.nominated:
                        self.contested.discard(before)
            if name:
                with self.node(name) as node:
                    node.nominated[pod.uid] = pod
                    self.contested.add(name)

    def _bound(self, pod: Pod, name: str, text: str | None) -> None:
        """Note that the pod runs on this node. The annotation's ``text`` is what the tenant claims."""
        reservation, annotation = None, None if text is None else hash(text)
        with self.node(name) as node:
            first = pod.uid not in node.pods
            if not first and (pod.ours or pod.annotation == annotation):
                return
            pod.node, pod.read, pod.annotation = name, ("", None), annotation
            reservation = node.reserved.get(pod.uid)
            if reservation is not None and node.shown(pod, text, reservation):
                # What was charged when it was reserved stays.
                self._reserved_on.pop(pod.uid, None)
            else:
                self._take_back(node, pod.uid)
                stated = stated_uses(pod, text)
                if reservation is None:
                    pod.uses = stated
                else:
                    # At first sight the annotation is what the bind wrote, which may have been another extender's.
                    pod.uses, pod.ours = stated or reservation.uses, True
                node.pods[pod.uid] = pod
                _charge(self.charges, pod, pod.uses, node)
                node.changed()
        self.release(pod.uid)
        if first:
            self.bound(pod, reservation)

    def drop_pod(self, uid: str, ended: bool = False) -> None:
        """Forget a pod. Its GPUs stay taken until its plugin reports otherwise, unless kubelet is done with it."""
        self._gone[uid] = None
        while len(self._gone) > _GONE:
            self._gone.popitem(last=False)
        pod = self.pods.pop(uid, None)
        self.release(uid)
        if pod is None:
            return
        self._nominate(pod, "")
        if pod.node:
            with self.node(pod.node) as node:
                if uid in node.pods:
                    node.leave(pod, ended)
            with self._news:
                self._news.notify_all()
        self.charges.discharge(uid)

    def departed(self, name: str, uids: Collection[str], timeout: float) -> bool:
        """Return whether these pods are no longer on the node, at the latest ``timeout`` seconds from now."""

        def gone() -> bool:
            with self.node(name) as node:
                return node.pods.keys().isdisjoint(uids)

        with self._news:
            return self._news.wait_for(gone, timeout)

    def waiting(self, uid: str, timeout: float) -> Pod | None:
        """Return a pod that waits for kube-scheduler, once the watch has it, within ``timeout`` seconds."""

        def settled() -> bool:
            pod = self.pods.get(uid)
            return uid in self._gone if pod is None else bool(pod.schedulable or pod.node)

        with self._news:
            self._news.wait_for(settled, timeout)
        pod = self.pods.get(uid)
        return pod if pod is not None and pod.schedulable and not pod.node else None

    def keep_node(self, item: dict[str, Any]) -> str | None:
        """Take a node object that exists, and return its name."""
        metadata = item.get("metadata") or {}
        text = (metadata.get("annotations") or {}).get(ANNOTATION)
        name = metadata.get("name")
        if not isinstance(name, str):
            return None
        if isinstance(text, str) or name in self.nodes:
            labels = metadata.get("labels") or {}
            with self.node(name) as node:
                node.labels = {sys.intern(key): sys.intern(str(value)) for key, value in labels.items()}
                before = node.gpus
                node.annotate(text if isinstance(text, str) else None, self._clock())
                if node.gpus is not None and (before is None or before.divided != node.gpus.divided):
                    for pod in node.pods.values():
                        _charge(self.charges, pod, pod.uses, node)
        return name

    def drop_node(self, name: str) -> None:
        """Forget a node. Its pods follow, or stay until it is back."""
        if name in self.nodes:
            with self.node(name) as node:
                node.annotate(None)

    def kept_on(self, uid: str) -> str:
        """Return the name of the node where GPUs are reserved for a pod; empty when none are."""
        return self._reserved_on.get(uid, "")

    def reservation(self, uid: str) -> Reservation | None:
        """Return the reservation of a pod."""
        node = self.nodes.get(self.kept_on(uid))
        return None if node is None else node.reserved.get(uid)

    def reserve(self, node: Node, reservation: Reservation) -> None:
        """Keep GPUs of a node for a pod. Hold the node's lock, and have released what the pod had before."""
        pod, uid = reservation.pod, reservation.pod.uid
        if node.gpus is not None:
            key = pod.namespace, pod.name
            pod.stale, pod.shadowed = node.gpus.held.get(key), key in node.forgotten()
        self._reserved_on[uid] = node.name
        _charge(self.charges, pod, reservation.uses, node)
        node.keep(reservation)

    def release(self, uid: str) -> None:
        """Give back what is reserved for a pod, if anything is."""
        name = self._reserved_on.get(uid)
        if name is None:
            return
        with self.node(name) as node:
            self._take_back(node, uid)

    def _take_back(self, node: Node, uid: str) -> Reservation | None:
        reservation = node.reserved.pop(uid, None)
        if reservation is not None:
            self._reserved_on.pop(uid, None)
            if not reservation.pod.node:
                self.charges.discharge(uid)
            node.changed()
        return reservation

    def overdue(self, now: float) -> list[Reservation]:
        """Return the reservations whose time is over."""
        reservations = map(self.reservation, list(self._reserved_on))
        return [entry for entry in reservations if entry is not None and entry.expires <= now]

    def end(self, reservation: Reservation) -> None:
        """Release this reservation, unless another has taken its place."""
        with self.node(reservation.assignment.node) as node:
            if node.reserved.get(reservation.pod.uid) is reservation:
                self._take_back(node, reservation.pod.uid)

    @property
    def reservations(self) -> int:
        """Return how many there are."""
        return len(self._reserved_on)


def _charge(charges: Charges, pod: Pod, uses: Uses | None, node: Node) -> None:
    if node.gpus is not None and node.gpus.leaves(pod.request):
        charges.discharge(pod.uid)
    else:
        charges.charge(pod, uses, node.gpus)
