# SPDX-License-Identifier: Apache-2.0
"""Both sockets, called as kubelet calls them."""

from __future__ import annotations

import socket
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import grpc
import pytest

from kube_accel.dra.service import DriverService
from kube_accel.dra.sockets import Sockets, paths
from kube_accel.kube.proto import dra_pb2 as pb
from kube_accel.metrics.service import Outcome
from kube_accel.rpc.channel import Channel
from sim.kubelet.channel import open_channel
from unit.kube_accel.dra.node import POOL, ClaimNode
from unit.kube_accel.plugin.fakes import LOST

PREFIX = "/k8s.io.kubelet.pkg.apis.dra"


class Instance:
    """A driver's two sockets, and what kubelet says on them."""

    def __init__(self, node: ClaimNode, root: Path, uid: str) -> None:
        (root / "registry").mkdir(exist_ok=True)
        self.where = paths(root / "plugins", root / "registry", uid)
        self.changes = 0
        self.service = DriverService(node.preparer(), node.devices, POOL, self._changed)
        self.sockets = Sockets(self.where, node.state, self.service)

    def _changed(self) -> None:
        self.changes += 1

    def prepare(self, *names: str, version: str = "v1") -> dict[str, pb.NodePrepareResourceResponse]:
        claims = [pb.Claim(namespace="team", uid=f"uid-{name}", name=name) for name in names]
        request = pb.NodePrepareResourcesRequest(claims=claims)
        method = f"{PREFIX}.{version}.DRAPlugin/NodePrepareResources"
        with Channel(self.where.service) as channel:
            return dict(channel.call(method, request, pb.NodePrepareResourcesResponse, 10).claims)

    def unprepare(self, *names: str) -> dict[str, str]:
        claims = [pb.Claim(namespace="team", uid=f"uid-{name}", name=name) for name in names]
        request = pb.NodeUnprepareResourcesRequest(claims=claims)
        method = f"{PREFIX}.v1.DRAPlugin/NodeUnprepareResources"
        with Channel(self.where.service) as channel:
            answer = channel.call(method, request, pb.NodeUnprepareResourcesResponse, 10)
        return {uid: each.error for uid, each in answer.claims.items()}

    def info(self) -> pb.PluginInfo:
        with Channel(self.where.registration) as channel:
            return channel.call("/pluginregistration.Registration/GetInfo", pb.InfoRequest(), pb.PluginInfo, 10)


@pytest.fixture
def root() -> Iterator[Path]:
    # A socket's path is short.
    with tempfile.TemporaryDirectory() as directory:
        yield Path(directory)


@pytest.fixture
def node(root: Path) -> ClaimNode:
    return ClaimNode(root / "node")


@pytest.fixture
def instances(node: ClaimNode, root: Path) -> Iterator[tuple[Instance, Instance]]:
    with ExitStack() as stack:
        made = Instance(node, root, "1111111111"), Instance(node, root, "2222222222")
        for instance in made:
            instance.sockets.open()
            stack.callback(instance.sockets.close)
        stack.callback(node.devices.close)
        yield made


def test_kubelet_is_told_where_the_driver_serves(instances: tuple[Instance, Instance], root: Path) -> None:
    first, second = instances
    assert first.info() == pb.PluginInfo(
        type="DRAPlugin",
        name="gpu.kube-accel.io",
        endpoint=str(root / "plugins/gpu.kube-accel.io/dra-11111111.sock"),
        supported_versions=["v1.DRAPlugin", "v1beta1.DRAPlugin", "v1alpha1.DRAResourceHealth"],
    )
    assert first.where.registration == root / "registry/gpu.kube-accel.io-11111111-reg.sock"
    assert second.info().endpoint != first.info().endpoint


