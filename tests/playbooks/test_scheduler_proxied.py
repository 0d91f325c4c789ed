# SPDX-License-Identifier: Apache-2.0
"""Three control planes, on one of which another extender binds pods: ours is reached through the API server."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from playbooks.scheduler import (
    CORE,
    PLAY,
    UNINSTALL,
    add_node,
    assignment,
    changed,
    complaint,
    configuration,
    files,
    needs_kube_scheduler,
    ours,
    play,
    remove,
    submit,
    until,
    why,
)
from sim.cluster import Cluster, NodeSpec, Spec
from sim.cluster.client import Api
from sim.inventory import write_inventory

pytestmark = pytest.mark.full

PLANES = ("cp-a", "cp-b", "cp-c")
THEIRS = {"urlPrefix": "http://127.0.0.1:9/theirs", "bindVerb": "bind", "managedResources": [{"name": "example.com/a"}]}
LEASE = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/kube-scheduler"
# As kubeadm writes it.
CLUSTER_CONFIGURATION = """apiServer: {}
apiVersion: kubeadm.k8s.io/v1beta4
caCertificateValidityPeriod: 87600h0m0s
certificateValidityPeriod: 8760h0m0s
certificatesDir: /etc/kubernetes/pki
clusterName: kubernetes
controllerManager: {}
dns: {}
encryptionAlgorithm: RSA-2048
etcd:
  local:
    dataDir: /var/lib/etcd
imageRepository: registry.k8s.io
kind: ClusterConfiguration
kubernetesVersion: v1.34.0
networking:
  dnsDomain: cluster.local
  serviceSubnet: 10.96.0.0/12
proxy: {}
scheduler:
  extraArgs:
  - name: v
    value: "4"
