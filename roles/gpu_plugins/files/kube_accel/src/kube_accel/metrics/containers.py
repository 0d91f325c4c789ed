# SPDX-License-Identifier: Apache-2.0
"""The families about containers, and what has to be remembered of them from one collection to the next."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from kube_accel.metrics import families
from kube_accel.metrics.aliases import Use, Uses
from kube_accel.metrics.attribute import Attributed, Figures
from kube_accel.metrics.charge import charged, memory_of
from kube_accel.metrics.exposition import Family, Series
from kube_accel.metrics.sample import GpuSample
from kube_accel.metrics.tenancy import Container, Holdings, Refused

_REASONS = ("quota", "device", "policy")

Key = tuple[str, Container]
"""A GPU's UUID, and who has some of it."""


class Kept(NamedTuple):
    """What is known of a container on a GPU across collectors."""

    allocation: int
    """Another one when it got the GPU again."""
    uid: str
    """UID of the pod; empty where it is not known."""
    peak_bytes: int | None


@dataclass(slots=True)
class _Memory:
    """The memory in use by a container on a GPU, since it got it."""

    allocation: int | None = None
    uid: str = ""
    busy_seconds: float | None = None
    """None until it is known once: no container is called idle before."""
    peak_bytes: int | None = None
    active_at: float | None = None
    ratio: float | None = None
    figures: Figures = Figures()  # noqa: RUF009 - frozen


