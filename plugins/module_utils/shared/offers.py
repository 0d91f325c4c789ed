# Apache License 2.0 (see https://www.apache.org/licenses/LICENSE-2.0)
# SPDX-License-Identifier: Apache-2.0
"""What a node offers of its GPUs: the one rule of the plugin that offers and of the role that waits for it. Pure.

A *part* is a GPU, or a MIG device of one. A configuration has parts of a resource offered several times, as replicas.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Collection, Dict, Iterable, List, Mapping, Optional, Protocol, Sequence, Tuple, TypeVar, Union

from .modes import BY_MODE, CORES, WHOLE_MODE, WHOLE_RESOURCE

NONE, SINGLE, MIXED = "none", "single", "mixed"
"""What becomes of GPUs in MIG mode, by the names of NVIDIA's device plugin."""
_REMEDY = "cut all GPUs alike, or use the strategy mixed"
_CUT = "create MIG devices, or take the GPU out of MIG mode"

_LIST_BYTES = 4 << 20
"""Kubelet's gRPC client takes messages of that size (grpc-go, defaultClientMaxReceiveMessageSize)."""
_DEVICE_BYTES = 31
"""What a device takes in a list (v1beta1, ListAndWatchResponse) beside its id: lengths, health, a NUMA node."""
_CLIENTS = 48
_CLIENTS_13_1 = 60
_MIN_COMPUTE_CAPABILITY = (7, 0)
_MIN_DRIVER = 495


class HasProfile(Protocol):
    """A MIG device."""

    @property
    def profile(self) -> str:
        """``1g.18gb``, ``1g.18gb+me``."""


class IsGpu(Protocol):
    """A GPU and its MIG devices."""

    @property
    def compute_capability(self) -> Tuple[int, ...]:
        """Major and minor."""

    @property
    def uuid(self) -> str:
        """NVML's name for it."""

    @property
    def index(self) -> int:
        """NVML's number of it."""

    @property
    def memory_bytes(self) -> int:
        """Return the memory of all devices."""

    @property
    def mig_enabled(self) -> bool:
        """Return whether it is in MIG mode."""

    @property
    def mig_devices(self) -> Sequence[HasProfile]:
        """Return its MIG devices; None unless it is in MIG mode."""


class IsPart(Protocol):
    """A part of the hardware that one container has at a time, unless it is replicated."""

    @property
    def id(self) -> str:
        """Kubelet's name for it."""

    @property
    def uuid(self) -> str:
        """NVML's name for it: that of the GPU, or of the MIG device."""

    @property
    def index(self) -> str:
        """NVML's number: that of the GPU, or ``<gpu>:<instance>``."""

    @property
    def gpu(self) -> IsGpu:
        """Return the GPU that it is a part of."""


G = TypeVar("G", bound=IsGpu)
P = TypeVar("P", bound=IsPart)


class TooManyError(ValueError):
    """Kubelet would not take the list of a resource's devices, or MPS not the clients; the message says how many."""


@dataclass(frozen=True)
class Replication:
    """A resource whose parts are offered several times."""

    resource: str
    """The parts of this resource."""
    name: str
    """As parts of this one; the same, or another."""
    replicas: int
    devices: Optional[Union[int, Tuple[str, ...]]] = None
    """How many of them, or those with these indices or UUIDs, or (None) all."""
    by_mps: bool = False
    """Each replica has an equal part of the GPU's memory and threads, which MPS enforces; else they take turns."""

    def chosen(self, parts: Iterable[IsPart]) -> Collection[str]:
        """Return the ids of those of ``parts`` that are replicated: by MPS, whole GPUs alone."""
        ids = [part.id for part in parts if self._named(part)]
        return ids[: self.devices] if isinstance(self.devices, int) else ids

    def _named(self, part: IsPart) -> bool:
        if self.by_mps and part.uuid != part.gpu.uuid:
            return False
        return not isinstance(self.devices, tuple) or part.index in self.devices or part.uuid in self.devices


@dataclass(frozen=True)
class Offered:
    """How often a part is offered by one name."""

    replicas: int = 0
    """0 where it is not replicated, and offered once under its own id."""
    by_mps: bool = False

    @property
    def count(self) -> int:
        """Return how many devices kubelet is shown."""
        return max(self.replicas, 1)


def mig_resource(profile: str) -> str:
    """Return the name of a MIG profile's resource; a resource's name has no plus."""
    return f"nvidia.com/mig-{profile.replace('+', '.')}"


