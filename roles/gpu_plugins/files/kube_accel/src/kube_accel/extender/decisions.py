# SPDX-License-Identifier: Apache-2.0
"""The decision log: one JSON line for each pod, with what there was to choose from. ``why this GPU``."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import islice
from types import MappingProxyType

from kube_accel.extender.decide import describe
from kube_accel.extender.node import Reservation
from kube_accel.extender.pods import Pod
from kube_accel.extender.wire import Filtered, Victims

_log = logging.getLogger(__name__)

_BEST = 5
_REASONS = 8


_WAITING = 1000
"""Pods that passed a filter, and that no line tells of yet."""

Later = Callable[[], None] | None
"""Writes what can wait until the client has its answer; None where nothing is to be written."""


class Decisions:
    """What was found for pods until they are bound, so that one line tells all of it. Threads may share it.

    A pod that fits nowhere has its line at once. One that was not bound has it when it is filtered again.
    """

    def __init__(self) -> None:
        self._found: dict[str, tuple[Pod, dict[str, object]]] = {}
        """By UID, the oldest first."""
        self._lock = threading.Lock()

    def filtered(self, pod: Pod, asked: int, answer: Filtered) -> Later:
        """Note which nodes have room, and why the others have none."""
        said = _found_by_filter(asked, answer)
        with self._lock:
            before = self._found.pop(pod.uid, None)
            if answer.passed:
                self._found[pod.uid] = pod, said
                if before is None and len(self._found) > _WAITING:
                    before = self._found.pop(next(iter(self._found)))
        lines = [] if before is None else [before]
        lines += [] if answer.passed else [(pod, said)]
        return partial(_log_filtered, lines) if lines else None

    def scored(self, pod: Pod, scores: Mapping[str, int]) -> None:
        """Note the best nodes."""
        found = self._found.get(pod.uid)
        if found is not None:
            found[1]["best"] = _best(scores)

    def bound(self, uid: str, kept: Reservation | None) -> Later:
        """Note the chosen GPUs; None where there are none."""
        with self._lock:
            before = self._found.pop(uid, None)
        if kept is not None:
            return partial(log_bind, kept, {} if before is None else before[1])
        return None if before is None else partial(_log_filtered, [before])


def _best(scores: Mapping[str, int]) -> dict[str, int]:
    """Return the first nodes among those with the most points, with these: there are a few different ones."""
    best: dict[str, int] = {}
    for most in sorted(set(scores.values()), reverse=True):
        equals = (name for name, score in scores.items() if score == most)
        best |= dict.fromkeys(islice(equals, _BEST - len(best)), most)
    return best


def log_filter(pod: Pod, asked: int, answer: Filtered) -> None:
    """Log which nodes have room, and why the others have none."""
    _log_filtered([(pod, _found_by_filter(asked, answer))])


def _found_by_filter(asked: int, answer: Filtered) -> dict[str, object]:
    reasons = Counter([*answer.failed.values(), *answer.unresolvable.values()])
    return {"nodes": asked, "passed": len(answer.passed), "refused": dict(reasons.most_common(_REASONS))}


def _log_filtered(lines: Sequence[tuple[Pod, Mapping[str, object]]]) -> None:
    for pod, said in lines:
        _log.info("filtered", extra={**_who(pod), "asks": _asks(pod), **said})


def log_bind(kept: Reservation, found: Mapping[str, object] = MappingProxyType({})) -> None:
    """Log the chosen GPUs, what was free of each before, and what was ``found`` for the pod until then."""
    pod, assignment, view = kept.pod, kept.assignment, kept.view
    if not assignment.containers:
        _log.info("left to kubelet", extra={**_who(pod), "asks": _asks(pod), "node": assignment.node, **found})
        return
    index = {gpu.uuid: gpu.index for gpu in view.node.gpus}
    _log.info(
        "assigned",
        extra={
            **_who(pod),
            "asks": _asks(pod),
            "node": assignment.node,
            "policy": _policy(pod),
            **found,
            "chosen": {name: [index[share.uuid] for share in shares] for name, shares in assignment.containers.items()},
            "candidates": [
                {
                    "gpu": gpu.gpu.index,
                    "uuid": gpu.gpu.uuid,
                    "health": gpu.health.health.value,
                    "free_cores": gpu.free_cores,
                    "free_memory_bytes": gpu.free_memory,
                }
                for gpu in view.gpus
            ],
        },
    )


def log_preemption(pod: Pod, found: dict[str, Victims]) -> None:
    """Log which pods would be evicted from which node."""
    extra = {**_who(pod), "asks": _asks(pod), "victims": {name: entry.uids for name, entry in found.items()}}
    _log.info("preempted", extra=extra)


def _who(pod: Pod) -> dict[str, str]:
    return {"pod": f"{pod.namespace}/{pod.name}", "uid": pod.uid}


def _asks(pod: Pod) -> str:
    return describe(pod.request) if pod.request else pod.refused


def _policy(pod: Pod) -> str:
    return pod.request.policy.value if pod.request else ""
