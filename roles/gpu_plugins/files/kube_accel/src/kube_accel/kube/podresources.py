# SPDX-License-Identifier: Apache-2.0
"""Kubelet's PodResources API v1: which container holds which devices."""

from __future__ import annotations

import logging
import threading
import time
from collections import defaultdict
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from google.protobuf.message import DecodeError, Message

from kube_accel.kube.proto import podresources_pb2 as pb
from kube_accel.rpc.channel import Channel
from kube_accel.rpc.status import Code, RpcError
from kube_accel.shared.printable import line

_log = logging.getLogger(__name__)

SERVICE = "v1.PodResourcesLister"
RECEIVE_LIMIT = 64 << 20
"""Bytes. Kubelet may send 16 MiB, which is more than gRPC takes by default."""
_REPLACED = "\ufffd"
_HEARING_SECONDS = 60.0
"""Seconds of empty lists: kubelet listens before it has heard of its pods from the API server."""

_Listener = tuple[int, int, int]
"""Identity of a socket: device, inode, which may be reused, and nanoseconds."""


class PodResourcesError(Exception):
    """Kubelet did not say who holds what; the message names the socket and the reason."""


@dataclass(frozen=True, slots=True)
class PodDevices:
    """The devices of one resource that one container holds. Kubelet does not report the pod's UID."""

    namespace: str
    pod: str
    container: str
    resource: str
    device_ids: tuple[str, ...]


class PodClaim(NamedTuple):
    """A container with a ResourceClaim of its namespace."""

    namespace: str
    claim: str
    pod: str
    container: str


class PodResourcesClient:
    """Asks kubelet who holds which devices.

    Kubelet allows 100 calls a second (burst 10) from all its clients together (from 1.28 on), and does not list init
    containers that are not sidecars, before 1.30 not even these.
    """

    def __init__(self, socket: Path) -> None:
        self._socket = socket
        self._lock = threading.Lock()
        self._kept: tuple[_Listener, Channel] | None = None
        """The channel of the last call, and the socket that it was opened for."""
        self._asked: _Listener | None = None
        self._since = 0.0
        """Since when this one is asked, by ``time.monotonic``."""
        self._had: _Listener | None = None
        """Who listed devices last; None where no container had any in the last answer that was believed."""
        self._odd: set[tuple[str, str, str, str]] = set()
        """Names that were warned of."""

    def list(self, timeout: float) -> tuple[PodDevices, ...]:
        """Return every container with devices, each resource once. ``timeout`` in seconds.

        Raises PodResourcesError when kubelet is not there, does not answer in time, limits the rate, or has just
        started and seems not to have heard of its pods yet.
        """
        reply, listener = self._answer(timeout)
        held: defaultdict[tuple[str, str, str, str], list[str]] = defaultdict(list)
        for pod in reply.pod_resources:
            for container in pod.containers:
                for devices in container.devices:
                    key = (pod.namespace, pod.name, container.name, devices.resource_name)
                    held[key].extend(devices.device_ids)
        self._warn_of({key for key in held if not all(map(str.isprintable, key)) or _REPLACED in "".join(key)})
        self._believe(listener, bool(held))
        return tuple(PodDevices(*key, tuple(ids)) for key, ids in held.items())

    def claims(self, driver: str, timeout: float) -> frozenset[PodClaim]:
        """Return every container with a claim that has devices of a driver. ``timeout`` in seconds.

        Raises PodResourcesError as ``list`` does.
        """
        reply, listener = self._answer(timeout)
        found = frozenset(
            PodClaim(line(dynamic.claim_namespace), *map(line, (dynamic.claim_name, pod.name, container.name)))
            for pod in reply.pod_resources
            for container in pod.containers
            for dynamic in container.dynamic_resources
            if any(each.driver_name == driver for each in dynamic.claim_resources)
        )
        self._believe(listener, bool(found))
        return found

    def _answer(self, timeout: float) -> tuple[pb.ListPodResourcesResponse, _Listener]:
        """Return what kubelet lists, and who answered. Raises PodResourcesError."""
        try:
            return self._ask(timeout)
        except RpcError as error:
            raise PodResourcesError(f"kubelet on {self._socket} did not list devices: {error.details}") from error

    def _warn_of(self, odd: set[tuple[str, str, str, str]]) -> None:
        """Log a warning, once, about containers whose names are none."""
        with self._lock:
            news, self._odd = odd - self._odd, odd
        for namespace, pod, container, resource in news:
            extra = {"container": line(f"{namespace}/{pod} {container}"), "resource": line(resource)}
            _log.warning("kubelet lists devices under a name that is none; see crictl pods on the node", extra=extra)

    def _believe(self, listener: _Listener, any_held: bool) -> None:
        """Raise PodResourcesError if this cannot be all."""
        if not self._believed(listener, any_held):
            raise PodResourcesError(f"kubelet on {self._socket} has just started and not heard of its pods yet")

    def _believed(self, listener: _Listener, any_held: bool) -> bool:
        """Return whether this can be all: containers had devices before kubelet restarted, and have them still."""
        now = time.monotonic()
        with self._lock:
            if listener != self._asked:
                self._asked, self._since = listener, now
            missed = self._had not in (None, listener) and now - self._since < _HEARING_SECONDS
            if any_held or not missed:
                self._had = listener if any_held else None
                return True
            return False

    def _ask(self, timeout: float) -> tuple[pb.ListPodResourcesResponse, _Listener]:
        """Return the answer of the kubelet that listens now, and its listener; a kept channel that fails is renewed."""
        kept = self._take()
        if kept is not None:
            try:
                return self._call(*kept, timeout), kept[0]
            except RpcError as error:
                if error.code is not Code.UNAVAILABLE:
                    raise
        listener = self._listening()
        return self._call(listener, Channel(self._socket, RECEIVE_LIMIT), timeout), listener

    def _call(self, socket: _Listener, channel: Channel, timeout: float) -> pb.ListPodResourcesResponse:
        try:
            reply = channel.call(f"/{SERVICE}/List", pb.ListPodResourcesRequest(), _Listed, timeout)
        except BaseException:
            channel.close()
            raise
        with self._lock:
            other, self._kept = self._kept, (socket, channel)
        if other is not None:
            other[1].close()
        return reply

    def _take(self) -> tuple[_Listener, Channel] | None:
        """Take the kept channel, for one caller at a time, unless another process listens by now."""
        with self._lock:
            kept, self._kept = self._kept, None
        if kept is not None and kept[0] != self._listening():
            kept[1].close()
            return None
        return kept

    def _listening(self) -> _Listener:
        try:
            status = self._socket.stat()
        except OSError:
            return 0, 0, 0
        return status.st_dev, status.st_ino, status.st_mtime_ns


