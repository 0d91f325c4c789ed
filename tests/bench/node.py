# SPDX-License-Identifier: Apache-2.0
"""A simulated GPU node for one plugin to run on: NVML, sysfs, kubelet and an API server."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from kube_accel.model import Mode
from kube_accel.plugin.node.condition import TYPE as CONDITION
from kube_accel.sharing.inventory_annotation import ANNOTATION
from kube_accel.sharing.profile import PROFILES as SHARED
from kube_accel.sharing.profile import WHOLE_GPU_RESOURCE
from sim import driver, mps
from sim.cluster.apiserver import ApiServer, Authority
from sim.cluster.store import Store
from sim.kubelet import FakeKubelet
from sim.nvml import sysfs
from sim.nvml.profiles import PROFILES

NAME = "node"
NAMESPACE = "bench"
REGISTER_TIMEOUT = 60.0
STOP_TIMEOUT = 15.0


@dataclass(frozen=True, slots=True)
class Node:
    root: Path
    mode: Mode
    uuids: tuple[str, ...]
    devices: dict[str, int]
    """How many kubelet can hand out of each resource of the mode when all is well."""
    kubelet: FakeKubelet
    store: Store
    environment: dict[str, str]

    @property
    def plugin_dir(self) -> Path:
        return self.root / "var/lib/kubelet/device-plugins"

    def plugin_socket(self) -> Path:
        """A socket of the plugin that runs."""
        return next(path for path in sorted(self.plugin_dir.glob("*.sock")) if path.name != "kubelet.sock")

    def told(self) -> bool:
        """Whether the plugin has told the API server of its GPUs, and how they are."""
        node = self.store.get("nodes", "", NAME)
        conditions = {condition["type"] for condition in node["status"].get("conditions", [])}
        return ANNOTATION in node["metadata"].get("annotations", {}) and CONDITION in conditions

    @contextmanager
    def plugin(self, command: Sequence[str]) -> Iterator[subprocess.Popen[bytes]]:
        """Start a plugin, wait until kubelet can hand out every GPU, stop it, wait until it can hand out none.

        Raises RuntimeError with the plugin's log when it does not register.
        """
        log = self.root / "plugin.log"
        with log.open("wb") as output:
            process = subprocess.Popen(command, env=self.environment, stdout=output, stderr=subprocess.STDOUT)
        try:
            try:
                self.wait_for(self.devices)
            except TimeoutError as error:
                raise RuntimeError(f"{command[0]} did not register all GPUs; its log: {log.read_text()}") from error
            yield process
        finally:
            end(process)
        self.wait_for(dict.fromkeys(self.devices, 0))

    def wait_for(self, devices: dict[str, int]) -> None:
        """Return once kubelet counts so many healthy devices. Raises TimeoutError."""

        def there() -> bool:
            found = self.kubelet.allocatable()
            return all(found.get(resource, 0) == count for resource, count in devices.items())

        self.kubelet.wait(there, REGISTER_TIMEOUT)


def end(process: subprocess.Popen[bytes]) -> None:
    """Have a daemon stop, and kill it when it does not."""
    process.terminate()
    try:
        process.wait(STOP_TIMEOUT)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


@contextmanager
def simulated_node(profile: str, mode: Mode) -> Iterator[Node]:
    """A node with the GPUs of a profile of ``sim.nvml``, in a directory short enough for sockets."""
    with tempfile.TemporaryDirectory(prefix="b", dir="/tmp") as name, ExitStack() as stack:
        root = Path(name)
        topology = PROFILES[profile](NAME)
        topology.save(root / "gpusim.conf")
        sysfs.write(topology, root)
        sysfs.load_driver(topology, root)
        if topology.migs:
            sysfs.write_capabilities(topology, root)
        driver.install(root / "usr/lib", topology.system.driver)
        kubelet = stack.enter_context(FakeKubelet(root / "var/lib/kubelet"))
        store, api = _api_server(root, stack)
        uuids = tuple(gpu.uuid for gpu in topology.gpus)
        if mode is Mode.MPS:
            (root / "bin").mkdir()
            program = root / "bin/nvidia-cuda-mps-control"
            program.symlink_to(mps.real() or mps.install(root / "stand-in"))
            for uuid in uuids:
                stack.enter_context(mps.daemon(program, root / "mps" / uuid / "pipe"))
        # Byte code is kept, as it is in the image.
        python = {"PYTHONPYCACHEPREFIX": str(root / "pyc"), "PYTHONDONTWRITEBYTECODE": ""}
        nvml = {"LD_LIBRARY_PATH": str(root / "usr/lib"), "GPUSIM_FILE": str(root / "gpusim.conf")}
        devices = _devices(mode, [gpu.mem for gpu in topology.gpus])
        yield Node(root, mode, uuids, devices, kubelet, store, {**os.environ, **python, **nvml, **api})


def _devices(mode: Mode, memory: list[int]) -> dict[str, int]:
    profile = SHARED.get(mode)
    if profile is None:
        return {WHOLE_GPU_RESOURCE: len(memory)}
    found = {profile.memory_resource: sum(size // profile.memory_unit_bytes for size in memory)}
    return found if profile.core_resource is None else {profile.core_resource: 100 * len(memory), **found}


def _api_server(root: Path, stack: ExitStack) -> tuple[Store, dict[str, str]]:
    """A running API server with this node in it, and what a pod finds of it in its environment."""
    store, authority = Store(), Authority()
    for name in ("default", NAMESPACE):
        store.create("namespaces", "", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    store.create("nodes", "", {"apiVersion": "v1", "kind": "Node", "metadata": {"name": NAME}})
    server = ApiServer(store, authority, lambda pod, container: root / "none")
    account = root / "serviceaccount"
    account.mkdir()
    (account / "ca.crt").write_text(authority.pem)
    (account / "token").write_text(server.token("system:serviceaccount:kube-system:kube-accel"))
    server.start()
    stack.callback(server.stop)
    return store, {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": str(server.port)}
