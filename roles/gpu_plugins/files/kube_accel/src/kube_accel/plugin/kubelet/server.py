# SPDX-License-Identifier: Apache-2.0
"""What kubelet calls. Every answer comes from memory: no NVML, no API server, no lock held by anyone who waits."""

from __future__ import annotations

import logging
import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Container, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from kube_accel.enforce.backend import EnforceError
from kube_accel.enforce.mps import MpsPaths, replica_grant
from kube_accel.kube import deviceplugin
from kube_accel.kube.proto import deviceplugin_pb2 as pb
from kube_accel.model import Gpu, Inventory
from kube_accel.placement.topology import Connectivity, choose_connected
from kube_accel.plugin.kubelet.calls import Calls, Counted
from kube_accel.plugin.kubelet.device_exclusivity import DeviceExclusivity, StartRefused
from kube_accel.plugin.kubelet.devices import Device, device_list
from kube_accel.rpc.server import Context, Server
from kube_accel.rpc.status import Code, RpcError
from kube_accel.sharing import replication, whole
from kube_accel.sharing.delivery import Delivery, Grant, Terms

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Offer:
    """What is being offered. Replaced as a whole, so that a request sees one state."""

    serial: int = 0
    """Grows with each message; 0 while there is none."""
    devices: tuple[Device, ...] = ()
    message: pb.ListAndWatchResponse = field(default_factory=pb.ListAndWatchResponse)
    inventory: Inventory | None = None
    connectivity: Connectivity | None = None
    gpus: dict[str, Gpu] = field(default_factory=dict)
    parts: dict[str, whole.Part] = field(default_factory=dict)
    """By device id, where a device is a part."""
    shared: bool = False
    """Whether some of them are less than a GPU for one container."""
    terms: Terms = field(default_factory=Terms)
    unhealthy: frozenset[str] = frozenset()


