# SPDX-License-Identifier: Apache-2.0
"""What the fake kubelet is asked and what it answers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from kube_accel.kube.deviceplugin import HEALTHY
from kube_accel.kube.proto import deviceplugin_pb2 as pb


@dataclass(frozen=True, slots=True)
class Device:
    health: str
    numa_nodes: tuple[int, ...] = ()

    @property
    def healthy(self) -> bool:
        return self.health == HEALTHY


@dataclass(frozen=True, slots=True)
class Container:
    name: str
    resources: Mapping[str, int] = field(default_factory=dict)
    """Limits; resources no plugin ever registered are left alone, as kubelet does."""
    restartable: bool = False
    """For init containers: a sidecar, which keeps its devices."""


@dataclass(frozen=True, slots=True)
class PodSpec:
    namespace: str
    name: str
    uid: str
    containers: tuple[Container, ...]
    init_containers: tuple[Container, ...] = ()

    @property
    def all_containers(self) -> tuple[Container, ...]:
        """In the order kubelet gives them devices."""
        return (*self.init_containers, *self.containers)


@dataclass(frozen=True, slots=True)
class Mount:
    container_path: str
    host_path: str
    read_only: bool


@dataclass(frozen=True, slots=True)
class DeviceSpec:
    container_path: str
    host_path: str
    permissions: str


@dataclass(frozen=True, slots=True)
class ContainerAllocation:
    """What the container runtime is told, merged over the container's resources."""

    envs: Mapping[str, str]
    devices: tuple[DeviceSpec, ...]
    mounts: tuple[Mount, ...]
    annotations: Mapping[str, str]
    cdi_devices: tuple[str, ...]
    device_ids: Mapping[str, tuple[str, ...]]
    """By resource."""


def merge(
    responses: Iterable[pb.ContainerAllocateResponse], device_ids: Mapping[str, tuple[str, ...]]
) -> ContainerAllocation:
    """Keep the first of two entries with one key, as kubelet does."""
    envs: dict[str, str] = {}
    devices: dict[str, DeviceSpec] = {}
    mounts: dict[str, Mount] = {}
    annotations: dict[str, str] = {}
    cdi: dict[str, None] = {}
    for response in responses:
        envs = {**response.envs, **envs}
        annotations = {**response.annotations, **annotations}
        for spec in response.devices:
            devices.setdefault(spec.container_path, DeviceSpec(spec.container_path, spec.host_path, spec.permissions))
        for mount in response.mounts:
            mounts.setdefault(mount.container_path, Mount(mount.container_path, mount.host_path, mount.read_only))
        cdi |= dict.fromkeys(device.name for device in response.cdi_devices)
    return ContainerAllocation(
        envs, tuple(devices.values()), tuple(mounts.values()), annotations, tuple(cdi), dict(device_ids)
    )
