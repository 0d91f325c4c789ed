# SPDX-License-Identifier: Apache-2.0
"""How a node enforces shares: what can be chosen, what is chosen, and what every way of it has to do."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, Protocol

from kube_accel.enforce.policy import Limit
from kube_accel.model import Enforcement, Gpu, Mode
from kube_accel.shared import label_names
from kube_accel.sharing.delivery import Grant
from kube_accel.sharing.fraction import Kind, grant
from kube_accel.sharing.profile import Profile

LABEL: Final = label_names.ENFORCEMENT
"""Label of a node that shares GPUs: the ``Name`` of what enforces the shares."""


class Name(StrEnum):
    """What enforces the shares of a node."""

    INTERPOSER = "interposer"
    MPS_INTERPOSER = "mps-interposer"
    """MPS the multiprocessors, the interposer each container's memory."""
    MPS = "mps"
    """MPS both, of each process."""
    DMEM = "dmem"
    """The kernel the memory; nothing enforces the cores."""
    NONE = "none"


class EnforceError(Exception):
    """A container cannot get what enforces its share; the message says why."""


@dataclass(frozen=True, slots=True)
class Ask:
    """Devices of one kind that kubelet gives to a container."""

    kind: Kind
    ids: Collection[str]
    chosen: Mapping[str, int]
    """How many of each GPU, by UUID."""
    gpus: Mapping[str, Gpu]

    @property
    def whole(self) -> bool:
        """Return whether these are all cores of the GPUs."""
        return self.kind is Kind.CORES and set(self.chosen.values()) == {100}


@dataclass(frozen=True, slots=True)
class Start:
    """A container that is about to start."""

    ids: Collection[str]
    """The devices that its files are kept by."""
    limits: tuple[Limit, ...]
    """One a GPU."""
    pod_uid: str
    """Empty when it is not known."""
    beside: Mapping[str, int] = field(default_factory=dict)
    """Bytes that other containers of its pod have, by the GPU's UUID."""


class Backend(Protocol):
    """One way to enforce shares."""

    name: Name

    def grant(self, ask: Ask) -> Grant:
        """Return what a container receives for its devices of one kind. Raises EnforceError."""

    def start(self, start: Start) -> None:
        """Have the limits in force before the container's first process. Raises EnforceError."""


@dataclass(frozen=True, slots=True)
class Choice:
    """What a node does, and what the log says of it."""

    name: Name
    reason: str = ""
    """What stands in the way of something better; empty when nothing does."""
    withheld: bool = False
    """No share is offered because of that."""


def choose(mode: Mode, wanted: Enforcement, unfit: Mapping[Enforcement, str], allow_unenforced: bool) -> Choice:
    """Return what a node in ``mode`` does. Pure.

    ``unfit`` says why a way cannot be used here; a way that is absent from it can.
    """
    wish = Enforcement.INTERPOSER if wanted is Enforcement.AUTO else wanted
    if wish is Enforcement.NONE:
        return Choice(Name.NONE)
    reason = unfit.get(wish, "")
    if mode is Mode.MPS:
        if wish is Enforcement.MPS:
            return Choice(Name.MPS)
        if not reason:
            return Choice(Name.MPS_INTERPOSER)
        # MPS has limits of its own, weaker ones: only who asks for the interposer insists on it.
        return Choice(Name.MPS, reason, withheld=wanted is Enforcement.INTERPOSER and not allow_unenforced)
    if not reason:
        return Choice(Name(wish.value))
    return Choice(Name.NONE, reason, withheld=not allow_unenforced)


def possible(mode: Mode, wanted: Enforcement) -> bool:
    """Return whether that can be asked for in this mode. Pure."""
    return wanted not in ((Enforcement.DMEM, Enforcement.NONE) if mode is Mode.MPS else (Enforcement.MPS,))


class Unenforced:
    """Shares that containers are shown, and that nothing limits."""

    name = Name.NONE

    def __init__(self, profile: Profile, node_exists: Callable[[str], bool]) -> None:
        """``node_exists`` says whether there is a device node of this name below ``/dev``."""
        self._profile = profile
        self._node_exists = node_exists

    def grant(self, ask: Ask) -> Grant:
        """Return the GPU's name, for NVIDIA's runtime."""
        return grant(ask.chosen, ask.kind, ask.gpus, self._profile, self._node_exists)

    def start(self, start: Start) -> None:
        """Do nothing."""


class WithMps:
    """Another backend, and what MPS adds for its clients."""

    def __init__(
        self, name: Name, backend: Backend, more: Callable[[Kind, Mapping[str, int], Mapping[str, Gpu]], Grant]
    ) -> None:
        self.name = name
        self._backend = backend
        self._more = more

    def grant(self, ask: Ask) -> Grant:
        """Return what both give. Raises EnforceError."""
        # First what makes no files.
        other = self._more(ask.kind, ask.chosen, ask.gpus)
        return self._backend.grant(ask).joined(other)

    def start(self, start: Start) -> None:
        """Have the other backend's limits in force; the control daemon has MPS's."""
        self._backend.start(start)
