# SPDX-License-Identifier: Apache-2.0
"""What the plugin knows about the containers that have GPUs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from kube_accel.kube.cgroups import Place


class Container(NamedTuple):
    """A container by its names in Kubernetes."""

    namespace: str
    pod: str
    name: str
    """Empty where only the pod is known."""


@dataclass(frozen=True, slots=True)
class Holding:
    """What a container has of one GPU."""

    container: Container
    uuid: str
    share: float
    """Share of the GPU, from 0 to 1: the larger of its part of the cores and its part of the memory."""
    cores: float | None = None
    """Its part of the cores; None where they are not divided."""
    memory_bytes: int | None = None
    """None where memory is not divided."""
    device: str = ""
    """What CUDA calls the part, a MIG device; empty for the GPU."""
    limited: bool = False
    """Its allocations may be refused, and are counted."""
    paddle: bool = False
    """Its pod says that it runs PaddlePaddle."""
    among: tuple[Container, ...] = ()
    """Containers that have it together, where it is not one container's; ``container`` then names what they have."""


Holdings = Mapping[str, tuple[Holding, ...]]
"""By UUID of the GPU."""


class Account(NamedTuple):
    """What the interposer in a container says of it."""

    container: Container
    uuid: str


class Charged(NamedTuple):
    """What the interposer in a container charged it on one GPU."""

    used_bytes: int
    """0 once none of its processes lives."""
    limit_bytes: int
    """What it is limited to; 0 for no limit."""
    busy_ns: int
    """GPU time since the container started; 0 where none is measured. Less than before: it started again."""


class Refused(NamedTuple):
    """Allocations that a container was refused."""

    container: Container
    uuid: str
    reason: str


@dataclass(frozen=True, slots=True)
class Tenancy:
    """Where to ask. None of it may wait for long, or for the API server."""

    holdings: Callable[[], Holdings | None]
    """None while kubelet has not answered."""
    owner: Callable[[Place], Container | None] | None = None
    """Returns the container of a cgroup; None altogether where pods are not known by their cgroups."""
    accounts: Callable[[], Mapping[Account, Charged]] = dict
    """Hostile input."""
    refusals: Callable[[], Mapping[Refused, int]] = dict
