# SPDX-License-Identifier: Apache-2.0
"""The words every room of kube_accel shares: frozen, typed, without I/O."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum


class Mode(StrEnum):
    """What a node hands out; the value of its label ``nvidia-device-enable``."""

    PGPU = "pgpu"
    """Whole GPUs."""
    VGPU = "vgpu"
    """Shares of cores and memory, enforced by the interposer."""
    MPS = "mps"
    """Shares of cores and memory, enforced by MPS."""
    CGPU = "cgpu"
    """Shares of memory alone."""


class OnAbuse(StrEnum):
    """What becomes of a pod that misuses its account again and again."""

    DELETE = "delete"
    EVENT = "event"


class Enforcement(StrEnum):
    """What an administrator wants to enforce shares."""

    AUTO = "auto"
    """The interposer, with MPS in mode mps."""
    INTERPOSER = "interposer"
    MPS = "mps"
    """In mode mps: MPS alone."""
    DMEM = "dmem"
    """The kernel, by cgroups; memory alone."""
    NONE = "none"
    """Nothing: shares are placed and accounted."""


class Ancestor(IntEnum):
    """Closest PCIe ancestor of two GPUs, nearest first; values are ``nvmlGpuTopologyLevel_t``."""

    INTERNAL = 0
    SINGLE_SWITCH = 10
    MULTIPLE_SWITCHES = 20
    HOST_BRIDGE = 30
    NODE = 40
    SYSTEM = 50


@dataclass(frozen=True, slots=True)
class MigDevice:
    """A part of a GPU that MIG keeps apart: a GPU instance with one compute instance."""

    uuid: str
    slot: int
    """NVML's number of it on its GPU."""
    profile: str
    """``1g.18gb``, ``1g.18gb+me``."""
    memory_bytes: int
    capabilities: tuple[int, ...] = ()
    """Numbers in ``/dev/nvidia-caps/nvidia-cap<number>``; empty where the driver does not report them."""
    attributes: tuple[tuple[str, int], ...] = ()
    """What it has of the GPU, by feature discovery's names: ``multiprocessors``, ``slices.gi``, ``engines.copy``."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """One physical GPU as NVML and sysfs describe it. Nothing here changes while the driver stays loaded."""

    uuid: str
    index: int
    """NVML index, which may differ from ``minor``."""
    minor: int
    """Number in ``/dev/nvidia<minor>``."""
    model: str
    memory_bytes: int
    compute_capability: tuple[int, int]
    pci_address: str
    """sysfs spelling: ``0000:1a:00.0``, lower case, four-digit domain."""
    numa_node: int | None
    mig_enabled: bool
    mig_capable: bool = False
    """Whether it can be put into MIG mode."""
    mig_devices: tuple[MigDevice, ...] = ()
    """By slot; none unless it is in MIG mode."""


@dataclass(frozen=True, slots=True)
class GpuLink:
    """How two GPUs of one node are connected."""

    ancestor: Ancestor
    nvlinks: int
    """Active NVLinks between the two; a GPU on NVSwitch counts its links to the switch."""


@dataclass(frozen=True, slots=True)
class UnreadableGpu:
    """A GPU the driver enumerates but cannot describe, and that was never readable before."""

    index: int
    uuid: str | None
    reason: str


@dataclass(frozen=True, slots=True)
class ExcludedGpu:
    """A GPU that is left alone; None for what could not be read of it."""

    index: int
    uuid: str | None
    pci_address: str | None
    model: str | None
    by: str
    """The entry of the list that names it, ``display card``, or why the list cannot be used."""

    def __str__(self) -> str:
        return f"GPU {self.index} ({self.model or self.uuid or 'unknown'}) by {self.by}"


@dataclass(frozen=True, slots=True)
class Inventory:
    """What a node's driver reports, GPUs sorted by index."""

    driver_version: str
    cuda_version: tuple[int, int]
    gpus: tuple[Gpu, ...]
    links: Mapping[frozenset[str], GpuLink] = field(default_factory=dict)
    """Keyed by the two UUIDs. A pair that could not be read is absent."""
    unreadable: tuple[UnreadableGpu, ...] = ()
    excluded: tuple[ExcludedGpu, ...] = ()

    def gpu(self, uuid: str) -> Gpu | None:
        """Return the GPU with this UUID, or None."""
        return next((gpu for gpu in self.gpus if gpu.uuid == uuid), None)


