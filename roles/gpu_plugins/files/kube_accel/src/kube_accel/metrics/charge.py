# SPDX-License-Identifier: Apache-2.0
"""What namespaces are charged for, integrated from one change to the next. Pure.

Sampling what pods have would lose those that live shorter than a scrape.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from kube_accel.metrics import families
from kube_accel.metrics.exposition import Family, Series
from kube_accel.metrics.tenancy import Container, Holding, Holdings


class Model(NamedTuple):
    """What all GPUs of a kind have in common."""

    name: str
    memory_bytes: int


class Payer(NamedTuple):
    """What is charged together. Without a namespace: what there was to be had of a model, in no mode."""

    namespace: str
    mode: str
    model: str


@dataclass(slots=True)
class Charge:
    """What a payer was charged until now."""

    gpu_seconds: float = 0.0
    memory_byte_seconds: float = 0.0
    busy_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class State:
    """The allocations at a moment of a machine's life."""

    boot: str
    """Boot id of the machine; a moment means nothing to another boot."""
    at: float
    """Seconds, on a clock that cannot be set."""
    gpus: Mapping[str, Model] = field(default_factory=dict)
    holdings: Holdings = field(default_factory=dict)


def charged(holdings: Iterable[Holding]) -> Mapping[Container, float]:
    """Return parts of one GPU that come to 1 at most: two containers can have 80 % of cores and of memory each."""
    shares: dict[Container, float] = {}
    for holding in holdings:
        shares[holding.container] = shares.get(holding.container, 0.0) + holding.share
    scale = min(1.0, 1.0 / total) if (total := sum(shares.values())) else 0.0
    return {container: share * scale for container, share in shares.items()}


def memory_of(holding: Holding, capacity: int) -> int:
    """Return the bytes that it takes of a GPU's."""
    return round(holding.share * capacity) if holding.memory_bytes is None else holding.memory_bytes


def both(before: State, after: State) -> State:
    """Return what was there at both moments, as it was before: what is known of the time in between."""
    holdings: dict[str, tuple[Holding, ...]] = {}
    for uuid, held in before.holdings.items():
        still = {holding.container for holding in after.holdings.get(uuid, ())}
        holdings[uuid] = tuple(holding for holding in held if holding.container in still)
    gpus = {uuid: model for uuid, model in before.gpus.items() if uuid in after.gpus}
    return State(before.boot, before.at, gpus, holdings)


class Meter:
    """Adds up. For one thread at a time."""

    def __init__(self, mode: str, state: State | None, charges: Mapping[Payer, Charge]) -> None:
        """Goes on from where another meter ended, whose state is None when it is not known."""
        self._mode = mode
        self._state = state
        self._restored = state is not None
        self.charges: dict[Payer, Charge] = dict(charges)

    @property
    def state(self) -> State | None:
        """Return the state that was seen last."""
        return self._state

    def see(self, state: State) -> None:
        """Charge the time until now by the state before, but for the time a machine was off, and note this state."""
        before = self._state
        if before is not None and before.boot == state.boot and state.at > before.at:
            # Between two looks a container may have gone and come: one that was there at both pays.
            self._accrue(both(before, state) if self._restored else before, state.at - before.at)
        if before is None or before.boot != state.boot or state.at >= before.at:
            self._state = state
            self._restored = False

    def busy(self, uuid: str, container: Container, seconds: float) -> None:
        """Note that the container was seen to use its GPU."""
        model = self._state.gpus.get(uuid) if self._state is not None else None
        if model is not None:
            self._charge(container.namespace, self._mode, model.name).busy_seconds += seconds

    def forget(self, payers: Iterable[Payer]) -> None:
        """Forget these payers; one that comes back begins at nothing."""
        for payer in payers:
            self.charges.pop(payer, None)

    def _accrue(self, state: State, seconds: float) -> None:
        for uuid, model in state.gpus.items():
            self._charge("", "", model.name).gpu_seconds += seconds
            held = state.holdings.get(uuid, ())
            for container, share in charged(held).items():
                self._charge(container.namespace, self._mode, model.name).gpu_seconds += share * seconds
            for holding in held:
                memory = memory_of(holding, model.memory_bytes)
                charge = self._charge(holding.container.namespace, self._mode, model.name)
                charge.memory_byte_seconds += memory * seconds

    def _charge(self, *account: str) -> Charge:
        return self.charges.setdefault(Payer(*account), Charge())


def charge_families(node: str, charges: Mapping[Payer, Charge]) -> Iterator[tuple[Family, Series]]:
    """Return the families of what was charged."""
    namespaces = {key: charge for key, charge in charges.items() if key.namespace}
    yield families.NAMESPACE_GPU, {(node, *key): charge.gpu_seconds for key, charge in namespaces.items()}
    yield families.NAMESPACE_MEMORY, {(node, *key): charge.memory_byte_seconds for key, charge in namespaces.items()}
    yield families.NAMESPACE_BUSY, {(node, *key): charge.busy_seconds for key, charge in namespaces.items()}
    totals = {key: charge for key, charge in charges.items() if not key.namespace}
    yield families.NODE_SECONDS, {(node, key.model): charge.gpu_seconds for key, charge in totals.items()}
