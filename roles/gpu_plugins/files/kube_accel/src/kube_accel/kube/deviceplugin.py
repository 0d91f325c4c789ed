# SPDX-License-Identifier: Apache-2.0
"""Kubelet's device plugin API v1beta1: the server a plugin is, its registration, and a client of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

import grpc
from google.protobuf.message import Message

from kube_accel.kube.channel import open_channel
from kube_accel.kube.proto import deviceplugin_pb2 as pb

VERSION = "v1beta1"
KUBELET_SOCKET = "kubelet.sock"
HEALTHY = "Healthy"
UNHEALTHY = "Unhealthy"

PLUGIN_SERVICE = "v1beta1.DevicePlugin"
REGISTRATION_SERVICE = "v1beta1.Registration"


class RegistrationError(Exception):
    """Kubelet did not register a plugin; the message names the resource, the socket and the reason."""


class DevicePlugin(Protocol):
    """What a plugin serves. Kubelet puts no deadline on any of these but the last, which has 30 s."""

    def get_options(self, request: pb.Empty, context: grpc.ServicerContext) -> pb.DevicePluginOptions:
        """What kubelet shall call; asked by kubelet inside Register, before that returns."""

    def list_and_watch(self, request: pb.Empty, context: grpc.ServicerContext) -> Iterator[pb.ListAndWatchResponse]:
        """The whole device list, now and after each change. The end of the stream makes all devices unhealthy."""

    def get_preferred_allocation(
        self, request: pb.PreferredAllocationRequest, context: grpc.ServicerContext
    ) -> pb.PreferredAllocationResponse:
        """Which devices to take. An error here fails the pod, an empty answer leaves the choice to kubelet."""

    def allocate(self, request: pb.AllocateRequest, context: grpc.ServicerContext) -> pb.AllocateResponse:
        """What a container with these devices is given. An error fails the pod for good."""

    def pre_start_container(
        self, request: pb.PreStartContainerRequest, context: grpc.ServicerContext
    ) -> pb.PreStartContainerResponse:
        """Called before each start of a container that holds these devices, if the options ask for it."""


class Registration(Protocol):
    """What kubelet serves."""

    def register(self, request: pb.RegisterRequest, context: grpc.ServicerContext) -> pb.Empty:
        """Take a plugin's endpoint in use for its resource."""


def _unary(method: Callable[..., Any], request: type[Message]) -> grpc.RpcMethodHandler:
    return grpc.unary_unary_rpc_method_handler(method, request.FromString, lambda reply: reply.SerializeToString())


def add_device_plugin(server: grpc.Server, plugin: DevicePlugin) -> None:
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


_SERVING_SECONDS = 0.1
"""From one look to the next whether a plugin that registers still serves."""


def register(
    kubelet_socket: Path,
    endpoint: str,
    resource_name: str,
    options: pb.DevicePluginOptions,
    timeout: float = 10.0,
    serving: Callable[[], bool] = lambda: True,
) -> None:
    """Announce the plugin on socket ``endpoint`` (a name in kubelet's directory) as the one for ``resource_name``.

    Kubelet calls the plugin back before it answers, so the plugin must be serving already; as soon as ``serving`` says
    that it does not, there is nothing to wait for. ``timeout`` in seconds. Raises RegistrationError when kubelet is not
    there, refuses, does not answer in time, or cannot reach the plugin any more.
    """
    request = pb.RegisterRequest(version=VERSION, endpoint=endpoint, resource_name=resource_name, options=options)
    with open_channel(kubelet_socket) as channel:
        call = channel.unary_unary(
            f"/{REGISTRATION_SERVICE}/Register", pb.RegisterRequest.SerializeToString, pb.Empty.FromString
        )
        answer = call.future(request, timeout=timeout)
        try:
            while True:
                with suppress(grpc.FutureTimeoutError):
                    answer.result(_SERVING_SECONDS)
                    return
                if not serving():
                    answer.cancel()
                    raise RegistrationError(f"{endpoint} was removed while {resource_name} was being registered")
        except grpc.RpcError as error:
            raise RegistrationError(
                f"kubelet on {kubelet_socket} did not register {resource_name}: {error.details()}"
            ) from error


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