def laid_out(strategy: str, gpus: Sequence[G]) -> Dict[str, List[Tuple[G, Optional[int]]]]:
    """Return the parts by resource, each a GPU and the number of a MIG device in its list, or None for all of it.

    There are none where the node has a ``mig_problem``, and none of a GPU that is ``left_out``.
    """
    if mig_problem(strategy, gpus):
        return {}
    odd = left_out(strategy, gpus)
    found: Dict[str, List[Tuple[G, Optional[int]]]] = {}
    for gpu in gpus:
        if gpu.uuid in odd:
            continue
        if strategy == NONE or not gpu.mig_enabled:
            found.setdefault(WHOLE_RESOURCE, []).append((gpu, None))
        for number, device in enumerate(gpu.mig_devices if strategy != NONE else ()):
            name = WHOLE_RESOURCE if strategy == SINGLE else mig_resource(device.profile)
            found.setdefault(name, []).append((gpu, number))
    return found


def mig_problem(strategy: str, gpus: Sequence[IsGpu]) -> str:
    """Return why nothing of the node can be offered by this strategy, with the remedy; empty when it can."""
    if strategy == MIXED and gpus and all(map(_uncut, gpus)):
        return f"MIG strategy mixed: every GPU is in MIG mode, and none has MIG devices; {_CUT}"
    if strategy != SINGLE or not any(gpu.mig_enabled for gpu in gpus):
        return ""
    profiles = sorted({device.profile for gpu in gpus for device in gpu.mig_devices})
    if len(profiles) == 1:
        return ""
    if not profiles:
        return f"MIG strategy single: no GPU has MIG devices, and some are in MIG mode; {_REMEDY}"
    return f"MIG strategy single: there are devices of several profiles, {', '.join(profiles)}; {_REMEDY}"


def left_out(strategy: str, gpus: Sequence[IsGpu]) -> Mapping[str, str]:
    """Return by UUID why a GPU is not offered although others are, as one that a reset took its devices from."""
    if strategy == MIXED and not mig_problem(strategy, gpus):
        return {
            gpu.uuid: f"MIG strategy mixed: GPU {gpu.index} ({gpu.uuid}) is in MIG mode and has no MIG devices; {_CUT}"
            for gpu in gpus
            if _uncut(gpu)
        }
    if strategy != SINGLE or not any(gpu.mig_devices for gpu in gpus):
        return {}
    return {
        gpu.uuid: f"MIG strategy single: GPU {gpu.index} ({gpu.uuid}) "
        f"{'has no MIG devices' if gpu.mig_enabled else 'is not in MIG mode'} and others have; {_REMEDY}"
        for gpu in gpus
        if not gpu.mig_devices
    }


def _uncut(gpu: IsGpu) -> bool:
    return gpu.mig_enabled and not gpu.mig_devices


def replicated(
    resources: Mapping[str, Sequence[P]], replications: Collection[Replication]
) -> Dict[str, List[Tuple[P, Offered]]]:
    """Return the parts by the resource they are offered as, each with how often.

    Parts that a replication leaves out stay what they were. Of several that take a part, the first names it, and of
    those by this name the one with most replicas counts. Raises TooManyError for more than kubelet takes.
    """
    by_name: Dict[str, List[Tuple[P, Offered]]] = {}
    for resource, parts in resources.items():
        chosen = [(each, frozenset(each.chosen(parts))) for each in replications if each.resource == resource]
        for part in parts:
            taken = [replication for replication, ids in chosen if part.id in ids]
            name = taken[0].name if taken else resource
            count = max((each.replicas for each in taken if each.name == name), default=0)
            by_name.setdefault(name, []).append((part, Offered(count, bool(taken) and taken[0].by_mps and count > 1)))
    for name, offered in by_name.items():
        _check_length(name, offered)
    return by_name


def client_limit(cuda_version: Tuple[int, ...]) -> int:
    """Return how many clients a GPU's MPS server takes under a driver of this CUDA version (MPS documentation).

    Every container needs one at least; a process over the limit gets CUDA error 808.
    """
    return _CLIENTS_13_1 if cuda_version >= (13, 1) else _CLIENTS


def check_clients(replicas: Mapping[str, int], clients: int) -> None:
    """Raise TooManyError where more replicas would share a GPU by MPS than it takes ``clients`` (processes)."""
    for resource, count in replicas.items():
        if count > clients:
            raise TooManyError(
                f"{count} replicas of a GPU, offered as {resource}, would share it by MPS, which takes {clients} "
                f"processes with this driver; configure at most {clients}"
            )


