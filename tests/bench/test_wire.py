# SPDX-License-Identifier: Apache-2.0
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest

from bench.wire import Channel
from kube_accel.kube.proto import deviceplugin_pb2 as pb
from sim.kubelet.client import DevicePluginClient, add_device_plugin


class Plugin:
    """Gives what it is asked for, with a long name; refuses to give nothing."""

    def get_options(self, request, context):
        return pb.DevicePluginOptions()

    def list_and_watch(self, request, context):
        yield pb.ListAndWatchResponse()

    def get_preferred_allocation(self, request, context):
        return pb.PreferredAllocationResponse()

    def allocate(self, request, context):
        (container,) = request.container_requests
        if not container.devices_ids:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, "nothing is asked for")
        given = [pb.CDIDevice(name=device + "x" * 10_000) for device in container.devices_ids]
        return pb.AllocateResponse(container_responses=[pb.ContainerAllocateResponse(cdi_devices=given)])

    def pre_start_container(self, request, context):
        return pb.PreStartContainerResponse()


@pytest.fixture
def served(tmp_path):
    """The server, and a client of it."""
    server = grpc.server(ThreadPoolExecutor(2))
    add_device_plugin(server, Plugin())
    server.add_insecure_port(f"unix:{tmp_path}/plugin.sock")
    server.start()
    with Channel(tmp_path / "plugin.sock") as channel:
        yield server, DevicePluginClient(channel)
    server.stop(0).wait()


def test_answers_are_whole_however_many_they_are(served):
    _, client = served
    for number in range(40):
        devices = [f"{number}-{index}" for index in range(1 + number % 20)]
        (container,) = client.allocate(devices).container_responses
        assert [device.name.rstrip("x") for device in container.cdi_devices] == devices


def test_an_empty_message_is_an_answer(served):
    _, client = served
    assert client.get_options() == pb.DevicePluginOptions()
    assert client.get_preferred_allocation(["a"], [], 1) == []


def test_a_refusal_is_no_answer(served):
    _, client = served
    with pytest.raises(RuntimeError, match="refuses"):
        client.allocate([])
    assert client.get_options() == pb.DevicePluginOptions()


def test_a_server_that_stops_is_no_answer(served):
    server, client = served
    client.get_options()
    server.stop(0).wait()
    with pytest.raises((RuntimeError, OSError)):
        client.get_options()