class Health(StrEnum):
    """Whether a GPU may be handed out. UNKNOWN is what is said when NVML did not answer: neither good nor bad."""

    HEALTHY = "healthy"
    UNHEALTHY = "unhealthy"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class GpuHealth:
    """Health of one GPU and, unless it is healthy, why."""

    health: Health
    reason: str = ""
    advice: str = ""
    """What the GPU needs some day although it may be handed out until then."""
    faults: tuple[str, ...] = ()
    """What cannot be read of the GPU although it may be handed out: function, cause and remedy."""


class DriverState(StrEnum):
    """What stands between us and NVML."""

    STARTING = "starting"
    READY = "ready"
    UNAVAILABLE = "unavailable"
    """NVML answered with an error, or there is no NVML: no driver, no library, version mismatch."""
    WEDGED = "wedged"
    """NVML does not answer within its deadline."""
    QUIESCED = "quiesced"
    """We let go of NVML because an administrator asked us to."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The last thing known about a node's GPUs. Reading one never waits."""

    version: int
    """Grows with every change."""
    driver_state: DriverState
    detail: str
    """One sentence for a person; empty while READY."""
    inventory: Inventory | None
    """The last good inventory, kept when the driver stops answering; None before the first one."""
    health: Mapping[str, GpuHealth]
    """By UUID, for every GPU of the inventory."""


@dataclass(frozen=True, slots=True)
class GpuUsage:
    """What processes have of one GPU, by process id of the host."""

    memory: Mapping[int, int | None]
    """Bytes; None for a process whose memory the driver does not report."""
    time: Mapping[int, int] | None
    """Percent of the multiprocessors' time since the question before; None where the driver does not report it."""


class ContainerKind(StrEnum):
    """How long a container of a pod lives, which decides what it leaves to the ones after it."""

    INIT = "init"
    """Ends before the next container starts, and leaves its devices to it."""
    SIDECAR = "sidecar"
    """An init container that stays."""
    APP = "app"


class PlacementPolicy(StrEnum):
    """Where a share goes when several GPUs or nodes have room for it."""

    BINPACK = "binpack"
    """Where the least is left: keeps GPUs and nodes whole."""
    SPREAD = "spread"
    """Where the most is left."""


@dataclass(frozen=True, slots=True)
class GpuConstraints:
    """What a pod wants of the GPUs it gets. Empty sets and None ask for nothing."""

    models_in: frozenset[str] = frozenset()
    """Lower-case substrings: the GPU's model contains one of them."""
    models_out: frozenset[str] = frozenset()
    """Lower-case substrings: the GPU's model contains none of them."""
    uuids_in: frozenset[str] = frozenset()
    """Lower case."""
    uuids_out: frozenset[str] = frozenset()
    """Lower case."""
    min_compute_capability: tuple[int, int] | None = None
    min_cuda: tuple[int, int] | None = None
    """The least CUDA version the node's driver supports."""


@dataclass(frozen=True, slots=True)
class ContainerRequest:
    """What one container asks for: whole GPUs, or a share of one GPU."""

    name: str
    kind: ContainerKind
    whole: int = 0
    """Whole GPUs; 0 for a share."""
    cores: int = 0
    """Percent of one GPU, for a share; 0 where the mode divides memory only."""
    memory_bytes: int = 0
    """Memory of one GPU for a share; with whole GPUs what they must have together, 0 when that was left open."""


@dataclass(frozen=True, slots=True)
class PodRequest:
    """What a pod asks for in one mode."""

    mode: Mode
    containers: tuple[ContainerRequest, ...]
    """Those that ask for GPUs, in the order kubelet admits them: init containers and sidecars, then the others."""
    policy: PlacementPolicy = PlacementPolicy.BINPACK
    constraints: GpuConstraints = GpuConstraints()
    memory_unit: int = 1
    """Bytes; memory is handed out in multiples of it."""


@dataclass(frozen=True, slots=True)
class Share:
    """What a container has of one GPU; a whole one is 100 cores and all the memory."""

    uuid: str
    cores: int
    memory_bytes: int


@dataclass(frozen=True, slots=True)
class Assignment:
    """The GPUs chosen for a pod."""

    node: str
    containers: Mapping[str, tuple[Share, ...]]
    """By container name, for those that asked for GPUs."""


@dataclass(frozen=True, slots=True)
class GpuUse:
    """What is taken of one GPU. 100 cores are the whole GPU, whatever the memory says."""

    cores: int = 0
    memory_bytes: int = 0
    containers: int = 0
    """How many have some of it, as far as that is known: in mode mps each is at least one client of its server."""
