# SPDX-License-Identifier: Apache-2.0
"""Kubelet's device plugin API v1beta1: the server that a plugin is, and its registration."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol

from kube_accel.kube.proto import deviceplugin_pb2 as pb
from kube_accel.rpc.channel import Channel
from kube_accel.rpc.server import Context, Method
from kube_accel.rpc.status import Code, RpcError

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

    def get_options(self, request: pb.Empty, context: Context) -> pb.DevicePluginOptions:
        """Return what kubelet shall call; asked by kubelet inside Register, before that returns."""

    def list_and_watch(self, request: pb.Empty, context: Context) -> Iterator[pb.ListAndWatchResponse]:
        """Yield the whole device list, now and after each change. A stream's end makes all devices unhealthy."""

    def get_preferred_allocation(
        self, request: pb.PreferredAllocationRequest, context: Context
    ) -> pb.PreferredAllocationResponse:
        """Return which devices to take. An error here fails the pod, an empty answer leaves the choice to kubelet."""

    def allocate(self, request: pb.AllocateRequest, context: Context) -> pb.AllocateResponse:
        """Return what a container with these devices is given. An error fails the pod for good."""

    def pre_start_container(
        self, request: pb.PreStartContainerRequest, context: Context
    ) -> pb.PreStartContainerResponse:
        """Answer before each start of a container that holds these devices, if the options ask for it."""


def methods(plugin: DevicePlugin, at_once: bool = False) -> dict[str, Method]:
    """Return what serves ``plugin``, for ``rpc.server.Server``.

    ``at_once`` is a plugin that waits for nothing when it allocates.
    """
    served = {
        "GetDevicePluginOptions": Method(plugin.get_options, pb.Empty),
        "ListAndWatch": Method(plugin.list_and_watch, pb.Empty, streams=True),
        "GetPreferredAllocation": Method(
            plugin.get_preferred_allocation, pb.PreferredAllocationRequest, at_once=at_once
        ),
        "Allocate": Method(plugin.allocate, pb.AllocateRequest, at_once=at_once),
        "PreStartContainer": Method(plugin.pre_start_container, pb.PreStartContainerRequest),
    }
    return {f"/{PLUGIN_SERVICE}/{name}": method for name, method in served.items()}


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
    with Channel(kubelet_socket) as channel:
        try:
            channel.call(f"/{REGISTRATION_SERVICE}/Register", request, pb.Empty, timeout, serving)
        except RpcError as error:
            if error.code is Code.CANCELLED and not serving():
                raise RegistrationError(f"{endpoint} was removed while {resource_name} was being registered") from error
            raise RegistrationError(
                f"kubelet on {kubelet_socket} did not register {resource_name}: {error.details}"
            ) from error


def serves(socket: Path, timeout: float = 1.0) -> bool:
    """Return whether a device plugin answers on ``socket`` within so many seconds, whatever its resource."""
    with Channel(socket) as channel:
        try:
            channel.call(f"/{PLUGIN_SERVICE}/GetDevicePluginOptions", pb.Empty(), pb.DevicePluginOptions, timeout)
        except RpcError:
            return False
    return True
