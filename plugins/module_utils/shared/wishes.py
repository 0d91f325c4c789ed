# Apache License 2.0 (see https://www.apache.org/licenses/LICENSE-2.0)
# SPDX-License-Identifier: Apache-2.0
"""Annotations by which a pod says which GPU it wants, and what to say of them where nobody heeds them. Pure."""

from __future__ import annotations

PLACEMENT = "kube-accel.io/placement"
USE_MODEL = "kube-accel.io/use-gpu-model"
AVOID_MODEL = "kube-accel.io/avoid-gpu-model"
USE_UUID = "kube-accel.io/use-gpu-uuid"
AVOID_UUID = "kube-accel.io/avoid-gpu-uuid"
MIN_COMPUTE_CAPABILITY = "kube-accel.io/min-compute-capability"
MIN_CUDA = "kube-accel.io/min-cuda"
WISHES = frozenset({PLACEMENT, USE_MODEL, AVOID_MODEL, USE_UUID, AVOID_UUID, MIN_COMPUTE_CAPABILITY, MIN_CUDA})
"""All annotations by which a pod says which GPU it wants."""

UNHEEDED = "GpuAnnotationsUnheeded"
"""Reason of the event about a pod whose wishes nobody heeds."""


def no_effect(wishes: str, resources: str) -> str:
    """Return what to tell the owner of a pod with these annotations that no extender places; without quotes."""
    return (
        f"{wishes} of this pod has no effect, because kube-scheduler alone places pods that ask for {resources}. "
        "Use a node selector, or let the extender place them (scheduler_layout, scheduler_manage_whole_gpus)"
    )
