# SPDX-License-Identifier: Apache-2.0
"""uninstall.yml gives cluster and hosts back as site.yml found them; REMAINS is what may be left."""

from __future__ import annotations

import hashlib
import json
import re
from typing import Any

import pytest

from sim.cluster import Cluster, NodeSpec, Spec
from sim.cluster.client import MERGE, Api, pod, until
from sim.cluster.hostcmd import MOUNTS
from sim.cluster.kinds import KINDS, MONITORING, Object
from sim.inventory import write_inventory

from .conftest import Playbooks, Start, state

pytestmark = pytest.mark.full
MODES = {"gpu-a": "mps", "gpu-b": "cgpu"}
PODS = "/api/v1/namespaces/default/pods"
SHARES = {
    "mps": {"nvidia.com/mps-core": "30", "nvidia.com/mps-memory": "4"},
    "cgpu": {"aliyun.com/gpu-mem": "4"},
}
SITE: Object = {
    "gpu_plugins_cf_crl_enabled": True,
    "gpu_plugins_configs": {"plain": {"version": "v1"}},
    "gpu_plugins_default_config": "plain",
    "gpu_plugins_taint": {"key": "node-role.kubernetes.io/gpu", "value": "true", "effect": "NoSchedule"},
    "scheduler_quota": {"namespaces": {"team-a": {"limits": [{"cores": 100}]}}},
}
THEIRS: Object = {
    "metadata": {"labels": {"example.com/rack": "7"}, "annotations": {"example.com/owner": "team-a"}},
    "spec": {"taints": [{"key": "example.com/theirs", "value": "x", "effect": "PreferNoSchedule"}]},
}
REMAINS = (
    # The bytes that we replaced in files of others.
    r"[^ ]+/var/lib/accel-kubernetes(/backups(/.*)?)? .*",
    # What daemons, kubelet and the hosts' own tools wrote about what they did.
    r"[^ ]+/var/log(/.*)? .*",
    # kubelet's own.
    r"[^ ]+/var/lib/kubelet(/.*)? .*",
    # Empty, and of the kind that others use as well.
    r"[^ ]+/run(/nvidia)? 0o40755",
    # The simulated systemd's notes, and directories that every real host has.
    r"[^ ]+/var/lib/sim-systemd/.*",
    r"[^ ]+/(etc/systemd/system/multi-user\.target\.wants|sys/bus/pci/drivers) 0o40755",
    # kubelet counts what a plugin that left had, of which there is none to be had.
    r"node \S+ capacity (nvidia|tencent|aliyun)\.com/\S+ \d+",
    r"node \S+ allocatable (nvidia|tencent|aliyun)\.com/\S+ 0",
)


