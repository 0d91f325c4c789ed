# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import os
import re
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

import grpc
import pytest

from kube_accel.kube import deviceplugin
from kube_accel.kube.proto import deviceplugin_pb2 as pb
from kube_accel.plugin.kubelet import registration
from kube_accel.plugin.kubelet.registration import ForeignPluginError, Registrar
from kube_accel.plugin.kubelet.server import serve
from sim.kubelet import FakeKubelet
from sim.kubelet.channel import open_channel
from sim.kubelet.client import DevicePluginClient, add_registration
from unit.kube_accel.plugin import fakes
from unit.kube_accel.plugin.fakes import offer, ready
from waiting import wait

RESOURCE = "nvidia.com/gpu"
DEADLINE = 15.0


class Instance:
    """One plugin process's registrar, with ``gpus`` GPUs to offer (None: not read yet)."""

    def __init__(self, directory: Path, gpus: int | None = 2, takeover: bool = False) -> None:
        self.registrar = Registrar(directory, "pgpu", RESOURCE, takeover)
        self.plugin = fakes.plugin(directory, self.registrar.wake)
        self.error: Exception | None = None
        if gpus is not None:
            self.offer(gpus)
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def offer(self, gpus: int) -> None:
        offer(self.plugin, ready(gpus))

    def _run(self) -> None:
        try:
            self.registrar.run(self.plugin)
        except ForeignPluginError as error:
            self.error = error

    def registered(self) -> bool:
        return self.registrar.state.registered

    def stop(self) -> None:
        self.registrar.stop()
        self.thread.join(DEADLINE)
        assert not self.thread.is_alive()


class KubeletOf136:
    """Registration as in kubelet 1.36: when a plugin ends its stream, the resource's latest plugin is disconnected."""

    def __init__(self, root: Path) -> None:
        self.directory = root / "device-plugins"
        self.directory.mkdir()
        self.healthy = 0
        self.registrations = 0
        self._lock = threading.RLock()
        self._latest: grpc.Channel | None = None
        self._disconnected: set[grpc.Channel] = set()
        self._server = grpc.server(ThreadPoolExecutor(4))
        add_registration(self._server, self)
        self._server.add_insecure_port(f"unix:{self.directory / deviceplugin.KUBELET_SOCKET}")
        self._server.start()

    def register(self, request: pb.RegisterRequest, context: grpc.ServicerContext) -> pb.Empty:
        channel = open_channel(self.directory / request.endpoint)
        client = DevicePluginClient(channel)
        client.get_options(timeout=DEADLINE)
        with self._lock:
            self._latest = channel
            self.registrations += 1
        threading.Thread(target=self._follow, args=(client, channel), daemon=True).start()
        return pb.Empty()

    def _follow(self, client: DevicePluginClient, channel: grpc.Channel) -> None:
        with suppress(grpc.RpcError, ValueError):
            for message in client.list_and_watch():
                with self._lock:
                    self.healthy = sum(device.health == deviceplugin.HEALTHY for device in message.devices)
        with self._lock:
            if channel in self._disconnected:
                return
            latest, self._latest = self._latest, None
            if latest is not None:
                self._disconnected.add(latest)
                self.healthy = 0
        if latest is not None:
            latest.close()

    def stop(self) -> None:
        self._server.stop(None).wait()


@pytest.fixture
def root() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as path:
        yield Path(path)


@pytest.fixture
def kubelet(root: Path) -> Iterator[FakeKubelet]:
    with FakeKubelet(root) as kubelet:
        yield kubelet


@pytest.fixture
def instances(root: Path) -> Iterator[Callable[..., Instance]]:
    started: list[Instance] = []

    def start(gpus: int | None = 2, takeover: bool = False) -> Instance:
        instance = Instance(root / "device-plugins", gpus, takeover)
        started.append(instance)
        return instance

    yield start
    for instance in started:
        instance.stop()


Start = Callable[..., Instance]


