# SPDX-License-Identifier: Apache-2.0
"""The device plugin API by gRPC's own library, which the daemons do without: a client as kubelet is, and servers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import grpc
from google.protobuf.message import Message

from kube_accel.kube.deviceplugin import PLUGIN_SERVICE, REGISTRATION_SERVICE
from kube_accel.kube.proto import deviceplugin_pb2 as pb


class Registration(Protocol):
    """What kubelet serves."""

    def register(self, request: pb.RegisterRequest, context: grpc.ServicerContext) -> pb.Empty:
        """Take a plugin's endpoint in use for its resource."""


def _unary(method: Callable[..., Any], request: type[Message]) -> grpc.RpcMethodHandler:
    return grpc.unary_unary_rpc_method_handler(method, request.FromString, lambda reply: reply.SerializeToString())


def add_device_plugin(server: grpc.Server, plugin: Any) -> None:
    """Serve ``plugin`` on ``server``."""
    handlers = {
        "GetDevicePluginOptions": _unary(plugin.get_options, pb.Empty),
        "ListAndWatch": grpc.unary_stream_rpc_method_handler(
            plugin.list_and_watch, pb.Empty.FromString, pb.ListAndWatchResponse.SerializeToString
        ),
        "GetPreferredAllocation": _unary(plugin.get_preferred_allocation, pb.PreferredAllocationRequest),
        "Allocate": _unary(plugin.allocate, pb.AllocateRequest),
        "PreStartContainer": _unary(plugin.pre_start_container, pb.PreStartContainerRequest),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(PLUGIN_SERVICE, handlers),))


def add_registration(server: grpc.Server, registration: Registration) -> None:
    """Serve ``registration`` on ``server``."""
    handlers = {"Register": _unary(registration.register, pb.RegisterRequest)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(REGISTRATION_SERVICE, handlers),))


class DevicePluginClient:
    """Calls a plugin as kubelet does. Timeouts in seconds, None waits for ever; every call may raise grpc.RpcError."""

    def __init__(self, channel: grpc.Channel) -> None:
        def unary(name: str, request: type[Message], reply: type[Message]) -> Callable[..., Any]:
            method: Callable[..., Any] = channel.unary_unary(
                f"/{PLUGIN_SERVICE}/{name}", request.SerializeToString, reply.FromString
            )
            return method

        self._get_options = unary("GetDevicePluginOptions", pb.Empty, pb.DevicePluginOptions)
        self._list_and_watch = channel.unary_stream(
            f"/{PLUGIN_SERVICE}/ListAndWatch", pb.Empty.SerializeToString, pb.ListAndWatchResponse.FromString
        )
        self._preferred = unary("GetPreferredAllocation", pb.PreferredAllocationRequest, pb.PreferredAllocationResponse)
        self._allocate = unary("Allocate", pb.AllocateRequest, pb.AllocateResponse)
        self._pre_start = unary("PreStartContainer", pb.PreStartContainerRequest, pb.PreStartContainerResponse)

    def get_options(self, timeout: float | None = None) -> pb.DevicePluginOptions:
        """What the plugin wants kubelet to call."""
        reply: pb.DevicePluginOptions = self._get_options(pb.Empty(), timeout=timeout)
        return reply

    def list_and_watch(self) -> grpc.Call:
        """A running call, to be iterated for ListAndWatchResponse and cancelled when done."""
        return self._list_and_watch(pb.Empty())

    def get_preferred_allocation(
        self, available: list[str], must_include: list[str], size: int, timeout: float | None = None
    ) -> list[str]:
        """The devices the plugin prefers for one container; empty when it has no opinion."""
        request = pb.PreferredAllocationRequest(
            container_requests=[
                pb.ContainerPreferredAllocationRequest(
                    available_deviceIDs=available, must_include_deviceIDs=must_include, allocation_size=size
                )
            ]
        )
        reply: pb.PreferredAllocationResponse = self._preferred(request, timeout=timeout)
        return [device for container in reply.container_responses[:1] for device in container.deviceIDs]

    def allocate(self, devices: list[str], timeout: float | None = None) -> pb.AllocateResponse:
        """What the plugin gives one container that holds ``devices``."""
        request = pb.AllocateRequest(container_requests=[pb.ContainerAllocateRequest(devices_ids=devices)])
        reply: pb.AllocateResponse = self._allocate(request, timeout=timeout)
        return reply

    def pre_start_container(self, devices: list[str], timeout: float | None = None) -> None:
        """Tell the plugin that a container with ``devices`` is about to start."""
        self._pre_start(pb.PreStartContainerRequest(devices_ids=devices), timeout=timeout)
