# SPDX-License-Identifier: Apache-2.0
"""The decision log: one JSON line for each decision, with what there was to choose from. ``why this GPU``."""

from __future__ import annotations

import heapq
import logging
from collections import Counter
from collections.abc import Mapping
from operator import itemgetter

from kube_accel.extender.cache import Reservation
from kube_accel.extender.decide import describe
from kube_accel.extender.pods import Pod
from kube_accel.extender.wire import Filtered, Victims

_log = logging.getLogger(__name__)

_BEST = 5
_REASONS = 8


def log_filter(pod: Pod, asked: int, answer: Filtered) -> None:
    """Log which nodes have room, and why the others have none."""
    reasons = Counter([*answer.failed.values(), *answer.unresolvable.values()])
    _log.info(
        "filtered",
        extra={
            **_who(pod),
            "asks": _asks(pod),
            "nodes": asked,
            "passed": len(answer.passed),
            "refused": dict(reasons.most_common(_REASONS)),
        },
    )


def log_scores(pod: Pod, scores: Mapping[str, int]) -> None:
    """Log the best nodes."""
    best = heapq.nlargest(_BEST, scores.items(), key=itemgetter(1))
    _log.info("scored", extra={**_who(pod), "policy": _policy(pod), "nodes": len(scores), "best": dict(best)})


def log_bind(kept: Reservation) -> None:
    """Log the chosen GPUs, and what was free of each before."""
    pod, assignment, view = kept.pod, kept.assignment, kept.view
    if not assignment.containers:
        _log.info("left to kubelet", extra={**_who(pod), "asks": _asks(pod), "node": assignment.node})
        return
    index = {gpu.uuid: gpu.index for gpu in view.node.gpus}
    _log.info(
        "assigned",
        extra={
            **_who(pod),
            "asks": _asks(pod),
            "node": assignment.node,
            "policy": _policy(pod),
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
