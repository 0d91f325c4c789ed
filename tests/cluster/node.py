# SPDX-License-Identifier: Apache-2.0
"""The rig's node as a GPU node: simulated GPUs, and the daemon as our role's permissions let it run."""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import UUID

import yaml

from cluster.control_plane import API_SERVICE, Program, answers
from cluster.images import BUSYBOX
from cluster.rig import KUBELET_ROOT, NODE, Rig
from sim import native
from sim.cluster import hostcmd
from sim.cluster.client import until
from sim.nvml import sysfs
from sim.nvml.profiles import PROFILES
from sim.nvml.topology import Topology, edit
from unit.roles.conftest import rendered

ROOT = Path("/")
TOPOLOGY = ROOT / "gpusim.conf"
SYSFS = ("/sys/bus/pci", "/sys/module")
NVIDIA_MAJOR = 195
CONTROL_NODES = ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools")
DRIVER = "580.95.05"
STATE = Path("/var/lib/kube-accel")
GPUS = Path("/run/gpus")
"""What containers see of the GPUs, where a test shows it to them."""
UNPRIVILEGED = ("setpriv", "--bounding-set=-all", "--inh-caps=-all", "--no-new-privs")
"""root, and nothing beyond that, as in the role's DaemonSet."""


class GpuNode:
    """The node with these GPUs, and with their driver unless ``driver`` is false."""

    def __init__(self, rig: Rig, profile: str, driver: bool = True) -> None:
        self.rig = rig
        self._driver = driver
        self._topology = PROFILES[profile](NODE)

    def __enter__(self) -> GpuNode:
        for directory in SYSFS:
            subprocess.run(["mount", "-t", "tmpfs", "gpus", directory], check=True)
        (ROOT / hostcmd.MODULE).parent.mkdir(exist_ok=True)
        self._topology.save(TOPOLOGY)
        sysfs.write(self._topology, ROOT)
        # containerd hands real device nodes to containers; nothing opens these.
        names = [f"nvidia{number}" for number in range(len(self._topology.gpus))]
        for minor, name in enumerate([*names, *CONTROL_NODES]):
            (ROOT / "dev" / name).unlink(missing_ok=True)
            os.mknod(ROOT / "dev" / name, stat.S_IFCHR | 0o666, os.makedev(NVIDIA_MAJOR, minor))
        if self._driver:
            hostcmd.installer(ROOT, [DRIVER, "--silent"])
        return self

    def __exit__(self, *_: object) -> None:
        if (ROOT / hostcmd.MODULE).exists():
            hostcmd.installer(ROOT, [DRIVER, "--silent", "--uninstall"])
        for directory in SYSFS:
            subprocess.run(["umount", directory], check=True)
        shutil.rmtree(STATE, ignore_errors=True)

    @contextmanager
    def plugin(self, mode: str = "pgpu", port: int = 9445, *flags: str) -> Iterator[Program]:
        """The daemon beside kubelet, ready: registered, with an inventory."""
        command = [
            *UNPRIVILEGED,
            str(Path(sys.executable).with_name("kube-accel")),
            "plugin",
            f"--mode={mode}",
            f"--node-name={NODE}",
            f"--listen=127.0.0.1:{port}",
            f"--kubelet-device-plugin-dir={KUBELET_ROOT}/device-plugins",
            f"--pod-resources-socket={KUBELET_ROOT}/pod-resources/kubelet.sock",
            f"--state-dir={STATE}",
            f"--service-account-dir={self._account(mode)}",
            *flags,
            f"--shim-dir={native.build()}",
        ]
        STATE.mkdir(exist_ok=True)
        environment = {"GPUSIM_FILE": str(TOPOLOGY), "KUBERNETES_SERVICE_HOST": API_SERVICE}
        environment["KUBERNETES_SERVICE_PORT"] = "443"
        with Program(self.rig.plane.root, f"kube-accel-{port}", command, environment) as program:
            url = f"http://127.0.0.1:{port}/readyz"
            until(lambda: answers(url), f"the plugin; its log is {program.log}")
            yield program

    def _account(self, mode: str) -> Path:
        """The role's own service account and permissions, and a token of that account."""
        name = "kube-accel" if mode == "pgpu" else "kube-accel-share"
        account = self.rig.plane.root / name
        if account.exists():
            return account
        objects = self.rig.plane.root / f"{name}.yml"
        objects.write_text(yaml.safe_dump_all(rendered("gpu_plugins", "rbac.yml.j2")))
        self.rig.kubectl("apply", f"--filename={objects}")
        account.mkdir()
        token = self.rig.kubectl("create", "token", name, "--namespace=kube-system", "--duration=2h")
        (account / "token").write_text(token)
        shutil.copy(self.rig.plane.ca, account / "ca.crt")
        (account / "namespace").write_text("kube-system")
        return account

    @contextmanager
    def edit(self) -> Iterator[Topology]:
        """Change the GPUs, live."""
        with edit(TOPOLOGY) as topology:
            yield topology

    def allocatable(self, resource: str) -> int:
        """How much of the resource the node offers."""
        return int(self.rig.node()["status"]["allocatable"].get(resource, 0))

    def wait_allocatable(self, count: int, resource: str = "nvidia.com/gpu") -> None:
        """Until the node offers so much."""
        until(lambda: self.allocatable(resource) == count, f"{count} {resource}")

    def limited(self, name: str) -> str:
        """The UUID of the GPU that a pod's first container has limits on; the interposer is in the driver's place."""

        def run(*command: str) -> str:
            return self.rig.kubectl("exec", name, "--", "busybox", *command)

        paths = [f"{directory}/libcuda.so.1" for directory in ("/usr/lib64", "/usr/lib/x86_64-linux-gnu")]
        sums = run("md5sum", *paths, "/usr/lib/kube-accel/driver/libcuda.so.1").split()[::2]
        assert sums[0] == sums[1] != sums[2]
        mounts = {row.split()[1]: row.split()[3].split(",") for row in run("cat", "/proc/mounts").splitlines()}
        assert ("ro" in mounts["/etc/kube-accel/policy"], "rw" in mounts["/run/kube-accel/state"]) == (True, True)
        assert "NVIDIA_VISIBLE_DEVICES=void" in run("env").split()
        digits = run("od", "-A", "n", "-t", "x1", "-j", "64", "-N", "16", "/etc/kube-accel/policy")
        return f"GPU-{UUID(''.join(digits.split()))}"

    def held(self) -> dict[str, dict[str, tuple[int, int]]]:
        """GPU UUID to pod to its cores in percent and memory in bytes, as the node's annotation says."""
        annotations = self.rig.node()["metadata"].get("annotations", {})
        held: dict[str, dict[str, tuple[int, int]]] = {}
        for gpu in json.loads(annotations.get("kube-accel.io/inventory", '{"gpus": []}'))["gpus"]:
            for holder in gpu.get("held", ()):
                # A holding without amounts is the whole GPU.
                cores, memory = holder.get("cores", 100), holder.get("memoryBytes", gpu["memoryBytes"])
                pods = held.setdefault(gpu["uuid"], {})
                before = pods.get(holder["pod"], (0, 0))
                pods[holder["pod"]] = (before[0] + cores, before[1] + memory)
        return held

    def holders(self) -> dict[str, str]:
        """GPU UUID to the pod that holds it whole."""
        return {uuid: pod for uuid, pods in self.held().items() for pod in pods}

    def sums(self) -> dict[str, tuple[int, int]]:
        """GPU UUID to the cores and memory its pods hold together."""
        found: dict[str, tuple[int, int]] = defaultdict(lambda: (0, 0))
        for uuid, pods in self.held().items():
            found[uuid] = (sum(cores for cores, _ in pods.values()), sum(memory for _, memory in pods.values()))
        return found


def gpu_pod(name: str, gpus: int) -> dict[str, Any]:
    """A pod that stays, and holds so many GPUs."""
    return pod(name, {"nvidia.com/gpu": str(gpus)})


def pod(name: str, *limits: dict[str, str], **spec: Any) -> dict[str, Any]:
    """A pod that stays, with a container for each of the limits."""
    containers = [
        {"name": f"c{number}", "image": BUSYBOX, "imagePullPolicy": "Never", "resources": {"limits": dict(wanted)}}
        for number, wanted in enumerate(limits)
    ]
    spec = {"containers": containers, "terminationGracePeriodSeconds": 0} | spec
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}


def show_to_containers() -> None:
    """Write what the simulated driver in a container reads of the GPUs and writes of their memory."""
    GPUS.mkdir(exist_ok=True)
    (GPUS / "gpusim.conf").write_text(TOPOLOGY.read_text())
    memory = GPUS / "gpusim.conf.cuda"
    memory.touch()
    memory.chmod(0o666)
