# SPDX-License-Identifier: Apache-2.0
"""The shipped commands as processes, between a kubelet, a driver and an API server that are simulated."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import grpc
import pytest
import trustme
import urllib3

from kube_accel.plugin.kubelet.server import serve
from sim.kubelet import AdmissionError, Container, ContainerAllocation, ContainerStartError, FakeKubelet, PodSpec
from sim.kubelet.channel import open_channel
from sim.kubelet.client import DevicePluginClient
from sim.nvml import build, sysfs
from sim.nvml.profiles import PROFILES
from sim.nvml.topology import Topology, edit
from unit.kube_accel.api_server import ApiServer, service_account, serving
from unit.kube_accel.fraction_node import smi
from unit.kube_accel.plugin import fakes
from unit.kube_accel.threads import signal_thread, threads
from waiting import wait

RESOURCE = "nvidia.com/gpu"
INVENTORY = "kube-accel.io/inventory"
DEADLINE = 40.0


class Plugin:
    """A running ``kube-accel plugin``."""

    def __init__(self, host: Host, arguments: list[str]) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        self.log = host.root / f"plugin-{self.port}.log"
        with self.log.open("wb") as log:
            command = [*host.command("plugin"), "--listen", f"127.0.0.1:{self.port}", *arguments]
            self.process = subprocess.Popen(command, env=host.environment, stderr=log)

    def probe(self, path: str) -> tuple[int, str]:
        """Status and text; status 0 while nobody listens."""
        try:
            response = urllib3.request("GET", f"http://127.0.0.1:{self.port}{path}", timeout=10, retries=False)
        except urllib3.exceptions.HTTPError:
            return 0, ""
        return response.status, response.data.decode()

    def wait_ready(self) -> None:
        wait(lambda: self.probe("/readyz")[0] == 200, "/readyz")

    def logged(self) -> list[dict[str, Any]]:
        """Every line of its log, each of which must be a JSON object."""
        return [json.loads(line) for line in self.log.read_text().splitlines()]

    def refusal(self) -> str:
        """Why it would not start, which other threads' lines may follow."""
        (reason,) = (line["reason"] for line in self.logged() if line["level"] == "error")
        return str(reason)

    def exit_code(self) -> int:
        return self.process.wait(DEADLINE)

    def terminate(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.exit_code()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


class Host:
    """A node with eight H100, without a driver until ``load_driver``."""

    def __init__(self, root: Path, stack: ExitStack) -> None:
        self.root = root
        self.stack = stack
        self.conf = root / "gpusim.conf"
        self.topology = PROFILES["8xh100"]("node")
        self.topology.save(self.conf)
        self.uuids = [gpu.uuid for gpu in self.topology.gpus]
        sysfs.write(self.topology, root)
        (root / "dev").mkdir()
        self.kubelet_root = root / "kubelet"
        self.kubelet = FakeKubelet(self.kubelet_root)
        self.authority = trustme.CA()
        self.environment = os.environ | {
            "LD_LIBRARY_PATH": str(root / "usr/lib"),
            "GPUSIM_FILE": str(self.conf),
            "NODE_NAME": "node-1",
        }

    def load_driver(self) -> None:
        build(self.root / "usr/lib")
        sysfs.load_driver(self.topology, self.root)

    def command(self, name: str) -> list[str]:
        kubelet = ["--kubelet-device-plugin-dir", str(self.kubelet_root / "device-plugins")]
        pod_resources = ["--pod-resources-socket", str(self.kubelet_root / "pod-resources/kubelet.sock")]
        node = ["--sysfs-root", str(self.root / "sys"), "--dev-root", str(self.root / "dev")]
        state = ["--state-dir", str(self.root / "state")]
        account = ["--service-account-dir", str(self.root / "account")]
        flags = {
            "plugin": [*kubelet, *pod_resources, *node, *state, *account],
            "validate": [*kubelet, *pod_resources, *node, *state, "--smi-command", str(smi(self.root, self.uuids))],
            "quiesce": state,
        }
        return [sys.executable, "-m", "kube_accel.cli.main", name, *flags[name]]

    def run(self, name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [*self.command(name), *arguments]
        return subprocess.run(command, env=self.environment, capture_output=True, text=True, timeout=DEADLINE)

    def plugin(self, *arguments: str) -> Plugin:
        plugin = Plugin(self, list(arguments))
        self.stack.callback(plugin.kill)
        return plugin

    def api_server(self, port: int = 0) -> ApiServer:
        """Started, and what the plugins started after this find in their environment."""
        service_account(self.root / "account", self.authority)
        server = self.stack.enter_context(serving(self.authority, port))
        self.use_api_server(server.port)
        return server

    def use_api_server(self, port: int) -> None:
        self.environment |= {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": str(port)}

    def edit(self, change: Callable[[Topology], None]) -> None:
        with edit(self.conf) as topology:
            change(topology)

    def healthy(self) -> set[str]:
        return {name for name, device in self.kubelet.devices(RESOURCE).items() if device.healthy}

    def wait_healthy(self, uuids: set[str]) -> None:
        self.kubelet.wait(lambda: self.healthy() == uuids, DEADLINE)

    def admit(self, name: str, gpus: int) -> ContainerAllocation:
        return self.kubelet.admit(pod(name, gpus))["main"]


def pod(name: str, gpus: int) -> PodSpec:
    return PodSpec("team", name, f"uid-{name}", (Container("main", {RESOURCE: gpus}),))


def written(server: ApiServer) -> list[dict[str, Any]]:
    """Every annotation, first to last."""
    sent = (request for request in server.requests if request.method == "PATCH")
    bodies: list[Any] = [request.body for request in sent if request.path == "/api/v1/nodes/node-1"]
    annotations = [body["metadata"].get("annotations", {}) for body in bodies]
    return [json.loads(found[INVENTORY]) for found in annotations if INVENTORY in found]


def conditions(server: ApiServer) -> list[dict[str, Any]]:
    """What the node's status was patched with, first to last."""
    bodies: list[Any] = [request.body for request in server.requests if request.path == "/api/v1/nodes/node-1/status"]
    return [body["status"]["conditions"][0] for body in bodies]


def events(server: ApiServer) -> list[str]:
    """Return reason and message of the node's events, first to last."""
    bodies: list[Any] = [request.body for request in server.requests if request.path.endswith("/events")]
    assert {body["involvedObject"]["name"] for body in bodies} <= {"node-1"}
    return [f"{body['type']} {body['reason']} {body['message']}" for body in bodies]


def inventory(server: ApiServer) -> dict[str, Any]:
    """The annotation written last."""
    return (written(server) or [{}])[-1]


def held(server: ApiServer) -> dict[str, list[str]]:
    """Pods by UUID."""
    gpus = inventory(server).get("gpus", ())
    return {gpu["uuid"]: [holder["pod"] for holder in gpu["held"]] for gpu in gpus if gpu.get("held")}


def health(server: ApiServer) -> list[str]:
    """Return the health of each GPU, by index."""
    return [gpu["health"] for gpu in inventory(server).get("gpus", ())]


def children(pid: int) -> list[int]:
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        with suppress(FileNotFoundError):  # a thread that has ended meanwhile
            found += [int(child) for child in (task / "children").read_text().split()]
    return found


@pytest.fixture
def bare() -> Iterator[Host]:
    """No driver, no kubelet."""
    with ExitStack() as stack:
        root = Path(stack.enter_context(tempfile.TemporaryDirectory(dir="/tmp")))
        yield Host(root, stack)


@pytest.fixture
def host(bare: Host) -> Iterator[Host]:
    """Driver and kubelet run."""
    bare.load_driver()
    with bare.kubelet:
        yield bare


def test_a_node_hands_out_its_gpus_and_ends_cleanly(host: Host) -> None:
    server = host.api_server()
    plugin = host.plugin()
    host.wait_healthy(set(host.uuids))
    assert {device.numa_nodes for device in host.kubelet.devices(RESOURCE).values()} == {(0,), (1,)}
    plugin.wait_ready()
    assert plugin.probe("/healthz") == (200, "ok\n")

    first, second = host.admit("two", 2), host.admit("four", 4)
    granted = first.device_ids[RESOURCE]
    assert sorted(first.envs["NVIDIA_VISIBLE_DEVICES"].split(",")) == sorted(granted)
    minors = {gpu.uuid: gpu.minor if gpu.minor is not None else gpu.index for gpu in host.topology.gpus}
    nodes = {f"/dev/nvidia{minors[uuid]}" for uuid in granted} | {"/dev/nvidiactl"}
    assert nodes <= {device.container_path for device in first.devices} == {d.host_path for d in first.devices}
    assert not set(granted) & set(second.device_ids[RESOURCE])
    with pytest.raises(AdmissionError, match=r"Requested: 3, Available: 2"):
        host.admit("three", 3)

    expected = {uuid: ["two"] for uuid in granted} | {uuid: ["four"] for uuid in second.device_ids[RESOURCE]}
    wait(lambda: held(server) == expected, "the annotation")
    assert inventory(server)["mode"] == "pgpu"
    assert len(inventory(server)["gpus"]) == 8
    wait(lambda: [condition["status"] for condition in conditions(server)] == ["True"], "the condition")

    assert plugin.terminate() == 0
    assert [path.name for path in (host.kubelet_root / "device-plugins").iterdir()] == ["kubelet.sock"]
    host.wait_healthy(set())
    assert {"time", "level", "logger", "message"} <= plugin.logged()[0].keys()


def test_it_ends_when_another_thread_takes_the_signal(host: Host) -> None:
    plugin = host.plugin()
    wait(lambda: plugin.probe("/healthz")[0] == 200, "/healthz")
    # One of the first lives as long as the process; the last may serve a request and end before the signal.
    signal_thread(plugin.process.pid, threads(plugin.process.pid)[1], signal.SIGTERM)
    assert plugin.exit_code() == 0


def test_the_node_is_labelled_and_what_others_set_stays(host: Host) -> None:
    server = host.api_server()
    (host.root / "sys/class/dmi/id").mkdir(parents=True)
    (host.root / "sys/class/dmi/id/product_name").write_text("DGX H100 (rev 2)\n")
    server.node["metadata"]["labels"] = {"nvidia.com/gpu.family": "theirs", "zone": "a"}
    plugin = host.plugin()
    host.wait_healthy(set(host.uuids))
    wait(lambda: "cuda-major-version" in server.node["metadata"]["labels"], "the labels")
    labels = server.node["metadata"]["labels"]
    assert labels.pop("nvidia.com/gfd.timestamp").isdigit()
    assert labels == {
        "zone": "a",
        "cuda-major-version": "13",
        "cuda-minor-version": "0",
        "nvidia.com/cuda.driver-version.full": "580.159.04",
        "nvidia.com/cuda.driver-version.major": "580",
        "nvidia.com/cuda.driver-version.minor": "159",
        "nvidia.com/cuda.driver-version.revision": "04",
        "nvidia.com/cuda.driver.major": "580",
        "nvidia.com/cuda.driver.minor": "159",
        "nvidia.com/cuda.driver.rev": "04",
        "nvidia.com/cuda.runtime-version.full": "13.0",
        "nvidia.com/cuda.runtime-version.major": "13",
        "nvidia.com/cuda.runtime-version.minor": "0",
        "nvidia.com/cuda.runtime.major": "13",
        "nvidia.com/cuda.runtime.minor": "0",
        "nvidia.com/gpu.compute.major": "9",
        "nvidia.com/gpu.compute.minor": "0",
        "nvidia.com/gpu.count": "8",
        "nvidia.com/gpu.family": "theirs",
        "nvidia.com/gpu.machine": "DGX-H100-rev-2",
        "nvidia.com/gpu.memory": "81559",
        "nvidia.com/gpu.mode": "compute",
        "nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3",
        "nvidia.com/gpu.replicas": "1",
        "nvidia.com/gpu.sharing-strategy": "none",
        "nvidia.com/mig.capable": "true",
        "nvidia.com/mps.capable": "false",
    }
    wait(lambda: any("labels of another program" in line["message"] for line in plugin.logged()), "the warning")


def test_a_lost_gpu_is_withdrawn_alone_and_comes_back_by_itself(host: Host) -> None:
    server = host.api_server()
    host.plugin()
    host.wait_healthy(set(host.uuids))
    wait(lambda: conditions(server), "the condition")
    host.edit(lambda topology: topology.set_health(3, "lost"))
    rest = set(host.uuids) - {host.uuids[3]}
    host.wait_healthy(rest)
    assert set(host.admit("all-that-is-left", 7).device_ids[RESOURCE]) == rest
    wait(lambda: health(server).count("unhealthy") == 1, "the annotation")
    assert inventory(server)["gpus"][3]["reason"]
    wait(lambda: len(conditions(server)) == 2 and len(events(server)) == 1, "the condition")
    host.edit(lambda topology: topology.set_health(3, "ok"))
    host.wait_healthy(set(host.uuids))
    wait(lambda: len(conditions(server)) == 3 and len(events(server)) == 2, "the condition")
    assert [condition["status"] for condition in conditions(server)] == ["True", "False", "True"]
    assert conditions(server)[1]["message"] == f"GPU 3 ({host.uuids[3]}): NVML: GPU is lost (15)"
    assert events(server) == [
        f"Warning GpuUnhealthy GPU 3 ({host.uuids[3]}) is not allocated: NVML: GPU is lost (15)",
        f"Normal GpuHealthy GPU 3 ({host.uuids[3]}) is allocated again",
    ]


def test_a_gpu_that_kubelet_gave_to_two_pods_is_used_by_one(host: Host) -> None:
    server = host.api_server()
    plugin = host.plugin()
    host.wait_healthy(set(host.uuids))
    host.admit("rest", 7)
    elder, younger, last = (pod(name, 1) for name in ("elder", "younger", "last"))
    (gpu,) = host.kubelet.admit(elder)["main"].device_ids[RESOURCE]
    host.kubelet.forget(elder)
    twice = f"kubelet gave {gpu} to team/elder and team/younger, and a device is for one pod at a time; "
    refused = f"{twice}team/elder has it: delete team/younger, so that its replacement is placed again"
    with pytest.raises(ContainerStartError, match=re.escape(refused)):
        host.kubelet.admit(younger)
    wait(lambda: f"Warning GpuGivenTwice {refused}" in events(server), "the event")

    plugin.kill()
    host.wait_healthy(set())
    host.plugin()
    host.wait_healthy(set(host.uuids))
    for each in (younger, elder):
        with pytest.raises(ContainerStartError, match=re.escape(f"{twice}delete one that does not run")):
            host.kubelet.run(each)

    host.kubelet.remove(elder)
    host.kubelet.run(younger)
    host.kubelet.remove(younger)
    assert host.kubelet.admit(last)["main"].device_ids[RESOURCE] == (gpu,)


def test_first_of_two_pods_with_one_gpu_has_it(host: Host) -> None:
    host.plugin()
    host.wait_healthy(set(host.uuids))
    host.admit("rest", 7)
    first, second = pod("first", 1), pod("second", 1)
    host.kubelet.accept(first)
    host.kubelet.forget(first)
    host.kubelet.accept(second)
    host.kubelet.run(second)
    with pytest.raises(ContainerStartError, match="to team/first and team/second"):
        host.kubelet.run(first)
    host.kubelet.remove(second)
    host.kubelet.run(first)


def test_the_nodes_condition_ends_with_the_last_plugin(host: Host) -> None:
    server = host.api_server()
    old = host.plugin()
    old.wait_ready()
    wait(lambda: conditions(server), "the condition")
    new = host.plugin()
    wait(lambda: "a newer instance serves" in old.probe("/readyz")[1], "the old one's stepping back")
    new.wait_ready()
    wait(lambda: any(line["message"] == "the node is annotated" for line in new.logged()), "the API server")
    assert old.terminate() == 0
    assert [condition["type"] for condition in conditions(server)] == ["GpusHealthy"]
    assert new.terminate() == 0
    assert conditions(server)[1:] == [{"type": "GpusHealthy", "$patch": "delete"}]


def test_a_restart_repeats_no_event(host: Host) -> None:
    server = host.api_server()
    plugin = host.plugin()
    wait(lambda: conditions(server), "the condition")
    host.edit(lambda topology: topology.set_health(3, "lost"))
    wait(lambda: len(events(server)) == 1, "the event")
    wait(lambda: conditions(server) and conditions(server)[-1]["status"] == "False", "the condition")
    since = conditions(server)[-1]["lastTransitionTime"]
    wait(
        lambda: f'"bad": {{"{host.uuids[3]}"' in (host.root / "state/reported.json").read_text(), "a note of the event"
    )
    plugin.kill()
    host.plugin()
    host.wait_healthy(set(host.uuids) - {host.uuids[3]})
    host.edit(lambda topology: topology.set_health(5, "lost"))
    wait(lambda: len(events(server)) == 2, "the event")
    assert [event.split()[3] for event in events(server)] == ["3", "5"]
    wait(lambda: "GPU 5" in conditions(server)[-1]["message"], "the condition")
    assert conditions(server)[-1]["lastTransitionTime"] == since


SHARED = "nvidia.com/gpu.shared"


def shared(host: Host) -> dict[str, bool]:
    """Whether it is healthy, of each replica."""
    return {name: device.healthy for name, device in host.kubelet.devices(SHARED).items()}


def test_a_configuration_shares_gpus_in_time(host: Host) -> None:
    path = host.root / "config.yaml"
    slicing = {"renameByDefault": True, "resources": [{"name": RESOURCE, "replicas": 4}]}
    path.write_text(json.dumps({"version": "v1", "sharing": {"timeSlicing": slicing}}))
    server = host.api_server()
    plugin = host.plugin("--config-file", str(path))
    host.kubelet.wait(lambda: sum(shared(host).values()) == 32, DEADLINE)
    assert host.kubelet.devices(RESOURCE) == {}
    plugin.wait_ready()
    pods = [PodSpec("team", f"p{n}", f"uid-{n}", (Container("main", {SHARED: 1}),)) for n in range(9)]
    granted = [host.kubelet.admit(pod)["main"].envs["NVIDIA_VISIBLE_DEVICES"] for pod in pods]
    assert set(granted[:8]) == set(host.uuids), "each has a GPU to itself while there are as many"
    assert granted[8] in host.uuids
    expected = {granted[8]: sorted([f"p{granted.index(granted[8])}", "p8"])}
    wait(lambda: held(server).items() >= expected.items(), "the annotation")
    host.edit(lambda topology: topology.set_health(3, "lost"))
    host.kubelet.wait(lambda: sum(shared(host).values()) == 28, DEADLINE)
    assert {name for name, healthy in shared(host).items() if not healthy} == {
        f"{host.uuids[3]}::{n}" for n in range(4)
    }


def test_a_configuration_with_a_mistake_is_not_used_at_all(host: Host) -> None:
    path = host.root / "config.yaml"
    path.write_text("version: v1\nsharing: {timeSlicing: {resources: [{name: gpu, replica: 2}]}}\n")
    plugin = host.plugin("--config-file", str(path))
    assert plugin.exit_code() == 2
    assert f"--config-file {path} is not used: " in plugin.refusal()
    assert "sharing.timeSlicing.resources[0].replicas: is None; it must be a whole number" in plugin.refusal()
    assert host.kubelet.devices(RESOURCE) == {}


def test_cdi_names_of_a_container_are_in_the_specification(host: Host) -> None:
    libraries = host.root / "usr/lib64"
    libraries.mkdir(parents=True)
    flags = ("--nvidia-driver-root", str(host.root), "--cdi-dir", str(host.root / "cdi"))
    plugin = host.plugin("--device-list-strategy", "cdi-cri,cdi-annotations", *flags)
    wait(lambda: "no library of driver" in plugin.probe("/readyz")[1], "/readyz")
    assert host.kubelet.devices(RESOURCE) == {}, "containers would get GPUs and no driver"
    plugin.kill()
    (libraries / f"libcuda.so.{host.topology.system.driver}").touch()
    (libraries / "libcuda.so.1").symlink_to(f"libcuda.so.{host.topology.system.driver}")
    host.plugin("--device-list-strategy", "cdi-cri,cdi-annotations", *flags)
    host.wait_healthy(set(host.uuids))
    granted = host.admit("two", 2)
    document = json.loads((host.root / "cdi/kube-accel.io-gpu.json").read_text())
    known = {f"{document['kind']}={device['name']}" for device in document["devices"]}
    assert known == {f"kube-accel.io/gpu={uuid}" for uuid in host.uuids}
    assert set(granted.cdi_devices) == {f"kube-accel.io/gpu={uuid}" for uuid in granted.device_ids[RESOURCE]}
    assert [set(names.split(",")) for names in granted.annotations.values()] == [set(granted.cdi_devices)]
    assert (granted.envs, granted.devices, granted.mounts) == ({}, (), ())


def test_a_wedged_driver_stops_neither_allocation_nor_probes(host: Host) -> None:
    server = host.api_server()
    plugin = host.plugin()
    host.wait_healthy(set(host.uuids))
    host.edit(lambda topology: topology.wedge("all"))
    wait(lambda: set(health(server)) == {"unknown"}, "the annotation")
    assert host.healthy() == set(host.uuids)
    assert len(host.admit("during", 4).device_ids[RESOURCE]) == 4
    assert plugin.probe("/healthz")[0] == 200
    assert plugin.probe("/readyz")[0] == 200
    host.edit(lambda topology: topology.wedge(None))
    wait(lambda: set(health(server)) == {"healthy"}, "the annotation")


def test_a_killed_plugin_starts_into_the_same_allocations(host: Host) -> None:
    server = host.api_server()
    plugin = host.plugin()
    host.wait_healthy(set(host.uuids))
    before = host.admit("before", 5).device_ids[RESOURCE]
    plugin.kill()
    host.wait_healthy(set())
    host.plugin()
    host.wait_healthy(set(host.uuids))
    after = host.admit("after", 3).device_ids[RESOURCE]
    assert not set(before) & set(after)
    wait(lambda: held(server) == {u: ["before"] for u in before} | {u: ["after"] for u in after}, "the annotation")
    assert all("held" in gpu for document in written(server) for gpu in document["gpus"])
    assert len(list((host.kubelet_root / "device-plugins").glob("kube-accel-*"))) == 1


def test_a_restarted_kubelet_gets_the_gpus_again(host: Host) -> None:
    plugin = host.plugin()
    host.wait_healthy(set(host.uuids))
    host.kubelet.restart()
    host.wait_healthy(set(host.uuids))
    plugin.wait_ready()


def test_an_upgrade_overlaps_without_withdrawing_the_gpus(host: Host) -> None:
    old = host.plugin()
    host.wait_healthy(set(host.uuids))
    old.wait_ready()
    new = host.plugin()
    new.wait_ready()
    wait(lambda: "a newer instance serves" in old.probe("/readyz")[1], "the old one's stepping back")
    assert old.terminate() == 0
    new.wait_ready()
    host.wait_healthy(set(host.uuids))
    assert host.admit("after", 8)
    assert host.run("quiesce", "--seconds", "1").returncode == 0, "the admin socket is the new one's"


def test_a_plugin_that_ends_answers_first_and_then_hands_over(host: Host) -> None:
    old = host.plugin()
    host.wait_healthy(set(host.uuids))
    (path,) = (host.kubelet_root / "device-plugins").glob("kube-accel-*.sock")
    lists = host.kubelet_root / "pod-resources/kubelet.sock"
    with open_channel(path) as channel, ThreadPoolExecutor(1) as caller:
        client = DevicePluginClient(channel)
        client.get_options(timeout=DEADLINE)
        new = host.plugin()
        new.wait_ready()
        # Whose container starts is not known while kubelet does not list pods: it takes a while to give up.
        lists.rename(lists.with_suffix(".away"))
        start = caller.submit(client.pre_start_container, host.uuids[:1], timeout=DEADLINE)
        assert old.terminate() == 0
        with pytest.raises(grpc.RpcError, match="the holder of"):
            start.result(DEADLINE)
        lists.with_suffix(".away").rename(lists)
    host.admit("all", 8)


def test_no_pod_is_refused_while_plugins_are_upgraded(host: Host) -> None:
    old = host.plugin()
    host.wait_healthy(set(host.uuids))
    old.wait_ready()
    admitted, refused, ended = [0], [], threading.Event()

    def keep_coming() -> None:
        """All GPUs but one are always held, so that a wrong list or a forgotten pod would show."""
        held = [pod("first", 4)]
        host.kubelet.admit(held[0])
        while not ended.is_set():
            held.append(pod(f"next-{admitted[0]}", 3))
            try:
                host.kubelet.admit(held[-1])
            except AdmissionError as error:
                refused.append(str(error))
                held.pop()
                continue
            admitted[0] += 1
            host.kubelet.remove(held.pop())

    load = threading.Thread(target=keep_coming)
    load.start()
    try:
        for _ in range(3):
            new = host.plugin()
            new.wait_ready()  # then the DaemonSet's controller ends the old pod
            assert old.terminate() == 0
            before = admitted[0]
            wait(lambda: admitted[0] > before + 20 or refused, "more pods")  # noqa: B023
            old = new
    finally:
        ended.set()
        load.join()
    assert not refused
    assert admitted[0] > 60


def test_no_driver_is_said_and_its_arrival_noticed(bare: Host) -> None:
    with bare.kubelet:
        plugin = bare.plugin()
        wait(lambda: "no GPU was read" in plugin.probe("/readyz")[1], "/readyz")
        assert plugin.probe("/healthz")[0] == 200
        assert bare.kubelet.devices(RESOURCE) == {}
        bare.load_driver()
        bare.wait_healthy(set(bare.uuids))
        plugin.wait_ready()


def test_a_kubelet_that_comes_late_is_waited_for(bare: Host) -> None:
    bare.load_driver()
    (bare.kubelet_root / "device-plugins").mkdir(parents=True)
    plugin = bare.plugin()
    wait(lambda: "kubelet is not there" in plugin.probe("/readyz")[1], "/readyz")
    with bare.kubelet:
        bare.wait_healthy(set(bare.uuids))


def test_an_api_server_that_comes_late_is_told_then(host: Host) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    host.use_api_server(port)
    service_account(host.root / "account", host.authority)
    plugin = host.plugin()
    host.wait_healthy(set(host.uuids))
    wait(lambda: any(line["message"] == "the node is not annotated" for line in plugin.logged()), "the log")
    server = host.api_server(port)
    wait(lambda: health(server) == ["healthy"] * 8, "the annotation")


def test_quiesce_lets_go_of_the_driver_until_resume(host: Host) -> None:
    plugin = host.plugin()
    host.wait_healthy(set(host.uuids))
    assert children(plugin.process.pid)
    done = host.run("quiesce")
    assert (done.returncode, done.stdout) == (0, "driver: quiesced\n")
    assert not children(plugin.process.pid)
    assert plugin.probe("/healthz")[0] == 200
    host.wait_healthy(set())
    done = host.run("quiesce", "--resume")
    assert (done.returncode, done.stdout) == (0, "driver: ready\n")
    host.wait_healthy(set(host.uuids))


def test_quiesce_says_what_is_wrong(host: Host) -> None:
    done = host.run("quiesce")
    assert done.returncode == 1
    assert "no daemon answers on" in done.stderr
    host.plugin().wait_ready()
    done = host.run("quiesce", "--seconds", "-1")
    assert done.returncode == 1
    assert "seconds must be" in done.stderr


def test_validate_passes_on_a_good_node_and_names_what_is_bad(host: Host) -> None:
    host.plugin().wait_ready()
    done = host.run("validate")
    assert done.returncode == 0, done.stdout + done.stderr
    assert [line.split()[0] for line in done.stdout.splitlines()] == ["ok"] * 8

    fallen = sysfs_device(host.root, "0000:ff:00.0")
    (host.root / "dev/nvidiactl").unlink()
    done = host.run("validate")
    assert done.returncode == 1
    failed = [line for line in done.stdout.splitlines() if not line.startswith("ok ")]
    assert failed[0].startswith(f"fail  pci: NVML does not see {fallen}; ")
    assert failed[1].startswith("fail  device nodes: no /dev/nvidiactl; ")
    assert len(failed) == 2


def test_bad_gpu_and_bad_sensor_are_reported_everywhere(host: Host) -> None:
    def break_two(topology: Topology) -> None:
        topology.fail(1, "nvmlDeviceGetName", "garbage")
        topology.fail(2, "nvmlDeviceGetPowerUsage", "999")

    host.edit(break_two)
    (host.root / "dev/nvidia3").unlink()
    server = host.api_server()
    plugin = host.plugin("--metrics-interval=1")
    plugin.wait_ready()
    good = {uuid for index, uuid in enumerate(host.uuids) if index not in (1, 3)}
    host.wait_healthy(good)
    name, power = "nvmlDeviceGetName: the answer b'", "nvmlDeviceGetPowerUsage: Unknown Error (999); "
    wait(lambda: {"GpuUnhealthy", "GpuValueUnreadable"} <= {event.split()[1] for event in events(server)})
    assert any(name in event for event in events(server))
    assert any(power in event for event in events(server))
    wait(lambda: any("no /dev/nvidia3; run nvidia-modprobe" in event for event in events(server)))
    wait(lambda: bool(inventory(server)["gpus"][1].get("faults")))
    told = inventory(server)
    assert told["unreadable"][0]["uuid"] == host.uuids[1]
    assert told["unreadable"][0]["reason"].startswith(name)
    assert told["gpus"][1]["faults"][0].startswith(power)
    assert told["gpus"][1]["health"] == "healthy"
    records = [record for record in plugin.logged() if record["message"] == "NVML fails for one GPU"]
    assert {(record["gpu"], record["function"]) for record in records} == {
        (host.uuids[1], "nvmlDeviceGetName"),
        (host.uuids[2], "nvmlDeviceGetPowerUsage"),
    }
    assert all(record["cause"] and record["remedy"] for record in records)
    done = host.run("validate")
    assert done.returncode == 1
    assert f"fail  GPU 1 ({host.uuids[1]}): {name}" in done.stdout
    assert f"warn  GPU 2 ({host.uuids[2]}): {power}" in done.stdout


def test_validate_names_a_gpu_whose_compute_mode_lets_nobody_in(host: Host) -> None:
    host.plugin().wait_ready()
    done = host.run("validate", "--smi-command", str(smi(host.root, host.uuids, {5: "Prohibited"})))
    assert done.returncode == 1
    (failed,) = [line for line in done.stdout.splitlines() if not line.startswith("ok ")]
    assert failed.startswith("fail  compute mode: GPU 5 Prohibited; mode pgpu needs Default or Exclusive_Process; ")


def test_validate_on_a_bare_machine_fails_check_by_check(bare: Host) -> None:
    done = bare.run("validate")
    assert done.returncode == 1
    names = [line.split(":")[0] for line in done.stdout.splitlines()]
    assert names == [f"fail  {name}" for name in ("nvml", "pci", "kubelet", "pod resources", "plugin")]


def sysfs_device(root: Path, address: str) -> str:
    device = root / "sys/bus/pci/devices" / address
    device.mkdir()
    (device / "vendor").write_text("0x10de\n")
    (device / "class").write_text("0x030200\n")
    return address


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("--kubelet-device-plugin-dir", "/nonexistent"), "--kubelet-device-plugin-dir /nonexistent is no directory"),
        (("--state-dir", "/proc/state"), "--state-dir /proc/state cannot be used"),
        (("--state-dir", "{root}/" + "x" * 100), "cannot hold the admin socket"),
    ],
)
def test_a_bad_environment_is_named_before_anything_is_done(
    host: Host, arguments: tuple[str, ...], expected: str
) -> None:
    plugin = host.plugin(*(argument.format(root=host.root) for argument in arguments))
    assert plugin.exit_code() == 2
    assert expected in plugin.refusal()
    assert host.kubelet.capacity() == {}


def test_a_taken_port_is_named(host: Host) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        plugin = host.plugin("--listen", f"127.0.0.1:{port}")
        assert plugin.exit_code() == 2
        assert f"--listen 127.0.0.1:{port} cannot be used" in plugin.refusal()


def test_another_plugin_is_left_in_charge(host: Host) -> None:
    path = host.kubelet_root / "device-plugins/nvidia-gpu.sock"
    foreign = serve(fakes.plugin(host.root), path)
    try:
        plugin = host.plugin()
        assert plugin.exit_code() == 3
        assert str(path) in plugin.refusal()
        assert "--takeover" in plugin.refusal()
        assert host.kubelet.capacity() == {}
        host.plugin("--takeover")
        host.wait_healthy(set(host.uuids))
    finally:
        foreign.stop()


def test_an_unknown_mode_is_refused_with_the_known_ones(host: Host) -> None:
    done = host.run("plugin", "--mode", "vip")
    assert done.returncode == 2
    assert "unknown mode 'vip'; known: pgpu" in done.stderr
