# SPDX-License-Identifier: Apache-2.0
"""The rig's node as a GPU node: simulated GPUs, and the daemon as our role's permissions let it run."""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jinja2

from cluster.rig import IMAGE, KUBELET_ROOT, NODE, NODE_IP, PORT, Rig
from sim.cluster.client import until
from sim.nvml import build, sysfs
from sim.nvml.profiles import PROFILES
from sim.nvml.topology import Topology, edit

TEMPLATES = Path(__file__).resolve().parents[2] / "roles/gpu_plugins/templates"
NVIDIA_MAJOR = 195
CONTROL_NODES = ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools")
WAIT_SECONDS = 60.0


class GpuNode:
    """Simulated GPUs on the rig's node. The daemon runs as a process beside kubelet."""

    def __init__(self, rig: Rig, profile: str, mode: str = "pgpu", resource: str = "nvidia.com/gpu") -> None:
        """``resource`` is what the mode's amounts are counted in."""
        self.rig = rig
        self._mode = mode
        self._resource = resource
        self.root = rig.directory / "gpus"
        self._topology = PROFILES[profile](NODE)
        self._made: list[Path] = []

    def __enter__(self) -> GpuNode:
        (self.root / "usr/lib").mkdir(parents=True)
        build(self.root / "usr/lib")
        self._topology.save(self.root / "gpusim.conf")
        sysfs.write(self._topology, self.root)
        sysfs.load_driver(self._topology, self.root)
        # containerd hands real device nodes to containers; nothing opens these.
        names = [f"nvidia{number}" for number in range(len(self._topology.gpus))]
        for minor, name in enumerate([*names, *CONTROL_NODES]):
            path = Path("/dev") / name
            if not path.exists():
                os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(NVIDIA_MAJOR, minor))
                self._made.append(path)
        self._grant()
        return self

    def __exit__(self, *_: object) -> None:
        for path in self._made:
            path.unlink()
        shutil.rmtree(self.root, ignore_errors=True)

    @contextmanager
    def plugin(self, port: int = 9445) -> Iterator[subprocess.Popen[bytes]]:
        """The daemon; ends with SIGTERM."""
        process = self.start_plugin(port)
        try:
            yield process
        finally:
            process.terminate()
            process.wait(WAIT_SECONDS)

    def start_plugin(self, port: int = 9445) -> subprocess.Popen[bytes]:
        """Start the daemon; returns when it is ready: registered, with an inventory."""
        command = [
            str(Path(sys.executable).with_name("kube-accel")),
            "plugin",
            f"--mode={self._mode}",
            f"--node-name={NODE}",
            f"--listen=127.0.0.1:{port}",
            f"--kubelet-device-plugin-dir={KUBELET_ROOT}/device-plugins",
            f"--pod-resources-socket={KUBELET_ROOT}/pod-resources/kubelet.sock",
            f"--state-dir={self.root}/state",
            f"--sysfs-root={self.root}/sys",
            "--dev-root=/dev",
            f"--service-account-dir={self.root}/account",
        ]
        (self.root / "state").mkdir(exist_ok=True)
        environment = os.environ | {
            "LD_LIBRARY_PATH": f"{self.root}/usr/lib",
            "GPUSIM_FILE": f"{self.root}/gpusim.conf",
            "KUBERNETES_SERVICE_HOST": NODE_IP,
            "KUBERNETES_SERVICE_PORT": str(PORT),
        }
        with (self.rig.directory / "log" / "kube-accel").open("ab") as log:
            process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
        until(lambda: _ready(port), f"the plugin; its log is {log.name}", WAIT_SECONDS)
        return process

    def _grant(self) -> None:
        """The role's own service account and permissions, and a token of that account."""
        name = "kube-accel" if self._mode == "pgpu" else "kube-accel-share"
        template = jinja2.Template((TEMPLATES / "rbac.yml.j2").read_text())
        objects = self.root / "rbac.yml"
        objects.write_text(template.render(gpu_plugins_namespace="kube-system", __gpu_plugins_accounts=[name]))
        self.rig.kubectl("apply", f"--filename={objects}")
        account = self.root / "account"
        account.mkdir()
        token = self.rig.kubectl("create", "token", name, "--namespace=kube-system", "--duration=2h")
        (account / "token").write_text(token)
        shutil.copy(self.rig.ca, account / "ca.crt")
        (account / "namespace").write_text("kube-system")

    @contextmanager
    def edit(self) -> Iterator[Topology]:
        """Change the GPUs, live."""
        with edit(self.root / "gpusim.conf") as topology:
            yield topology

    def object(self) -> dict[str, Any]:
        """The Node object."""
        return dict(self.rig.api.get(f"/api/v1/nodes/{NODE}"))

    def wait_allocatable(self, count: int) -> None:
        """Until the node offers so many of its mode's resource."""
        until(lambda: self.allocatable() == count, f"{count} allocatable {self._resource}", WAIT_SECONDS)

    def allocatable(self) -> int:
        """What the node offers now of its mode's resource."""
        return int(self.object()["status"]["allocatable"].get(self._resource, "0"))

    def holders(self) -> dict[str, str]:
        """GPU UUID to the pod that holds it, as the node's annotation says."""
        text = self.object()["metadata"].get("annotations", {}).get("kube-accel.io/inventory", '{"gpus": []}')
        gpus = json.loads(text)["gpus"]
        return {gpu["uuid"]: holder["pod"] for gpu in gpus for holder in gpu.get("held", ())}

    def held(self) -> dict[str, dict[str, tuple[int, int]]]:
        """GPU UUID to pod to its cores in percent and memory in bytes, as the node's annotation says."""
        text = self.object()["metadata"].get("annotations", {}).get("kube-accel.io/inventory", '{"gpus": []}')
        held: dict[str, dict[str, tuple[int, int]]] = {}
        for gpu in json.loads(text)["gpus"]:
            for holder in gpu.get("held", ()):
                # A holding without amounts is the whole GPU.
                cores, memory = holder.get("cores", 100), holder.get("memoryBytes", gpu["memoryBytes"])
                pods = held.setdefault(gpu["uuid"], {})
                before = pods.get(holder["pod"], (0, 0))
                pods[holder["pod"]] = (before[0] + cores, before[1] + memory)
        return held


def _ready(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def gpu_pod(name: str, gpus: int) -> dict[str, Any]:
    """A pod that stays, and holds so many GPUs."""
    return pod(name, {"nvidia.com/gpu": str(gpus)})


def pod(name: str, *limits: dict[str, str]) -> dict[str, Any]:
    """A pod that stays, with a container for each of the limits."""
    containers = [
        {"name": f"c{number}", "image": IMAGE, "imagePullPolicy": "Never", "resources": {"limits": dict(wanted)}}
        for number, wanted in enumerate(limits)
    ]
    spec = {"containers": containers, "terminationGracePeriodSeconds": 0}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}
