# SPDX-License-Identifier: Apache-2.0
"""A node that divides its GPUs: the shipped plugin as a process, a kubelet, a driver and an API server around it."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import urllib3

from kube_accel.enforce.shim import HOOK
from kube_accel.model import Assignment, Mode, Share
from kube_accel.sharing.assignment import ANNOTATION, encode
from kube_accel.sharing.inventory_annotation import ANNOTATION as INVENTORY
from kube_accel.sharing.inventory_annotation import NodeInventory, decode
from kube_accel.sharing.profile import PROFILES
from sim.cluster.apiserver import ApiServer, Authority
from sim.cluster.store import Store
from sim.kubelet import Container, ContainerAllocation, FakeKubelet, PodSpec
from sim.nvml import build, sysfs
from sim.nvml.profiles import PROFILES as GPUS
from sim.nvml.topology import Topology, edit
from waiting import wait

NODE = "node-1"
NAMESPACE = "team"
DEADLINE = 40.0


def smi(root: Path, uuids: list[str], modes: Mapping[int, str] | None = None, mode: str = "Default") -> Path:
    """An nvidia-smi that tells these compute modes, by index; of all others ``mode``."""
    program = root / f"smi-{mode}-{len(modes or {})}"
    rows = "".join(f"{uuid}, {(modes or {}).get(index, mode)}\n" for index, uuid in enumerate(uuids))
    program.write_text(f"#!/bin/sh\ncat <<'END'\n{rows}END\n")
    program.chmod(0o755)
    return program


class FractionNode:
    """A node in one of the fractional modes."""

    def __init__(
        self, root: Path, stack: ExitStack, mode: Mode, gpus: str = "8xh100", seed: int = 0, mig: bool = False
    ) -> None:
        self.root, self.stack, self.mode = root, stack, mode
        self.profile = PROFILES[mode]
        self.cores, self.memory = self.profile.core_resource or "", self.profile.memory_resource
        self.resources = [name for name in (self.cores, self.memory) if name]
        self.conf = root / "gpusim.conf"
        self.topology = GPUS[gpus]("node")
        if not mig:
            self.topology.gpu_instances.clear()
            self.topology.migs.clear()
            for gpu in self.topology.gpus:
                gpu.mig = None if gpu.mig is None else 0
        self.topology.save(self.conf)
        self.uuids = [gpu.uuid for gpu in self.topology.gpus]
        sysfs.write(self.topology, root)
        (root / "dev").mkdir()
        build(root / "usr/lib")
        sysfs.load_driver(self.topology, root)
        self.kubelet = stack.enter_context(FakeKubelet(root / "kubelet", random.Random(seed)))
        self.store, self.authority = Store(), Authority()
        for name in ("default", NAMESPACE):
            body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
            self.store.create("namespaces", "", body)
        self.store.create("nodes", "", {"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}})
        self.api = ApiServer(self.store, self.authority, lambda pod, container: root / "none")
        self.environment = os.environ | {
            "LD_LIBRARY_PATH": str(root / "usr/lib"),
            "GPUSIM_FILE": str(self.conf),
            "NODE_NAME": NODE,
            "KUBERNETES_SERVICE_HOST": "127.0.0.1",
            "KUBERNETES_SERVICE_PORT": str(self.api.port),
        }
        account = root / "account"
        account.mkdir()
        (account / "ca.crt").write_text(self.authority.pem)
        (account / "token").write_text(self.api.token("system:serviceaccount:kube-system:kube-accel"))
        self.process: subprocess.Popen[bytes] | None = None
        self.port = 0
        self.extra: list[str] = []
        self.enforcement = ["--enforcement=mps" if mode is Mode.MPS else "--enforcement=none"]
        self.validated: list[str] = []
        """More flags of the plugin, and of ``kube-accel validate``."""

    def interpose(self) -> None:
        """Have the plugin find a driver's libraries, and an interposer: any library is one here."""
        libraries, native = self.root / "usr/lib", self.root / "native"
        native.mkdir()
        for stem in ("libcuda", "libnvidia-ml"):
            for path in (libraries / f"{stem}.so.{self.topology.system.driver}", native / f"{stem}.so.1"):
                shutil.copyfile(libraries / "libnvidia-ml.so.1", path)
        shutil.copyfile(libraries / "libnvidia-ml.so.1", native / HOOK)
        (self.root / "proc").mkdir()
        self.enforcement = ["--container-driver-root", str(self.root), "--proc-root", str(self.root / "proc")]
        self.enforcement += ["--shim-dir", str(native), "--quota-overrides", f"{NAMESPACE}/overrides"]

    def start_api(self) -> None:
        self.api.start()
        self.stack.callback(self.api.stop)

    def start(self, wait_for: bool = True) -> None:
        """Start a plugin; its successor when one runs."""
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        self.log = self.root / f"plugin-{self.port}.log"
        command = [
            *(sys.executable, "-m", "kube_accel.cli.main", "plugin", "--mode", self.mode.value),
            *("--kubelet-device-plugin-dir", str(self.root / "kubelet/device-plugins")),
            *("--pod-resources-socket", str(self.root / "kubelet/pod-resources/kubelet.sock")),
            *("--sysfs-root", str(self.root / "sys"), "--dev-root", str(self.root / "dev")),
            *("--state-dir", str(self.root / "state")),
            *("--service-account-dir", str(self.root / "account"), "--listen", f"127.0.0.1:{self.port}"),
            *self.enforcement,
            *self.extra,
        ]
        with self.log.open("wb") as log:
            process = self.process = subprocess.Popen(command, env=self.environment, stderr=log)
        self.stack.callback(lambda: (process.kill(), process.wait()))
        if wait_for:
            wait(lambda: self.healthy() == {gpu.uuid for gpu in self.topology.gpus if not gpu.mig}, "healthy GPUs")
            wait(lambda: self.probe("/readyz")[0] == 200, "/readyz")

    def validate(self, compute_mode: str = "Default") -> list[str]:
        """What ``kube-accel validate`` says of the node, but for what is well."""
        command = [
            *(sys.executable, "-m", "kube_accel.cli.main", "validate"),
            *("--kubelet-device-plugin-dir", str(self.root / "kubelet/device-plugins")),
            *("--pod-resources-socket", str(self.root / "kubelet/pod-resources/kubelet.sock")),
            *("--sysfs-root", str(self.root / "sys"), "--dev-root", str(self.root / "dev")),
            *("--state-dir", str(self.root / "state")),
            *("--smi-command", str(smi(self.root, self.uuids, mode=compute_mode))),
            *self.validated,
        ]
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True, timeout=60)
        lines = done.stdout.splitlines()
        assert done.returncode == any(line.startswith("fail") for line in lines), done.stderr
        return [line for line in lines if not line.startswith("ok ")]

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def terminate(self) -> int:
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(DEADLINE)

    def probe(self, path: str) -> tuple[int, str]:
        try:
            response = urllib3.request("GET", f"http://127.0.0.1:{self.port}{path}", timeout=10, retries=False)
        except urllib3.exceptions.HTTPError:
            return 0, ""
        return response.status, response.data.decode()

    def logged(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.log.read_text().splitlines()]

    def wait_logged(self, message: str) -> None:
        wait(lambda: any(line["message"] == message for line in self.logged()), f"log line {message!r}")

    def edit(self, change: Callable[[Topology], None]) -> None:
        with edit(self.conf) as topology:
            change(topology)

    def healthy(self) -> set[str]:
        """GPUs all of whose devices, of every resource, are offered."""
        good = set(self.uuids)
        for resource in self.resources:
            devices = self.kubelet.devices(resource)
            good &= {name.partition("::")[0] for name in devices}
            good -= {name.partition("::")[0] for name, device in devices.items() if not device.healthy}
        return good

    def limits(self, cores: int, memory: int) -> dict[str, int]:
        """Return the limits of a container; ``memory`` is in units."""
        found = {self.memory: memory} if memory else {}
        return found | ({self.cores: cores} if self.cores and cores else {})

    def pod(
        self,
        name: str,
        containers: Mapping[str, tuple[int, int]],
        init: Mapping[str, tuple[int, int]] | None = None,
        sidecars: tuple[str, ...] = (),
        assigned: Mapping[str, tuple[int, ...]] | None = None,
        bound: bool = True,
        owned: bool = False,
        annotations: Mapping[str, str] | None = None,
    ) -> PodSpec:
        """A pod at the API server and for kubelet. Amounts are cores and units; ``assigned`` are indices of GPUs."""
        metadata: dict[str, Any] = {"name": name, "namespace": NAMESPACE, "annotations": dict(annotations or {})}
        if owned:
            metadata["ownerReferences"] = [
                {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "r", "uid": "u", "controller": True}
            ]
        if assigned is not None:
            metadata["annotations"][ANNOTATION] = self.assignment(containers, init or {}, assigned)
        spec: dict[str, Any] = {"containers": [self._container(n, *a) for n, a in containers.items()]}
        if init:
            spec["initContainers"] = [
                self._container(n, *a) | ({"restartPolicy": "Always"} if n in sidecars else {}) for n, a in init.items()
            ]
        if bound:
            spec["nodeName"] = NODE
        body = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
        created = self.store.create("pods", NAMESPACE, body)
        return PodSpec(
            NAMESPACE,
            name,
            created["metadata"]["uid"],
            tuple(Container(n, self.limits(*a)) for n, a in containers.items()),
            tuple(Container(n, self.limits(*a), n in sidecars) for n, a in (init or {}).items()),
        )

    def bind(self, name: str) -> None:
        target = {"apiVersion": "v1", "kind": "Node", "name": NODE}
        binding = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": name}, "target": target}
        self.store.bind(NAMESPACE, name, binding)

    def assignment(
        self,
        containers: Mapping[str, tuple[int, int]],
        init: Mapping[str, tuple[int, int]],
        assigned: Mapping[str, tuple[int, ...]],
    ) -> str:
        amounts = {**init, **containers}
        return encode(
            Assignment(
                NODE,
                {
                    name: tuple(Share(self.uuids[index], min(100, amounts[name][0]), 0) for index in indices)
                    for name, indices in assigned.items()
                },
            )
        )

    def _container(self, name: str, cores: int, memory: int) -> dict[str, Any]:
        limits = {resource: str(count) for resource, count in self.limits(cores, memory).items()}
        return {"name": name, "image": "i", "resources": {"limits": limits, "requests": limits}}

    def seen(self) -> None:
        """Until the plugin has heard of every pod."""
        self.wait_logged("listed")

    def gpus_of(self, allocation: ContainerAllocation) -> dict[str, set[int]]:
        """Indices of the GPUs a container got, by resource."""
        return {
            resource: {self.uuids.index(device.partition("::")[0]) for device in ids}
            for resource, ids in allocation.device_ids.items()
        }

    def gpu_of(self, allocation: ContainerAllocation) -> int:
        """The GPU of a share, which is the same for both resources."""
        found = self.gpus_of(allocation)
        assert set(found) == set(self.resources)
        (gpu,) = set().union(*found.values())
        return int(gpu)

    def annotation(self) -> NodeInventory | None:
        text = self.store.get("nodes", "", NODE)["metadata"].get("annotations", {}).get(INVENTORY)
        return decode(text) if text else None

    def held(self) -> dict[tuple[str, str], list[tuple[int, int, int]]]:
        """GPU index, cores and bytes by pod and container, as the node's annotation tells."""
        node = self.annotation()
        found: dict[tuple[str, str], list[tuple[int, int, int]]] = {}
        for uuid, holdings in sorted(
            ((node.held if node else None) or {}).items(), key=lambda i: self.uuids.index(i[0])
        ):
            for entry in holdings:
                key = (entry.pod, entry.container)
                found.setdefault(key, []).append((self.uuids.index(uuid), entry.cores, entry.memory_bytes))
        return found

    def ledger(self) -> list[tuple[str, str, int, int, bool]]:
        """Pod, container, GPU index, cores, whether it has ended; oldest first."""
        with sqlite3.connect(f"file:{self.root}/state/ledger.db?mode=ro", uri=True) as file:
            rows = file.execute("SELECT pod, container, gpu, cores, until FROM allocations ORDER BY id").fetchall()
        return [(pod, name, self.uuids.index(gpu), cores, until is not None) for pod, name, gpu, cores, until in rows]

    def running(self) -> list[tuple[str, str, int, int, bool]]:
        """Return the ledger's rows that have not ended.

        A pod that kubelet listed between its container's two resources may have a row of that moment besides.
        """
        return [row for row in self.ledger() if not row[4]]

    def refusals(self) -> list[tuple[str, str, int]]:
        """Pod, reason, how many allocations."""
        statement = "SELECT pod, reason, count FROM refusals JOIN allocations ON allocation = id WHERE count > 0"
        with sqlite3.connect(f"file:{self.root}/state/ledger.db?mode=ro", uri=True) as file:
            return file.execute(f"{statement} ORDER BY id, reason").fetchall()

    def events(self) -> list[tuple[str, str, str]]:
        """Pod, reason, message."""
        return [
            (event["involvedObject"]["name"], event["reason"], event["message"])
            for event in self.store.all("events", NAMESPACE)
        ]

    def end(self, pod: PodSpec) -> None:
        """The pod is deleted, at the API server and from kubelet."""
        self.store.delete("pods", NAMESPACE, pod.name, {})
        self.kubelet.remove(pod)

    def removed(self, name: str) -> bool:
        """Whether the pod was deleted; one that was bound stays until its kubelet lets it go, and there is none."""
        pod = self.store.find("pods", NAMESPACE, name)
        return pod is None or "deletionTimestamp" in pod["metadata"]

    def fail(self, name: str, message: str) -> None:
        """Kubelet says that this pod failed admission."""

        def change(pod: dict[str, Any]) -> None:
            pod["status"] |= {"phase": "Failed", "reason": "UnexpectedAdmissionError", "message": message}

        self.store.edit("pods", NAMESPACE, name, change)
