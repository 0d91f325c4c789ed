# SPDX-License-Identifier: Apache-2.0
"""The shipped daemon on a node whose GPUs are cut by MIG, while they are cut anew."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from kube_accel.metrics import families
from sim.kubelet import Container, ContainerAllocation, PodSpec
from sim.nvml import sysfs
from sim.nvml.profiles import PROFILES
from sim.nvml.topology import Topology
from unit.kube_accel.metrics.page import Page
from unit.kube_accel.test_plugin_end_to_end import DEADLINE, RESOURCE, Host, events, held, inventory
from waiting import wait


class MigHost(Host):
    """Four A100, of which the first two are cut."""

    def __init__(self, root: Path, stack: ExitStack) -> None:
        super().__init__(root, stack)
        self.topology = PROFILES["4xa100-mig"]("node")
        self.topology.save(self.conf)
        self.uuids = [gpu.uuid for gpu in self.topology.gpus]
        sysfs.write(self.topology, root)
        sysfs.write_capabilities(self.topology, root)

    def offered(self) -> dict[str, int]:
        return {name: count for name, count in self.kubelet.allocatable().items() if count}

    def wait_offered(self, **expected: int) -> None:
        wanted = {f"nvidia.com/{name.replace('_', '.')}": count for name, count in expected.items()}
        self.kubelet.wait(lambda: self.offered() == wanted, DEADLINE)

    def get(self, pod: str, resource: str, count: int = 1) -> ContainerAllocation:
        containers = (Container("main", {f"nvidia.com/{resource}": count}),)
        return self.kubelet.admit(PodSpec("team", pod, f"uid-{pod}", containers))["main"]


@pytest.fixture
def host() -> Iterator[MigHost]:
    with ExitStack() as stack:
        root = Path(stack.enter_context(tempfile.TemporaryDirectory(dir="/tmp")))
        made = MigHost(root, stack)
        made.load_driver()
        stack.enter_context(made.kubelet)
        yield made


EMPTY = """
import ctypes, sys, pynvml
pynvml.nvmlInit()
handle = pynvml.nvmlDeviceGetHandleByIndex(int(sys.argv[1]))
for profile in (19, 14, 9):
    instances, count = (pynvml.c_nvmlGpuInstance_t * 7)(), ctypes.c_uint(7)
    pynvml.nvmlDeviceGetGpuInstances(handle, profile, instances, ctypes.byref(count))
    for instance in instances[: count.value]:
        computes, found = (pynvml.c_nvmlComputeInstance_t * 7)(), ctypes.c_uint(7)
        pynvml.nvmlGpuInstanceGetComputeInstances(instance, 0, computes, ctypes.byref(found))
        for compute in computes[: found.value]:
            pynvml.nvmlComputeInstanceDestroy(compute)
        pynvml.nvmlGpuInstanceDestroy(instance)
"""


def empty(host: MigHost, gpu: int) -> None:
    """As an administrator's tool does: what the GPU has is destroyed through NVML."""
    subprocess.run([sys.executable, "-c", EMPTY, str(gpu)], env=host.environment, check=True)


def test_each_profile_is_a_resource_and_follows_the_geometry(host: MigHost) -> None:
    server = host.api_server()
    plugin = host.plugin("--mig-strategy", "mixed", "--proc-root", str(host.root / "proc"))
    host.wait_offered(gpu=2, **{"mig-1g_5gb": 8, "mig-2g_10gb": 1, "mig-3g_20gb": 1})
    plugin.wait_ready()
    granted = host.get("train", "mig-3g.20gb")
    (mig,) = (mig for mig in host.topology.migs if mig.profile == "3g.20gb")
    assert granted.envs["NVIDIA_VISIBLE_DEVICES"] == mig.uuid
    nodes = {device.container_path for device in granted.devices}
    first = 3 + 135 + mig.gi * 9
    assert {f"/dev/nvidia-caps/nvidia-cap{first}", f"/dev/nvidia-caps/nvidia-cap{first + 1}", "/dev/nvidia1"} <= nodes
    assert "/dev/nvidia0" not in nodes
    wait(lambda: held(server) == {host.uuids[1]: ["train"]}, "the annotation")
    (gpu,) = (gpu for gpu in inventory(server)["gpus"] if gpu["uuid"] == host.uuids[1])
    assert mig.mem in gpu["held"][0].values()

    empty(host, 0)
    host.wait_offered(gpu=2, **{"mig-1g_5gb": 1, "mig-2g_10gb": 1, "mig-3g_20gb": 1})
    host.edit(lambda topology: topology.set_health(1, "lost"))
    host.wait_offered(gpu=2)
    assert {device.healthy for device in host.kubelet.devices("nvidia.com/mig-2g.10gb").values()} == {False}


def test_metrics_tell_of_each_mig_device_and_its_holder(host: MigHost) -> None:
    plugin = host.plugin(
        *("--mig-strategy", "mixed", "--metrics-interval", "1", "--proc-root", str(host.root / "proc"))
    )
    host.wait_offered(gpu=2, **{"mig-1g_5gb": 8, "mig-2g_10gb": 1, "mig-3g_20gb": 1})
    granted = host.get("train", "mig-3g.20gb")

    def page() -> Page:
        return Page(plugin.probe("/metrics")[1].encode())

    wait(lambda: page().of(families.CONTAINER_MIG) and page().of(families.MIG_USED), "the holder")
    found = page()
    profiles = Counter(labels["profile"] for labels in found.of(families.MIG_INFO))
    assert profiles == {"1g.5gb": 8, "2g.10gb": 1, "3g.20gb": 1}
    (of_pod,) = found.of(families.CONTAINER_MIG)
    assert of_pod["device"] == granted.envs["NVIDIA_VISIBLE_DEVICES"]
    device = {name: of_pod[name] for name in ("node", "uuid", "device")}
    assert found.values(families.MIG_INFO, **device, profile="3g.20gb") == [1]
    (mig,) = (mig for mig in host.topology.migs if mig.profile == "3g.20gb")
    assert found.value(families.MIG_CAPACITY, **device) == mig.mem
    for family in (families.MIG_CAPACITY, families.MIG_USED):
        assert {labels["device"] for labels in found.of(family)} == {mig.uuid for mig in host.topology.migs}


def test_equal_devices_are_gpus(host: MigHost) -> None:
    def cut_alike(topology: Topology) -> None:
        alike = PROFILES["4xa100-mig-alike"]("node")
        topology.gpus, topology.gpu_instances, topology.migs = alike.gpus, alike.gpu_instances, alike.migs

    server = host.api_server()
    plugin = host.plugin("--mig-strategy", "single", "--proc-root", str(host.root / "proc"))
    wait(lambda: "several profiles" in plugin.probe("/readyz")[1], "/readyz")
    assert host.offered() == {}
    host.edit(cut_alike)
    host.wait_offered(gpu=28)
    plugin.wait_ready()
    assert host.get("one", "gpu", 2).envs["NVIDIA_VISIBLE_DEVICES"].count("MIG-") == 2

    empty(host, 2)
    host.wait_offered(gpu=21)
    said = f"Warning GpuNotOffered MIG strategy single: GPU 2 ({host.uuids[2]}) has no MIG devices"
    wait(lambda: any(event.startswith(said) for event in events(server)), "the event")
    plugin.wait_ready()


def test_without_a_strategy_gpus_are_gpus(host: MigHost) -> None:
    host.plugin()
    host.kubelet.wait(lambda: host.kubelet.allocatable().get(RESOURCE) == 4, DEADLINE)