"""


@dataclass
class Installed:
    cluster: Cluster
    api: Api
    inventory: Path
    before: dict[str, dict[str, str]]
    output: str


def bind_elsewhere(cluster: Cluster, host: str) -> None:
    """Another extender, set up before us by hand."""
    tree = cluster.root / host / "etc/kubernetes"
    head = {"apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration"}
    client = {"clientConnection": {"kubeconfig": "/etc/kubernetes/scheduler.conf"}}
    (tree / "theirs.yaml").write_text(yaml.safe_dump(head | client | {"extenders": [THEIRS]}))
    manifest = yaml.safe_load((tree / "manifests/kube-scheduler.yaml").read_text())
    container, path = manifest["spec"]["containers"][0], "/etc/kubernetes/theirs.yaml"
    container["command"].append(f"--config={path}")
    container["volumeMounts"].append({"name": "theirs", "mountPath": path})
    manifest["spec"]["volumes"].append({"name": "theirs", "hostPath": {"path": path, "type": "File"}})
    (tree / "manifests/kube-scheduler.yaml").write_text(yaml.safe_dump(manifest))


@pytest.fixture(scope="module")
def installed() -> Iterator[Installed]:
    spec = Spec(PLANES[0], (NodeSpec("worker", "t4"),), standby=PLANES[1:])
    with (
        tempfile.TemporaryDirectory(prefix="ac", ignore_cleanup_errors=True) as root,
        Cluster(Path(root), spec) as cluster,
    ):
        bind_elsewhere(cluster, "cp-b")
        metadata = {"name": "kubeadm-config", "namespace": "kube-system"}
        body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata}
        cluster.store.create(
            "configmaps", "kube-system", body | {"data": {"ClusterConfiguration": CLUSTER_CONFIGURATION}}
        )
        add_node(cluster, "gpus")
        inventory = write_inventory(cluster.root, {"worker": "vgpu"})
        before = {host: files(cluster, host) for host in PLANES}
        output = play(inventory, PLAY)
        yield Installed(cluster, Api(cluster.kubeconfig), inventory, before, output)


def told_kubeadm(cluster: Cluster) -> dict[str, Any]:
    found = cluster.store.get("configmaps", "kube-system", "kubeadm-config")
    data: dict[str, Any] = yaml.safe_load(found["data"]["ClusterConfiguration"])
    return data


def test_each_scheduler_calls_a_module_entry_that_only_filters(installed: Installed) -> None:
    assert "http://127.0.0.1:9/theirs binds pods" in installed.output
    base = f"https://127.0.0.1:{installed.cluster.api.port}{CORE}/services"
    for host in PLANES:
        extenders = configuration(installed.cluster, host)["extenders"]
        assert extenders[:-2] == ([THEIRS] if host == "cp-b" else [])
        assert {item["urlPrefix"] for item in extenders[-2:]} == {
            f"{base}/gpu-quota-admission/proxy/scheduler",
            f"{base}/nvidia-mps-scheduler-plugin/proxy/scheduler",
        }
        verbs = [{key: item[key] for key in item if key.endswith("Verb")} for item in extenders[-2:]]
        assert verbs == [{"filterVerb": "predicates"}] * 2


@needs_kube_scheduler
def test_a_real_scheduler_reads_what_was_written(installed: Installed, tmp_path: Path) -> None:
    tree = installed.cluster.root / "cp-b"
    assert complaint(configuration(installed.cluster, "cp-b"), tree, tmp_path) == ""


def test_one_scheduler_leads_and_another_takes_over(installed: Installed) -> None:
    cluster, api = installed.cluster, installed.api
    holder = api.call("GET", LEASE)[1]["spec"]["holderIdentity"]
    leader = holder.partition("_")[0]
    manifest = cluster.root / leader / "etc/kubernetes/manifests/kube-scheduler.yaml"
    text = manifest.read_text()
    manifest.unlink()
    try:
        until(lambda: api.call("GET", LEASE)[1]["spec"]["holderIdentity"] not in ("", holder), "another leader")
    finally:
        manifest.write_text(text)


def test_pod_gets_a_gpu_and_assignment_follows_its_binding(installed: Installed) -> None:
    api = installed.api
    for name in ("first", "second"):
        submit(api, name, 60, 20)
    try:
        found = [
            until(lambda name=name: assignment(api, name), f"the assignment of {name}") for name in ("first", "second")
        ]
        assert [item["node"] for item in found] == ["gpus", "gpus"]
        gpus = {share["uuid"] for item in found for shares in item["containers"].values() for share in shares}
        assert gpus == {"GPU-gpus-0", "GPU-gpus-1"}
        submit(api, "third", 60, 20)
        reason = until(lambda: why(api, "third"), "a reason")
        assert "best has 40 percent" in reason
        remove(api, "first")
        until(lambda: assignment(api, "third"), "the room of the first")
    finally:
        remove(api, "first", "second", "third")


def test_callers_need_a_certificate_and_cannot_move_bound_pods(installed: Installed) -> None:
    """The extender cannot tell who calls: it keeps nothing for a pod the API server does not know to wait."""
    api = installed.api
    path = f"{CORE}/services/gpu-quota-admission/proxy/scheduler"
    assert api.with_token("none").call("POST", f"{path}/predicates", {})[0] == 401
    for verb in ("bind", "priorities", "preemption"):
        assert api.call("POST", f"{path}/{verb}", {})[0] == 404
    forged = {
        "metadata": {"name": "forged", "namespace": "default", "uid": "no-such-pod"},
        "spec": {"containers": [{"name": "c", "resources": {"limits": {"tencent.com/vcuda-core": "200"}}}]},
    }
    status, answer = api.call("POST", f"{path}/predicates", {"Pod": forged, "NodeNames": ["gpus"]})
    assert status == 200
    assert "is not known to wait" in json.dumps(answer)


def test_kubeadm_is_told_what_every_control_plane_has(installed: Installed) -> None:
    """One of them reads a file of its own, and none at the path of ours."""
    told = told_kubeadm(installed.cluster)["scheduler"]
    assert told["extraArgs"] == [{"name": "v", "value": "4"}]
    assert [volume["hostPath"] for volume in told["extraVolumes"]] == ["/etc/kubernetes/kube-accel-pki/scheduler"]
    assert "theirs.yaml, which kube-scheduler of cp-b reads" in installed.output


def upgrade(cluster: Cluster, host: str, original: str) -> None:
    """What ``kubeadm upgrade`` does to kube-scheduler: its manifest anew, from what kubeadm is told."""
    told = told_kubeadm(cluster)["scheduler"]
    pod = yaml.safe_load(original)
    container = pod["spec"]["containers"][0]
    container["image"] = "registry.k8s.io/kube-scheduler:v1.35.0"
    container["command"] += [f"--{item['name']}={item['value']}" for item in told["extraArgs"]]
    for volume in told["extraVolumes"]:
        mount = {key: volume[key] for key in ("mountPath", "name", "readOnly")}
        container["volumeMounts"].append(mount)
        source = {"path": volume["hostPath"], "type": volume["pathType"]}
        pod["spec"]["volumes"].append({"hostPath": source, "name": volume["name"]})
    (cluster.root / host / "etc/kubernetes/manifests/kube-scheduler.yaml").write_text(yaml.safe_dump(pod))


def test_an_upgrade_by_kubeadm_is_made_good_by_the_next_run(installed: Installed) -> None:
    cluster, api = installed.cluster, installed.api
    wanted = configuration(cluster, "cp-a")
    upgrade(cluster, "cp-a", installed.before["cp-a"]["kubernetes/manifests/kube-scheduler.yaml"])
    mirror = f"{CORE}/pods/kube-scheduler-cp-a"

    def ready() -> bool:
        status, pod = api.call("GET", mirror)
        image = status == 200 and pod["spec"]["containers"][0]["image"].endswith("v1.35.0")
        return image and pod["status"].get("containerStatuses", [{}])[0].get("ready", False)

    until(ready, "the upgraded scheduler")
    # All else is as the first run left it.
    assert changed(play(installed.inventory, PLAY)) == ["Configure the extender in kube-scheduler"]
    assert configuration(cluster, "cp-a") == wanted


def test_uninstall_on_one_control_plane_keeps_other_extenders(installed: Installed) -> None:
    output = play(installed.inventory, UNINSTALL, "--limit=cp-a")
    assert "kube-scheduler of cp-b, cp-c was not edited in this run" in output
    assert "deployments kube-accel-extender" in ours(installed.cluster)
    assert len(configuration(installed.cluster, "cp-c")["extenders"]) == 2


def test_uninstall_leaves_what_was_there(installed: Installed) -> None:
    """Also on the control plane that kubeadm upgraded meanwhile: its new manifest, without our part."""
    cluster = installed.cluster
    assert changed(play(installed.inventory, UNINSTALL))
    for host in PLANES:
        after, before = files(cluster, host), installed.before[host]
        name = "kubernetes/manifests/kube-scheduler.yaml"
        pods = [yaml.safe_load(found.pop(name)) for found in (after, before)]
        if host == "cp-a":
            pods[1]["spec"]["containers"][0]["image"] = "registry.k8s.io/kube-scheduler:v1.35.0"
            pods[1]["spec"]["containers"][0]["command"].append("--v=4")
        assert pods[0] == pods[1]
        assert after == before
    assert ours(cluster) == []
    assert told_kubeadm(cluster) == yaml.safe_load(CLUSTER_CONFIGURATION)
