# SPDX-License-Identifier: Apache-2.0
"""The shipped plugin on this machine's driver, with a kubelet and an API server around it, and a program in a share."""

from __future__ import annotations

import os
import random
import re
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

import urllib3

from sim.cluster.apiserver import ApiServer, Authority
from sim.cluster.store import Store
from sim.kubelet import Container, ContainerAllocation, FakeKubelet, PodSpec

NODE, NAMESPACE, POD = "node-1", "team", "share"
CORES, MEMORY = "tencent.com/vcuda-core", "tencent.com/vcuda-memory"
UNIT = 256 << 20
CGROUPS = Path("/sys/fs/cgroup")
USED, BUSY = "accel_container_gpu_memory_used_bytes", "accel_container_gpu_busy_seconds_total"


class Node:
    """A node of mode vgpu whose GPUs are this machine's."""

    def __init__(self, root: Path, stack: ExitStack, driver_root: Path, libraries: Path, shim: Path) -> None:
        self.root, self.libraries = root, libraries
        self.kubelet = stack.enter_context(FakeKubelet(root / "kubelet", random.Random(0)))
        self.store, authority = Store(), Authority()
        for name in ("default", NAMESPACE):
            body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
            self.store.create("namespaces", "", body)
        self.store.create("nodes", "", {"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}})
        api = ApiServer(self.store, authority, lambda pod, container: root / "none")
        api.start()
        stack.callback(api.stop)
        account = root / "account"
        account.mkdir()
        (account / "ca.crt").write_text(authority.pem)
        (account / "token").write_text(api.token("system:serviceaccount:kube-system:kube-accel"))
        self.environment = os.environ | {
            "LD_LIBRARY_PATH": f"{libraries}:{os.environ.get('LD_LIBRARY_PATH', '')}",
            "NODE_NAME": NODE,
            "KUBERNETES_SERVICE_HOST": "127.0.0.1",
            "KUBERNETES_SERVICE_PORT": str(api.port),
        }
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        self.log = root / "plugin.log"
        self.places = [
            *("--kubelet-device-plugin-dir", str(root / "kubelet/device-plugins")),
            *("--pod-resources-socket", str(root / "kubelet/pod-resources/kubelet.sock")),
            *("--state-dir", str(root / "state")),
        ]
        command = [sys.executable, "-m", "kube_accel.cli.main", "plugin", "--mode", "vgpu", *self.places]
        command += ["--service-account-dir", str(account), "--listen", f"127.0.0.1:{self.port}"]
        command += ["--nvidia-driver-root", str(driver_root), "--shim-dir", str(shim), "--metrics-interval", "1"]
        with self.log.open("wb") as log:
            process = subprocess.Popen(command, env=self.environment, stderr=log)
        stack.callback(lambda: (process.kill(), process.wait()))

    def get(self, path: str) -> str:
        """What the plugin answers; nothing while it does not."""
        with suppress(urllib3.exceptions.HTTPError):
            answer = urllib3.request("GET", f"http://127.0.0.1:{self.port}{path}", timeout=5, retries=False)
            return answer.data.decode() if answer.status == 200 else ""
        return ""

    def figure(self, family: str) -> float:
        """Of the pod with a share; 0 while there is none."""
        found = re.search(rf'^{family}{{[^}}]*pod="{POD}"[^}}]*}} (\S+)', self.get("/metrics"), re.MULTILINE)
        return float(found.group(1)) if found else 0.0

    def validate(self) -> list[str]:
        """What ``kube-accel validate`` does not call well."""
        command = [sys.executable, "-m", "kube_accel.cli.main", "validate", *self.places]
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True, timeout=60)
        return [line for line in done.stdout.splitlines() if not line.startswith("ok ")]

    def admit(self, cores: int, units: int) -> tuple[PodSpec, ContainerAllocation]:
        """A pod with a share."""
        limits = {CORES: cores, MEMORY: units}
        amounts = {name: str(count) for name, count in limits.items()}
        container = {"name": "main", "image": "i", "resources": {"limits": amounts, "requests": amounts}}
        body = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": POD}}
        body["spec"] = {"nodeName": NODE, "containers": [container]}
        uid = self.store.create("pods", NAMESPACE, body)["metadata"]["uid"]
        pod = PodSpec(NAMESPACE, POD, uid, (Container("main", limits),))
        got = self.kubelet.admit(pod)["main"]
        self.kubelet.run(pod)
        return pod, got

    def environment_of(self, got: ContainerAllocation) -> dict[str, str]:
        """The variables by which a program of this machine runs as one of the container."""
        mounts = {mount.container_path: mount.host_path for mount in got.mounts}
        shim = next(host for path, host in mounts.items() if path.endswith("/libcuda.so.1") and "state/shim" in host)
        return os.environ | {
            "LD_LIBRARY_PATH": f"{Path(shim).parent}:{os.environ.get('LD_LIBRARY_PATH', '')}",
            "KUBE_ACCEL_DRIVER": str(self.libraries),
            "KUBE_ACCEL_POLICY": mounts["/etc/kube-accel/policy"],
            "KUBE_ACCEL_STATE": mounts["/run/kube-accel/state"],
        }


def until(met: Callable[[], bool], seconds: float) -> bool:
    """Whether it came to be so in this time."""
    end = time.monotonic() + seconds
    while not met():
        if time.monotonic() > end:
            return False
        time.sleep(0.2)
    return True


def in_cgroup(pid: int, uid: str) -> bool:
    """Move a process to a container's cgroup; False where this machine does not let us."""
    place = CGROUPS / f"kubepods/pod{uid}/{pid:064}"
    try:
        place.mkdir(parents=True)
        (place / "cgroup.procs").write_text(f"{pid}")
    except OSError:
        return False
    return True


@dataclass(frozen=True, slots=True)
class Seen:
    """What the plugin makes of this machine, and of a program that allocates and launches without pause."""

    offered: Mapping[str, int]
    """Devices of each resource."""
    devices: tuple[str, ...]
    """Of the container."""
    attributed: bool
    """Whether the program could be put where containers are."""
    memory: int
    """Bytes that the pod uses."""
    share: float
    """Part of the GPU's time that the pod had."""
    findings: tuple[str, ...]
    """Lines of ``kube-accel validate`` that do not say that all is well."""


def look(node: Node, program: Sequence[str], cores: int, memory: int, seconds: float) -> Seen:
    """Run a program in a pod with ``cores`` percent and ``memory`` bytes. Raises TimeoutError when nothing is ready."""
    if not until(lambda: node.get("/readyz") != "", 30):
        raise TimeoutError(f"the plugin is not ready: {node.log.read_text()[-500:]}")
    pod, got = node.admit(cores, memory // UNIT)
    running = subprocess.Popen(program, env=node.environment_of(got))
    try:
        attributed = in_cgroup(running.pid, pod.uid)
        until(lambda: node.figure(USED) > 0 and node.figure(BUSY) > 0, 3 * seconds + 1)
        before, at = node.figure(BUSY), time.monotonic()
        time.sleep(seconds)
        share = (node.figure(BUSY) - before) / (time.monotonic() - at)
        offered = {name: len(node.kubelet.devices(name)) for name in (CORES, MEMORY)}
        devices = tuple(sorted(spec.container_path for spec in got.devices))
        return Seen(offered, devices, attributed, int(node.figure(USED)), share, tuple(node.validate()))
    finally:
        running.kill()
        running.wait()
