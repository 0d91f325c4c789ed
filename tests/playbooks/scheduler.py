# SPDX-License-Identifier: Apache-2.0
"""The role scheduler on a simulated cluster, and what the tests of it look at."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from programs import program
from sim.cluster import Cluster
from sim.cluster.client import Api
from unit.kube_accel.extender.world import node_object, share

REPOSITORY = Path(__file__).parents[2]
PODS = "/api/v1/namespaces/default/pods"
CORE = "/api/v1/namespaces/kube-system"
TAINT = {"key": "node-role.kubernetes.io/gpu", "value": "true", "effect": "NoSchedule"}
PLAY = """
- hosts: kube_control_plane
  gather_facts: false
  tasks:
    - ansible.builtin.import_role: {name: accel.kubernetes.scheduler, tasks_from: preflight}
    - ansible.builtin.import_role: {name: accel.kubernetes.scheduler, tasks_from: extender}
- hosts: kube_control_plane
  gather_facts: false
  serial: 1
  roles: [accel.kubernetes.scheduler]
"""
UNINSTALL = """
- hosts: kube_control_plane
  gather_facts: false
  serial: 1
  tasks:
    - ansible.builtin.import_role: {name: accel.kubernetes.scheduler, tasks_from: uninstall}
"""
SITE = "- ansible.builtin.import_playbook: accel.kubernetes.site\n"
ON_LOCALHOST = """
- hosts: localhost
  gather_facts: false
  tasks:
    - ansible.builtin.import_role: {{name: accel.kubernetes.scheduler, tasks_from: {tasks}}}
"""


def play(inventory: Path, book: str, *options: str, fails: bool = False, **variables: Any) -> str:
    """Runs a playbook; what it printed."""
    file = inventory.with_name("play.yml")
    file.write_text(book)
    collections = inventory.with_name("collections") / "ansible_collections/accel"
    if not collections.exists():
        collections.mkdir(parents=True)
        (collections / "kubernetes").symlink_to(REPOSITORY)
    command = [program("ansible-playbook"), "-i", str(inventory), str(file), *options]
    settings = {
        "ANSIBLE_COLLECTIONS_PATH": str(collections.parents[1]),
        "ANSIBLE_NOCOLOR": "1",
        "ANSIBLE_PIPELINING": "1",
        "ANSIBLE_INJECT_FACT_VARS": "false",
    }
    extra = ["-e", json.dumps(variables)]
    done = subprocess.run([*command, *extra], capture_output=True, text=True, env=os.environ | settings)
    output = done.stdout + done.stderr
    assert (done.returncode != 0) == fails, output
    return output


def changed(output: str) -> list[str]:
    """The tasks of a run that changed something, once a host."""
    tasks: list[str] = []
    for text in re.split(r"^TASK ", output, flags=re.MULTILINE)[1:]:
        name = re.match(r"\[(?:\S+ : )?(.*?)\] \*", text)
        assert name, text
        tasks += [name[1]] * len(set(re.findall(r"^changed: \[([^\] ]+)", text, re.MULTILINE)))
    assert len(tasks) == sum(map(int, re.findall(r"changed=(\d+)", output))), output
    return tasks


def until(probe: Callable[[], Any], what: str, seconds: float = 300) -> Any:
    """What the probe returns, once that is true."""
    deadline = time.monotonic() + seconds
    while not (found := probe()):
        assert time.monotonic() < deadline, f"{what} did not come about"
        time.sleep(0.1)
    return found


def gpu_node(name: str, gpus: int = 2) -> dict[str, Any]:
    """A node that offers GPUs and runs nothing, so that only pods for GPUs may go there."""
    amounts = {"cpu": "64", "memory": "512Gi", "pods": "110"}
    amounts |= {"tencent.com/vcuda-core": str(100 * gpus), "tencent.com/vcuda-memory": str(320 * gpus)}
    node = node_object(name, gpus=gpus) | {"apiVersion": "v1", "kind": "Node", "spec": {"taints": [TAINT]}}
    return node | {"status": {"capacity": amounts, "allocatable": amounts}}


def add_node(cluster: Cluster, name: str, gpus: int = 2) -> None:
    """Have the cluster know such a node."""
    cluster.store.create("nodes", "", gpu_node(name, gpus))


def submit(api: Api, name: str, cores: int, gib: int, **spec: Any) -> None:
    container = {"name": "main", "image": "none", "command": ["true"], "resources": {"limits": share(cores, gib)}}
    tolerations = [{"key": TAINT["key"], "operator": "Exists"}]
    spec = {"containers": [container], "tolerations": tolerations, **spec}
    body = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}
    status, answer = api.call("POST", PODS, body)
    assert status == 201, answer


def remove(api: Api, *names: str) -> None:
    for name in names:
        api.call("DELETE", f"{PODS}/{name}?gracePeriodSeconds=0")


def assignment(api: Api, name: str) -> dict[str, Any]:
    """Which GPUs a pod was given, empty as long as that is not written."""
    text = api.call("GET", f"{PODS}/{name}")[1]["metadata"].get("annotations", {}).get("kube-accel.io/assignment")
    found: dict[str, Any] = json.loads(text) if text else {}
    return found


def why(api: Api, name: str) -> str:
    """Why a pod waits."""
    conditions = api.call("GET", f"{PODS}/{name}")[1]["status"].get("conditions", ())
    return next((item.get("message", "") for item in conditions if item["type"] == "PodScheduled"), "")


def configuration(cluster: Cluster, host: str) -> dict[str, Any]:
    """What kube-scheduler of a control plane reads."""
    manifest = yaml.safe_load((cluster.root / host / "etc/kubernetes/manifests/kube-scheduler.yaml").read_text())
    command = manifest["spec"]["containers"][0]["command"]
    path = next(word.partition("=")[2] for word in command if word.startswith("--config="))
    found: dict[str, Any] = yaml.safe_load((cluster.root / host / path.lstrip("/")).read_text())
    return found


def files(cluster: Cluster, host: str) -> dict[str, str]:
    """What is in a control plane's /etc."""
    tree = cluster.root / host / "etc"
    return {str(path.relative_to(tree)): path.read_text() for path in tree.rglob("*") if path.is_file()}


