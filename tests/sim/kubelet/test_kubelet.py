# SPDX-License-Identifier: Apache-2.0
import random
import socket
import tempfile
import threading
from concurrent import futures
from pathlib import Path

import grpc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kube_accel.kube.deviceplugin import HEALTHY, RegistrationError, register
from kube_accel.kube.podresources import PodResourcesClient, PodResourcesError
from kube_accel.kube.proto import deviceplugin_pb2 as pb
from kube_accel.kube.proto import podresources_pb2 as pr
from sim.kubelet import AdmissionError, Container, ContainerStartError, Device, DeviceSpec, FakeKubelet, Mount, PodSpec
from sim.kubelet.channel import open_channel
from sim.kubelet.client import add_device_plugin
from sim.kubelet.podresources import TokenBucket

GPU = "example.com/gpu"
MEMORY = "example.com/memory"
SECONDS = 10.0
DEFAULT_OPTIONS = pb.DevicePluginOptions()


class Plugin:
    """A device plugin whose answers a test replaces."""

    def __init__(self, root, name="plugin.sock", ids=("a", "b", "c", "d"), options=DEFAULT_OPTIONS):
        self.root, self.name = root, name
        self.changed = threading.Condition()
        self.publish(*ids)
        self.on_options = lambda: options
        self.on_preferred = lambda available, must_include, size: []
        self.on_allocate = lambda ids: pb.ContainerAllocateResponse(envs={"IDS": ",".join(sorted(ids))})
        self.on_pre_start = lambda ids, seconds_left: None
        self.preferred, self.allocated = [], []
        self.stream_ended = threading.Event()
        self.server = grpc.server(futures.ThreadPoolExecutor(max_workers=4))
        add_device_plugin(self.server, self)
        self.server.add_insecure_port(f"unix:{root}/device-plugins/{name}")
        self.server.start()

    def publish(self, *ids, unhealthy=()):
        topology = pb.TopologyInfo(nodes=[pb.NUMANode(ID=1)])
        devices = [pb.Device(ID=i, health="Unhealthy" if i in unhealthy else HEALTHY, topology=topology) for i in ids]
        self.show(pb.ListAndWatchResponse(devices=devices))

    def end_stream(self):
        self.show(None)

    def show(self, message):
        with self.changed:
            self.message = message
            self.changed.notify_all()

    def register(self, resource=GPU, options=DEFAULT_OPTIONS):
        register(Path(self.root, "device-plugins/kubelet.sock"), self.name, resource, options, SECONDS)

    def get_options(self, request, context):
        return self.on_options()

    def list_and_watch(self, request, context):
        def ended():
            self.stream_ended.set()
            with self.changed:
                self.changed.notify_all()

        context.add_callback(ended)
        message = None
        while message := self.message_after(message, context):
            yield message

    def message_after(self, sent, context):
        with self.changed:
            self.changed.wait_for(lambda: self.message is not sent or not context.is_active())
            return self.message if context.is_active() else None

    def get_preferred_allocation(self, request, context):
        (asked,) = request.container_requests
        call = (set(asked.available_deviceIDs), set(asked.must_include_deviceIDs), asked.allocation_size)
        self.preferred.append(call)
        answer = pb.ContainerPreferredAllocationResponse(deviceIDs=self.on_preferred(*call))
        return pb.PreferredAllocationResponse(container_responses=[answer])

    def allocate(self, request, context):
        (asked,) = request.container_requests
        self.allocated.append(set(asked.devices_ids))
        return pb.AllocateResponse(container_responses=[self.on_allocate(asked.devices_ids)])

    def pre_start_container(self, request, context):
        self.on_pre_start(set(request.devices_ids), context.time_remaining())
        return pb.PreStartContainerResponse()


@pytest.fixture
def root():
    with tempfile.TemporaryDirectory(prefix="k", dir="/tmp") as path:
        yield Path(path)


@pytest.fixture
def kubelet(root):
    with FakeKubelet(root, random.Random(1)) as kubelet:
        yield kubelet


@pytest.fixture
def start_plugin(kubelet, root):
    plugins = []

    def start(resource=GPU, **arguments):
        plugin = Plugin(root, **arguments)
        plugins.append(plugin)
        plugin.register(resource)
        kubelet.wait(lambda: bool(kubelet.devices(resource)), SECONDS)
        return plugin

    yield start
    for plugin in plugins:
        plugin.end_stream()
        plugin.server.stop(None).wait()


