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
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

import urllib3

from kube_accel.model import Assignment, Share
from kube_accel.sharing.assignment import ANNOTATION, encode
from sim.cluster.apiserver import ApiServer, Authority
from sim.cluster.store import Store
from sim.kubelet import Container, ContainerAllocation, FakeKubelet, PodSpec

NODE, NAMESPACE = "node-1", "team"
CORES, MEMORY = "tencent.com/vcuda-core", "tencent.com/vcuda-memory"
UNIT = 256 << 20
CGROUPS = Path("/sys/fs/cgroup") if Path("/sys/fs/cgroup/cgroup.procs").exists() else Path("/sys/fs/cgroup/pids")
USED, BUSY = "accel_container_gpu_memory_used_bytes", "accel_container_gpu_busy_seconds_total"


class Node:
    """A node of mode vgpu whose GPUs are this machine's; its pods have shares of the one with this UUID."""

    def __init__(self, root: Path, stack: ExitStack, driver_root: Path, libraries: Path, shim: Path, gpu: str) -> None:
        self.root, self.libraries, self.gpu = root, libraries, gpu
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

    def figure(self, family: str, pod: str) -> float:
        """The figure of a pod with a share; 0 while there is none."""
        found = re.search(rf'^{family}{{[^}}]*pod="{pod}"[^}}]*}} (\S+)', self.get("/metrics"), re.MULTILINE)
        return float(found.group(1)) if found else 0.0

    def validate(self) -> list[str]:
        """What ``kube-accel validate`` does not call well."""
        command = [sys.executable, "-m", "kube_accel.cli.main", "validate", *self.places]
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True, timeout=60)
        return [line for line in done.stdout.splitlines() if not line.startswith("ok ")]

    def admit(self, name: str, cores: int, units: int) -> tuple[PodSpec, ContainerAllocation]:
        """A pod with a share of the GPU."""
        limits = {CORES: cores, MEMORY: units}
        amounts = {resource: str(count) for resource, count in limits.items()}
        container = {"name": "main", "image": "i", "resources": {"limits": amounts, "requests": amounts}}
        share = Share(self.gpu, cores, units * UNIT)
        assigned = {ANNOTATION: encode(Assignment(NODE, {"main": (share,)}))}
        body = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "annotations": assigned}}
        body["spec"] = {"nodeName": NODE, "containers": [container]}
        uid = self.store.create("pods", NAMESPACE, body)["metadata"]["uid"]
        pod = PodSpec(NAMESPACE, name, uid, (Container("main", limits),))
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


@contextmanager
def container(node: Node, pod: PodSpec, got: ContainerAllocation, program: Sequence[str]) -> Iterator[bool]:
    """Run a program as the container's; tells whether this machine's cgroups say that it is that."""
    place = CGROUPS / f"kubepods/pod{pod.uid}" / ("0" * 64)
    running = subprocess.Popen(program, env=node.environment_of(got))
    try:
        with suppress(OSError):
            place.mkdir(parents=True)
            (place / "cgroup.procs").write_text(f"{running.pid}")
        yield pod.uid in Path(f"/proc/{running.pid}/cgroup").read_text()
    finally:
        running.kill()
        running.wait()
        until(lambda: _removed(place), 5)


def _removed(place: Path) -> bool:
    """Whether a container's cgroup is gone, and those around it that nobody else uses."""
    with suppress(OSError):
        for directory in (place, *place.parents[:2]):
            directory.rmdir()
    return not place.exists()


@dataclass(frozen=True, slots=True)
class Seen:
    """What the plugin makes of this machine, and of programs that allocate and launch without pause."""

    offered: Mapping[str, int]
    """Devices of each resource."""
    devices: tuple[str, ...]
    """The container's devices."""
    findings: tuple[str, ...]
    """Lines of ``kube-accel validate`` that do not say that all is well."""
    memory: int
    """Bytes that the pod uses that was there first."""
    alone: float
    """Part of the GPU's time that it had while it was alone."""
    beside: tuple[float, float]
    """Parts that it and a second pod had after that."""


class NotAttributedError(Exception):
    """Nobody can say whose a process is on this machine."""


def look(node: Node, program: Sequence[str], shares: tuple[int, int], memory: int, seconds: float) -> Iterator[Seen]:
    """Run a program in a pod with the first share and ``memory`` bytes, then in a second pod with the other beside it.

    Yields what was seen before anything ran, then all of it. Raises TimeoutError when the plugin is not ready, and
    NotAttributedError.
    """
    if not until(lambda: node.get("/readyz") != "", 30):
        raise TimeoutError(f"the plugin is not ready: {node.log.read_text()[-500:]}")
    # The plugin is ready when it has registered; that its devices have arrived is for kubelet to say.
    node.kubelet.wait(lambda: all(node.kubelet.allocatable().get(resource) for resource in (CORES, MEMORY)), 30)
    pods = [node.admit(f"share-{share}", share, memory // UNIT) for share in shares]
    (first, got), (second, others) = pods
    offered = {name: len(node.kubelet.devices(name)) for name in (CORES, MEMORY)}
    devices = tuple(sorted(spec.container_path for spec in got.devices))
    seen = Seen(offered, devices, tuple(node.validate()), 0, 0.0, (0.0, 0.0))
    yield seen
    with container(node, first, got, program) as attributed:
        if not attributed:
            raise NotAttributedError("this machine's cgroups cannot be written")
        [alone] = busy(node, [first.name], seconds)
        used = int(node.figure(USED, first.name))
        with container(node, second, others, program):
            had = busy(node, [first.name, second.name], 2 * seconds)
    yield replace(seen, memory=used, alone=alone, beside=(had[0], had[1]))


def busy(node: Node, pods: Sequence[str], seconds: float) -> list[float]:
    """Return the parts of the GPU's time that pods had, once all of them had some."""
    until(lambda: all(node.figure(USED, pod) > 0 and node.figure(BUSY, pod) > 0 for pod in pods), 3 * seconds + 1)
    before, at = [node.figure(BUSY, pod) for pod in pods], time.monotonic()
    time.sleep(seconds)
    after, passed = [node.figure(BUSY, pod) for pod in pods], time.monotonic() - at
    return [(end - begin) / passed for begin, end in zip(before, after, strict=True)]
