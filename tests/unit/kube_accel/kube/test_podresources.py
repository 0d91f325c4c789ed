# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.message import Message

from kube_accel.kube import podresources
from kube_accel.kube.podresources import SERVICE, PodClaim, PodResourcesClient, PodResourcesError
from kube_accel.kube.proto import podresources_pb2 as pb
from kube_accel.model import Mode
from kube_accel.rpc.channel import Channel
from kube_accel.shared.inventory_annotation import read_inventory
from kube_accel.sharing.inventory_annotation import Holding, NodeInventory, decode, encode
from unit.kube_accel.plugin.fakes import HEALTHY, inventory

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
    claim = pb.DynamicResource(claim_name="mine", claim_namespace="t")
    claim.claim_resources.add(driver_name="gpu.example.com")
    container = pb.ContainerResources(name="main", devices=[devices], dynamic_resources=[claim])
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


def test_claims_of_a_driver_are_told_with_their_containers() -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as name, kubelet(Path(name), lambda context: lists("a")) as socket:
        client = PodResourcesClient(socket)
        assert client.claims("gpu.example.com", timeout=30) == {PodClaim("t", "mine", "a", "main")}
        assert client.claims("net.example.com", timeout=30) == set()


ODD_TEXTS = {
    "not UTF-8": b"\xff\xfe\x80",
    "half a character": b"\xed\xa0\x80",
    "empty": b"",
    "control characters": b"\x1b[2J\x00\n",
    "capitals and dots": b"../../ETC",
    "long": b"9" * 5000,
}


def texts(message: type[Message], at: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    """The path of each text of an answer, found in its definition."""
    found = []
    for field in message.DESCRIPTOR.fields:
        if field.message_type is not None:
            found += texts(field.message_type._concrete_class, (*at, field.name))
        elif field.type == field.TYPE_STRING:
            found.append((*at, field.name))
    return found


def with_text(path: tuple[str, ...], value: bytes) -> bytes:
    """What kubelet sends of three pods, of which the second has this text there."""
    mark = "THEODDTEXT"
    replies = [lists(name) for name in ("first", "odd", "last")]
    part: Any = replies[1]
    for step in path[:-1]:
        part = getattr(part, step)[0]
    if path[-1] == "device_ids":
        part.device_ids[0] = mark
    else:
        setattr(part, path[-1], mark)
    answer = pb.ListPodResourcesResponse(pod_resources=[reply.pod_resources[0] for reply in replies])
    return _spliced(answer.SerializeToString(), mark.encode(), value)


def _spliced(data: bytes, mark: bytes, value: bytes) -> bytes:
    """The same message with another text in place of the mark, and lengths that are right."""
    found, position = b"", 0
    if mark not in data:
        return data
    while position < len(data):
        tag, position = data[position], position + 1
        size, position = _length(data, position)
        part, position = data[position : position + size], position + size
        part = value if part == mark else _spliced(part, mark, value)
        found += bytes([tag]) + _varint(len(part)) + part
    return found


def _length(data: bytes, position: int) -> tuple[int, int]:
    size = shift = 0
    while True:
        byte, position = data[position], position + 1
        size |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return size, position


def _varint(number: int) -> bytes:
    found = b""
    while number >= 0x80:
        found, number = found + bytes([number & 0x7F | 0x80]), number >> 7
    return found + bytes([number])


@pytest.mark.parametrize("path", texts(pb.ListPodResourcesResponse), ids=".".join)
@pytest.mark.parametrize("value", ODD_TEXTS.values(), ids=ODD_TEXTS)
def test_an_odd_text_costs_its_container_alone(
    path: tuple[str, ...], value: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """What the others hold is known, and told by the node's annotation, which can be read."""
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        handler = grpc.unary_unary_rpc_method_handler(lambda request, context: with_text(path, value))
        with ThreadPoolExecutor() as threads:
            server = grpc.server(threads)
            server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, {"List": handler}),))
            server.add_insecure_port(f"unix:{name}/kubelet.sock")
            server.start()
            client = PodResourcesClient(Path(name) / "kubelet.sock")
            listed, claims = client.list(timeout=30), client.claims("gpu.example.com", timeout=30)
            server.stop(None)
    assert {"first", "last"} <= {claim.pod for claim in claims}
    assert all(text.isprintable() for claim in claims for text in claim)
    assert {"first", "last"} <= {entry.pod for entry in listed}
    assert len(listed) == 3, "what has an odd name is held all the same"
    named = (
        path[-1] != "device_ids"
        and "dynamic_resources" not in path
        and (b"\xff" in value or b"\xed" in value or b"\n" in value)
    )
    assert [record.message for record in caplog.records if "under a name that is none" in record.message][1:] == []
    assert bool(caplog.records) == named
    held = {"GPU-0": tuple(Holding(entry.namespace, entry.pod, entry.container, 30, 1) for entry in listed)}
    known = inventory(1)
    gpu = replace(known.gpus[0], uuid="GPU-0")
    node = NodeInventory(Mode.VGPU, replace(known, gpus=(gpu,), links={}), {"GPU-0": HEALTHY}, held)
    text = encode(node)
    told = decode(text).held
    assert told is not None
    assert {Holding("t", name, "main", 30, 1) for name in ("first", "last")} <= set(told["GPU-0"])
    assert len(read_inventory(text).gpus[0].tenants) == 3
