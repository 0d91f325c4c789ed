# SPDX-License-Identifier: Apache-2.0
"""One node as the extender knows it: its GPUs, its pods, and what is kept for binds under way."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass

from kube_accel.extender.accounting import NO_USE, Kinds, NodeGpus, NodeView, known_uses, view, view_with
from kube_accel.extender.pods import Held, Pod, Uses
from kube_accel.model import Assignment, GpuUse, Mode
from kube_accel.sharing.assignment import ANNOTATION as POD_ANNOTATION
from kube_accel.sharing.inventory_annotation import ANNOTATION, decode

_log = logging.getLogger(__name__)

_TOLD = 60.0
"""Seconds after which a plugin has reported what kubelet has allocated, or does not run."""


@dataclass(frozen=True, slots=True)
class Reservation:
    """GPUs kept for a pod whose bind is under way, or done but not yet seen."""

    pod: Pod
    uses: Uses
    annotations: Mapping[str, str]
    """What the pod is to carry."""
    expires: float
    """Monotonic seconds."""
    assignment: Assignment
    view: NodeView
    """What there was to choose from."""


class Node:
    """One node. Hold ``lock`` for everything but ``name``."""

    __slots__ = (
        "_annotation",
        "_changed",
        "_kinds",
        "_unfenced",
        "_view",
        "ended",
        "gpus",
        "labels",
        "lock",
        "name",
        "nominated",
        "pods",
        "problem",
        "reserved",
    )

    def __init__(
        self,
        name: str,
        kinds: Kinds,
        changed: Callable[[str], None],
        unfenced: Callable[[], Mapping[Mode, GpuUse]] = lambda: {},
    ) -> None:
        """``changed`` is called under the lock whenever the node may have more or less room than before.

        ``unfenced``: what others may still bind to any GPU, by mode.
        """
        self.name = name
        self.lock = threading.Lock()
        self.gpus: NodeGpus | None = None
        self.problem = "its plugin has not reported GPUs"
        """Why there are no ``gpus``."""
        self.labels: dict[str, str] = {}
        self.pods: dict[str, Pod] = {}
        self.reserved: dict[str, Reservation] = {}
        """By UID of the pod."""
        self.nominated: dict[str, Pod] = {}
        """By UID too: pods for which others were evicted here."""
        self.ended: dict[tuple[str, str], Held] = {}
        """By namespace and name, what the plugin still reports of pods that kubelet is done with."""
        self._annotation: int | None = None
        self._view: NodeView | None = None
        self._kinds = kinds
        self._changed = changed
        self._unfenced = unfenced

    def empty(self) -> bool:
        """Return whether nothing is known of the node: a fresh one would be the same."""
        return self._annotation is None and not (self.pods or self.reserved or self.nominated)

    def view(self) -> NodeView | None:
        """Return the node as it is now; None while its GPUs are not known."""
        if self._view is None and self.gpus is not None:
            self._view = self.view_without(())
        return self._view

    def rivals(self, pod: Pod) -> list[Pod]:
        """Return the pods this one must leave room for, as kube-scheduler does: others were evicted for them, and their
        priority is not lower."""
        return [
            rival
            for uid, rival in self.nominated.items()
            if uid != pod.uid and rival.priority >= pod.priority and uid not in self.reserved
        ]

    def view_for(self, pod: Pod) -> NodeView | None:
        """Return the node as this pod may have it. What is kept here for itself is free to it."""
        rivals = self.rivals(pod)
        return self.view_without({pod.uid}, rivals) if rivals or pod.uid in self.reserved else self.view()

    def view_without(self, uids: Collection[str], rivals: Iterable[Pod] = ()) -> NodeView | None:
        """Return the node as it would be without some of its pods and what is kept for them, and with others."""
        if self.gpus is None:
            return None
        pods = [*(pod for uid, pod in self.pods.items() if uid not in uids), *rivals]
        reserved = [entry.uses for uid, entry in self.reserved.items() if uid not in uids]
        reserved += [held.uses for held in self.forgotten().values()]
        unfenced = self._unfenced()
        return view(self.gpus, self.name, pods, reserved, self._kinds, unfenced.get(self.gpus.mode, NO_USE))

    def forgotten(self) -> dict[tuple[str, str], Held]:
        """Return what kubelet holds for pods that the API server has not, or no longer, by namespace and name."""
        told = self.gpus.held if self.gpus is not None else {}
        if not told:
            return {}
        known = {(pod.namespace, pod.name): pod for pod in self.pods.values()}
        known |= {(entry.pod.namespace, entry.pod.name): entry.pod for entry in self.reserved.values()}
        return {
            key: held
            for key, held in told.items()
            if self.ended.get(key) != held and ((pod := known.get(key)) is None or (pod.shadowed and pod.stale == held))
        }

    def leave(self, pod: Pod, ended: bool) -> None:
        """Take out a pod that the API server has no more; ``ended`` says that kubelet is done with it."""
        self.pods.pop(pod.uid)
        key = pod.namespace, pod.name
        held = self.gpus.held.get(key) if self.gpus is not None else None
        if not ended:
            self.ended.pop(key, None)
        elif held is not None and not pod.shadowed:
            self.ended[key] = held
        self.changed()

    def changed(self) -> None:
        """Forget what was concluded from pods, reservations and GPUs."""
        self._view = None
        self._changed(self.name)

    def keep(self, reservation: Reservation) -> None:
        """Keep GPUs for a pod. What was concluded before is not looked for again, as far as it holds."""
        pod, before = reservation.pod, self._view
        self.reserved[pod.uid] = reservation
        # What kubelet held under this name may have counted as a forgotten pod's.
        settled = before is not None and (pod.namespace, pod.name) not in before.node.held
        self._view = view_with(before, reservation.uses, self._kinds) if settled and before is not None else None
        self._changed(self.name)

    def shown(self, pod: Pod, text: str | None, reservation: Reservation) -> bool:
        """Take a pod that is seen bound as was reserved for it, which changes no room; return False where it is not."""
        if self.gpus is not reservation.view.node or text != reservation.annotations.get(POD_ANNOTATION):
            return False
        pod.uses, pod.ours = reservation.uses, True
        del self.reserved[pod.uid]
        self.pods[pod.uid] = pod
        if known_uses(reservation.view.node, pod) != reservation.uses:
            self.changed()
        return True

    def annotate(self, text: str | None, now: float = 0) -> None:
        """Take what the node's plugin reports, at this moment in monotonic seconds."""
        self._settle(now)
        found = None if text is None else hash(text)
        if found == self._annotation:
            return
        self._annotation = found
        # Set once: others read the GPUs without the lock, and must not see none while a new list is decoded.
        gpus: NodeGpus | None = None
        problem = "its plugin has not reported GPUs"
        if text is not None:
            try:
                gpus = NodeGpus.of(decode(text))
            except ValueError as error:
                problem = f"its annotation {ANNOTATION} cannot be read: {error}"
                _log.warning("a node's inventory cannot be read", extra={"node": self.name, "reason": str(error)})
        self.gpus, self.problem = gpus, problem
        self.ended = {key: held for key, held in self.ended.items() if gpus is not None and gpus.held.get(key) == held}
        self.changed()

    def _settle(self, now: float) -> None:
        """Believe a repeated report about a pod that has long been running: it is the pod's, and no earlier one's."""
        for pod in self.pods.values():
            if pod.shadowed and now > pod.runs_since + _TOLD:
                pod.stale, pod.shadowed = None, False
                self.changed()