def units(gpu: IsGpu, unit_bytes: Optional[int]) -> int:
    """Return the devices that a GPU has for memory in units of so many bytes, or (None) for cores; 0 in MIG mode."""
    if gpu.mig_enabled:
        return 0
    return CORES if unit_bytes is None else gpu.memory_bytes // unit_bytes


def mps_unfit(gpu: IsGpu, driver_version: str) -> str:
    """Return why a GPU cannot be shared by MPS; empty when it can."""
    if gpu.compute_capability < _MIN_COMPUTE_CAPABILITY:
        return f"compute capability {'.'.join(map(str, gpu.compute_capability))}: MPS has limits from 7.0 (Volta) on"
    major = driver_version.partition(".")[0]
    if major.isdecimal() and int(major) < _MIN_DRIVER:
        return f"driver {driver_version}: MPS has memory limits from driver {_MIN_DRIVER} on; upgrade the driver"
    return ""


@dataclass(frozen=True)
class Slice:
    """A MIG device of a GPU, as a host sees it."""

    uuid: str
    slot: int
    profile: str


@dataclass(frozen=True)
class Card:
    """A GPU as a host sees it."""

    uuid: str
    index: int
    memory_bytes: int
    compute_capability: Tuple[int, ...] = ()
    mig_enabled: bool = False
    mig_devices: Tuple[Slice, ...] = ()
    healthy: bool = True


@dataclass(frozen=True)
class Host:
    """What a host has for a plugin to offer."""

    cards: Tuple[Card, ...] = ()
    driver_version: str = ""
    cuda_version: Tuple[int, ...] = ()

    def serves(self, card: Card, by_mps: bool) -> bool:
        """Return whether a GPU may be offered; by MPS it needs a control daemon, which no GPU in MIG mode has."""
        if by_mps and (card.mig_enabled or mps_unfit(card, self.driver_version)):
            return False
        return card.healthy


@dataclass(frozen=True)
class _Part:
    """A GPU or a MIG device, and what a host calls it."""

    gpu: Card
    uuid: str
    index: str

    @property
    def id(self) -> str:
        return self.uuid


def must_offer(
    mode: str, host: Host, strategy: str = NONE, replications: Collection[Replication] = ()
) -> Dict[str, int]:
    """Return the devices that a node offers by resource, once the plugin of its mode serves and all is well.

    Those of a GPU that may not be offered do not count. A node without any device has its resources with 0. Raises
    TooManyError.
    """
    if mode != WHOLE_MODE:
        resources = BY_MODE[mode]
        sizes = (
            {resources.memory: resources.memory_unit_bytes}
            if resources.cores is None
            else {resources.cores: None, resources.memory: resources.memory_unit_bytes}
        )
        served = [card for card in host.cards if host.serves(card, mode == "mps")]
        return {name: sum(units(card, size) for card in served) for name, size in sizes.items()}
    parts = {name: [_part(*each) for each in found] for name, found in laid_out(strategy, host.cards).items()}
    offered = replicated(parts, replications)
    most = {
        name: max((how.replicas for unused, how in found if how.by_mps), default=0) for name, found in offered.items()
    }
    check_clients(most, client_limit(host.cuda_version))
    by_mps = {part.gpu.uuid for found in offered.values() for part, how in found if how.by_mps}
    counts = {
        name: sum(how.count for part, how in found if host.serves(part.gpu, part.gpu.uuid in by_mps))
        for name, found in offered.items()
    }
    return {name: count for name, count in counts.items() if count} or counts or {WHOLE_RESOURCE: 0}


def _part(card: Card, number: Optional[int]) -> _Part:
    if number is None:
        return _Part(card, card.uuid, str(card.index))
    device = card.mig_devices[number]
    return _Part(card, device.uuid, f"{card.index}:{device.slot}")


def _check_length(name: str, offered: Collection[Tuple[IsPart, Offered]]) -> None:
    length = sum(how.count * (_DEVICE_BYTES + len(f"{part.id}::{how.replicas}")) for part, how in offered)
    if length > _LIST_BYTES:
        devices = sum(how.count for unused, how in offered)
        most = max(how.replicas for unused, how in offered) * _LIST_BYTES // length
        raise TooManyError(
            f"{name} would have {devices} devices, a list of {length / 2**20:.1f} MiB, and kubelet takes no more than "
            f"{_LIST_BYTES >> 20} MiB; configure at most {most} replicas"
        )
