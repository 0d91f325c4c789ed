# SPDX-License-Identifier: Apache-2.0
"""Kubelet's PodResources API v1: which container holds which devices."""

from __future__ import annotations

import threading
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

from kube_accel.kube.proto import podresources_pb2 as pb
from kube_accel.rpc.channel import Channel
from kube_accel.rpc.status import Code, RpcError

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

    Kubelet allows 100 calls a second (burst 10) from all its clients together (from 1.28 on), and does not list init
    containers that are not sidecars, before 1.30 not even these.
    """

    def __init__(self, socket: Path) -> None:
        self._socket = socket
        self._lock = threading.Lock()
        self._kept: tuple[tuple[int, int], Channel] | None = None
        """The channel of the last call, and the socket that it was opened for, by device and inode."""

    def list(self, timeout: float) -> tuple[PodDevices, ...]:
        """Every container with devices, each resource once. ``timeout`` in seconds.

        Raises PodResourcesError when kubelet is not there, does not answer in time, or limits the rate.
        """
        try:
            reply = self._ask(timeout)
        except RpcError as error:
            raise PodResourcesError(f"kubelet on {self._socket} did not list devices: {error.details}") from error
        held: defaultdict[tuple[str, str, str, str], list[str]] = defaultdict(list)
        for pod in reply.pod_resources:
            for container in pod.containers:
                for devices in container.devices:
                    key = (pod.namespace, pod.name, container.name, devices.resource_name)
                    held[key].extend(devices.device_ids)
        return tuple(PodDevices(*key, tuple(ids)) for key, ids in held.items())

    def _ask(self, timeout: float) -> pb.ListPodResourcesResponse:
        """The answer of the kubelet that listens now; where a kept channel fails, by a new one."""
        kept = self._take()
        if kept is not None:
            try:
                return self._call(*kept, timeout)
            except RpcError as error:
                if error.code is not Code.UNAVAILABLE:
                    raise
        return self._call(self._listening(), Channel(self._socket, RECEIVE_LIMIT), timeout)

    def _call(self, socket: tuple[int, int], channel: Channel, timeout: float) -> pb.ListPodResourcesResponse:
        try:
            reply = channel.call(f"/{SERVICE}/List", pb.ListPodResourcesRequest(), pb.ListPodResourcesResponse, timeout)
        except BaseException:
            channel.close()
            raise
        with self._lock:
            other, self._kept = self._kept, (socket, channel)
        if other is not None:
            other[1].close()
        return reply

    def _take(self) -> tuple[tuple[int, int], Channel] | None:
        """The kept channel, for one caller at a time, unless somebody else listens by now."""
        with self._lock:
            kept, self._kept = self._kept, None
        if kept is not None and kept[0] != self._listening():
            kept[1].close()
            return None
        return kept

    def _listening(self) -> tuple[int, int]:
        try:
            status = self._socket.stat()
        except OSError:
            return 0, 0
        return status.st_dev, status.st_ino
