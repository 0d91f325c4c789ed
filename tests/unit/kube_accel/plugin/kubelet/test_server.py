# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import socket
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from http2_bytes import PREFACE, frame, literal
from kube_accel.enforce.mps import MpsPaths
from kube_accel.metrics.service import Outcome
from kube_accel.model import Inventory, Snapshot
from kube_accel.plugin.kubelet.device_exclusivity import DeviceExclusivity
from kube_accel.plugin.kubelet.devices import healthy_gpus
from kube_accel.plugin.kubelet.server import WholeGpuPlugin, serve
from kube_accel.shared.offers import Replication
from kube_accel.sharing import whole
from kube_accel.sharing.delivery import Terms
from kube_accel.sharing.replication import replicated
from kube_accel.sharing.whole import RESOURCE, Part, layout
from sim.kubelet.channel import open_channel
from sim.kubelet.client import DevicePluginClient
from unit.kube_accel.plugin.fakes import LOST, Listed, inventory, offer, ready, uuid


class Host:
    """A plugin behind its socket and the ``/dev`` it sees."""

    def __init__(self, root: Path) -> None:
        self.dev = root / "dev"
        self.dev.mkdir()
        self.allocated: list[tuple[str, ...]] = []
        self.kubelet = Listed()
        self.refused: list[str] = []
        starts = DeviceExclusivity(self.kubelet, self.refused.append)
        self.mps = MpsPaths(root / "mps", "nvidia-cuda-mps-control")
        self.plugin = WholeGpuPlugin(self.dev, self.allocated.append, lambda: None, starts, self.mps)
        self.socket = root / "plugin.sock"
        self.server = serve(self.plugin, self.socket)
        self.channel = open_channel(self.socket)
        self.client = DevicePluginClient(self.channel)

    def offer(self, snapshot: Snapshot) -> bool:
        """Whether kubelet is sent a message."""
        return offer(self.plugin, snapshot)

    def close(self) -> None:
        self.plugin.close()
        self.channel.close()
        self.server.stop()


@pytest.fixture
def host() -> Iterator[Host]:
    with tempfile.TemporaryDirectory() as root:
        host = Host(Path(root))
        yield host
        host.close()


def test_kubelet_gets_one_message_a_real_change(host: Host) -> None:
    host.offer(ready(2))
    stream = host.client.list_and_watch()
    first = next(stream)
    assert [(device.ID, device.health) for device in first.devices] == [(uuid(0), "Healthy"), (uuid(1), "Healthy")]
    assert [[node.ID for node in device.topology.nodes] for device in first.devices] == [[0], [1]]
    assert not host.offer(ready(2))
    assert host.offer(ready(2, {1: LOST}))
    assert [device.health for device in next(stream).devices] == ["Healthy", "Unhealthy"]
    host.offer(ready(2))
    assert [device.health for device in next(stream).devices] == ["Healthy", "Healthy"]
    stream.cancel()


def test_a_gpu_without_numa_node_has_no_topology(host: Host) -> None:
    host.offer(ready(1))
    (device,) = next(host.client.list_and_watch()).devices
    assert not device.HasField("topology")


def test_a_kubelet_that_goes_away_does_not_keep_its_stream(host: Host) -> None:
    host.offer(ready(1))
    streams = [host.client.list_and_watch() for _ in range(4)]
    for stream in streams:
        next(stream)
    for stream in streams:
        stream.cancel()
    deadline = time.monotonic() + 10
    while host.plugin.streams:
        assert time.monotonic() < deadline, "each open stream holds one of a few workers"


def test_the_end_of_the_plugin_ends_the_stream(host: Host) -> None:
    host.offer(ready(1))
    stream = host.client.list_and_watch()
    next(stream)
    host.plugin.close()
    assert list(stream) == []


def test_a_container_gets_the_device_nodes_that_exist(host: Host) -> None:
    host.offer(ready(4))
    for name in ("nvidia1", "nvidia2", "nvidiactl", "nvidia-uvm"):
        (host.dev / name).touch()
    (response,) = host.client.allocate([uuid(2), uuid(1)], timeout=5).container_responses
    assert dict(response.envs) == {"NVIDIA_VISIBLE_DEVICES": f"{uuid(1)},{uuid(2)}"}
    names = ["/dev/nvidia2", "/dev/nvidia1", "/dev/nvidiactl", "/dev/nvidia-uvm"]
    assert [(d.container_path, d.host_path, d.permissions) for d in response.devices] == [(n, n, "rw") for n in names]
    visible = {f"/var/run/nvidia-container-devices/{uuid(gpu)}": "/dev/null" for gpu in (1, 2)}
    assert {mount.container_path: mount.host_path for mount in response.mounts if mount.read_only} == visible
    assert len(response.mounts) == len(visible)
    assert host.allocated == [(uuid(2), uuid(1))]