@pytest.mark.parametrize(("told", "registered"), [((True, ""), True), ((False, "no such version"), False)])
def test_kubelets_answer_is_noted(
    instances: tuple[Instance, Instance], told: tuple[bool, str], registered: bool
) -> None:
    status = pb.RegistrationStatus(plugin_registered=told[0], error=told[1])
    with Channel(instances[0].where.registration) as channel:
        method = "/pluginregistration.Registration/NotifyRegistrationStatus"
        channel.call(method, status, pb.RegistrationStatusResponse, 10)
    registration = instances[0].sockets.registration
    assert (registration.registered, registration.detail) == (registered, told[1])


@pytest.mark.parametrize("version", ["v1", "v1beta1"])
def test_claims_are_answered_one_by_one(instances: tuple[Instance, Instance], node: ClaimNode, version: str) -> None:
    node.api.claim("a", "gpu-00", "gpu-01")
    node.api.claim("b")
    answers = instances[0].prepare("a", "b", version=version)
    assert [*answers["uid-a"].devices] == [
        pb.Device(
            request_names=["gpus"],
            pool_name=POOL,
            device_name=name,
            cdi_device_ids=[f"kube-accel.io/claim=uid-a-{name}"],
        )
        for name in ("gpu-00", "gpu-01")
    ]
    assert "has no device" in answers["uid-b"].error
    counts = instances[0].service.calls.counts["prepare"].outcomes
    assert (counts[Outcome.OK], counts[Outcome.REFUSED]) == (1, 1)


def test_either_instance_is_called(instances: tuple[Instance, Instance], node: ClaimNode) -> None:
    first, second = instances
    node.api.claim("a", "gpu-00")
    first.prepare("a")
    assert second.prepare("a")["uid-a"].devices[0].device_name == "gpu-00"
    assert second.unprepare("a", "never") == {"uid-a": "", "uid-never": ""}
    assert node.files() == []
    assert (first.changes, second.changes) == (1, 2)


def test_api_server_that_is_away_is_an_answer(instances: tuple[Instance, Instance], node: ClaimNode) -> None:
    node.api.away = True
    assert "the claim is not read" in instances[0].prepare("a")["uid-a"].error
    assert instances[0].service.calls.counts["prepare"].outcomes[Outcome.FAILED] == 1


def test_health_is_streamed_with_each_change(instances: tuple[Instance, Instance], node: ClaimNode) -> None:
    with open_channel(instances[0].where.service) as channel:
        watch = channel.unary_stream(
            "/v1alpha1.DRAResourceHealth/NodeWatchResources",
            request_serializer=pb.NodeWatchResourcesRequest.SerializeToString,
            response_deserializer=pb.NodeWatchResourcesResponse.FromString,
        )(pb.NodeWatchResourcesRequest(), timeout=60)

        def told() -> dict[str, tuple[int, str]]:
            return {each.device.device_name: (each.health, each.message) for each in next(watch).devices}

        assert told() == {f"gpu-{index:02}": (pb.HEALTHY, "") for index in range(4)}
        node.see({2: LOST})
        assert told()["gpu-02"] == (pb.UNHEALTHY, "the GPU is lost")
        node.devices.close()
        with pytest.raises(StopIteration):
            next(watch)
        assert watch.code() is grpc.StatusCode.OK


def test_sockets_of_the_dead_are_removed_and_of_the_living_stay(node: ClaimNode, root: Path) -> None:
    living, dead, new = (Instance(node, root, letter * 10) for letter in "abc")
    living.sockets.open()
    for path in (dead.where.service, dead.where.registration):
        with socket.socket(socket.AF_UNIX) as left:
            left.bind(str(path))
    new.sockets.open()
    try:
        left_over = sorted(path.name for path in (root / "registry").iterdir())
        assert left_over == [f"gpu.kube-accel.io-{letter * 8}-reg.sock" for letter in "ac"]
        assert living.info().name == "gpu.kube-accel.io"
    finally:
        new.sockets.close()
        living.sockets.close()
    assert not list((root / "registry").iterdir())