def healthy(kubelet: FakeKubelet) -> int:
    return kubelet.allocatable().get(RESOURCE, 0)


def sockets(root: Path) -> set[str]:
    return {path.name for path in (root / "device-plugins").glob("kube-accel-*")}


def watches() -> int:
    found = 0
    for entry in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):
            found += str(entry.readlink()) == "anon_inode:inotify"
    return found


def test_it_registers_and_ends_without_a_trace(kubelet: FakeKubelet, root: Path, instances: Start) -> None:
    instance = instances()
    kubelet.wait(lambda: healthy(kubelet) == 2, DEADLINE)
    wait(instance.registered)
    instance.stop()
    kubelet.wait(lambda: healthy(kubelet) == 0, DEADLINE)
    assert sockets(root) == set()


def test_resource_no_longer_offered_leaves_no_watch(kubelet: FakeKubelet, instances: Start) -> None:
    """A user has 128, which kubelet and the container runtime are in need of too."""
    before = watches()
    instance = instances()
    wait(instance.registered)
    assert watches() == before + 1
    instance.stop()
    assert watches() == before
    instance.registrar.wake()


def test_empty_list_is_never_shown_before_the_gpus_are_read(kubelet: FakeKubelet, instances: Start) -> None:
    instance = instances(gpus=None)
    wait(lambda: "there is no list of GPUs" in instance.registrar.state.detail)
    assert kubelet.capacity() == {}
    instance.offer(2)
    kubelet.wait(lambda: healthy(kubelet) == 2, DEADLINE)


def test_it_waits_for_a_kubelet_that_is_not_there(root: Path, instances: Start) -> None:
    (root / "device-plugins").mkdir()
    instance = instances()
    wait(lambda: "kubelet is not there" in instance.registrar.state.detail)
    assert instance.registrar.failure() == ""
    with FakeKubelet(root) as kubelet:
        kubelet.wait(lambda: healthy(kubelet) == 2, DEADLINE)


def test_it_waits_for_a_kubelet_that_does_not_answer(root: Path, instances: Start) -> None:
    (root / "device-plugins").mkdir()
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(root / "device-plugins/kubelet.sock"))
    instance = instances()
    wait(lambda: "did not register nvidia.com/gpu" in instance.registrar.state.detail)
    with FakeKubelet(root) as kubelet:
        kubelet.wait(lambda: healthy(kubelet) == 2, DEADLINE)


def test_it_registers_again_with_a_restarted_kubelet(kubelet: FakeKubelet, instances: Start) -> None:
    instances()
    for _ in range(3):
        kubelet.wait(lambda: healthy(kubelet) == 2, DEADLINE)
        kubelet.restart()
    kubelet.wait(lambda: healthy(kubelet) == 2, DEADLINE)


def test_it_listens_again_when_its_socket_was_removed(kubelet: FakeKubelet, root: Path, instances: Start) -> None:
    instance = instances()
    wait(instance.registered)
    before = sockets(root)
    for name in before:
        (root / "device-plugins" / name).unlink()
    wait(lambda: sockets(root) and sockets(root) != before)
    kubelet.wait(lambda: healthy(kubelet) == 2, DEADLINE)
    wait(lambda: instance.registered() and instance.registrar.failure() == "")


class KubeletThatRemovesSockets:
    """It starts while a plugin registers: that plugin's socket is gone before it can be dialled."""

    def __init__(self, root: Path) -> None:
        self._directory = root / "device-plugins"
        self._directory.mkdir()
        self._second = threading.Event()
        self._calls = 0
        self.first_given_up: bool | None = None
        self._server = grpc.server(ThreadPoolExecutor(4))
        add_registration(self._server, self)
        self._server.add_insecure_port(f"unix:{self._directory / deviceplugin.KUBELET_SOCKET}")
        self._server.start()

    def register(self, request: pb.RegisterRequest, context: grpc.ServicerContext) -> pb.Empty:
        self._calls += 1
        if self._calls == 1:
            (self._directory / request.endpoint).unlink()
            # Kubelet dials for ten seconds.
            self.first_given_up = self._second.wait(5)
            context.abort(grpc.StatusCode.UNKNOWN, "no such socket")
        self._second.set()
        return pb.Empty()

    def stop(self) -> None:
        self._server.stop(None).wait()