def test_container_with_another_pods_gpu_is_refused_and_counted(host: Host) -> None:
    host.offer(ready(2))
    assert host.client.get_options(timeout=5).pre_start_required
    for pod in ("one", "two"):
        host.client.allocate([uuid(1)], timeout=5)
        host.kubelet.pods[pod] = {uuid(1)}
    host.client.pre_start_container([uuid(1)], timeout=5)
    with pytest.raises(grpc.RpcError) as caught:
        host.client.pre_start_container([uuid(1)], timeout=5)
    assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    assert [caught.value.details()] == host.refused
    assert host.plugin.calls.counts["prestart"].outcomes == {Outcome.OK: 1, Outcome.REFUSED: 1, Outcome.FAILED: 0}


def test_an_unknown_device_is_refused_by_name(host: Host) -> None:
    host.offer(ready(1))
    with pytest.raises(grpc.RpcError) as caught:
        host.client.allocate([uuid(0), "GPU-of-another-day"], timeout=5)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "'GPU-of-another-day'" in caught.value.details()
    assert host.allocated == []


def test_a_gpu_that_failed_meanwhile_is_refused(host: Host) -> None:
    host.offer(ready(2, {1: LOST}))
    with pytest.raises(grpc.RpcError) as caught:
        host.client.allocate([uuid(1)], timeout=5)
    assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    assert uuid(1) in caught.value.details()
    assert host.client.allocate([uuid(0)], timeout=5)


def test_preferred_gpus_are_connected_and_include_the_required(host: Host) -> None:
    host.offer(ready(8))
    preferred = host.client.get_preferred_allocation([uuid(i) for i in (1, 4, 6, 7)], [uuid(6)], 3, timeout=5)
    assert sorted(preferred) == [uuid(4), uuid(6), uuid(7)]


def share(host: Host, replicas: int, terms: Terms = Terms(), lost: int | None = None) -> None:  # noqa: B008 - frozen
    """Have it offer two GPUs, each several times."""
    snapshot = ready(2, {} if lost is None else {lost: LOST})
    assert snapshot.inventory is not None
    parts = replicated(layout(snapshot.inventory), [Replication(RESOURCE, RESOURCE, replicas)])[RESOURCE]
    host.plugin.offer(parts, healthy_gpus(snapshot, ()), snapshot.inventory, terms)


def test_all_replicas_of_a_bad_gpu_are_unhealthy(host: Host) -> None:
    share(host, 3, lost=1)
    devices = next(host.client.list_and_watch()).devices
    assert {device.ID for device in devices if device.health == "Unhealthy"} == {f"{uuid(1)}::{n}" for n in range(3)}
    assert {device.ID for device in devices if device.health == "Healthy"} == {f"{uuid(0)}::{n}" for n in range(3)}


def test_replicas_of_one_gpu_name_it_once(host: Host) -> None:
    share(host, 3)
    (response,) = host.client.allocate(
        [f"{uuid(1)}::2", f"{uuid(0)}::1", f"{uuid(1)}::0"], timeout=5
    ).container_responses
    assert dict(response.envs) == {"NVIDIA_VISIBLE_DEVICES": f"{uuid(0)},{uuid(1)}"}
    assert len(response.mounts) == 2


def test_replicas_are_taken_from_the_gpu_that_is_used_least(host: Host) -> None:
    share(host, 3)
    free = [f"{uuid(0)}::1", f"{uuid(0)}::2", f"{uuid(1)}::0", f"{uuid(1)}::1", f"{uuid(1)}::2"]
    assert host.client.get_preferred_allocation(free, [], 2, timeout=5) == [f"{uuid(1)}::0", f"{uuid(0)}::1"]
    share(host, 3, Terms(pack=True))
    assert host.client.get_preferred_allocation(free, [], 2, timeout=5) == [f"{uuid(0)}::1", f"{uuid(0)}::2"]


def test_more_than_one_replica_is_refused_if_asked_for(host: Host) -> None:
    share(host, 3, Terms(one_each=True))
    assert host.client.allocate([f"{uuid(0)}::0"], timeout=5)
    with pytest.raises(grpc.RpcError) as caught:
        host.client.allocate([f"{uuid(0)}::0", f"{uuid(1)}::0"], timeout=5)
    assert "failRequestsGreaterThanOne allows one; ask for 1" in caught.value.details()
    host.plugin.offer(*whole_gpus(), Terms(one_each=True))
    assert host.client.allocate([uuid(0), uuid(1)], timeout=5), "GPUs that nobody shares"


def by_mps(host: Host, one_each: bool = False) -> None:
    """Have it offer two GPUs to four containers each."""
    parts = replicated(layout(inventory(2)), [Replication(RESOURCE, RESOURCE, 4, by_mps=True)])[RESOURCE]
    good = frozenset({uuid(0), uuid(1)})
    host.plugin.offer(parts, good, inventory(2), Terms(one_each=one_each))


