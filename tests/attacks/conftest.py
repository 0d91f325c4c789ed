# SPDX-License-Identifier: Apache-2.0
"""Whom attacks are made on, and by whom.

``node`` is a simulated node in mode vgpu, one for a module, with the shipped plugin as its DaemonSet has it: root
without capabilities, umask 022. ``with attacked(Mode.MPS) as node`` makes another; flags of the plugin may follow.

- ``node.start("name", gpu=1)``: a pod with a share of a GPU that kubelet has admitted and started, a ``Tenant``. It
  raises what kubelet would say, and is what a neighbour sees of an attack.
- ``tenant.run(code)``: a Python program in this container, as uid 0 without capabilities, which Pod Security *baseline*
  admits. Its mounts lie at their paths (``/run/kube-accel/state``, ``/etc/kube-accel/policy``, the driver's libraries),
  it has a PID namespace of its own and does not see the host's state. ``tenant.begin(code)`` does not wait for its end.
- ``stranger(code)``: a Python program of a user of the host, uid 65534.
- ``node.get("/readyz")``, ``node.events()``, ``node.logged()``: what others see meanwhile.

All of this needs root; ``needs_root`` skips with that reason.
"""

from __future__ import annotations

import functools
import json
import os
import shutil
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import collection  # noqa: F401 -- modules are importable from here on
from bench.node import NAME, NAMESPACE, Node, simulated_node
from bench.plugin import ours
from kube_accel.model import Assignment, Mode, Share
from kube_accel.sharing.assignment import ANNOTATION, encode
from kube_accel.sharing.profile import PROFILES
from sim.cluster import namespace
from sim.cluster.containers import device_environment
from sim.kubelet import Container, ContainerAllocation, PodSpec
from waiting import wait

TESTS = Path(__file__).parents[1]
STATE, POLICY = "/run/kube-accel/state", "/etc/kube-accel/policy"
NOBODY = 65534
NO_RIGHTS = ("setpriv", "--bounding-set=-all", "--inh-caps=-all", "--no-new-privs")
"""What a container without capabilities runs under; it keeps uid 0."""
PROLOGUE = "import ctypes, errno, fcntl, json, mmap, os, signal, socket, struct, subprocess, sys, time\n"

needs_root = pytest.mark.skipif(
    os.geteuid() != 0, reason="a tenant with uid 0, and a host's files of root, need root: sudo make attacks"
)