def ours(cluster: Cluster) -> list[str]:
    """Objects in the cluster that are labelled as ours."""
    kinds = ("daemonsets", "deployments", "services", "serviceaccounts", "configmaps", "secrets", "leases")
    kinds += ("clusterroles", "clusterrolebindings", "roles", "rolebindings")
    return [
        f"{kind} {item['metadata']['name']}"
        for kind in kinds
        for item in cluster.store.all(kind)
        if item["metadata"].get("labels", {}).get("app.kubernetes.io/managed-by") == "accel.kubernetes"
    ]


KUBE_SCHEDULER = shutil.which(
    "kube-scheduler", path=os.pathsep.join([os.environ.get("KUBEBUILDER_ASSETS", ""), "/usr/local/kubebuilder/bin"])
)
needs_kube_scheduler = pytest.mark.skipif(
    not KUBE_SCHEDULER, reason="no kube-scheduler in KUBEBUILDER_ASSETS or /usr/local/kubebuilder/bin"
)


def complaint(config: dict[str, Any], below: Path, work: Path) -> str:
    """What a real kube-scheduler says against a configuration whose files are below a directory; empty for nothing."""
    text = yaml.safe_dump(config).replace("/etc/kube", f"{below}/etc/kube")
    (work / "config.yaml").write_text(text)
    command = [str(KUBE_SCHEDULER), "--config", str(work / "config.yaml"), "--secure-port", "0"]
    written = work / "written.yaml"
    done = subprocess.run(
        [*command, "--write-config-to", str(written)], capture_output=True, text=True, timeout=120, check=False
    )
    return done.stderr if done.returncode or not written.exists() else ""
