# SPDX-License-Identifier: Apache-2.0
"""Whole GPUs: one device a GPU, its id the GPU's UUID, for one container at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from kube_accel.model import Gpu

RESOURCE = "nvidia.com/gpu"

# Every CUDA process opens these besides its GPU's own node; which of them exist depends on the loaded modules.
_SHARED_NODES = ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-modeset")

# NVIDIA's container runtime takes a mount of /dev/null here as a request for the GPU. No image can ask for one, as it
# can by its environment: with accept-nvidia-visible-devices-envvar-when-unprivileged=false only the mounts count.
_VISIBLE = "/var/run/nvidia-container-devices"


@dataclass(frozen=True, slots=True)
class Grant:
    """What a container receives for its devices."""

    environment: dict[str, str]
    device_nodes: tuple[str, ...]
    """Names below ``/dev``, the same on the host and in the container."""
    mounts: dict[str, str] = field(default_factory=dict)
    """Paths on the host by path in the container."""


def grant(gpus: Iterable[Gpu], node_exists: Callable[[str], bool]) -> Grant:
    """The grant for these GPUs, with those of their device nodes that exist on the host."""
    chosen = sorted(gpus, key=lambda gpu: gpu.index)
    names = (*(f"nvidia{gpu.minor}" for gpu in chosen), *_SHARED_NODES)
    return Grant(
        environment={"NVIDIA_VISIBLE_DEVICES": ",".join(gpu.uuid for gpu in chosen)},
        device_nodes=tuple(name for name in names if node_exists(name)),
        mounts={f"{_VISIBLE}/{gpu.uuid}": "/dev/null" for gpu in chosen},
    )
