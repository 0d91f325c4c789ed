# SPDX-License-Identifier: Apache-2.0
"""What a node hands out without dividing it by software: GPUs, and parts of a GPU that hardware keeps apart. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from kube_accel.model import Gpu, Inventory
from kube_accel.shared.modes import WHOLE_RESOURCE
from kube_accel.sharing.delivery import Delivery, Grant, Strategy

RESOURCE = WHOLE_RESOURCE

CDI_KIND = "kube-accel.io/gpu"
"""Vendor and class of our CDI devices: not NVIDIA's, whose toolkit and plugin write specifications of their own."""

# Every CUDA process opens these besides its GPU's own node; which of them exist depends on the loaded modules.
CONTROL_NODES = ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-modeset")
NEEDED_NODES = ("nvidiactl", "nvidia-uvm")
"""Those without which no program can use a GPU."""

# NVIDIA's container runtime takes a mount of /dev/null here as a request for the GPU. No image can ask for one, as it
# can by its environment: with accept-nvidia-visible-devices-envvar-when-unprivileged=false only the mounts count.
_VARIABLE = "NVIDIA_VISIBLE_DEVICES"
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
    """Memory of its GPU; None for all of it."""
    mps_replicas: int = 0
    """How many share the GPU by MPS, this one among them; 0 where it is not shared so."""


Layout = Callable[[Inventory], Mapping[str, tuple[Part, ...]]]
"""The resources that a node offers, each with its parts in the order kubelet is shown them."""


def whole(gpu: Gpu) -> Part:
    """Return a GPU for one container at a time."""
    return Part(gpu.uuid, gpu, gpu.uuid, (f"nvidia{gpu.minor}",), str(gpu.index))


def layout(inventory: Inventory) -> Mapping[str, tuple[Part, ...]]:
    """Return every GPU as one device."""
    return {RESOURCE: tuple(map(whole, inventory.gpus))}


def grant(
    parts: Iterable[Part],
    node_exists: Callable[[str], bool],
    delivery: Delivery = Delivery(),  # noqa: B008 - frozen
) -> Grant:
    """Return the grant for these parts, with those of their device nodes that exist on the host."""
    chosen = sorted(parts, key=lambda part: (part.gpu.index, part.uuid))
    uuids = tuple(dict.fromkeys(part.uuid for part in chosen))
    names = tuple(dict.fromkeys(part.index for part in chosen)) if delivery.by_index else uuids
    extras = {"NVIDIA_GDRCOPY": delivery.gdrcopy, "NVIDIA_GDS": delivery.gds, "NVIDIA_MOFED": delivery.mofed}
    channels = delivery.imex_channels
    environment: dict[str, str] = {}
    mounts: dict[str, str] = {}
    annotations: dict[str, str] = {}
    cdi = tuple(f"{CDI_KIND}={uuid}" for uuid in uuids)
    for strategy in delivery.strategies:
        if strategy is Strategy.CDI_ANNOTATIONS:
            annotations[f"{delivery.annotation_prefix}kube-accel_{uuids[0].replace('/', '-')}"] = ",".join(cdi)
            continue
        if strategy is Strategy.CDI_CRI:
            continue
        environment |= {name: "enabled" for name, wanted in extras.items() if wanted}
        if strategy is Strategy.ENVVAR:
            environment[_VARIABLE] = ",".join(names)
            if channels:
                environment["NVIDIA_IMEX_CHANNELS"] = ",".join(map(str, channels))
        else:
            environment.setdefault(_VARIABLE, _VISIBLE)
            mounts |= {f"{_VISIBLE}/{name}": "/dev/null" for name in names}
            mounts |= {f"{_VISIBLE}/imex/{channel}": "/dev/null" for channel in channels}
    nodes: dict[str, None] = {}
    if delivery.device_nodes:
        nodes = dict.fromkeys((*(name for part in chosen for name in part.device_nodes), *CONTROL_NODES))
    return Grant(
        environment=environment,
        device_nodes=tuple(name for name in nodes if node_exists(name)),
        # It is the host's: a tenant who is root by uid would change its mode for all.
        read_only_mounts=mounts,
        annotations=annotations,
        cdi_devices=cdi if Strategy.CDI_CRI in delivery.strategies else (),
    )