def test_kubelet_that_dials_a_removed_socket_is_not_waited_for(root: Path, instances: Start) -> None:
    kubelet = KubeletThatRemovesSockets(root)
    try:
        instances()
        wait(lambda: kubelet.first_given_up is not None)
        assert kubelet.first_given_up
    finally:
        kubelet.stop()


def test_successor_takes_over_and_its_predecessor_leaves_quietly(kubelet: FakeKubelet, instances: Start) -> None:
    old = instances(gpus=2)
    kubelet.wait(lambda: healthy(kubelet) == 2, DEADLINE)
    new = instances(gpus=3)
    kubelet.wait(lambda: healthy(kubelet) == 3, DEADLINE)
    wait(lambda: "a newer instance serves" in old.registrar.state.detail)
    old.stop()
    wait(new.registered)
    kubelet.wait(lambda: healthy(kubelet) == 3, DEADLINE)


def test_predecessors_fast_clock_keeps_no_successor_waiting(kubelet: FakeKubelet, instances: Start) -> None:
    old = instances(gpus=2)
    wait(old.registered)
    path = old.registrar.socket
    assert path is not None
    later = time.time() + 3600
    os.utime(path, (later, later))
    new = instances(gpus=3)
    wait(new.registered)
    kubelet.wait(lambda: healthy(kubelet) == 3, DEADLINE)
    wait(lambda: "a newer instance serves" in old.registrar.state.detail)