class _Listed:
    """Kubelet's answer, of which one odd text costs itself alone: Go does not look at the text that it sends."""

    @staticmethod
    def FromString(data: bytes) -> pb.ListPodResourcesResponse:  # noqa: N802 - protobuf's name
        """Return the answer; what is not UTF-8 has replacement characters. Raises DecodeError."""
        try:
            return pb.ListPodResourcesResponse.FromString(data)
        except DecodeError:
            return _readable(_of_bytes().FromString(data))


def _readable(reply: Any) -> pb.ListPodResourcesResponse:  # noqa: ANN401 - made while it runs
    def text(found: bytes) -> str:
        return found.decode(errors="replace")

    made = pb.ListPodResourcesResponse()
    for pod in reply.pod_resources:
        told = made.pod_resources.add(namespace=text(pod.namespace), name=text(pod.name))
        for container in pod.containers:
            mine = told.containers.add(name=text(container.name))
            for devices in container.devices:
                mine.devices.add(resource_name=text(devices.resource_name), device_ids=map(text, devices.device_ids))
            for dynamic in container.dynamic_resources:
                drivers = [{"driver_name": text(each.driver_name)} for each in dynamic.claim_resources]
                claim = {"claim_name": text(dynamic.claim_name), "claim_namespace": text(dynamic.claim_namespace)}
                mine.dynamic_resources.add(**claim, claim_resources=[pb.ClaimResource(**each) for each in drivers])
    return made


@cache
def _of_bytes() -> type[Message]:
    """Return the same message with bytes where it has text: on the wire they are alike."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    file = descriptor_pb2.FileDescriptorProto.FromString(pb.DESCRIPTOR.serialized_pb)
    field = descriptor_pb2.FieldDescriptorProto
    for each in (each for message in file.message_type for each in message.field if each.type == field.TYPE_STRING):
        each.type = field.TYPE_BYTES
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    name = pb.ListPodResourcesResponse.DESCRIPTOR.full_name
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(name))