@dataclass(frozen=True)
class Tenant:
    """A pod's only container, ``main``, that runs on the attacked node."""

    node: Attacked
    pod: PodSpec
    got: ContainerAllocation

    def path(self, inside: str) -> Path:
        """Where on the host a path of the container lies. Raises KeyError when it is not mounted."""
        return Path({mount.container_path: mount.host_path for mount in self.got.mounts}[inside])

    @property
    def state(self) -> Path:
        """The account, on the host."""
        return self.path(STATE)

    def begin(self, code: str, *arguments: object, **environment: str) -> subprocess.Popen[str]:
        """Start a program in the container; standard input, output and errors are pipes."""
        shown = device_environment(self.got.devices, self.node.root)
        program = [sys.executable, "-c", PROLOGUE + code, *map(str, arguments)]
        process = subprocess.Popen(
            self._inside(program),
            env={"PATH": os.environ["PATH"], "PYTHONPATH": str(TESTS), "GPUSIM_LIBRARIES": "", **shown, **environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.node.stack.callback(_end, process)
        return process

    def run(self, code: str, *arguments: object, seconds: float = 60, **environment: str) -> str:
        """What a program in the container prints. Raises AssertionError with its errors when it fails."""
        process = self.begin(code, *arguments, **environment)
        output, errors = process.communicate(timeout=seconds)
        assert process.returncode == 0, errors
        return output

    def _inside(self, argv: list[str]) -> list[str]:
        directory = self.node.root / "containers" / self.pod.name
        directory.mkdir(parents=True, exist_ok=True)
        rows = []
        for mount in self.got.mounts:
            # The driver's are named as the host has them, whose root is elsewhere here.
            source = Path(mount.host_path)
            if not source.is_relative_to(self.node.root) and not mount.container_path.startswith("/dev/shm/"):
                source = self.node.root / mount.host_path.lstrip("/")
            if source.exists():
                rows.append((str(source), mount.container_path, mount.read_only))
        shown = {target for _, target, _ in rows}
        hidden = [path for path in self.node.hidden if path.exists() and str(path) not in shown]
        script = (
            'while [ "$1" != -- ]; do mount -t tmpfs -o ro,size=4k none "$1" || exit 125; shift; done; shift; exec "$@"'
        )
        jailed = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc", *NO_RIGHTS, *argv]
        command = ["sh", "-c", script, "sh", *map(str, hidden), "--", *jailed]
        return namespace.command(directory, rows, command, user=False)


@dataclass
class Attacked:
    """A node, and the plugin that runs on it."""

    node: Node
    plugin: subprocess.Popen[bytes]
    port: int
    stack: ExitStack
    started: dict[str, Tenant] = field(default_factory=dict)

    @property
    def root(self) -> Path:
        """What stands for the host's root directory."""
        return self.node.root

    @property
    def state_dir(self) -> Path:
        """The plugin's."""
        return self.root / "state"

    @property
    def hidden(self) -> list[Path]:
        """Return what no container sees of the host but by its mounts."""
        mps = self.root.glob("mps/*/*")
        return [self.state_dir, self.root / "var/lib/kubelet", self.root / "serviceaccount", *mps]

    def pod(
        self,
        name: str,
        limits: Mapping[str, int],
        annotations: Mapping[str, str] | None = None,
        containers: tuple[str, ...] = ("main",),
    ) -> PodSpec:
        """A pod that is bound to this node, as the API server has it and as kubelet gets it."""
        amounts = {resource: str(count) for resource, count in limits.items()}
        resources = {"limits": amounts, "requests": amounts}
        body = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "namespace": NAMESPACE, "annotations": dict(annotations or {})},
            "spec": {
                "nodeName": NAME,
                "containers": [{"name": each, "image": "i", "resources": resources} for each in containers],
            },
        }
        uid = self.node.store.create("pods", NAMESPACE, body)["metadata"]["uid"]
        return PodSpec(NAMESPACE, name, uid, tuple(Container(each, dict(limits)) for each in containers))

    def limits(self, cores: int, gib: int) -> dict[str, int]:
        """A share, in the resources of the node's mode."""
        profile = PROFILES[self.node.mode]
        found = {profile.memory_resource: (gib << 30) // profile.memory_unit_bytes}
        return found if profile.core_resource is None else {profile.core_resource: cores, **found}

    def start(self, name: str, gpu: int = 0, cores: int = 5, gib: int = 2) -> Tenant:
        """A pod with a share of this GPU, assigned, admitted and started. Raises what kubelet raises."""
        share = Share(self.node.uuids[gpu], cores, gib << 30)
        text = encode(Assignment(NAME, {"main": (share,)}))
        pod = self.pod(name, self.limits(cores, gib), {ANNOTATION: text})
        got = self.node.kubelet.admit(pod)["main"]
        self.node.store.edit("pods", NAMESPACE, name, lambda item: item["status"].update(phase="Running"))
        tenant = self.started[name] = Tenant(self, pod, got)
        return tenant

    def end(self, tenant: Tenant) -> None:
        """The pod is deleted, and kubelet lets it go."""
        self.started.pop(tenant.pod.name, None)
        if self.node.store.find("pods", NAMESPACE, tenant.pod.name) is not None:
            self.node.store.delete("pods", NAMESPACE, tenant.pod.name, {"gracePeriodSeconds": 0})
        self.node.kubelet.remove(tenant.pod)

    def get(self, path: str, seconds: float = 5) -> tuple[int, str]:
        """A page of the plugin's port: status and body. Raises OSError."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=seconds) as response:
                return response.status, response.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def logged(self) -> list[dict[str, Any]]:
        """Lines of the plugin's log."""
        lines = (self.root / "plugin.log").read_text(errors="replace").splitlines()
        return [json.loads(line) for line in lines if line.startswith("{") and line.endswith("}")]

    def events(self) -> list[tuple[str, str, str]]:
        """Pod, reason and message of the pods' events."""
        return [
            (item["involvedObject"]["name"], item["reason"], item["message"])
            for item in self.node.store.all("events", NAMESPACE)
        ]

    def removed(self, tenant: Tenant) -> bool:
        """Whether the pod was deleted at the API server."""
        item = self.node.store.find("pods", NAMESPACE, tenant.pod.name)
        return item is None or "deletionTimestamp" in item["metadata"]

    def unharmed(self) -> None:
        """The plugin runs and says that it is well, and nothing went wrong in it that nobody had thought of."""
        assert self.plugin.poll() is None, (self.root / "plugin.log").read_text()[-3000:]
        assert self.get("/healthz")[0] == 200
        assert self.get("/readyz")[0] == 200
        log = (self.root / "plugin.log").read_text(errors="replace")
        assert "Traceback" not in log, log[-3000:]


@contextmanager
def attacked(mode: Mode, *flags: str, profile: str = "8xh100", state_mib: int = 0) -> Iterator[Attacked]:
    """A node of this mode with the plugin as the DaemonSet has it, and ``flags`` besides.

    Its state directory is made as kubelet makes it, and is a file system of ``state_mib`` MiB if that is not 0.
    """
    with simulated_node(profile, mode) as node, ExitStack() as stack:
        node.root.chmod(0o755)  # a local user may look for what lies open to all
        state = node.root / "state"
        state.mkdir(mode=0o755)
        state.chmod(0o755)
        if state_mib:
            subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={state_mib}m,mode=755", "none", state], check=True)
            stack.callback(subprocess.run, ["umount", "--lazy", state], check=True)
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        command = [*ours(node), f"--listen=127.0.0.1:{port}", *flags]
        stack.enter_context(_umask(0o022))
        plugin = stack.enter_context(node.plugin([*NO_RIGHTS, *command]))
        found = stack.enter_context(ExitStack())
        it = Attacked(node, plugin, port, found)
        wait(node.told, "the node's annotation and condition")
        wait(lambda: it.get("/readyz")[0] == 200, "/readyz")
        yield it


@contextmanager
def _umask(mask: int) -> Iterator[None]:
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


def _end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.communicate()


@functools.cache
def _python_of_all() -> str:
    """An interpreter that any user of the host may run; empty when there is none."""
    for path in (sys.executable, shutil.which("python3", path="/usr/bin:/usr/local/bin:/bin")):
        if path and subprocess.run(_as_nobody(path, "import json, socket"), capture_output=True).returncode == 0:
            return path
    return ""


def _as_nobody(python: str, code: str, *arguments: object) -> list[str]:
    who = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", "--inh-caps=-all"]
    return [*who, python, "-I", "-S", "-c", code, *map(str, arguments)]


def stranger(code: str, *arguments: object, seconds: float = 60) -> str:
    """What a program of a local user without any right prints. Raises AssertionError with its errors when it fails."""
    if not _python_of_all():
        pytest.skip("no Python that a user without rights may run: install python3")
    command = _as_nobody(_python_of_all(), PROLOGUE + code, *arguments)
    done = subprocess.run(command, cwd="/", capture_output=True, text=True, timeout=seconds)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def node() -> Iterator[Attacked]:
    """A node in mode vgpu, for all attacks of a module."""
    if os.geteuid() != 0:
        pytest.skip(str(needs_root.kwargs["reason"]))
    with attacked(Mode.VGPU) as found:
        yield found
