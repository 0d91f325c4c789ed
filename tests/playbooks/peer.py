# SPDX-License-Identifier: Apache-2.0
"""A device plugin of somebody else, as a program: ``peer.py DIRECTORY RESOURCE COUNT``, with kubelet's directory."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from concurrent import futures
from pathlib import Path

import grpc

from kube_accel.kube.deviceplugin import HEALTHY, register
from kube_accel.kube.proto import deviceplugin_pb2 as pb
from sim.kubelet.client import add_device_plugin

SECONDS = 10.0
OPTIONS = pb.DevicePluginOptions()


class Peer:
    """Offers devices of one resource, all healthy, until its process ends."""

    def __init__(self, count: int) -> None:
        self._devices = [pb.Device(ID=f"GPU-{number}", health=HEALTHY) for number in range(count)]

    def get_options(self, _request: object, _context: object) -> pb.DevicePluginOptions:
        return OPTIONS

    def list_and_watch(self, _request: object, _context: object) -> Iterator[pb.ListAndWatchResponse]:
        yield pb.ListAndWatchResponse(devices=self._devices)
        threading.Event().wait()

    def get_preferred_allocation(self, _request: object, _context: object) -> pb.PreferredAllocationResponse:
        return pb.PreferredAllocationResponse()

    def allocate(self, request: pb.AllocateRequest, _context: object) -> pb.AllocateResponse:
        visible = ({"NVIDIA_VISIBLE_DEVICES": ",".join(each.devices_ids)} for each in request.container_requests)
        return pb.AllocateResponse(container_responses=[pb.ContainerAllocateResponse(envs=envs) for envs in visible])

    def pre_start_container(self, _request: object, _context: object) -> pb.PreStartContainerResponse:
        return pb.PreStartContainerResponse()


def main(directory: Path, resource: str, count: int) -> None:
    endpoint = f"peer-{resource.replace('/', '-')}.sock"
    (directory / endpoint).unlink(missing_ok=True)
    server = grpc.server(futures.ThreadPoolExecutor(max_workers=4))
    add_device_plugin(server, Peer(count))
    server.add_insecure_port(f"unix:{directory / endpoint}")
    server.start()
    register(directory / "kubelet.sock", endpoint, resource, OPTIONS, SECONDS)
    server.wait_for_termination()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