@pytest.fixture(scope="module")
def books(start: Start) -> Playbooks:
    """Bare hosts; others have set something on their nodes and in the runtime's configuration."""
    nodes = tuple(NodeSpec(name, "t4") for name in MODES)
    books = start(Spec("control", nodes, custom=(MONITORING,)))
    write_inventory(books.cluster.root, MODES)
    api = Api(books.cluster.kubeconfig)
    api.create("/api/v1/namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "observed"}})
    takes = {key: {"matchLabels": {"release": "main"}} for key in ("podMonitorSelector", "ruleSelector")}
    prometheus = {"apiVersion": f"{MONITORING}/v1", "kind": "Prometheus", "metadata": {"name": "main"}}
    api.create(f"/apis/{MONITORING}/v1/namespaces/observed/prometheuses", prometheus | {"spec": takes})
    for name in MODES:
        assert api.call("PATCH", f"/api/v1/nodes/{name}", THEIRS, MERGE)[0] == 200
        config = books.cluster.root / name / "etc/containerd/config.toml"
        config.write_text(f"# ours, keep it\n{config.read_text()}")
    return books


def hosts(cluster: Cluster) -> set[str]:
    """A line for each file, directory and link of the hosts."""
    lines = set()
    for tree in (path for path in cluster.root.iterdir() if path.is_dir()):
        for path in tree.rglob("*"):
            mode = oct(path.lstat().st_mode)
            if path.is_symlink():
                what = f"-> {path.readlink()}"
            else:
                what = hashlib.sha256(path.read_bytes()).hexdigest()[:12] if path.is_file() else ""
            lines.add(f"{path.relative_to(cluster.root)} {mode} {what}".strip())
    return lines


def objects(cluster: Cluster) -> set[str]:
    """A line for each object, and for each part of a node."""
    lines = set()
    for kind in set(KINDS) - {"events", "nodes"}:
        for item in cluster.store.all(kind):
            metadata = item["metadata"]
            kept = {key: metadata.get(key) for key in ("labels", "annotations", "ownerReferences")}
            body = {key: value for key, value in item.items() if key not in ("metadata", "status")}
            if kind == "leases":
                body = {}
            lines.add(f"{kind} {metadata.get('namespace', '')}/{metadata['name']} {kept} {body}")
    for node in cluster.store.all("nodes"):
        parts: dict[str, Any] = {key: node["metadata"].get(key, {}) for key in ("labels", "annotations")}
        parts |= {key: node["status"][key] for key in ("capacity", "allocatable")}
        parts["condition"] = {item["type"]: item["status"] for item in node["status"]["conditions"]}
        parts["spec"] = node["spec"]
        lines |= {
            f"node {node['metadata']['name']} {part} {key} {value}"
            for part in parts
            for key, value in parts[part].items()
        }
    return lines


def left(before: set[str], after: set[str]) -> list[str]:
    """What differs, but for what may."""
    return sorted(line for line in before ^ after if not any(re.fullmatch(remains, line) for remains in REMAINS))


def remove(api: Api, name: str) -> None:
    api.call("DELETE", f"{PODS}/{name}")
    until(lambda: api.call("GET", f"{PODS}/{name}")[0] == 404, f"{name} has gone")


def test_everything_is_given_back_once_no_pod_holds_a_gpu(books: Playbooks) -> None:
    cluster, api = books.cluster, Api(books.cluster.kubeconfig)
    before = hosts(cluster) | objects(cluster)
    done = books.run("accel.kubernetes.site", **SITE)
    assert done.code == 0, done.output
    tolerations = [{"operator": "Exists"}]
    for name, mode in MODES.items():
        container = {"command": ["sleep", "1000"], "resources": {"limits": SHARES[mode]}}
        api.create(PODS, pod(mode, container=container, tolerations=tolerations))
        path = f"{PODS}/{mode}"
        until(lambda path=path: api.get(path)["status"]["phase"] == "Running", f"a pod runs on {name}")
    remove(api, "mps")
    mounted = cluster.root / "gpu-a" / MOUNTS
    assert [bool(re.search(r"/mps/GPU-[^/]+/shm$", path)) for path in json.loads(mounted.read_text())] == [True]
    served = state(cluster)
    done = books.run("accel.kubernetes.uninstall", driver_uninstall=True, **SITE)
    assert (done.code, done.changed) == (2, 0), done.output
    assert state(cluster) == served
    assert "These pods hold GPUs of node 'gpu-b': default/cgpu." in done.messages
    remove(api, "cgpu")
    # As where a benchmark was killed.
    api.call("PATCH", "/api/v1/nodes/gpu-a", {"metadata": {"annotations": {"kube-accel.io/benchmark": "x"}}}, MERGE)

    done = books.run("accel.kubernetes.uninstall", driver_uninstall=True, **SITE)
    assert done.code == 0, done.output
    assert json.loads(mounted.read_text()) == {}
    rest = left(before, hosts(cluster) | objects(cluster))
    assert not rest, "\n".join(rest)

    again = books.run("accel.kubernetes.uninstall", driver_uninstall=True, **SITE)
    assert (again.code, again.changed) == (0, 0), again.output