class ListedPlugin(ABC):
    """A device plugin service (``deviceplugin.DevicePlugin``) with a list; what its devices are is left open."""

    options = pb.DevicePluginOptions(get_preferred_allocation_available=True)
    """What kubelet shall call."""
    at_once = False
    """Whether Allocate and GetPreferredAllocation wait for nothing."""

    def __init__(
        self,
        dev_root: Path,
        on_allocate: Callable[[tuple[str, ...]], None],
        on_stream_end: Callable[[], None],
    ) -> None:
        """``dev_root`` is where the host's ``/dev`` is seen; the callbacks run on request threads and must be quick."""
        self._dev_root = str(dev_root)
        self._on_allocate = on_allocate
        self._on_stream_end = on_stream_end
        self._changed = threading.Condition()
        self._offer = Offer()
        self._streams: set[int] = set()
        self._newest_stream = 0
        self._closed = False
        self.calls = Calls()
        """What kubelet has asked for."""

    @property
    def devices(self) -> tuple[Device, ...]:
        """Return what is advertised now."""
        return self._offer.devices

    @property
    def has_list(self) -> bool:
        """Return whether there is a list to show, be it empty."""
        return self._offer.serial > 0

    @property
    def streams(self) -> int:
        """Return how many ListAndWatch calls are open."""
        return len(self._streams)

    @property
    def newest_stream(self) -> tuple[int, bool]:
        """Return which ListAndWatch call was the last to be opened, counted from 1, and whether it still is open."""
        with self._changed:
            return self._newest_stream, self._newest_stream in self._streams

    def publish(
        self,
        devices: tuple[Device, ...],
        inventory: Inventory | None,
        parts: tuple[whole.Part, ...] = (),
        terms: Terms = Terms(),  # noqa: B008 - frozen
    ) -> bool:
        """Offer these devices; return whether the list differs from the last one, so that kubelet gets a message."""
        with self._changed:
            old = self._offer
            same = old.serial > 0 and devices == old.devices
            connectivity = old.connectivity
            if inventory != old.inventory:
                connectivity = Connectivity.of(inventory) if inventory else None
            self._offer = Offer(
                serial=old.serial if same else old.serial + 1,
                devices=devices,
                message=old.message if same else _message(devices),
                inventory=inventory,
                connectivity=connectivity,
                gpus={gpu.uuid: gpu for gpu in inventory.gpus} if inventory else {},
                parts={part.id: part for part in parts},
                shared=any(part.id != part.gpu.uuid for part in parts),
                terms=terms,
                unhealthy=frozenset(device.id for device in devices if not device.healthy),
            )
            self._changed.notify_all()
            return not same

    def close(self) -> None:
        """End all streams, for good."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def get_options(self, request: pb.Empty, context: Context) -> pb.DevicePluginOptions:
        """Return the calls that kubelet shall make."""
        return self.options

    def list_and_watch(self, request: pb.Empty, context: Context) -> Iterator[pb.ListAndWatchResponse]:
        """Yield the list now, and again after each change, until kubelet or we go away."""
        if not context.add_callback(self._wake):
            return
        with self._changed:
            self._newest_stream += 1
            stream = self._newest_stream
            self._streams.add(stream)
        sent = 0
        try:
            while True:
                with self._changed:
                    self._changed.wait_for(
                        lambda: self._closed or not context.is_active() or self._offer.serial > sent  # noqa: B023
                    )
                    if self._closed or not context.is_active():
                        return
                    offer = self._offer
                sent = offer.serial
                yield offer.message
        finally:
            with self._changed:
                self._streams.discard(stream)
            self._on_stream_end()

    @abstractmethod
    def get_preferred_allocation(
        self, request: pb.PreferredAllocationRequest, context: Context
    ) -> pb.PreferredAllocationResponse:
        """Return which devices to take. Never an error: that would fail the pod."""

    @abstractmethod
    def allocate(self, request: pb.AllocateRequest, context: Context) -> pb.AllocateResponse:
        """Return what each container is given for its devices."""

    def pre_start_container(
        self, request: pb.PreStartContainerRequest, context: Context
    ) -> pb.PreStartContainerResponse:
        """Do nothing, unless ``options`` ask for more."""
        return pb.PreStartContainerResponse()

    def _response(self, grant: Grant) -> pb.ContainerAllocateResponse:
        return pb.ContainerAllocateResponse(
            envs=grant.environment,
            devices=[
                pb.DeviceSpec(container_path=f"/dev/{name}", host_path=f"/dev/{name}", permissions="rw")
                for name in grant.device_nodes
            ],
            mounts=[
                pb.Mount(container_path=target, host_path=source, read_only=read_only)
                for mounts, read_only in ((grant.mounts, False), (grant.read_only_mounts, True))
                for target, source in mounts.items()
            ],
            annotations=grant.annotations,
            cdi_devices=[pb.CDIDevice(name=name) for name in grant.cdi_devices],
        )

    def _node_exists(self, name: str) -> bool:
        # A path object takes most of the time of a small Allocate.
        return os.path.exists(f"{self._dev_root}/{name}")  # noqa: PTH110

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify_all()


class WholeGpuPlugin(ListedPlugin):
    """The service for one resource whose devices are whole GPUs or parts of them."""

    options = pb.DevicePluginOptions(get_preferred_allocation_available=True, pre_start_required=True)
    at_once = True

    def __init__(
        self,
        dev_root: Path,
        on_allocate: Callable[[tuple[str, ...]], None],
        on_stream_end: Callable[[], None],
        exclusivity: DeviceExclusivity,
        mps: MpsPaths,
    ) -> None:
        """``exclusivity`` is this resource's alone, ``mps`` for replicas that share so; else as ListedPlugin."""
        super().__init__(dev_root, on_allocate, on_stream_end)
        self._exclusivity = exclusivity
        self._mps = mps

    def get_options(self, request: pb.Empty, context: Context) -> pb.DevicePluginOptions:
        """Return what kubelet shall call, which it asks each time it gets to know us."""
        self._exclusivity.forget()
        return super().get_options(request, context)

    def offer(
        self,
        parts: tuple[whole.Part, ...],
        good: Container[str],
        inventory: Inventory | None,
        terms: Terms = Terms(),  # noqa: B008 - frozen
    ) -> bool:
        """Offer these parts, healthy if their GPU's UUID is in ``good``; return whether that is new to kubelet."""
        return self.publish(device_list(parts, good), inventory, parts, terms)

    def get_preferred_allocation(
        self, request: pb.PreferredAllocationRequest, context: Context
    ) -> pb.PreferredAllocationResponse:
        """Return the best connected GPUs, or parts of those that are used least.

        Whatever goes wrong leaves the choice to kubelet: an error would fail the pod.
        """
        reply = pb.PreferredAllocationResponse()
        for container in request.container_requests:
            reply.container_responses.add(deviceIDs=self._preferred(container))
        return reply

    def allocate(self, request: pb.AllocateRequest, context: Context) -> pb.AllocateResponse:
        """Return what each container receives for its parts."""
        offer = self._offer
        reply = pb.AllocateResponse()
        for container in request.container_requests:
            parts = []
            for device in container.devices_ids:
                part = offer.parts.get(device)
                if part is None:
                    raise RpcError(
                        Code.INVALID_ARGUMENT,
                        f"device {device!r} is none of this node's GPUs; kubelet's list is outdated, retry the pod",
                    )
                if device in offer.unhealthy:
                    raise RpcError(
                        Code.FAILED_PRECONDITION,
                        f"GPU {part.gpu.uuid} has become unhealthy; retry the pod",
                    )
                parts.append(part)
            if offer.terms.one_each and len(parts) > 1 and any(part.id != part.uuid for part in parts):
                raise RpcError(
                    Code.INVALID_ARGUMENT,
                    f"{len(parts)} replicas for one container: they are parts of shared GPUs, and "
                    "failRequestsGreaterThanOne allows one; ask for 1",
                )
            reply.container_responses.append(self._response(self._granted(parts, offer.terms.delivery)))
        devices = tuple(device for container in request.container_requests for device in container.devices_ids)
        self._exclusivity.allocated(devices)
        self._on_allocate(devices)
        return reply

    def _granted(self, parts: Collection[whole.Part], delivery: Delivery) -> Grant:
        grant = whole.grant(parts, self._node_exists, delivery)
        clients = [part for part in parts if part.mps_replicas]
        if not clients:
            return grant
        try:
            return grant.joined(replica_grant(clients, self._mps))
        except EnforceError as error:
            raise RpcError(Code.INVALID_ARGUMENT, str(error)) from error

    def pre_start_container(
        self, request: pb.PreStartContainerRequest, context: Context
    ) -> pb.PreStartContainerResponse:
        """Refuse a container whose device another pod has too."""
        try:
            self._exclusivity.admit(request.devices_ids, lambda listed: None)
        except StartRefused as error:
            extra = {"devices": list(request.devices_ids), "reason": str(error)}
            _log.warning("a container is not started", extra=extra)
            raise RpcError(Code.FAILED_PRECONDITION, str(error)) from error
        return pb.PreStartContainerResponse()

    def _preferred(self, container: pb.ContainerPreferredAllocationRequest) -> tuple[str, ...]:
        offer = self._offer
        available, required = container.available_deviceIDs, container.must_include_deviceIDs
        if offer.connectivity is None or not offer.parts.keys() >= {*available, *required}:
            return ()
        try:
            if offer.shared:
                size, pack = container.allocation_size, offer.terms.pack
                return replication.spread(offer.parts, available, required, size, pack)
            return choose_connected(offer.connectivity, available, required, container.allocation_size)
        except Exception:
            _log.exception("no preference for this request", extra={"available": list(available)})
            return ()


def serve(plugin: ListedPlugin, socket: Path) -> Server:
    """Return a running server of ``plugin`` on ``socket``. Raises OSError when it cannot listen there."""
    return Server(socket, deviceplugin.methods(Counted(plugin, plugin.calls), plugin.at_once))


def _message(devices: tuple[Device, ...]) -> pb.ListAndWatchResponse:
    message = pb.ListAndWatchResponse()
    for device in devices:
        health = deviceplugin.HEALTHY if device.healthy else deviceplugin.UNHEALTHY
        entry = message.devices.add(ID=device.id, health=health)
        if device.numa_node is not None:
            entry.topology.nodes.add(ID=device.numa_node)
    return message
