# SPDX-License-Identifier: Apache-2.0
"""From what is known about the GPUs to the list kubelet is shown. Pure."""

from __future__ import annotations

from collections.abc import Container, Iterable
from dataclasses import dataclass

from kube_accel.model import Gpu, GpuHealth, Health, Snapshot
from kube_accel.sharing.whole import Part


@dataclass(frozen=True, slots=True)
class Device:
    """One device as kubelet is shown it."""

    id: str
    healthy: bool
    numa_node: int | None


def healthy_gpus(snapshot: Snapshot, offered: Container[str]) -> frozenset[str]:
    """Return the UUIDs of the GPUs to be handed out, given those offered as healthy until now.

    Unknown health keeps what was offered: a driver that does not answer is no reason to withdraw a GPU, and never one
    to offer a GPU that was not seen healthy.
    """

    def healthy(gpu: Gpu) -> bool:
        health = snapshot.health.get(gpu.uuid, GpuHealth(Health.UNKNOWN)).health
        return health is Health.HEALTHY or (health is Health.UNKNOWN and gpu.uuid in offered)

    gpus = snapshot.inventory.gpus if snapshot.inventory is not None else ()
    return frozenset(gpu.uuid for gpu in gpus if healthy(gpu))


def device_list(parts: Iterable[Part], good: Container[str]) -> tuple[Device, ...]:
    """Return the devices that stand for these parts, given the UUIDs of the GPUs to be handed out."""
    return tuple(Device(part.id, part.gpu.uuid in good, part.gpu.numa_node) for part in parts)
