# SPDX-License-Identifier: Apache-2.0
"""A whole cluster in this process, with one directory tree for each of its machines."""

from __future__ import annotations

import random
import shutil
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import yaml

from sim.cluster import host
from sim.cluster.apiserver import ApiServer, Authority
from sim.cluster.controllers import Controllers
from sim.cluster.host import NodeSpec
from sim.cluster.kinds import Object
from sim.cluster.node import NodeAgent
from sim.cluster.store import Store
from sim.nvml import profiles

_NAMESPACES = ("default", "kube-system", "kube-public", "kube-node-lease")
_PRIORITIES = {"system-node-critical": 2_000_001_000, "system-cluster-critical": 2_000_000_000}
_GRACE = 3.0
_LOCK_PORT = 61_000


@dataclass(frozen=True, slots=True)
class Spec:
    """Which machines a cluster has. Raises ValueError when that makes no sense."""

    control_plane: str
    nodes: tuple[NodeSpec, ...]
    standby: tuple[str, ...] = ()
    """Further control planes, whose schedulers elect a leader among them all."""
    driver_versions: tuple[str, ...] = ()
    """Driver installers to offer; those of the profiles when empty."""
    custom: tuple[str, ...] = ()
    """API groups whose CustomResourceDefinitions are installed."""

    def __post_init__(self) -> None:
        names = [self.control_plane, *self.standby, *(node.name for node in self.nodes)]
        if len(set(names)) < len(names):
            raise ValueError("control_plane and nodes: each needs a name of its own")
        for node in self.nodes:
            if node.profile and node.profile not in profiles.PROFILES:
                known = ", ".join(sorted(profiles.PROFILES))
                raise ValueError(f"node {node.name}: unknown profile {node.profile!r}: choose one of {known}")

    @classmethod
    def load(cls, path: Path) -> Spec:
        """Read a YAML file with the same keys. Raises ValueError for one that does not fit."""
        document = yaml.safe_load(path.read_text())
        try:
            nodes = tuple(NodeSpec(**node) for node in document.pop("nodes"))
            more = {key: tuple(document.pop(key, ())) for key in ("standby", "driver_versions", "custom")}
            return cls(nodes=nodes, **more, **document)
        except (AttributeError, KeyError, TypeError) as error:
            raise ValueError(
                f"{path}: not a cluster spec (control_plane, nodes: [{{name, profile}}]): {error}"
            ) from error


def _network() -> tuple[socket.socket, str]:
    """A /16 of the loopback network that no other simulated node uses: the lock to keep, and its first address."""
    for block in random.sample(range(1, 255), 254):
        lock = socket.socket()
        try:
            lock.bind((f"127.{block}.255.254", _LOCK_PORT))
        except OSError:
            lock.close()
            continue
        return lock, f"127.{block}.0.1"
    raise OSError("every /16 of 127.0.0.0/8 is taken by another simulated node")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class Cluster:
    """``root`` must be new or empty, and short: unix sockets lie deep in it."""

    def __init__(self, root: Path, spec: Spec, say: Callable[[str], None] = lambda line: None) -> None:
        self.root, self.spec, self._say = root, spec, say
        self.store = Store()
        self.authority = Authority()
        self.api = ApiServer(self.store, self.authority, self._log_path, spec.custom)
        self.kubeconfig = root / "admin.conf"
        self.nodes: dict[str, NodeAgent] = {}
        self._controllers = Controllers(self.store)
        self._locks: list[socket.socket] = []
        self._owned = False

    def __enter__(self) -> Cluster:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.stop()

    def start(self) -> None:
        """Everything up; the API server serves when this returns, pods of the control plane may still be starting.

        Raises FileExistsError when the root is in use.
        """
        self.root.mkdir(parents=True, exist_ok=True)
        if any(self.root.iterdir()):
            raise FileExistsError(f"{self.root} is not empty: remove it or choose another directory")
        self._owned = True
        self._bootstrap()
        self.api.start()
        self.kubeconfig.write_text(self.api.kubeconfig("kubernetes-admin", self.api.admin_token))
        self._say(f"API server at https://127.0.0.1:{self.api.port}, kubeconfig {self.kubeconfig}")
        machines = (*map(NodeSpec, (self.spec.control_plane, *self.spec.standby)), *self.spec.nodes)
        for machine in machines:
            self._start_node(machine, host.create(self.root, machine))
        self._controllers.start()
        used = {profiles.PROFILES[item.profile](item.name).system.driver for item in self.spec.nodes if item.profile}
        for version in self.spec.driver_versions or sorted(used):
            self._say(f"driver installer {host.write_installer(self.root, version)}")
        (self.root / "ready").write_text("")
        self._say("ready")

    def stop(self) -> None:
        """End every pod and thread; files stay."""
        with ThreadPoolExecutor(max(1, len(self.nodes))) as pool:
            list(pool.map(lambda agent: agent.stop(_GRACE), self.nodes.values()))
        for agent in self.nodes.values():
            host.stop(agent.host)
        self.api.stop()
        self._controllers.join()
        for lock in self._locks:
            lock.close()
        if self._owned:
            (self.root / "ready").unlink(missing_ok=True)

    def remove(self) -> None:
        """Delete all files of a stopped cluster, and nothing that was there before it."""
        if self._owned:
            shutil.rmtree(self.root, ignore_errors=True)

    def _start_node(self, machine: NodeSpec, tree: Path) -> None:
        control_plane = machine.name in (self.spec.control_plane, *self.spec.standby)
        if control_plane:
            user = "system:kube-scheduler"
            client = self.authority.client_pair("kube-apiserver-kubelet-client")
            ca = (self.authority.pem, self.authority.key_pem)
            host.write_control_plane(tree, self.api.kubeconfig(user, self.api.token(user)), ca, client, _free_port())
        lock, address = _network()
        self._locks.append(lock)
        agent = NodeAgent(self.store, self.api, machine.name, tree, address, control_plane)
        agent.start()
        self.nodes[machine.name] = agent
        what = "control plane" if control_plane else machine.profile or "no GPU"
        self._say(f"node {machine.name} ({what}) at {address}, tree {tree}")

    def _bootstrap(self) -> None:
        for name in _NAMESPACES:
            body: Object = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
            self.store.create("namespaces", "", body)
        for name, value in _PRIORITIES.items():
            body = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": name}}
            self.store.create("priorityclasses", "", body | {"value": value})

    def _log_path(self, pod: Object, container: str) -> Path:
        node = self.nodes.get(pod["spec"].get("nodeName", ""))
        return node.log_path(pod, container) if node else self.root / "no-such-log"
