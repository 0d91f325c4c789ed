# SPDX-License-Identifier: Apache-2.0
"""The collection's own playbooks on a real node: DaemonSets, kubelet, static kube-scheduler, API server, containerd.

One story: the first test finds a bare node, the last gives it back.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cluster import images
from cluster.control_plane import BINARIES
from cluster.node import GpuNode, pod
from cluster.rig import MANIFESTS, PODS, Rig
from cluster.site import IMAGE, Site
from sim.cluster.client import until

CORES, MEMORY = "tencent.com/vcuda-core", "tencent.com/vcuda-memory"
CGPU_MEMORY = "aliyun.com/gpu-mem"
SHARE = {CORES: "30", MEMORY: "32"}
GIB = 1 << 30
NEXT_IMAGE = "docker.io/library/kube-accel:next"
MANAGED = (MANIFESTS / "kube-scheduler.yaml", Path("/etc/containerd/config.toml"))
PLUGIN, EXTENDER = "gpu-manager-daemonset", "kube-accel-extender"
KINDS = "daemonset,deployment,service,configmap,secret,serviceaccount,role,clusterrole,clusterrolebinding,runtimeclass"
WAIT_SECONDS = 120.0
pytestmark = pytest.mark.usefixtures("no_pods_left")


@pytest.fixture(scope="module")
def rig(bare_rig: Rig) -> Iterator[Rig]:
    images.load(images.DAEMONS.read_bytes())
    images.ctr("images", "tag", IMAGE, NEXT_IMAGE)
    with bare_rig.static_scheduler():
        yield bare_rig


@pytest.fixture(scope="module")
def node(rig: Rig) -> Iterator[GpuNode]:
    with GpuNode(rig, "8xh100", driver=False) as made:
        yield made


@pytest.fixture(scope="module")
def before(rig: Rig) -> dict[Path, bytes]:
    """What is edited on the host, as it was."""
    return {path: path.read_bytes() for path in MANAGED}


@pytest.fixture(scope="module")
def site(rig: Rig, node: GpuNode, before: dict[Path, bytes]) -> Site:
    """The node after the first run: vGPU, the extender in the local layout."""
    site = Site(rig)
    assert site.run("site", gpu_mode="vgpu") > 0
    return site


def submit(rig: Rig, name: str, limits: dict[str, str], **spec: Any) -> None:
    rig.api.create(PODS, pod(name, limits, runtimeClassName="nvidia", **spec))


def environment(rig: Rig, name: str) -> dict[str, str]:
    lines = rig.kubectl("exec", name, "--", "env").splitlines()
    return dict(line.partition("=")[::2] for line in lines)


def conditions(rig: Rig, name: str) -> str:
    found = rig.api.get(f"{PODS}/{name}")["status"].get("conditions", [])
    return " ".join(condition.get("message", "") for condition in found)


def pods_of(rig: Rig, name: str) -> dict[str, dict[str, Any]]:
    """The pods of a workload of ours, by name."""
    path = f"/api/v1/namespaces/kube-system/pods?labelSelector=app.kubernetes.io/name%3D{name}"
    return {item["metadata"]["name"]: item for item in rig.api.get(path)["items"]}


def is_held(node: GpuNode, *names: str) -> None:
    """Until exactly these pods hold shares, as the node says."""
    until(lambda: {name for pods in node.held().values() for name in pods} == set(names), f"{names}", WAIT_SECONDS)


def inspected(rig: Rig) -> tuple[set[tuple[Any, ...]], set[str]]:
    """What kubectl inspect says: pods with their cores, memory and use, and pods that wait."""
    kubectl = BINARIES / "kubectl"
    flags = ["--output=json", "--used", f"--kubectl={kubectl}", f"--kubeconfig={rig.plane.root}/admin.conf"]
    told = json.loads(subprocess.run([kubectl, "inspect", "gpu", *flags], capture_output=True, text=True).stdout)
    held = [entry for node in told["nodes"] for gpu in node["gpus"] for entry in gpu["containers"]]
    keys = ("pod", "cores", "memory_bytes", "used_bytes")
    return {tuple(entry[key] for key in keys) for entry in held}, {entry["pod"] for entry in told["waiting"]}


def test_a_bare_node_shares_its_gpus(rig: Rig, node: GpuNode, site: Site) -> None:
    assert (
        rig.kubectl("get", "node", r"--output=jsonpath={.items[0].status.allocatable.tencent\.com/vcuda-core}") == "800"
    )
    assert len(pods_of(rig, EXTENDER)) == 1
    submit(rig, "share", SHARE)
    submit(rig, "odd", {CORES: "150", MEMORY: "4"})
    rig.wait_running("share")
    is_held(node, "share")
    assert set(node.sums().values()) == {(30, 8 * GIB)}
    assert node.limited("share") in node.held()
    until(lambda: "150" in conditions(rig, "odd"), "the reason", WAIT_SECONDS)
    until(lambda: inspected(rig) == ({("share", 30, 8 * GIB, 0)}, {"odd"}), "kubectl inspect", WAIT_SECONDS)
    assert site.run("site", gpu_mode="vgpu") == 0


def test_a_label_alone_makes_it_a_cgpu_node_and_a_vgpu_node_again(rig: Rig, node: GpuNode, site: Site) -> None:
    label = f"node/{rig.node()['metadata']['name']}"
    rig.kubectl("label", label, "cgpu=true")
    node.wait_allocatable(0, CORES)
    # 79.6 GiB each, in whole GiB.
    node.wait_allocatable(8 * 79, CGPU_MEMORY)
    submit(rig, "memory", {CGPU_MEMORY: "4"})
    rig.wait_running("memory")
    is_held(node, "memory")
    assert node.limited("memory") in node.held()
    rig.kubectl("delete", "pod", "memory", "--now", "--wait=true")
    rig.kubectl("label", label, "cgpu-")
    node.wait_allocatable(800, CORES)
    node.wait_allocatable(0, CGPU_MEMORY)


def test_an_upgrade_under_running_shares(rig: Rig, node: GpuNode, site: Site) -> None:
    submit(rig, "before", SHARE)
    rig.wait_running("before")
    is_held(node, "before")
    held, old = node.held(), pods_of(rig, PLUGIN)
    assert site.run("site", tags="gpu_plugins", gpu_mode="vgpu", gpu_plugins_image=NEXT_IMAGE) > 0
    until(lambda: (new := pods_of(rig, PLUGIN)) and not new.keys() & old.keys(), "the old plugin to end", WAIT_SECONDS)
    (plugin,) = pods_of(rig, PLUGIN).values()
    assert plugin["spec"]["containers"][0]["image"] == NEXT_IMAGE
    submit(rig, "after", {CORES: "70", MEMORY: "160"})
    rig.wait_running("before", "after")
    is_held(node, "before", "after")
    assert {uuid: {"before": pods["before"]} for uuid, pods in node.held().items() if "before" in pods} == held


def test_the_extender_behind_the_api_server(rig: Rig, node: GpuNode, site: Site) -> None:
    site.run("site", tags="scheduler", gpu_mode="vgpu", scheduler_layout="proxied")
    assert "/proxy/scheduler" in Path("/etc/kubernetes/kube-accel/scheduler.yaml").read_text()
    submit(rig, "proxied", SHARE)
    submit(rig, "odd", {CORES: "150", MEMORY: "4"})
    rig.wait_running("proxied")
    is_held(node, "proxied")
    until(lambda: "150" in conditions(rig, "odd"), "the reason", WAIT_SECONDS)
    until(lambda: inspected(rig) == ({("share", 30, 8 * GIB, 0)}, {"odd"}), "kubectl inspect", WAIT_SECONDS)


def test_a_second_scheduler(rig: Rig, node: GpuNode, site: Site, before: dict[Path, bytes]) -> None:
    site.run("site", tags="scheduler", gpu_mode="vgpu", scheduler_layout="secondary", scheduler_binpack_resources=[])
    assert MANAGED[0].read_bytes() == before[MANAGED[0]]
    submit(rig, "second", SHARE, schedulerName="accel-scheduler")
    rig.wait_running("second")
    is_held(node, "second")


def test_pods_that_hold_gpus_keep_a_node_in_its_mode_and_mps_follows(rig: Rig, node: GpuNode, site: Site) -> None:
    site.run("site", tags="scheduler", gpu_mode="vgpu")
    submit(rig, "share", SHARE)
    rig.wait_running("share")
    code, said = site.attempt("site", tags="gpu_plugins", gpu_mode="mps")
    assert code != 0
    assert "default/share" in said
    rig.kubectl("delete", "pod", "--now", "share")

    assert site.run("site", tags="gpu_plugins", gpu_mode="mps") > 0
    assert node.allocatable("nvidia.com/mps-core") == 800
    assert node.allocatable(CORES) == 0
    limits = {"nvidia.com/mps-core": "30", "nvidia.com/mps-memory": "8"}
    names = {"process-0": 1000, "process-1": 1001}
    for name, user in names.items():
        submit(rig, name, limits, securityContext={"runAsUser": user})
    rig.wait_running(*names)
    seen = [environment(rig, name) for name in names]
    assert len({node.limited(name) for name in names}) == 1
    for found in seen:
        assert found["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "30"
        assert found["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == "0=8G"
    assert "control" in rig.kubectl("exec", "process-1", "--", "ls", seen[1]["CUDA_MPS_PIPE_DIRECTORY"]).split()


def test_the_node_is_given_back(rig: Rig, node: GpuNode, site: Site, before: dict[Path, bytes]) -> None:
    site.run("uninstall")
    assert {path: path.read_bytes() for path in MANAGED} == before
    ours = ["--all-namespaces", "--selector=app.kubernetes.io/managed-by=accel.kubernetes", "--output=name"]
    assert rig.kubectl("get", KINDS, *ours) == ""
    left = str(rig.node()["metadata"])
    assert "nvidia-device-enable" not in left
    assert "kube-accel" not in left
    until(lambda: not [n for n in (CORES, "nvidia.com/mps-core") if node.allocatable(n)], "no offers", WAIT_SECONDS)
