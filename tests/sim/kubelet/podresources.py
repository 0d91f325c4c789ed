# SPDX-License-Identifier: Apache-2.0
"""Kubelet's PodResources server with its limits."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Mapping

import grpc
from google.protobuf.message import Message

from kube_accel.kube.podresources import SERVICE
from kube_accel.kube.proto import podresources_pb2 as pb
from sim.kubelet.model import Device, PodSpec

QPS = 100
BURST = 10
MAX_MESSAGE = 16 << 20

ContainerDevices = Mapping[str, Mapping[str, Device | None]]
"""By resource and device id; None for a device its plugin no longer lists."""


class TokenBucket:
    """``rate`` a second, ``burst`` at once. ``clock`` gives seconds."""

    def __init__(self, rate: float, burst: int, clock: Callable[[], float]) -> None:
        self._rate, self._burst, self._clock = rate, burst, clock
        self._lock = threading.Lock()
        self._tokens, self._at = float(burst), clock()

    def take(self) -> bool:
        with self._lock:
            now = self._clock()
            self._tokens = min(self._burst, self._tokens + (now - self._at) * self._rate)
            self._at = now
            if self._tokens < 1:
                return False
            self._tokens -= 1
            return True


Claim = tuple[str, str, str, str, str]

PodDevices = list[tuple[PodSpec, Mapping[str, ContainerDevices]]]
"""Each pod with its listed containers, by name."""


class PodResourcesServer:
    """``claims`` are what containers have of drivers: namespace, claim, pod, container, driver."""

    def __init__(
        self,
        held: Callable[[], PodDevices],
        healthy: Callable[[], ContainerDevices],
        claims: Collection[Claim] = (),
    ) -> None:
        self._held, self._healthy, self._claims = held, healthy, claims
        self._bucket = TokenBucket(QPS, BURST, time.monotonic)

    def add_to(self, server: grpc.Server) -> None:
        handlers = {
            "List": self._handler(self._list, pb.ListPodResourcesRequest),
            "GetAllocatableResources": self._handler(self._allocatable, pb.AllocatableResourcesRequest),
            "Get": self._handler(self._get, pb.GetPodResourcesRequest),
        }
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))

    def _handler(self, method: Callable[..., Message], request: type[Message]) -> grpc.RpcMethodHandler:
        def limited(message: Message, context: grpc.ServicerContext) -> Message:
            if not self._bucket.take():
                context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "rejected by rate limit")
            return method(message, context)

        return grpc.unary_unary_rpc_method_handler(limited, request.FromString, lambda reply: reply.SerializeToString())

    def _list(self, request: pb.ListPodResourcesRequest, context: grpc.ServicerContext) -> pb.ListPodResourcesResponse:
        claimed = [_claimed(*claim) for claim in self._claims]
        return pb.ListPodResourcesResponse(pod_resources=[*(_pod(*held) for held in self._held()), *claimed])

    def _get(self, request: pb.GetPodResourcesRequest, context: grpc.ServicerContext) -> pb.GetPodResourcesResponse:
        wanted = (request.pod_namespace, request.pod_name)
        found = [_pod(*held) for held in self._held() if (held[0].namespace, held[0].name) == wanted]
        if not found:
            context.abort(grpc.StatusCode.UNKNOWN, "pod {1} in namespace {0} not found".format(*wanted))
        return pb.GetPodResourcesResponse(pod_resources=found[0])

    def _allocatable(
        self, request: pb.AllocatableResourcesRequest, context: grpc.ServicerContext
    ) -> pb.AllocatableResourcesResponse:
        return pb.AllocatableResourcesResponse(devices=_devices(self._healthy()))


def _pod(pod: PodSpec, containers: Mapping[str, ContainerDevices]) -> pb.PodResources:
    return pb.PodResources(
        name=pod.name,
        namespace=pod.namespace,
        containers=[
            pb.ContainerResources(name=name, devices=_devices(resources)) for name, resources in containers.items()
        ],
    )


def _claimed(namespace: str, claim: str, pod: str, container: str, driver: str) -> pb.PodResources:
    resource = pb.ClaimResource(driver_name=driver)
    dynamic = pb.DynamicResource(claim_name=claim, claim_namespace=namespace, claim_resources=[resource])
    made = pb.ContainerResources(name=container, dynamic_resources=[dynamic])
    return pb.PodResources(name=pod, namespace=namespace, containers=[made])


def _devices(resources: ContainerDevices) -> list[pb.ContainerDevices]:
    """One entry a device, which is how kubelet lists them."""
    return [
        pb.ContainerDevices(resource_name=resource, device_ids=[name], topology=_topology(device))
        for resource, devices in resources.items()
        for name, device in devices.items()
    ]


def _topology(device: Device | None) -> pb.TopologyInfo | None:
    if device is None or not device.numa_nodes:
        return None
    return pb.TopologyInfo(nodes=[pb.NUMANode(ID=node) for node in device.numa_nodes])
