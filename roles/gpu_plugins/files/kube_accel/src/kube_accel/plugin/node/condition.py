# SPDX-License-Identifier: Apache-2.0
"""What a node reports of its GPUs: one condition of the node, and events when a GPU turns bad or good. Pure.

A node whose GPU is bad stays a good node: nothing here taints or cordons it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from kube_accel.model import DriverState, GpuHealth, Health, Snapshot
from kube_accel.shared.printable import line

TYPE = "GpusHealthy"

_SILENT = (DriverState.WEDGED, DriverState.UNAVAILABLE)
_DRIVER = "driver"
_NAMELESS = "index:"
_LONGEST = 4096
"""Characters of the condition's message: a node has up to 16 GPUs."""


@dataclass(frozen=True, slots=True)
class NodeCondition:
    """The condition ``GpusHealthy``: "True" while every GPU can be allocated, "Unknown" while that is not known."""

    status: str
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class News:
    """Something that happened, and what has been reported of the GPUs once it was reported."""

    kind: str
    reason: str
    message: str
    bad: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Reported:
    """What the API server was last sent."""

    condition: NodeCondition | None = None
    since: str = ""
    """When the condition's status became what it is."""
    heartbeat: float = 0.0
    """When it was reported last, in seconds since 1970."""
    bad: Mapping[str, str] = field(default_factory=dict)
    """Name of each GPU that an event called bad, by UUID or by ``index:<n>``; the driver by ``driver``."""


def condition(snapshot: Snapshot) -> NodeCondition | None:
    """Return the condition now; None while nothing is known yet."""
    if snapshot.driver_state is DriverState.STARTING:
        return None
    if snapshot.driver_state is DriverState.QUIESCED:
        return NodeCondition("Unknown", "DriverReleased", line(snapshot.detail, _LONGEST))
    if snapshot.driver_state in _SILENT:
        return NodeCondition("Unknown", "DriverNotAnswering", line(snapshot.detail, _LONGEST))
    faults = [f"{name}: {health.reason}" for _, name, health in _gpus(snapshot) if health.health is Health.UNHEALTHY]
    advice = [f"{name}: {health.advice}" for _, name, health in _gpus(snapshot) if health.advice]
    message = line("; ".join([*faults, *advice, *silences(snapshot)]), _LONGEST)
    if faults:
        return NodeCondition("False", "GpuUnhealthy", message)
    return NodeCondition("True", "GpusHealthy", message or "every GPU can be allocated")


def news(snapshot: Snapshot, reported: Mapping[str, str]) -> Iterator[News]:
    """Yield what there is to report after these ``reported`` bad GPUs, each with what has been reported by then."""
    if snapshot.driver_state in (DriverState.STARTING, DriverState.QUIESCED):
        return
    bad = dict(reported)
    if snapshot.driver_state in _SILENT:
        if _DRIVER not in bad:
            bad[_DRIVER] = _DRIVER
            yield News("Warning", "GpuDriverNotAnswering", snapshot.detail, dict(bad))
        return
    if _DRIVER in bad:
        del bad[_DRIVER]
        yield News("Normal", "GpuDriverAnswers", "the NVIDIA driver answers again", dict(bad))
    for key, name, health in _gpus(snapshot):
        known = _known(bad, key, name)
        if health.health is Health.UNHEALTHY and not known:
            bad[key] = name
            yield News("Warning", "GpuUnhealthy", f"{name} is not allocated: {health.reason}", dict(bad))
        elif health.health is Health.HEALTHY and known:
            for old in known:
                del bad[old]
            yield News("Normal", "GpuHealthy", f"{name} is allocated again", dict(bad))


def silences(snapshot: Snapshot) -> Iterator[str]:
    """Yield what cannot be read of GPUs that may be handed out all the same."""
    for _, name, health in _gpus(snapshot):
        yield from (f"{name}: {fault}" for fault in health.faults)


def _known(bad: Mapping[str, str], key: str, name: str) -> list[str]:
    """Return what a GPU was called bad as: a lost one does not report its UUID to a plugin that starts now."""
    short = name.partition(" (")[0]
    return [
        old
        for old, said in bad.items()
        if old == key
        or (said.partition(" (")[0] == short and _NAMELESS in (old[: len(_NAMELESS)], key[: len(_NAMELESS)]))
    ]


def _gpus(snapshot: Snapshot) -> Iterator[tuple[str, str, GpuHealth]]:
    """Yield key, name for people, and health of every GPU, those that could never be read too."""
    if snapshot.inventory is None:
        return
    unknown = GpuHealth(Health.UNKNOWN)
    for gpu in snapshot.inventory.gpus:
        yield gpu.uuid, f"GPU {gpu.index} ({gpu.uuid})", snapshot.health.get(gpu.uuid, unknown)
    for unreadable in snapshot.inventory.unreadable:
        health = GpuHealth(Health.UNHEALTHY, unreadable.reason)
        yield unreadable.uuid or f"{_NAMELESS}{unreadable.index}", f"GPU {unreadable.index}", health