def pod(name="p", gpus=1, **more):
    return PodSpec("team", name, f"uid-{name}", (Container("main", {GPU: gpus, **more}),))


def held(root):
    return PodResourcesClient(root / "pod-resources/kubelet.sock").list(SECONDS)


def call_pod_resources(root, method, request, reply):
    with open_channel(root / "pod-resources/kubelet.sock", 64 << 20) as channel:
        call = channel.unary_unary(
            f"/v1.PodResourcesLister/{method}", type(request).SerializeToString, reply.FromString
        )
        return call(request, timeout=SECONDS)


def assert_stays(kubelet, state):
    """Nothing changes ``state``, not even what a thread does a moment later."""
    with pytest.raises(TimeoutError):
        kubelet.wait(lambda: not state(), 0.3)


# Registration


def test_registered_plugin_gives_capacity_and_allocatable(kubelet, start_plugin):
    plugin = start_plugin()
    assert kubelet.devices(GPU) == {name: Device(HEALTHY, (1,)) for name in "abcd"}
    plugin.publish("a", "b", "c", unhealthy=("b",))
    kubelet.wait(lambda: kubelet.capacity() == {GPU: 3} and kubelet.allocatable() == {GPU: 2}, SECONDS)


def test_plugin_that_does_not_serve_is_refused(root):
    with FakeKubelet(root, dial_timeout=0.1) as kubelet:
        with pytest.raises(RegistrationError, match=r"example.com/gpu: failed to dial device plugin on nobody.sock"):
            register(root / "device-plugins/kubelet.sock", "nobody.sock", GPU, DEFAULT_OPTIONS, 60)
        assert kubelet.capacity() == {}


@pytest.mark.parametrize("name", ["gpu", "x.kubernetes.io/gpu", "requests.example.com/gpu", "example.com/"])
def test_name_that_is_no_extended_resource_is_refused(kubelet, root, name):
    with pytest.raises(RegistrationError, match="not a name for an extended resource"):
        register(root / "device-plugins/kubelet.sock", "p.sock", name, DEFAULT_OPTIONS)


def test_other_api_version_is_refused(kubelet, root):
    request = pb.RegisterRequest(version="v1alpha", endpoint="p.sock", resource_name=GPU)
    with open_channel(root / "device-plugins/kubelet.sock") as channel:
        call = channel.unary_unary(
            "/v1beta1.Registration/Register", pb.RegisterRequest.SerializeToString, pb.Empty.FromString
        )
        with pytest.raises(grpc.RpcError, match=r"v1alpha.*supports 'v1beta1'"):
            call(request, timeout=SECONDS)


def test_registering_without_a_kubelet_names_socket_and_resource(root):
    with pytest.raises(RegistrationError, match=rf"kubelet on {root}/kubelet.sock did not register {GPU}: "):
        register(root / "kubelet.sock", "p.sock", GPU, DEFAULT_OPTIONS, SECONDS)


