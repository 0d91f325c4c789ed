# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import grpc
import pytest

from kube_accel.kube import podresources
from kube_accel.kube.podresources import SERVICE, PodResourcesClient, PodResourcesError
from kube_accel.kube.proto import podresources_pb2 as pb
from kube_accel.rpc.channel import Channel

GRPC_DEFAULT = 4 << 20


@contextmanager
def kubelet(directory: Path, answer: Callable[[grpc.ServicerContext], pb.ListPodResourcesResponse]) -> Iterator[Path]:
    """Listens as kubelet does, in the place of who listened before."""
    handler = grpc.unary_unary_rpc_method_handler(
        lambda request, context: answer(context),
        request_deserializer=pb.ListPodResourcesRequest.FromString,
        response_serializer=pb.ListPodResourcesResponse.SerializeToString,
    )
    socket = directory / "kubelet.sock"
    socket.unlink(missing_ok=True)
    with ThreadPoolExecutor() as threads:
        server = grpc.server(threads, options=[("grpc.max_send_message_length", -1)])
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, {"List": handler}),))
        server.add_insecure_port(f"unix:{socket}")
        server.start()
        yield socket
        server.stop(None)


def lists(pod: str) -> pb.ListPodResourcesResponse:
    devices = pb.ContainerDevices(resource_name="nvidia.com/gpu", device_ids=["GPU-0"])
    container = pb.ContainerResources(name="main", devices=[devices])
    return pb.ListPodResourcesResponse(pod_resources=[pb.PodResources(name=pod, namespace="t", containers=[container])])


def test_connections_are_kept_and_whoever_listens_now_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    opened = []

    def counted(socket: Path, receive_limit: int) -> Channel:
        opened.append(socket)
        return Channel(socket, receive_limit)

    monkeypatch.setattr(podresources, "Channel", counted)
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        directory = Path(name)
        with kubelet(directory, lambda context: lists("first")) as socket:
            client = PodResourcesClient(socket)
            for _ in range(3):
                assert client.list(timeout=30)[0].pod == "first"
            assert len(opened) == 1
            # It still answers who is connected to it.
            with kubelet(directory, lambda context: lists("second")):
                assert client.list(timeout=30)[0].pod == "second"
        with pytest.raises(PodResourcesError, match="did not list devices"):
            client.list(timeout=30)
        with kubelet(directory, lambda context: lists("third")):
            assert client.list(timeout=30)[0].pod == "third"


NOBODY = pb.ListPodResourcesResponse()
STATIC = pb.ListPodResourcesResponse(pod_resources=[pb.PodResources(name="etcd", namespace="kube-system")])


def test_a_kubelet_that_has_just_started_does_not_know_its_pods(monkeypatch: pytest.MonkeyPatch) -> None:
    def pods() -> list[str]:
        return [devices.pod for devices in client.list(timeout=30)]

    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        directory = Path(name)
        says = [NOBODY]
        with kubelet(directory, lambda context: says[-1]) as socket:
            client = PodResourcesClient(socket)
            assert pods() == []
            says.append(lists("first"))
            assert pods() == ["first"]
        says.append(NOBODY)
        with kubelet(directory, lambda context: says[-1]):
            for early in (NOBODY, STATIC):
                says.append(early)
                with pytest.raises(PodResourcesError, match="has just started and not heard of its pods yet"):
                    pods()
            says.append(lists("first"))
            assert pods() == ["first"]
            says.append(STATIC)
            assert pods() == []
        # Nobody had any before it started, so that nobody is missed.
        with kubelet(directory, lambda context: says[-1]):
            assert pods() == []
            says.append(lists("second"))
            assert pods() == ["second"]
        says.append(NOBODY)
        with kubelet(directory, lambda context: says[-1]):
            with pytest.raises(PodResourcesError, match="has just started"):
                pods()
            monkeypatch.setattr(podresources, "_HEARING_SECONDS", 0.0)
            assert pods() == []
            monkeypatch.undo()
            assert pods() == []


def test_an_answer_of_more_than_grpc_takes_by_default_is_taken() -> None:
    """Shares are many devices, and kubelet lists every one of them."""
    ids = [f"GPU-{number:032d}::m{number}" for number in range(100_000)]
    devices = pb.ContainerDevices(resource_name="tencent.com/vcuda-memory", device_ids=ids)
    container = pb.ContainerResources(name="main", devices=[devices])
    pod = pb.PodResources(name="a", namespace="team", containers=[container])
    reply = pb.ListPodResourcesResponse(pod_resources=[pod])
    assert reply.ByteSize() > GRPC_DEFAULT
    with tempfile.TemporaryDirectory(dir="/tmp") as name, kubelet(Path(name), lambda context: reply) as socket:
        (found,) = PodResourcesClient(socket).list(timeout=30)
    assert len(found.device_ids) == 100_000
