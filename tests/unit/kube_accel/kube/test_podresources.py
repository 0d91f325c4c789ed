# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc

from kube_accel.kube.podresources import SERVICE, PodResourcesClient
from kube_accel.kube.proto import podresources_pb2 as pb

GRPC_DEFAULT = 4 << 20


def test_an_answer_of_more_than_grpc_takes_by_default_is_taken() -> None:
    """Shares are many devices, and kubelet lists every one of them."""
    ids = [f"GPU-{number:032d}::m{number}" for number in range(100_000)]
    devices = pb.ContainerDevices(resource_name="tencent.com/vcuda-memory", device_ids=ids)
    container = pb.ContainerResources(name="main", devices=[devices])
    pod = pb.PodResources(name="a", namespace="team", containers=[container])
    reply = pb.ListPodResourcesResponse(pod_resources=[pod])
    assert reply.ByteSize() > GRPC_DEFAULT
    handler = grpc.unary_unary_rpc_method_handler(
        lambda request, context: reply,
        request_deserializer=pb.ListPodResourcesRequest.FromString,
        response_serializer=pb.ListPodResourcesResponse.SerializeToString,
    )
    with tempfile.TemporaryDirectory(dir="/tmp") as name, ThreadPoolExecutor() as threads:
        socket = Path(name) / "kubelet.sock"
        server = grpc.server(threads, options=[("grpc.max_send_message_length", -1)])
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, {"List": handler}),))
        server.add_insecure_port(f"unix:{socket}")
        server.start()
        (found,) = PodResourcesClient(socket).list(timeout=30)
        server.stop(None)
    assert len(found.device_ids) == 100_000
