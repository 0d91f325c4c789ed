# SPDX-License-Identifier: Apache-2.0
"""The decision log: one JSON line for each decision, with what there was to choose from. ``why this GPU``."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence

from kube_accel.extender.accounting import NodeView
from kube_accel.extender.decide import describe
from kube_accel.extender.pods import Pod
from kube_accel.extender.wire import Filtered, Victims
from kube_accel.model import Assignment, PodRequest

_log = logging.getLogger(__name__)

_BEST = 5
_REASONS = 8


def log_filter(pod: Pod, asked: int, answer: Filtered) -> None:
    """Which of the nodes have room, and why the others have none."""
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


def log_scores(pod: Pod, scores: Sequence[tuple[str, int]]) -> None:
    """The best nodes."""
    best = sorted(scores, key=lambda entry: -entry[1])[:_BEST]
    policy = pod.request.policy.value if pod.request else ""
    _log.info("scored", extra={**_who(pod), "policy": policy, "nodes": len(scores), "best": dict(best)})


def log_bind(pod: Pod, request: PodRequest, assignment: Assignment, view: NodeView) -> None:
    """The chosen GPUs, and what was free of each before."""
    index = {gpu.uuid: gpu.index for gpu in view.node.gpus}
    _log.info(
        "assigned",
        extra={
            **_who(pod),
            "asks": describe(request),
            "node": assignment.node,
            "policy": request.policy.value,
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
    """Who would be evicted where."""
    extra = {**_who(pod), "asks": _asks(pod), "victims": {name: entry.uids for name, entry in found.items()}}
    _log.info("preempted", extra=extra)


def _who(pod: Pod) -> dict[str, str]:
    return {"pod": f"{pod.namespace}/{pod.name}", "uid": pod.uid}


def _asks(pod: Pod) -> str:
    return describe(pod.request) if pod.request else pod.refused
