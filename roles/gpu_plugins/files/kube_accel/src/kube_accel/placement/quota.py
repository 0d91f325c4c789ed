# SPDX-License-Identifier: Apache-2.0
"""Decides what a namespace may have by its quota, for one pod and node. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from kube_accel.model import PodRequest
from kube_accel.placement.demand import Demand, demand
from kube_accel.shared.quantity import human_bytes
from kube_accel.shared.quota import Limit, Quota


def check_quota(
    quota: Quota,
    namespace: str,
    request: PodRequest,
    node_labels: Mapping[str, str],
    model: str,
    card_memory: int,
    used: Mapping[str, Demand],
) -> str | None:
    """Return why the namespace may not have this pod on GPUs of this model on this node; None when it may.

    ``card_memory`` is that of one such GPU, ``used`` what the namespace has already, by model. No other pod's
    leaving the node would change the answer for the pools; for a limit, only that of a pod of the same namespace.
    """
    if reason := quota.outside(namespace, node_labels):
        return reason
    limits = [limit for limit in quota.of(namespace).limits if limit.matches(model)]
    if not limits:
        return None
    wanted = demand(request, card_memory)
    for limit in limits:
        reason = _exceeded(limit, wanted, total(limit, used))
        if reason:
            gpus = f"{limit.model} GPUs" if limit.model else "GPUs"
            return f"quota of namespace {namespace} for {gpus}: {reason}"
    return None


def total(limit: Limit, used: Mapping[str, Demand]) -> Demand:
    """Return what of ``used``, by model, counts against a limit."""
    counted = [amount for model, amount in used.items() if limit.matches(model)]
    return Demand(
        sum(amount.cores for amount in counted),
        sum(amount.memory_bytes for amount in counted),
        sum(amount.cards for amount in counted),
    )


def _exceeded(limit: Limit, wanted: Demand, used: Demand) -> str:
    """Return what the pod wants more than the limit leaves; empty when it fits. A pod that wants none of it fits."""
    if limit.cores is not None and wanted.cores and used.cores + wanted.cores > limit.cores:
        return f"needs {wanted.cores} % of a GPU; {used.cores} % of {limit.cores} % is in use"
    memory = limit.memory_bytes
    if memory is not None and used.memory_bytes + wanted.memory_bytes > memory:
        in_use = f"{human_bytes(used.memory_bytes)} of {human_bytes(memory)} is in use"
        return f"needs {human_bytes(wanted.memory_bytes)} of GPU memory; {in_use}"
    if limit.cards is not None and wanted.cards and used.cards + wanted.cards > limit.cards:
        return f"needs {wanted.cards} whole GPUs; {used.cards} of {limit.cards} are in use"
    return ""