def test_authority_is_localhost(root):
    """A strict HTTP/2 server refuses the socket's path as authority."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(root / "s"))
        listener.listen()
        listener.settimeout(SECONDS)
        with open_channel(root / "s") as channel:
            call = channel.unary_unary("/any/Method").future(b"", timeout=SECONDS)
            connection, _ = listener.accept()
            with connection:
                connection.settimeout(SECONDS)
                connection.sendall(bytes([0, 0, 0, 4, 0, 0, 0, 0, 0]))  # an empty SETTINGS frame
                seen = b""
                while b"/any/Method" not in seen or b":authority" not in seen:
                    seen += connection.recv(4096)
            call.cancel()
    assert b"localhost" in seen
    assert str(root).encode() not in seen


def test_last_registration_wins(kubelet, start_plugin):
    old = start_plugin()
    new = start_plugin(name="new.sock", ids=("x", "y"))
    kubelet.wait(lambda: set(kubelet.devices(GPU)) == {"x", "y"}, SECONDS)
    kubelet.admit(pod(gpus=2))
    assert (len(old.allocated), len(new.allocated)) == (0, 1)


def test_end_of_an_older_plugin_disconnects_the_newer_one(kubelet, start_plugin):
    """What kubelet does in a rolling update: the stream that ended is told from the current one by resource only."""
    old = start_plugin()
    new = start_plugin(name="new.sock", ids=("x", "y"))
    kubelet.wait(lambda: set(kubelet.devices(GPU)) == {"x", "y"}, SECONDS)
    old.end_stream()
    assert new.stream_ended.wait(SECONDS)
    kubelet.wait(lambda: kubelet.allocatable() == {GPU: 0}, SECONDS)
    new.register()
    kubelet.wait(lambda: kubelet.allocatable() == {GPU: 2}, SECONDS)
    kubelet.admit(pod(gpus=2))


def test_broken_stream_makes_every_device_unhealthy(kubelet, start_plugin):
    start_plugin().end_stream()
    kubelet.wait(lambda: kubelet.allocatable() == {GPU: 0}, SECONDS)
    assert kubelet.capacity() == {GPU: 4}
    with pytest.raises(AdmissionError, match=f"no healthy devices present; cannot allocate unhealthy devices {GPU}"):
        kubelet.admit(pod())


def test_list_over_4_mib_is_not_received(kubelet, start_plugin):
    plugin = start_plugin()
    plugin.publish("x" * (5 << 20))
    kubelet.wait(lambda: kubelet.allocatable() == {GPU: 0}, SECONDS)
    assert set(kubelet.devices(GPU)) == set("abcd")


# Admission


def test_container_gets_what_allocate_answered(kubelet, start_plugin):
    plugin = start_plugin()
    plugin.on_allocate = lambda ids: pb.ContainerAllocateResponse(
        envs={"E": "1"},
        mounts=[pb.Mount(container_path="/c", host_path="/h", read_only=True)],
        devices=[pb.DeviceSpec(container_path="/dev/c", host_path="/dev/h", permissions="rw")],
        annotations={"a": "b"},
        cdi_devices=[pb.CDIDevice(name="v/c=d")],
    )
    main = kubelet.admit(pod(gpus=2, cpu=4))["main"]
    assert (main.envs, main.annotations, main.cdi_devices) == ({"E": "1"}, {"a": "b"}, ("v/c=d",))
    assert main.mounts == (Mount("/c", "/h", True),)
    assert main.devices == (DeviceSpec("/dev/c", "/dev/h", "rw"),)
    assert plugin.allocated == [set(main.device_ids[GPU])]
    assert len(plugin.allocated[0]) == 2


def test_preferred_devices_are_taken_as_far_as_available(kubelet, start_plugin):
    plugin = start_plugin(options=pb.DevicePluginOptions(get_preferred_allocation_available=True))
    plugin.on_preferred = lambda available, must_include, size: ["a", "nonsense"]
    assert kubelet.admit(pod("one"))["main"].device_ids == {GPU: ("a",)}
    second = kubelet.admit(pod("two", gpus=2))["main"].device_ids[GPU]
    assert "a" not in second
    assert len(second) == 2
    assert plugin.preferred == [(set("abcd"), set(), 1), (set("bcd"), set(), 2)]


@pytest.mark.parametrize("answered", [True, False])
def test_answered_options_count_and_registered_ones_do_not(kubelet, start_plugin, answered):
    plugin = start_plugin(options=pb.DevicePluginOptions(get_preferred_allocation_available=answered))
    plugin.register(options=pb.DevicePluginOptions(get_preferred_allocation_available=not answered))
    plugin.publish("x")
    kubelet.wait(lambda: set(kubelet.devices(GPU)) == {"x"}, SECONDS)
    kubelet.admit(pod())
    assert len(plugin.preferred) == answered


@pytest.mark.parametrize("method", ["on_preferred", "on_allocate"])
def test_plugin_error_fails_admission_and_frees_the_devices(kubelet, start_plugin, method):
    plugin = start_plugin(options=pb.DevicePluginOptions(get_preferred_allocation_available=True))
    good = getattr(plugin, method)

    def bad(*_):
        raise RuntimeError("GPU is lost")

    setattr(plugin, method, bad)
    with pytest.raises(AdmissionError, match=r"Allocate failed due to .*GPU is lost, which is unexpected") as failed:
        kubelet.admit(pod(gpus=4))
    assert failed.value.reason == "UnexpectedAdmissionError"
    setattr(plugin, method, good)
    assert len(kubelet.admit(pod(gpus=4))["main"].device_ids[GPU]) == 4


def test_too_many_devices_say_how_many_there_are(kubelet, start_plugin):
    start_plugin()
    kubelet.admit(pod("small"))
    with pytest.raises(AdmissionError, match=f"unavailable for {GPU}. Requested: 4, Available: 3"):
        kubelet.admit(pod("large", gpus=4))
    kubelet.remove(pod("small"))
    kubelet.admit(pod("large", gpus=4))


def test_refused_pod_holds_nothing_of_its_first_containers(kubelet, start_plugin, root):
    start_plugin()
    greedy = PodSpec("team", "p", "uid", (Container("small", {GPU: 1}), Container("large", {GPU: 4})))
    with pytest.raises(AdmissionError, match="Requested: 4, Available: 3"):
        kubelet.admit(greedy)
    assert held(root) == ()
    kubelet.admit(pod(gpus=4))


def test_resources_come_in_random_order_and_first_answer_wins(kubelet, start_plugin):
    order = []

    def answer(resource):
        def on_allocate(ids):
            order.append(resource)
            return pb.ContainerAllocateResponse(
                envs={"WHO": resource},
                mounts=[pb.Mount(container_path="/x", host_path=resource)],
                devices=[pb.DeviceSpec(container_path="/dev/x", host_path=resource)],
                annotations={"who": resource},
            )

        return on_allocate

    ids = [f"{i}" for i in range(20)]
    start_plugin(ids=ids).on_allocate = answer(GPU)
    start_plugin(MEMORY, name="memory.sock", ids=ids).on_allocate = answer(MEMORY)
    started = [kubelet.admit(pod(str(i), 1, **{MEMORY: 1}))["main"] for i in range(20)]
    assert {tuple(order[i : i + 2]) for i in range(0, 40, 2)} == {(GPU, MEMORY), (MEMORY, GPU)}
    firsts = [main.envs["WHO"] for main in started]
    assert set(firsts) == {GPU, MEMORY}
    assert [[spec.host_path for spec in main.devices] for main in started] == [[first] for first in firsts]
    assert [[mount.host_path for mount in main.mounts] for main in started] == [[first] for first in firsts]
    assert [main.annotations for main in started] == [{"who": first} for first in firsts]


def test_same_seed_same_choices():
    def choices(seed):
        with tempfile.TemporaryDirectory(prefix="k", dir="/tmp") as path:
            with FakeKubelet(Path(path), random.Random(seed)) as kubelet:
                plugin = Plugin(path)
                plugin.register()
                kubelet.wait(lambda: bool(kubelet.devices(GPU)), SECONDS)
                taken = [kubelet.admit(pod(str(i)))["main"].device_ids[GPU] for i in range(4)]
            plugin.server.stop(None).wait()
            return tuple(taken)

    assert choices(7) == choices(7)
    assert len({choices(seed) for seed in range(5)}) > 1


def test_later_containers_reuse_devices_of_init_containers_only(kubelet, start_plugin):
    plugin = start_plugin(options=pb.DevicePluginOptions(get_preferred_allocation_available=True))
    spec = PodSpec(
        "team",
        "p",
        "uid",
        init_containers=(Container("sidecar", {GPU: 1}, restartable=True), Container("init", {GPU: 1})),
        containers=(Container("main", {GPU: 2}), Container("second", {GPU: 1})),
    )
    given = {name: set(container.device_ids[GPU]) for name, container in kubelet.admit(spec).items()}
    assert given["init"] < given["main"]
    assert given["sidecar"] | given["main"] | given["second"] == set("abcd")
    assert (set("abcd") - given["sidecar"], given["init"], 2) in plugin.preferred


def test_pre_start_follows_admission_and_the_holder_is_listed(kubelet, start_plugin, root):
    plugin = start_plugin(options=pb.DevicePluginOptions(pre_start_required=True))
    seen = []
    plugin.on_pre_start = lambda ids, seconds_left: seen.append((ids, seconds_left, held(root)))
    main = kubelet.admit(pod(gpus=2))["main"]
    ((ids, seconds_left, holders),) = seen
    assert 0 < seconds_left < 31
    assert [(h.namespace, h.pod, h.container, h.resource) for h in holders] == [("team", "p", "main", GPU)]
    assert ids == set(holders[0].device_ids) == set(main.device_ids[GPU])


def test_failed_pre_start_leaves_the_pod_admitted(kubelet, start_plugin, root):
    plugin = start_plugin(options=pb.DevicePluginOptions(pre_start_required=True))

    def refuse(ids, seconds_left):
        raise RuntimeError("no policy")

    plugin.on_pre_start = refuse
    with pytest.raises(ContainerStartError, match=f"PreStartContainer of {GPU} failed: .*no policy"):
        kubelet.admit(pod())
    assert len(held(root)) == 1
    plugin.on_pre_start = lambda ids, seconds_left: None
    assert len(kubelet.run(pod())["main"].device_ids[GPU]) == 1
    assert len(plugin.allocated) == 1


def test_pre_start_is_skipped_before_the_plugin_is_back(kubelet, start_plugin):
    plugin = start_plugin(options=pb.DevicePluginOptions(pre_start_required=True))
    kubelet.admit(pod())
    plugin.end_stream()
    kubelet.wait(lambda: kubelet.allocatable() == {GPU: 0}, SECONDS)
    with pytest.raises(ContainerStartError, match=f"the plugin for {GPU} has gone"):
        kubelet.run(pod())
    kubelet.restart()
    assert len(kubelet.run(pod())["main"].device_ids[GPU]) == 1


@settings(max_examples=20)
@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 5)), max_size=12))
def test_no_device_is_ever_given_to_two_pods(steps):
    """A step starts pod n with some GPUs, or ends it when it runs."""
    with tempfile.TemporaryDirectory(prefix="k", dir="/tmp") as path, FakeKubelet(Path(path)) as kubelet:
        plugin = Plugin(path)
        plugin.register()
        kubelet.wait(lambda: bool(kubelet.devices(GPU)), SECONDS)
        running: dict[int, tuple[str, ...]] = {}
        for number, gpus in steps:
            spec = pod(str(number), gpus)
            if running.pop(number, None) is not None:
                kubelet.remove(spec)
                continue
            free = 4 - sum(len(ids) for ids in running.values())
            if gpus <= free:
                running[number] = kubelet.admit(spec)["main"].device_ids.get(GPU, ())
                assert len(running[number]) == gpus
            else:
                with pytest.raises(AdmissionError):
                    kubelet.admit(spec)
            taken = [name for ids in running.values() for name in ids]
            assert len(taken) == len(set(taken))
        plugin.end_stream()
        plugin.server.stop(None).wait()


# Restart


def test_restart_deletes_sockets_keeps_files_and_allocations(kubelet, start_plugin, root):
    plugin = start_plugin()
    before = kubelet.admit(pod(gpus=3))["main"].device_ids[GPU]
    (root / "device-plugins/kubelet_internal_checkpoint").write_text("{}")
    kubelet.restart()
    assert sorted(path.name for path in (root / "device-plugins").iterdir()) == [
        "kubelet.sock",
        "kubelet_internal_checkpoint",
    ]
    assert plugin.stream_ended.wait(SECONDS)
    assert kubelet.capacity() == {GPU: 0}
    with pytest.raises(AdmissionError, match="no healthy devices present"):
        kubelet.admit(pod("early"))
    (still,) = held(root)
    assert (still.pod, sorted(still.device_ids)) == ("p", sorted(before))

    again = start_plugin(name="again.sock")
    assert set(kubelet.admit(pod(gpus=3))["main"].device_ids[GPU]) == set(before)
    assert again.allocated == []
    (late,) = kubelet.admit(pod("late"))["main"].device_ids[GPU]
    assert late not in before


def test_kubelet_serves_after_every_restart(kubelet, start_plugin, root):
    for number in range(10):
        kubelet.restart()
        start_plugin(name=f"{number}.sock")
        assert held(root) == ()


def test_registration_interrupted_by_a_restart_does_not_count(kubelet, root):
    plugin = Plugin(root)
    asked, answer, refused = threading.Event(), threading.Event(), threading.Event()

    def slow():
        asked.set()
        answer.wait(SECONDS)
        return DEFAULT_OPTIONS

    plugin.on_options = slow

    def attempt():
        with pytest.raises(RegistrationError):
            plugin.register()
        refused.set()

    threading.Thread(target=attempt, daemon=True).start()
    assert asked.wait(SECONDS)
    kubelet.restart()
    answer.set()
    assert refused.wait(SECONDS)
    assert_stays(kubelet, lambda: kubelet.capacity() == {})
    plugin.server.stop(None).wait()


# PodResources


def test_list_names_sidecars_and_containers_without_init(kubelet, start_plugin, root):
    start_plugin()
    spec = PodSpec(
        "team",
        "p",
        "uid",
        init_containers=(Container("init", {GPU: 2}), Container("sidecar", {GPU: 1}, restartable=True)),
        containers=(Container("main", {GPU: 2}), Container("idle")),
    )
    kubelet.admit(spec)
    assert {h.container: len(h.device_ids) for h in held(root)} == {"sidecar": 1, "main": 2}
    reply = call_pod_resources(root, "List", pr.ListPodResourcesRequest(), pr.ListPodResourcesResponse)
    containers = {container.name: container for container in reply.pod_resources[0].containers}
    assert set(containers) == {"sidecar", "main", "idle"}
    assert [len(devices.device_ids) for devices in containers["main"].devices] == [1, 1]
    assert [node.ID for node in containers["main"].devices[0].topology.nodes] == [1]


def test_allocatable_resources_are_the_healthy_devices(kubelet, start_plugin, root):
    start_plugin().publish("a", "b", unhealthy="a")
    kubelet.wait(lambda: kubelet.allocatable() == {GPU: 1}, SECONDS)
    reply = call_pod_resources(
        root, "GetAllocatableResources", pr.AllocatableResourcesRequest(), pr.AllocatableResourcesResponse
    )
    assert [(d.resource_name, list(d.device_ids)) for d in reply.devices] == [(GPU, ["b"])]


def test_get_finds_one_pod_or_says_which_it_did_not_find(kubelet, start_plugin, root):
    start_plugin()
    kubelet.admit(pod())
    wanted = pr.GetPodResourcesRequest(pod_name="p", pod_namespace="team")
    found = call_pod_resources(root, "Get", wanted, pr.GetPodResourcesResponse)
    assert (found.pod_resources.namespace, found.pod_resources.name) == ("team", "p")
    wanted.pod_name = "other"
    with pytest.raises(grpc.RpcError, match="pod other in namespace team not found"):
        call_pod_resources(root, "Get", wanted, pr.GetPodResourcesResponse)


def test_client_takes_over_4_mib_and_the_server_sends_16(kubelet, start_plugin, root):
    for number in range(6):
        resource = f"example.com/r{number}"
        start_plugin(resource, name=f"{number}.sock", ids=(f"{number}" * (3 << 20),))
        kubelet.admit(PodSpec("team", str(number), str(number), (Container("main", {resource: 1}),)))
        if number == 1:
            assert [len(h.device_ids[0]) for h in held(root)] == [3 << 20] * 2
    with pytest.raises(PodResourcesError, match=f"kubelet on {root}/pod-resources/kubelet.sock did not list devices"):
        held(root)


def test_calls_beyond_the_rate_are_refused(kubelet, root):
    with open_channel(root / "pod-resources/kubelet.sock") as channel:
        call = channel.unary_unary("/v1.PodResourcesLister/List")
        calls = [call.future(b"", timeout=SECONDS) for _ in range(100)]
        refused = [done.exception() for done in calls if done.exception()]
    assert 0 < len(refused) <= 90
    assert {(error.code(), error.details()) for error in refused} == {
        (grpc.StatusCode.RESOURCE_EXHAUSTED, "rejected by rate limit")
    }


def test_rate_is_100_a_second_and_10_at_once():
    now = 0.0
    bucket = TokenBucket(100, 10, lambda: now)
    assert [bucket.take() for _ in range(11)] == [True] * 10 + [False]
    now = 0.03
    assert [bucket.take() for _ in range(4)] == [True] * 3 + [False]
    now = 100.0
    assert sum(bucket.take() for _ in range(20)) == 10


def test_root_too_long_for_a_socket_is_refused(tmp_path):
    with pytest.raises(ValueError, match="too long for a socket: use a shorter root"):
        FakeKubelet(tmp_path / ("x" * 80))


def test_what_kubelet_forgot_is_given_again_until_a_pod_ends(kubelet, start_plugin, root):
    start_plugin()
    kubelet.admit(pod("ends", 2))
    kubelet.admit(pod("forgotten", 2))
    kubelet.forget(pod("forgotten"))
    kubelet.accept(pod("also", 2))
    (first,), (second,) = ([h.device_ids for h in held(root) if h.pod == name] for name in ("forgotten", "also"))
    assert set(first) == set(second)
    kubelet.remove(pod("ends"))
    (freed,) = kubelet.admit(pod("next")).values()
    assert not set(freed.device_ids[GPU]) & set(first)
