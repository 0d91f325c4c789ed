# SPDX-License-Identifier: Apache-2.0
"""Kubelet's PodResources API v1: which container holds which devices."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

import grpc

from kube_accel.kube.channel import open_channel
from kube_accel.kube.proto import podresources_pb2 as pb

SERVICE = "v1.PodResourcesLister"
RECEIVE_LIMIT = 64 << 20
"""Bytes. Kubelet may send 16 MiB, which is more than gRPC takes by default."""


class PodResourcesError(Exception):
    """Kubelet did not say who holds what; the message names the socket and the reason."""


@dataclass(frozen=True, slots=True)
class PodDevices:
    """The devices of one resource that one container holds. Kubelet does not tell the pod's UID."""

    namespace: str
    pod: str
    container: str
    resource: str
    device_ids: tuple[str, ...]


class PodResourcesClient:
    """Asks kubelet who holds which devices.

    Kubelet allows 100 calls a second (burst 10) from all its clients together, and does not list init containers
    that are not sidecars.
    """

    def __init__(self, socket: Path) -> None:
        self._socket = socket

    def list(self, timeout: float) -> tuple[PodDevices, ...]:
        """Every container with devices, each resource once. ``timeout`` in seconds.

        Raises PodResourcesError when kubelet is not there, does not answer in time, or limits the rate.
        """
        # A channel of its own for each call: the kubelet behind the path may be another one than last time.
        with open_channel(self._socket, RECEIVE_LIMIT) as channel:
            call = channel.unary_unary(
                f"/{SERVICE}/List", pb.ListPodResourcesRequest.SerializeToString, pb.ListPodResourcesResponse.FromString
            )
            try:
                reply: pb.ListPodResourcesResponse = call(pb.ListPodResourcesRequest(), timeout=timeout)
            except grpc.RpcError as error:
                raise PodResourcesError(f"kubelet on {self._socket} did not list devices: {error.details()}") from error
        held: defaultdict[tuple[str, str, str, str], list[str]] = defaultdict(list)
        for pod in reply.pod_resources:
            for container in pod.containers:
                for devices in container.devices:
                    key = (pod.namespace, pod.name, container.name, devices.resource_name)
                    held[key].extend(devices.device_ids)
        return tuple(PodDevices(*key, tuple(ids)) for key, ids in held.items())