def test_a_replica_by_mps_has_its_part_of_threads_and_memory(host: Host) -> None:
    by_mps(host, one_each=True)
    (got,) = host.client.allocate([f"{uuid(1)}::2"], timeout=5).container_responses
    pipe = str(host.mps.client(uuid(1)))
    memory = inventory(2).gpus[1].memory_bytes // 4
    assert dict(got.envs) == {
        "NVIDIA_VISIBLE_DEVICES": uuid(1),
        "CUDA_MPS_PIPE_DIRECTORY": pipe,
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "25",
        "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": f"0={memory >> 30}G",
    }
    mounts = {mount.container_path: (mount.host_path, mount.read_only) for mount in got.mounts}
    assert mounts[pipe] == (pipe, True)
    assert mounts["/dev/shm"] == (str(host.mps.shm(uuid(1))), False)


def test_several_replicas_by_mps_add_up_on_one_gpu_alone(host: Host) -> None:
    by_mps(host)
    (got,) = host.client.allocate([f"{uuid(0)}::0", f"{uuid(0)}::3"], timeout=5).container_responses
    assert got.envs["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "50"
    with pytest.raises(grpc.RpcError) as caught:
        host.client.allocate([f"{uuid(0)}::0", f"{uuid(1)}::0"], timeout=5)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "replicas of 2 GPUs, and a process uses one through MPS; ask for 1" in caught.value.details()


def whole_gpus() -> tuple[tuple[Part, ...], frozenset[str], Inventory]:
    """Two of them, as ``offer`` takes them."""
    return layout(inventory(2))[RESOURCE], frozenset({uuid(0), uuid(1)}), inventory(2)


@pytest.fixture(scope="module")
def prefer() -> Iterator[Callable[[list[str], list[str], int], list[str]]]:
    with tempfile.TemporaryDirectory() as root:
        host = Host(Path(root))
        host.offer(ready(8))
        yield lambda available, required, size: host.client.get_preferred_allocation(available, required, size, 5)
        host.close()


IDS = st.lists(st.sampled_from([*(gpu.uuid for gpu in inventory(8).gpus), "", "GPU-unknown", "ü"]))


@given(available=IDS, required=IDS, size=st.integers(-1, 40))
def test_preference_is_never_an_error_nor_too_large(
    prefer: Callable[[list[str], list[str], int], list[str]], available: list[str], required: list[str], size: int
) -> None:
    preferred = prefer(available, required, size)
    assert len(preferred) <= max(size, len({*required}), 0)
    assert set(preferred) <= {*available, *required}


def test_kubelet_1_25_with_a_socket_as_authority_is_answered(host: Host) -> None:
    fields = {
        ":method": "POST",
        ":scheme": "http",
        ":path": "/v1beta1.DevicePlugin/GetDevicePluginOptions",
        ":authority": "/var/lib/kubelet/device-plugins/plugin.sock",
        "content-type": "application/grpc",
        "te": "trailers",
    }
    headers = b"".join(literal(name, value) for name, value in fields.items())
    empty_message = frame(0, 1, 1, bytes(5))
    with socket.socket(socket.AF_UNIX) as kubelet:
        kubelet.settimeout(10)
        kubelet.connect(str(host.socket))
        kubelet.sendall(PREFACE + frame(4, 0, 0, b"") + frame(1, 4, 1, headers) + empty_message)
        answer = b""
        while b"grpc-status" not in answer:
            received = kubelet.recv(4096)
            assert received, "the plugin hung up"
            answer += received
    assert b"grpc-status\x010" in answer


def test_before_gpus_were_read_nothing_is_preferred(host: Host) -> None:
    assert host.client.get_preferred_allocation([uuid(0)], [], 1, timeout=5) == []


def test_calls_are_counted_by_how_they_ended(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    host.offer(ready(2, {1: LOST}))
    host.client.allocate([uuid(0)], timeout=5)
    host.client.get_preferred_allocation([uuid(0)], [], 1, timeout=5)
    for devices in ([uuid(1)], ["GPU-of-another-day"]):
        with pytest.raises(grpc.RpcError):
            host.client.allocate(devices, timeout=5)

    def broken(*arguments: object) -> None:
        raise ValueError("a fault")

    monkeypatch.setattr(whole, "grant", broken)
    with pytest.raises(grpc.RpcError):
        host.client.allocate([uuid(0)], timeout=5)
    told = host.plugin.calls.counts
    assert told["allocate"].outcomes == {Outcome.OK: 1, Outcome.REFUSED: 2, Outcome.FAILED: 1}
    assert told["preferred"].outcomes[Outcome.OK] == 1
    assert told["allocate"].seconds > 0
    assert sum(told["prestart"].outcomes.values()) == 0