class Containers:
    """All containers of a node. For one thread."""

    def __init__(self, node: str, mode: str) -> None:
        self._node = node
        self._mode = mode
        self._holdings: Holdings | None = None
        self._memories: dict[Key, _Memory] = {}

    def see(
        self,
        holdings: Holdings,
        samples: Mapping[str, GpuSample],
        attributed: Mapping[str, Attributed],
        kept: Mapping[Key, Kept],
        now: float,
    ) -> dict[int, int]:
        """Take in a collection. GPUs may be missing in ``samples`` and ``attributed``, anything in ``kept``.

        The peaks to keep, by allocation: those that are higher than what is kept.
        """
        self._holdings = holdings
        memories: dict[Key, _Memory] = {}
        risen: dict[int, int] = {}
        for uuid, held in holdings.items():
            for container in {holding.container for holding in held}:
                one = kept.get((uuid, container))
                memory = memories[uuid, container] = _remembered(self._memories.get((uuid, container)), one)
                told = attributed.get(uuid)
                figures = memory.figures = told.containers.get(container, Figures()) if told else Figures()
                memory.ratio = None
                if figures.memory_bytes is not None:
                    memory.peak_bytes = max(memory.peak_bytes or 0, figures.memory_bytes)
                peak = memory.peak_bytes
                if one is not None and peak is not None and (one.peak_bytes is None or peak > one.peak_bytes):
                    risen[one.allocation] = peak
                busy = samples[uuid].busy if uuid in samples else None
                if figures.busy_seconds is not None and busy is not None and busy.known > 0:
                    memory.busy_seconds = (memory.busy_seconds or 0.0) + figures.busy_seconds
                    memory.ratio = min(1.0, figures.busy_seconds / busy.known)
                    if figures.busy_seconds > 0:
                        memory.active_at = now
        self._memories = memories
        return risen

    @property
    def holdings(self) -> Holdings:
        """Return the holdings that were seen last."""
        return self._holdings or {}

    @property
    def uses(self) -> Uses:
        """Return what is known of them."""
        return {key: Use(memory.figures.memory_bytes, memory.ratio) for key, memory in self._memories.items()}

    def families(self, capacity: Mapping[str, int], refusals: Mapping[Refused, int]) -> Iterator[tuple[Family, Series]]:
        """Yield the families; ``capacity`` is in bytes by GPU, of all there are."""
        if self._holdings is None:
            return
        yield from self._allocated(self._holdings, capacity)
        told = [(self._labels(key), memory) for key, memory in self._memories.items()]
        for family, pairs in (
            (families.CONTAINER_USED, ((labels, m.figures.memory_bytes) for labels, m in told)),
            (families.CONTAINER_PEAK, ((labels, m.peak_bytes) for labels, m in told)),
            (families.CONTAINER_UTILIZATION, ((labels, m.ratio) for labels, m in told)),
            (families.CONTAINER_BUSY, ((labels, m.busy_seconds) for labels, m in told)),
            (families.CONTAINER_PROCESSES, ((labels, m.figures.processes) for labels, m in told)),
            (families.CONTAINER_ACTIVE, ((labels, m.active_at) for labels, m in told)),
        ):
            yield family, _known(pairs)
        failures = self._failures(self._holdings, refusals)
        yield families.CONTAINER_FAILURES, failures
        yield families.PADDLE_FAILURES, self._paddle(self._holdings, failures)

    def _allocated(self, holdings: Holdings, capacity: Mapping[str, int]) -> Iterator[tuple[Family, Series]]:
        cores: dict[tuple[str, ...], float] = {}
        requests: dict[tuple[str, ...], float] = {}
        shares: dict[tuple[str, ...], float] = {}
        taken = dict.fromkeys(capacity, 0)
        for uuid, held in holdings.items():
            for container, share in charged(held).items():
                shares[self._labels((uuid, container))] = share
            for holding in held:
                labels = self._labels((uuid, holding.container))
                if holding.cores is not None:
                    cores[labels] = cores.get(labels, 0.0) + holding.cores
                if holding.memory_bytes is not None:
                    requests[labels] = requests.get(labels, 0) + holding.memory_bytes
                if uuid in taken:
                    taken[uuid] += memory_of(holding, capacity[uuid])
        yield families.CONTAINER_CORES, cores
        yield (
            families.CONTAINER_MIG,
            {
                (*self._labels((uuid, holding.container)), holding.device): 1
                for uuid, held in holdings.items()
                for holding in held
                if holding.device
            },
        )
        yield families.CONTAINER_REQUEST, requests
        yield families.CONTAINER_ALLOCATED, shares
        allocated: dict[tuple[str, ...], float] = {
            (self._node, uuid): min(used, capacity[uuid]) for uuid, used in taken.items()
        }
        yield families.GPU_ALLOCATED, allocated
        yield families.GPU_UNALLOCATED, {key: capacity[key[1]] - used for key, used in allocated.items()}

    def _failures(self, holdings: Holdings, refusals: Mapping[Refused, int]) -> Series:
        """Return failures from the start: a series that is first seen at 3 has not grown."""
        return {
            (*self._labels((uuid, holding.container)), reason): refusals.get(
                Refused(holding.container, uuid, reason), 0
            )
            for uuid, held in holdings.items()
            for holding in held
            if holding.limited
            for reason in _REASONS
        }

    def _paddle(self, holdings: Holdings, failures: Series) -> Series:
        found = [
            self._labels((uuid, one.container))
            for uuid in holdings
            for one in holdings[uuid]
            if one.limited and one.paddle
        ]
        return {labels: sum(failures[*labels, reason] for reason in _REASONS) for labels in found}

    def _labels(self, key: Key) -> tuple[str, ...]:
        return (self._node, key[0], *key[1], self._mode)


def _remembered(memory: _Memory | None, kept: Kept | None) -> _Memory:
    """Return what is remembered, or was kept before, unless that is another pod's."""
    if kept is None:
        return memory or _Memory()
    same = memory is None or memory.allocation in (None, kept.allocation) or (kept.uid and kept.uid == memory.uid)
    memory = memory if memory is not None and same else _Memory()
    memory.allocation, memory.uid = kept.allocation, kept.uid
    if kept.peak_bytes is not None:
        memory.peak_bytes = max(memory.peak_bytes or 0, kept.peak_bytes)
    return memory


def unattributed(node: str, attributed: Mapping[str, Attributed]) -> Series:
    """Return the memory in use that has no known owner."""
    return {
        (node, uuid, reason): used for uuid, told in attributed.items() for reason, used in told.unattributed.items()
    }


def _known(pairs: Iterable[tuple[tuple[str, ...], float | None]]) -> Series:
    return {labels: value for labels, value in pairs if value is not None}
