# SPDX-License-Identifier: Apache-2.0
"""What a node has left, summed up once per change of the node, and the quick answer that gives. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from kube_accel.model import ContainerRequest, GpuConstraints, Mode, PodRequest
from kube_accel.placement.choose import GpuView, places

_ANY = GpuConstraints()


@dataclass(frozen=True, slots=True)
class Room:
    """A node's GPUs that can be handed out, in a few numbers."""

    shares: tuple[tuple[int, int], ...]
    """Free cores and memory of GPUs; those that offer less of both than another are left out."""
    partial: tuple[tuple[int, int, int], ...]
    """Free cores, free memory, and memory of GPUs of which somebody has some."""
    whole: int
    """Untouched GPUs."""
    gpus: int
    memory_bytes: int
    """Sum over all GPUs, as the two below."""
    free_cores: int
    free_memory: int

    @classmethod
    def of(cls, gpus: Iterable[GpuView], mode: Mode) -> Room:
        """Return the room of a node that serves ``mode``."""
        usable = [view for view in gpus if not view.obstacle and (mode is Mode.PGPU or not view.gpu.mig_enabled)]
        best: list[tuple[int, int]] = []
        open_ = [view for view in usable if places(view, mode)]
        offers = {(view.free_cores, view.free_memory) for view in open_}
        partial = {(view.free_cores, view.free_memory, view.gpu.memory_bytes) for view in open_ if not view.untouched}
        for offer in sorted(offers, reverse=True):
            if not best or offer[1] > best[-1][1]:
                best.append(offer)
        return cls(
            shares=tuple(best),
            partial=tuple(sorted(partial)),
            whole=sum(view.untouched for view in usable),
            gpus=len(usable),
            memory_bytes=sum(view.gpu.memory_bytes for view in usable),
            free_cores=sum(view.free_cores for view in usable),
            free_memory=sum(view.free_memory for view in usable),
        )

    def fits(self, request: PodRequest) -> bool | None:
        """Return whether ``place`` finds room: True and False are certain, None leaves the question to it."""
        if len(request.containers) == 1:
            (container,) = request.containers
            if not self._fits_alone(container):
                return False
            certain = request.constraints == _ANY and not (container.whole and container.memory_bytes)
            return True if certain else None
        return None if all(map(self._fits_alone, request.containers)) else False

    def _fits_alone(self, container: ContainerRequest) -> bool:
        if container.whole:
            return container.whole <= self.whole
        needs_cores, needs_memory = container.cores, container.memory_bytes
        return any(cores >= needs_cores and memory >= needs_memory for cores, memory in self.shares)
