# SPDX-License-Identifier: Apache-2.0
"""What a node hands out without dividing it by software: GPUs, and parts of a GPU that hardware keeps apart. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from kube_accel.model import Gpu, Inventory

RESOURCE = "nvidia.com/gpu"

# Every CUDA process opens these besides its GPU's own node; which of them exist depends on the loaded modules.
_SHARED_NODES = ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-modeset")

# NVIDIA's container runtime takes a mount of /dev/null here as a request for the GPU. No image can ask for one, as it
# can by its environment: with accept-nvidia-visible-devices-envvar-when-unprivileged=false only the mounts count.
_VISIBLE = "/var/run/nvidia-container-devices"


@dataclass(frozen=True, slots=True)
class Part:
    """One device of a resource, and what of which GPU it stands for."""

    id: str
    """Kubelet's name for it."""
    gpu: Gpu
    """Its health and NUMA node are the device's."""
    uuid: str
    """What CUDA calls it. Several parts may have one: their containers share it."""
    device_nodes: tuple[str, ...]
    """Names below ``/dev`` that it has to itself or shares with others of its GPU."""
    index: str
    """NVML's: that of the GPU, or ``<gpu>:<instance>``."""
    memory_bytes: int | None = None
    """Of its GPU; None for all of it."""


Layout = Callable[[Inventory], Mapping[str, tuple[Part, ...]]]
"""The resources that a node offers, each with its parts in the order kubelet is shown them."""


def whole(gpu: Gpu) -> Part:
    """A GPU for one container at a time."""
    return Part(gpu.uuid, gpu, gpu.uuid, (f"nvidia{gpu.minor}",), str(gpu.index))


def layout(inventory: Inventory) -> Mapping[str, tuple[Part, ...]]:
    """Every GPU as one device."""
    return {RESOURCE: tuple(map(whole, inventory.gpus))}


@dataclass(frozen=True, slots=True)
class Grant:
    """What a container receives for its devices."""

    environment: dict[str, str]
    device_nodes: tuple[str, ...]
    """Names below ``/dev``, the same on the host and in the container."""
    mounts: dict[str, str] = field(default_factory=dict)
    """Paths on the host by path in the container."""


def grant(parts: Iterable[Part], node_exists: Callable[[str], bool]) -> Grant:
    """The grant for these parts, with those of their device nodes that exist on the host."""
    chosen = sorted(parts, key=lambda part: (part.gpu.index, part.uuid))
    uuids = tuple(dict.fromkeys(part.uuid for part in chosen))
    names = dict.fromkeys((*(name for part in chosen for name in part.device_nodes), *_SHARED_NODES))
    return Grant(
        environment={"NVIDIA_VISIBLE_DEVICES": ",".join(uuids)},
        device_nodes=tuple(name for name in names if node_exists(name)),
        mounts={f"{_VISIBLE}/{uuid}": "/dev/null" for uuid in uuids},
    )
