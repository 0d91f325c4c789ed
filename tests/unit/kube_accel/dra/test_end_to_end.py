# SPDX-License-Identifier: Apache-2.0
"""The shipped command as a process, between a driver and an API server that are simulated; kubelet is the test."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import urllib3

from dra_command import Places, dra_command
from kube_accel.dra.sockets import paths
from kube_accel.kube.proto import dra_pb2 as pb
from kube_accel.metrics import families
from kube_accel.plugin.allocation.ledger import running
from kube_accel.rpc.channel import Channel
from sim import native
from sim.nvml.topology import Topology
from unit.kube_accel.api_host import NODE, ApiHost
from unit.kube_accel.metrics.page import Page
from waiting import wait

DRIVER = "gpu.kube-accel.io"
SHARE_ID = "0b9ab9e0-4a1b-4c1d-8a44-000000000001"
DASHBOARDS = Path(__file__).parents[4] / "roles/monitoring/files/dashboards"
SERVICE = "/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin"
OFFERS = '--mig-offers=[{"gpus": [0, 1], "profiles": ["1g.10gb", "3g.40gb"]}]'


class DraHost(ApiHost):
    """A node whose kubelet has the directories of plugins."""

    def __init__(self, root: Path, stack: ExitStack) -> None:
        super().__init__(root, stack)
        self.plugins, self.registry = root / "plugins", root / "registry"
        for directory in (self.plugins, self.registry):
            directory.mkdir()
        library = root / f"usr/lib/libcuda.so.{self.topology.system.driver}"
        library.touch()
        library.with_name("libcuda.so.1").symlink_to(library.name)
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]

    def dra(self, *arguments: str) -> subprocess.Popen[str]:
        root = self.root
        places = Places(
            self.plugins,
            self.registry,
            root / "state",
            root / "account",
            root / "cdi",
            self.kubelet_root / "pod-resources/kubelet.sock",
            root / "sys",
            root / "dev",
            container_driver_root=root,
        )
        command = dra_command(self.port, places, "--metrics-interval=1", *arguments)
        made = subprocess.Popen(command, env=self.environment, stderr=subprocess.PIPE, text=True)
        self.stack.callback(made.communicate)
        self.stack.callback(made.kill)
        return made

    def call(self, instance: str, method: str, request: Any, reply: Any) -> Any:
        """As kubelet calls the driver, or its registration."""
        where = paths(self.plugins, self.registry, instance)
        path = where.registration if method.startswith("/plugin") else where.service
        wait(lambda: _listens(path), f"{path.name} to be there")
        with Channel(path) as channel:
            return channel.call(method, request, reply, 30)

    def register(self, instance: str = "") -> None:
        """As kubelet does when it finds the socket."""
        service = "/pluginregistration.Registration"
        assert self.call(instance, f"{service}/GetInfo", pb.InfoRequest(), pb.PluginInfo).name == DRIVER
        told = pb.RegistrationStatus(plugin_registered=True)
        self.call(instance, f"{service}/NotifyRegistrationStatus", told, pb.RegistrationStatusResponse)

    def validated(self) -> list[str]:
        """What ``kube-accel validate`` says of the node."""
        command = [sys.executable, "-m", "kube_accel.cli.main", "validate", f"--sysfs-root={self.root}/sys"]
        command += [f"--dev-root={self.root}/dev", f"--state-dir={self.root}/state"]
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True, timeout=60)
        assert not done.stderr
        return done.stdout.splitlines()

    def page(self, path: str) -> tuple[int, str]:
        try:
            response = urllib3.request("GET", f"http://127.0.0.1:{self.port}{path}", timeout=10, retries=False)
        except urllib3.exceptions.HTTPError:
            return 0, ""
        return response.status, response.data.decode()

    def slices(self) -> list[dict[str, Any]]:
        return self.store.all("resourceslices")

    def devices(self) -> dict[str, dict[str, Any]]:
        """What is offered, by name."""
        return {device["name"]: device for each in self.slices() for device in each["spec"].get("devices", ())}

    def conditions(self) -> list[tuple[str, str, str]]:
        """Type, status, and time of the last change of each condition of the node."""
        status = self.store.all("nodes")[0].get("status") or {}
        found = status.get("conditions", ())
        return [(each["type"], each["status"], each["lastTransitionTime"]) for each in found]

    def prepare(self, uid: str, name: str = "claim") -> Any:
        """As kubelet has a claim prepared; the answer for it."""
        request = pb.NodePrepareResourcesRequest(claims=[pb.Claim(namespace=self.namespace, uid=uid, name=name)])
        answer = self.call("", f"{SERVICE}/NodePrepareResources", request, pb.NodePrepareResourcesResponse)
        return answer.claims[uid]

    def release(self, uid: str, name: str = "claim") -> str:
        """The same when its pods have ended; why it failed."""
        request = pb.NodeUnprepareResourcesRequest(claims=[pb.Claim(namespace=self.namespace, uid=uid, name=name)])
        answer = self.call("", f"{SERVICE}/NodeUnprepareResources", request, pb.NodeUnprepareResourcesResponse)
        return str(answer.claims[uid].error)

    def claim(self, *devices: str, name: str = "claim", **consumed: str) -> str:
        """Create a claim that has these devices, or so much of each; its UID."""
        body = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": name}}
        results = [
            {"request": "gpus", "driver": DRIVER, "pool": f"{NODE}/kube-accel", "device": device} for device in devices
        ]
        exactly: dict[str, Any] = {"deviceClassName": DRIVER}
        if consumed:
            exactly = {"deviceClassName": "share.kube-accel.io", "capacity": {"requests": consumed}}
            results = [{**each, "shareID": SHARE_ID, "consumedCapacity": consumed} for each in results]
        spec = {"devices": {"requests": [{"name": "gpus", "exactly": exactly}]}}
        status = {"allocation": {"devices": {"results": results}}}
        made = self.store.create("resourceclaims", self.namespace, {**body, "spec": spec})
        self.store.edit("resourceclaims", self.namespace, name, lambda claim: claim.update(status=status))
        return str(made["metadata"]["uid"])


def _listens(path: Path) -> bool:
    """Whether somebody does, which is a moment after the file is there."""
    with socket.socket(socket.AF_UNIX) as client:
        return client.connect_ex(str(path)) == 0


@pytest.fixture
def host() -> Iterator[DraHost]:
    # A socket's path is short.
    with tempfile.TemporaryDirectory() as root, ExitStack() as stack:
        made = DraHost(Path(root), stack)
        made.start_api()
        yield made


def test_driver_serves_claims_until_it_is_stopped(host: DraHost) -> None:
    process = host.dra("--instance=12345678-90ab")
    wait(lambda: [len(each["spec"]["devices"]) for each in host.slices()] == [8], "the slice")
    wait(lambda: "not registered" in host.page("/readyz")[1], "the driver not to be ready")
    host.register("12345678-90ab")
    wait(lambda: host.page("/readyz")[0] == 200, "the driver to be ready")
    assert host.validated()[-4:] == [
        "ok    driver: registered, 0 claims prepared",
        "ok    slices: as they should be",
        "ok    shares: off",
        "ok    MIG devices: off",
    ]

    uid = host.claim("gpu-01", "gpu-05")
    claims = [pb.Claim(namespace=host.namespace, uid=uid, name="claim")]
    service, request = "/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin", pb.NodePrepareResourcesRequest(claims=claims)
    answer = host.call("12345678-90ab", f"{service}/NodePrepareResources", request, pb.NodePrepareResourcesResponse)
    assert [device.device_name for device in answer.claims[uid].devices] == ["gpu-01", "gpu-05"], answer
    assert [path.name for path in (host.root / "cdi").iterdir()] == [f"kube-accel.io-claim-{uid}.json"]
    registered = f'accel_device_plugin_registered{{node="{NODE}",resource="{DRIVER}"}} 1'
    called = f'accel_device_plugin_calls_total{{node="{NODE}",resource="{DRIVER}",call="prepare"}} 1'
    wait(lambda: all(line in host.page("/metrics")[1] for line in (registered, called)), "both to be told of")

    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 0
    assert not list(host.registry.iterdir())
    assert len(host.slices()) == 1, "a successor has them"


def test_claims_are_told_of_as_containers_of_device_plugins(host: DraHost) -> None:
    uid = host.claim("gpu-01")
    host.kubelet.claims.append((host.namespace, "claim", "a", "main", DRIVER))
    host.dra()
    request = pb.NodePrepareResourcesRequest(claims=[pb.Claim(namespace=host.namespace, uid=uid, name="claim")])
    method = "/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/NodePrepareResources"
    host.call("", method, request, pb.NodePrepareResourcesResponse)
    host.edit(lambda topology: topology.set_load(1, 40, memutil=20, used=1 << 30))

    def page() -> Page:
        return Page(host.page("/metrics")[1].encode())

    mine = {"namespace": host.namespace, "pod": "a", "container": "main", "uuid": host.uuids[1], "mode": "dra"}
    wait(lambda: page().values(families.CONTAINER_USED, **mine) == [1 << 30], "the memory in use to be the pod's")
    found = page()
    found.lint()
    assert found.value(families.CONTAINER_ALLOCATED, **mine) == 1
    assert found.value(families.NAMESPACE_GPU, namespace=host.namespace, mode="dra") > 0
    assert found.value(families.NODE_GPUS, state="visible") == 8
    assert [row.holder.pod for row in running(host.root / "state")] == ["a"]


def test_dashboards_have_values_of_a_share(host: DraHost) -> None:
    host.store.keeps_shares = True
    (host.root / f"usr/lib/libnvidia-ml.so.{host.topology.system.driver}").touch()
    uid = host.claim("gpu-01", cores="30", memory="8Gi")
    host.kubelet.claims.append((host.namespace, "claim", "a", "main", DRIVER))
    host.dra("--shares", f"--shim-dir={native.build()}", f"--proc-root={host.root}/proc")
    assert not host.prepare(uid).error
    mine = {"namespace": host.namespace, "pod": "a", "container": "main", "mode": "dra"}

    def page() -> Page:
        return Page(host.page("/metrics")[1].encode())

    wait(lambda: page().values(families.CONTAINER_CORES, **mine) == [0.3], "the share to be told of")
    found = page()
    assert found.value(families.CONTAINER_REQUEST, **mine) == 8 << 30
    assert found.value(families.CONTAINER_ALLOCATED, **mine) == 0.3
    assert found.value(families.CONTAINER_FAILURES, **mine, reason="quota") == 0
    asked = {name for path in DASHBOARDS.iterdir() for name in re.findall(r"accel_container_gpu_\w+", path.read_text())}
    # Of a container that never did anything there is no last time.
    rest = {"accel_container_gpu_last_active_timestamp_seconds"}
    wait(lambda: asked - page().families.keys() == rest, "a value of all others")


def test_pods_that_wait_for_claims_are_counted(host: DraHost) -> None:
    devices = {"requests": [{"name": "gpus", "exactly": {"deviceClassName": "share.kube-accel.io"}}]}
    claim = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": "claim"}}
    host.store.create("resourceclaims", host.namespace, {**claim, "spec": {"devices": devices}})
    container = {"name": "main", "image": "cuda", "resources": {"claims": [{"name": "gpus"}]}}
    spec = {"containers": [container], "resourceClaims": [{"name": "gpus", "resourceClaimName": "claim"}]}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a", "namespace": host.namespace}, "spec": spec}
    host.store.create("pods", host.namespace, pod)
    host.dra("--metrics-pending")
    told = f'accel_pending_gpu_pods{{node="{NODE}",namespace="{host.namespace}",mode="dra"}} 1'
    wait(lambda: told in host.page("/metrics")[1], "the pod to be counted")


def test_wiped_slices_are_back_and_sick_gpus_tainted(host: DraHost) -> None:
    host.dra()
    wait(host.slices, "the slice")
    before = host.slices()[0]["metadata"]["uid"]
    host.store.delete("resourceslices", "", host.slices()[0]["metadata"]["name"])
    wait(lambda: [each for each in host.slices() if each["metadata"]["uid"] != before], "the slice to be back")
    host.edit(lambda topology: topology.set_health(2, "lost"))

    def sick() -> list[str]:
        return [device["name"] for each in host.slices() for device in each["spec"]["devices"] if "taints" in device]

    wait(lambda: sick() == ["gpu-02"], "the lost GPU to be tainted")


def test_mig_device_is_made_while_its_claim_is_prepared(host: DraHost) -> None:
    host.dra(OFFERS)
    wait(lambda: len(host.devices()) == 8 + 2 * 9, "the devices")
    wait(host.conditions, "the node's condition")
    before, told = Topology.load(host.conf).render(), (host.slices(), host.conditions())
    one, other = "gpu-00-mig-3g40gb-at-4", "gpu-00-mig-1g10gb-at-0"
    first, second = host.claim(one), host.claim(other, name="other")
    assert not host.prepare(first).error
    assert not host.prepare(second, "other").error
    made = Topology.load(host.conf)
    assert (made.gpus[0].mig, sorted(mig.profile for mig in made.migs)) == (1, ["1g.10gb", "3g.40gb"])
    files = [(host.root / f"cdi/kube-accel.io-claim-{uid}.json").read_text() for uid in (first, second)]
    assert all('"/dev/nvidia0"' in text for text in files)
    assert not host.release(first)
    assert not host.release(second, "other")
    assert Topology.load(host.conf).render() == before
    # Nobody was told of GPUs that changed, or of a driver that was let go of.
    assert (host.slices(), host.conditions()) == told


def test_killed_driver_goes_on_with_the_device_that_it_made(host: DraHost) -> None:
    process = host.dra(OFFERS)
    wait(lambda: len(host.devices()) == 8 + 2 * 9, "the devices")
    before = Topology.load(host.conf).render()
    uid = host.claim("gpu-00-mig-3g40gb-at-4")
    host.edit(lambda topology: topology.wedge("nvmlGpuInstanceCreateComputeInstance"))
    with ThreadPoolExecutor() as pool:
        answer = pool.submit(host.prepare, uid)
        wait(lambda: Topology.load(host.conf).gpu_instances, "half of the device")
        process.kill()
        assert answer.exception() is not None
    host.edit(lambda topology: topology.wedge(None))
    host.dra(OFFERS)
    assert not host.prepare(uid).error
    (mig,) = Topology.load(host.conf).migs
    assert mig.profile == "3g.40gb"
    assert not host.release(uid)
    assert Topology.load(host.conf).render() == before


@pytest.mark.parametrize(
    ("arguments", "lost", "reason"),
    [
        (['--mig-offers=[{"gpus": [0]}]'], "", "--mig-offers: offer 1: profiles is required"),
        (["--kubelet-registry-dir=/nowhere"], "", "--kubelet-registry-dir /nowhere is no directory"),
        ([], "KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_HOST and _PORT are not set"),
    ],
)
def test_driver_that_cannot_start_says_why(host: DraHost, arguments: list[str], lost: str, reason: str) -> None:
    host.environment = {name: value for name, value in host.environment.items() if name != lost}
    process = host.dra(*arguments)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 2
    assert reason in said
