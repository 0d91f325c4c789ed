# SPDX-License-Identifier: Apache-2.0
"""The simulated cluster, and what the demo asks of it as any user would: through the API server."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from kubernetes import client, config
from kubernetes.client.exceptions import ApiException

from demo.allocation import GpuRow, rows
from demo.story import DemoError, Story, until

LOOK = "nvidia-smi -L; env | grep ^CUDA_MPS_"


@contextmanager
def simulated_cluster(root: Path, spec: Mapping[str, Any], story: Story) -> Iterator[None]:
    """Runs the simulated cluster under root; when this ends, no process and no file of it is left."""
    file = root.with_suffix(".yml")
    file.write_text(yaml.safe_dump(spec))
    command = [sys.executable, "-m", "sim.cluster", "up", "--root", str(root), "--spec", str(file), "--rm"]
    # A session of its own: Ctrl-C reaches us, and we end the cluster after the playbook that talks to it.
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, start_new_session=True)
    try:
        until(lambda: (root / "ready").exists() or process.poll() is not None, "the simulated cluster to start")
        if process.poll() is not None:
            raise DemoError(f"the simulated cluster ended with {process.returncode}")
        story.say(f"simulated cluster is up: {', '.join(node['name'] for node in spec['nodes'])}; files in {root}")
        yield
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        shutil.rmtree(root, ignore_errors=True)
        file.unlink(missing_ok=True)


@dataclass(frozen=True)
class Wish:
    """A pod, by what it asks for."""

    name: str
    limits: Mapping[str, int]
    namespace: str = "default"
    annotations: Mapping[str, str] = field(default_factory=dict)
    command: str = f"{LOOK}; exec sleep 3600"

    @property
    def full_name(self) -> str:
        return f"{self.namespace}/{self.name}"

    @property
    def asks(self) -> str:
        return ", ".join(f"{resource}: {amount}" for resource, amount in self.limits.items())

    def pod(self) -> dict[str, Any]:
        """A pod that runs the command, which by default lists the GPUs it sees, says what it was told, and idles."""
        return {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": self.name, "annotations": dict(self.annotations)},
            "spec": {
                "runtimeClassName": "nvidia",
                "terminationGracePeriodSeconds": 1,
                "containers": [
                    {
                        "name": "main",
                        "image": "example.org/cuda:latest",
                        "command": ["sh", "-c", self.command],
                        "resources": {"limits": {name: str(amount) for name, amount in self.limits.items()}},
                    }
                ],
            },
        }


class Cluster:
    """What the demo asks the cluster."""

    def __init__(self, kubeconfig: Path) -> None:
        self._api = client.CoreV1Api(config.new_client_from_config(str(kubeconfig)))

    def gpus(self) -> list[GpuRow]:
        to_dict = self._api.api_client.sanitize_for_serialization
        return rows(to_dict(node) for node in self._api.list_node().items)

    def plugins(self) -> list[str]:
        """Where the nodes' plugins serve their metrics: address and port."""
        return [
            f"{pod.status.pod_ip}:{port.container_port}"
            for pod in self._api.list_namespaced_pod("kube-system").items
            for container in pod.spec.containers
            for port in container.ports or ()
            if container.name == "kube-accel" and port.name == "metrics"
        ]

    def create_namespace(self, name: str) -> None:
        self._api.create_namespace({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})

    def submit(self, wish: Wish) -> None:
        self._api.create_namespaced_pod(wish.namespace, wish.pod())

    def run(self, wishes: Iterable[Wish]) -> None:
        """Submits pods, waits until all run and the nodes say which GPUs they hold."""
        wishes = list(wishes)
        for wish in wishes:
            self.submit(wish)
        self.wait_for(wishes)

    def wait_for(self, wishes: Iterable[Wish]) -> None:
        wishes = list(wishes)
        names = {wish.full_name for wish in wishes}
        until(lambda: all(self._pod(wish).status.phase == "Running" for wish in wishes), f"{names} to run")
        until(lambda: self.holders() >= names, f"the nodes to publish what {names} hold")

    def remove(self, wishes: Iterable[Wish]) -> None:
        """Deletes pods and waits until they are gone."""
        wishes = list(wishes)
        for wish in wishes:
            self._api.delete_namespaced_pod(wish.name, wish.namespace)
        until(lambda: not any(self._exists(wish) for wish in wishes), "the pods to end")

    def log(self, wish: Wish) -> str:
        return str(self._api.read_namespaced_pod_log(wish.name, wish.namespace))

    def events(self, wish: Wish, reason: str) -> list[str]:
        """The messages of a pod's events with this reason."""
        found = self._api.list_namespaced_event(wish.namespace, field_selector=f"involvedObject.name={wish.name}").items
        return [event.message for event in found if event.reason == reason]

    def why_pending(self, wish: Wish) -> str:
        conditions = self._pod(wish).status.conditions or []
        return next((c.message or "" for c in conditions if c.type == "PodScheduled" and c.status == "False"), "")

    def allocatable(self, node: str, resource: str) -> int:
        return int(self._api.read_node(node).status.allocatable.get(resource, "0"))

    def offered(self, node: str) -> dict[str, str]:
        """The extended resources of a node that pods can ask for: amount by name."""
        amounts = self._api.read_node(node).status.allocatable or {}
        return {name: amount for name, amount in amounts.items() if "/" in name and amount != "0"}

    def holders(self) -> set[str]:
        return {part.pod for gpu in self.gpus() for part in gpu.slices or ()}

    def _pod(self, wish: Wish) -> Any:
        return self._api.read_namespaced_pod(wish.name, wish.namespace)

    def _exists(self, wish: Wish) -> bool:
        try:
            self._pod(wish)
        except ApiException as error:
            if error.status != 404:
                raise
            return False
        return True
