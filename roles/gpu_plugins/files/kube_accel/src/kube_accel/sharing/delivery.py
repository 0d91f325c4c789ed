# SPDX-License-Identifier: Apache-2.0
"""The ways to tell a container runtime which GPUs a container has. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum


class Strategy(StrEnum):
    """A way to tell the container runtime a container's GPUs."""

    ENVVAR = "envvar"
    """A variable, which NVIDIA's runtime reads, and which any image can set."""
    VOLUME_MOUNTS = "volume-mounts"
    """Mounts of /dev/null by the GPUs' names, which NVIDIA's runtime reads, and no image can set."""
    CDI_ANNOTATIONS = "cdi-annotations"
    """Names of CDI devices in annotations of the container."""
    CDI_CRI = "cdi-cri"
    """Names of CDI devices in kubelet's request to the runtime."""

    @property
    def by_cdi(self) -> bool:
        """Return whether the runtime reads a CDI specification."""
        return self in (Strategy.CDI_ANNOTATIONS, Strategy.CDI_CRI)


@dataclass(frozen=True, slots=True)
class Delivery:
    """How containers get to know their GPUs, and what they get besides."""

    # Both: the one that the runtime is set to ignore does no harm.
    strategies: tuple[Strategy, ...] = (Strategy.VOLUME_MOUNTS, Strategy.ENVVAR)
    by_index: bool = False
    """The variable and the mounts name NVML's indices in place of UUIDs."""
    device_nodes: bool = True
    """The GPUs' device nodes are kubelet's to give as well, so that cgroups know them."""
    annotation_prefix: str = "cdi.k8s.io/"
    gdrcopy: bool = False
    gds: bool = False
    mofed: bool = False
    imex_channels: tuple[int, ...] = ()
    hooks_by_cdi: bool = False
    """Containers with a share that get their files by mounts name a CDI device too, for what mounts cannot bring."""
    driver_root: str = "/"
    """Where the driver's files are, as the container runtime sees it."""
    driver_root_here: str = "/"
    """The same directory as this process sees it."""

    @property
    def by_cdi(self) -> bool:
        """Return whether there has to be a CDI specification."""
        return any(strategy.by_cdi for strategy in self.strategies)


@dataclass(frozen=True, slots=True)
class Terms:
    """How the parts of a resource are handed out."""

    pack: bool = False
    """Whether the most used of what is shared goes first; otherwise the least used does."""
    one_each: bool = False
    """A container gets one replica at most."""
    delivery: Delivery = Delivery()


@dataclass(frozen=True, slots=True)
class Grant:
    """What a container receives for its devices."""

    environment: dict[str, str]
    device_nodes: tuple[str, ...]
    """Names below ``/dev``, the same on the host and in the container."""
    mounts: dict[str, str] = field(default_factory=dict)
    """Paths on the host by path in the container."""
    read_only_mounts: dict[str, str] = field(default_factory=dict)
    """The same, of what the container must not change."""
    annotations: dict[str, str] = field(default_factory=dict)
    cdi_devices: tuple[str, ...] = ()
    """Qualified names."""

    def joined(self, other: Grant) -> Grant:
        """Return what both give; the other's where they differ."""
        return Grant(
            self.environment | other.environment,
            self.device_nodes + other.device_nodes,
            self.mounts | other.mounts,
            self.read_only_mounts | other.read_only_mounts,
            self.annotations | other.annotations,
            self.cdi_devices + other.cdi_devices,
        )