@contextmanager
def newer_instance(path: Path) -> Iterator[None]:
    """Somebody listens on a socket that its file says is younger than any."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        later = time.time() + 3600
        os.utime(path, (later, later))
        yield


def test_sockets_age_decides_with_the_previous_release(kubelet: FakeKubelet, root: Path, instances: Start) -> None:
    """It knows no other way, and would take the resource back."""
    path = root / "device-plugins/kube-accel-pgpu-1-abcdef.sock"
    with newer_instance(path):
        one = instances()
        wait(lambda: path.name in one.registrar.state.detail)
        os.utime(path, (0, 0))
        wait(one.registered)


def test_its_socket_is_known_to_the_release_before(root: Path, instances: Start) -> None:
    (root / "device-plugins").mkdir()
    instances()
    wait(lambda: sockets(root))
    assert re.fullmatch(r"kube-accel-pgpu-\d+-[0-9a-f]+\.sock", *sockets(root))


def test_the_predecessor_serves_on_when_the_successor_ends(kubelet: FakeKubelet, instances: Start) -> None:
    old = instances(gpus=2)
    kubelet.wait(lambda: healthy(kubelet) == 2, DEADLINE)
    new = instances(gpus=3)
    kubelet.wait(lambda: healthy(kubelet) == 3, DEADLINE)
    new.stop()
    kubelet.wait(lambda: healthy(kubelet) == 2, DEADLINE)
    wait(old.registered)


def test_two_instances_do_not_fight_over_a_restarted_kubelet(kubelet: FakeKubelet, instances: Start) -> None:
    one, other = instances(gpus=2), instances(gpus=2)
    wait(lambda: one.registered() != other.registered())
    kubelet.restart()
    kubelet.wait(lambda: healthy(kubelet) == 2, DEADLINE)
    wait(lambda: one.registered() != other.registered())


def test_successor_dropped_with_its_predecessor_is_back_at_once(
    root: Path, instances: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registration, "_STREAM_GRACE", 3600.0)  # whoever waits for it fails
    kubelet = KubeletOf136(root)
    try:
        old = instances(gpus=2)
        wait(lambda: kubelet.healthy == 2)
        instances(gpus=3)
        wait(lambda: kubelet.healthy == 3)
        registered = kubelet.registrations
        # Its stream ends before its socket: a successor that sees the socket go first registers, and may lose that
        # registration before kubelet opened a stream, which the grace is for.
        old.plugin.close()
        wait(lambda: kubelet.registrations > registered and kubelet.healthy == 3)
    finally:
        kubelet.stop()


def test_predecessor_that_registered_last_takes_nothing_along(
    kubelet: FakeKubelet, root: Path, instances: Start
) -> None:
    old = instances(gpus=2)
    kubelet.wait(lambda: healthy(kubelet) == 2, DEADLINE)
    new = instances(gpus=3)
    kubelet.wait(lambda: healthy(kubelet) == 3, DEADLINE)
    wait(lambda: "a newer instance serves" in old.registrar.state.detail)
    # With a restarted kubelet both register at once: the older looks before the newer has its socket, and comes second.
    path = old.registrar.socket
    assert path is not None
    deviceplugin.register(
        root / "device-plugins" / deviceplugin.KUBELET_SOCKET, path.name, RESOURCE, old.plugin.options
    )
    kubelet.wait(lambda: kubelet.plugins()[RESOURCE] == path.name and healthy(kubelet) == 2, DEADLINE)
    old.stop()
    kubelet.wait(lambda: healthy(kubelet) == 3, DEADLINE)
    successor = new.registrar.socket
    assert successor is not None
    assert kubelet.plugins()[RESOURCE] == successor.name


def test_the_socket_of_a_dead_instance_is_removed(kubelet: FakeKubelet, root: Path, instances: Start) -> None:
    dead = root / "device-plugins/kube-accel-pgpu-1-abcdef.sock"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(dead))
    instances()
    kubelet.wait(lambda: healthy(kubelet) == 2, DEADLINE)
    assert not dead.exists()


def test_resource_with_a_longer_name_is_no_newer_instance(kubelet: FakeKubelet, root: Path, instances: Start) -> None:
    other = root / "device-plugins/kube-accel-pgpu-b-1-abcdef.sock"
    with newer_instance(other):
        one = instances()
        wait(one.registered)
        kubelet.wait(lambda: healthy(kubelet) == 2, DEADLINE)
    assert other.exists()


@pytest.fixture
def foreign(kubelet: FakeKubelet, root: Path) -> Iterator[Path]:
    """NVIDIA's own plugin, alive."""
    plugin = fakes.plugin(root)
    path = root / "device-plugins/nvidia-gpu.sock"
    server = serve(plugin, path)
    yield path
    server.stop()


def test_another_plugin_is_left_in_charge(kubelet: FakeKubelet, foreign: Path, instances: Start) -> None:
    instance = instances()
    instance.thread.join(DEADLINE)
    assert str(foreign) in str(instance.error)
    assert "--takeover" in str(instance.error)
    assert kubelet.capacity() == {}
    assert sorted(path.name for path in foreign.parent.glob("*.sock")) == ["kubelet.sock", "nvidia-gpu.sock"]


def test_takeover_registers_in_its_place(kubelet: FakeKubelet, foreign: Path, instances: Start) -> None:
    instances(takeover=True)
    kubelet.wait(lambda: healthy(kubelet) == 2, DEADLINE)


def test_sockets_of_dead_and_other_plugins_do_not_matter(kubelet: FakeKubelet, root: Path, instances: Start) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(root / "device-plugins/nvidia-gpu.sock"))
    other = serve(fakes.plugin(root), root / "device-plugins/rdma.sock")
    try:
        instances()
        kubelet.wait(lambda: healthy(kubelet) == 2, DEADLINE)
    finally:
        other.stop()


def test_a_directory_too_deep_for_sockets_is_named(root: Path) -> None:
    deep = root / ("x" * (100 - len(os.fsencode(root))))
    deep.mkdir()
    instance = Instance(deep)
    try:
        wait(lambda: "--kubelet-device-plugin-dir" in instance.registrar.state.detail)
    finally:
        instance.stop()
