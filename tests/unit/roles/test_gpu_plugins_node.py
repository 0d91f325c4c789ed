# SPDX-License-Identifier: Apache-2.0
"""What the role's parts do to a node, asked of an API server that has nothing else."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import sim.nvml
from sim.cluster.apiserver import ApiServer, Authority
from sim.cluster.controllers import Controllers
from sim.cluster.kinds import Object
from sim.cluster.store import Store
from sim.nvml.profiles import PROFILES

from .conftest import simulated_play

NODE = "gpu-1"
CORDON, TAINT = "kube-accel.io/cordoned", "kube-accel.io/taint"
THEIRS: Object = {"key": "example.com/theirs", "value": "x", "effect": "NoSchedule"}
OURS: Object = {"key": "nvidia.com/gpu", "value": "true", "effect": "NoSchedule"}
MODE = "nvidia-device-enable"


class Cluster:
    """A node that offers eight whole GPUs."""

    def __init__(self, root: Path) -> None:
        self.root = root
        PROFILES["8xh200"]("n").save(root / "gpusim.conf")
        sim.nvml.build(root / "lib")
        self.store = Store()
        for name in ("kube-system", "team"):
            self.store.create("namespaces", "", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
        metadata = {"name": NODE, "labels": {MODE: "pgpu"}}
        status = {"allocatable": {"nvidia.com/gpu": "8"}}
        self.store.create("nodes", "", {"apiVersion": "v1", "kind": "Node", "metadata": metadata, "status": status})
        self.server = ApiServer(self.store, Authority(), lambda pod, container: root / "none")
        self.server.start()
        self.controllers = Controllers(self.store)
        self.controllers.start()
        (root / "kubeconfig").write_text(self.server.kubeconfig("admin", self.server.admin_token))

    def stop(self) -> None:
        self.server.stop()
        self.controllers.join()

    @property
    def node(self) -> Object:
        return self.store.get("nodes", "", NODE)

    @property
    def annotations(self) -> dict[str, str]:
        return dict(self.node["metadata"].get("annotations", {}))

    @property
    def taints(self) -> list[Object]:
        """Without those of the cluster's own."""
        found = self.node.get("spec", {}).get("taints", [])
        return [each for each in found if not each["key"].startswith("node.kubernetes.io/")]

    @property
    def cordoned(self) -> bool:
        return bool(self.node["spec"].get("unschedulable"))

    def hold(self, name: str) -> None:
        """A pod that nothing makes anew holds a GPU."""
        container = {"name": "c", "image": "none", "resources": {"limits": {"nvidia.com/gpu": "1"}}}
        body = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}}
        self.store.create("pods", "team", body | {"spec": {"nodeName": NODE, "containers": [container]}})
        self.store.edit("pods", "team", name, lambda pod: pod.update(status={"phase": "Running"}))

    def run(self, *parts: str | Object, **variables: Any) -> subprocess.CompletedProcess[str]:
        """These parts of the role, in one play, and tasks of others between them."""
        (self.root / "var/lib/kubelet/device-plugins").mkdir(parents=True, exist_ok=True)
        (self.root / "proc/self").mkdir(parents=True, exist_ok=True)
        (self.root / "proc/self/mountinfo").write_text("")
        words = {
            "gpu_plugins_image": "registry.example/kube-accel:1",
            "gpu_plugins_takeover": True,
            "gpu_plugins_host_root": str(self.root),
            "gpu_plugins_kubeconfig": str(self.root / "kubeconfig"),
            "gpu_plugins_node_name": NODE,
            "gpu_plugins_drain_timeout": 2,
            "gpu_plugins_ready_timeout": 2,
            "ansible_python_interpreter": sys.executable,
        }
        role = "accel.kubernetes.gpu_plugins"
        tasks = [
            {"ansible.builtin.include_role": {"name": role, "tasks_from": part}} if isinstance(part, str) else part
            for part in parts
        ]
        command, environment = simulated_play(self.root, tasks, words | variables)
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    made = Cluster(tmp_path)
    yield made
    made.stop()


@pytest.mark.ci
def test_mode_and_taint_change_in_one_run(cluster: Cluster) -> None:
    """The cordon is a taint, too, and not ours."""
    cluster.store.edit("nodes", "", NODE, lambda node: node.update(spec={"taints": [THEIRS]}))
    done = cluster.run("configure", gpu_mode="vgpu", gpu_plugins_taint=OURS)
    assert done.returncode == 0, done.stdout
    assert cluster.taints == [THEIRS, OURS]
    assert cluster.node["spec"]["taints"][1]["key"] == "node.kubernetes.io/unschedulable"
    assert cluster.annotations == {CORDON: "vgpu", TAINT: json.dumps(OURS, sort_keys=True)}
    assert cluster.node["metadata"]["labels"] == {MODE: "vgpu"}


@pytest.mark.ci
def test_a_taint_that_others_put_meanwhile_stays(cluster: Cluster) -> None:
    """As Kubernetes does with a cordon, when it comes to it."""
    theirs = {"state": "patched", "kind": "Node", "name": NODE, "definition": {"spec": {"taints": [THEIRS]}}}
    put = {"kubernetes.core.k8s": {"kubeconfig": "{{ gpu_plugins_kubeconfig }}", **theirs}}
    done = cluster.run("node", put, "taint", gpu_plugins_taint=OURS)
    assert done.returncode == 0, done.stdout
    assert cluster.taints == [THEIRS, OURS]
    assert cluster.annotations == {TAINT: json.dumps(OURS, sort_keys=True)}


@pytest.mark.full
def test_a_drain_by_itself_refuses_as_a_change_of_mode_does(cluster: Cluster) -> None:
    cluster.hold("bare")
    for drain, says in ((False, "or set gpu_plugins_drain=true"), (True, "or set gpu_plugins_drain_force=true")):
        done = cluster.run("drain", gpu_plugins_drain=drain)
        assert done.returncode != 0
        assert "team/bare" in done.stdout
        assert f"before the node is emptied, {says}" in " ".join(done.stdout.split())
        assert "changed=0 " in done.stdout, done.stdout
    assert cluster.store.find("pods", "team", "bare")


@pytest.mark.full
def test_verify_uncordons_and_waits_for_the_node_by_itself(cluster: Cluster) -> None:
    done = cluster.run("drain")
    assert done.returncode == 0, done.stdout
    assert cluster.cordoned
    done = cluster.run("verify")
    assert done.returncode == 0, done.stdout
    assert (cluster.cordoned, cluster.annotations) == (False, {})
    done = cluster.run("drain", "verify")
    assert done.returncode == 0, done.stdout
    assert "Wait until the node offers its healthy GPUs" in done.stdout
    assert (cluster.cordoned, cluster.annotations) == (False, {})
