# SPDX-License-Identifier: Apache-2.0
"""The collection's own playbooks on a real node: DaemonSets, kubelet, static kube-scheduler, API server, containerd.

One story: the first test finds a bare node, the last gives it back.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from cluster import images, rights
from cluster.control_plane import BINARIES
from cluster.matrix import Ran
from cluster.node import STATE, GpuNode, pod
from cluster.rig import MANIFESTS, NODE, PODS, Rig, kubernetes
from cluster.site import IMAGE, Site
from cluster.test_attacks import Asking, tenant
from cluster.test_attacks import namespace as namespace
from sim.cluster.client import until

CORES, MEMORY = "tencent.com/vcuda-core", "tencent.com/vcuda-memory"
CGPU_MEMORY = "aliyun.com/gpu-mem"
SHARE = {CORES: "30", MEMORY: "32"}
GIB = 1 << 30
ACCOUNTS_MIB = 256
"""The role's default."""
NEXT_IMAGE = "docker.io/library/kube-accel:next"
NO_IMAGE = "localhost/kube-accel:none"
MANAGED = (MANIFESTS / "kube-scheduler.yaml", Path("/etc/containerd/config.toml"))
PLUGIN, EXTENDER = "gpu-manager-daemonset", "kube-accel-extender"
KINDS = (
    "daemonset,deployment,service,configmap,secret,serviceaccount,role,clusterrole,clusterrolebinding,runtimeclass,"
    "networkpolicy"
)
POLICIES = "validatingadmissionpolicy,validatingadmissionpolicybinding"
"""Admission policies of Kubernetes 1.30 and newer."""
PASSING = 5
"""Pods of a passing load that may be there at once."""
pytestmark = pytest.mark.usefixtures("no_pods_left")


@pytest.fixture(scope="module")
def rig(rig: Rig) -> Rig:
    images.ctr("images", "tag", IMAGE, NEXT_IMAGE)
    return rig


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


def images_of(rig: Rig, name: str) -> set[str]:
    """What the pods of a workload of ours run."""
    return {entry["image"] for item in pods_of(rig, name).values() for entry in item["spec"]["containers"]}


def is_held(node: GpuNode, *names: str) -> None:
    """Until exactly these pods hold shares, as the node says."""
    until(lambda: {name for pods in node.held().values() for name in pods} == set(names), f"{names}")


def inspected(rig: Rig) -> tuple[set[tuple[Any, ...]], set[str]]:
    """What kubectl inspect says: pods with their cores, memory and use, and pods that wait."""
    kubectl = BINARIES / "kubectl"
    flags = ["--output=json", "--used", f"--kubectl={kubectl}", f"--kubeconfig={rig.plane.root}/admin.conf"]
    told = json.loads(subprocess.run([kubectl, "inspect", "gpu", *flags], capture_output=True, text=True).stdout)
    held = [entry for node in told["nodes"] for gpu in node["gpus"] for entry in gpu["containers"]]
    keys = ("pod", "cores", "memory_bytes", "used_bytes")
    return {tuple(entry[key] for key in keys) for entry in held}, {entry["pod"] for entry in told["waiting"]}


def test_a_bare_node_shares_its_gpus(rig: Rig, node: GpuNode, site: Site, ran: Ran) -> None:
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
    until(lambda: "150" in conditions(rig, "odd"), "the reason")
    until(lambda: inspected(rig) == ({("share", 30, 8 * GIB, 0)}, {"odd"}), "kubectl inspect")
    described = rig.kubectl("describe", "node")
    assert re.search(rf"^  {CORES} +30 +30$", described, re.MULTILINE), described
    metrics = rig.kubectl("get", "--raw", f"/api/v1/nodes/{NODE}/proxy/metrics")
    assert f'kubelet_device_plugin_alloc_duration_seconds_count{{resource_name="{CORES}"}}' in metrics
    ran("vgpu", "local", "kubectl describe node, kubectl inspect gpu, kubelet's own metric of allocations")
    assert site.run("site", gpu_mode="vgpu") == 0


def test_a_tenant_fills_no_more_than_all_accounts_may_take(
    rig: Rig, node: GpuNode, site: Site, namespace: Rig, ran: Ran
) -> None:
    accounts = STATE / "containers"
    with tenant(Asking(rig), "fill-again") as it:
        assert it.account.stat().st_dev == accounts.stat().st_dev != STATE.stat().st_dev
        bound = os.statvfs(accounts)
        assert bound.f_blocks * bound.f_frsize == ACCOUNTS_MIB << 20
        submit(rig, "neighbor", SHARE)
        rig.wait_running("neighbor")
        until(it.is_deleted, "the pod to be deleted")
        until(lambda: "GpuAccountAbused" in it.events(), "the event")
    is_held(node, "neighbor")
    until(lambda: (now := os.statvfs(accounts)).f_bfree > now.f_blocks * 9 // 10, "the room to be there again")
    ran("vgpu", "local", "a tenant below Pod Security baseline that filled its account; a neighbor started")


def test_a_pod_that_validates(rig: Rig, node: GpuNode, site: Site, ran: Ran) -> None:
    code, said = site.attempt("validate", gpu_mode="vgpu", validate_pod=True)
    assert f"{NODE}: ok: pod: answers, 1 GPUs" in said, said[-6000:]
    assert code == 0, said[-6000:]
    is_held(node)
    ran("vgpu", "local", "validated by a pod")


@contextmanager
def cgpu(rig: Rig, node: GpuNode) -> Iterator[None]:
    """The node in mode cGPU, by its label alone."""
    label = f"node/{NODE}"
    rig.kubectl("label", label, "cgpu=true")
    node.wait_allocatable(0, CORES)
    # 79.6 GiB each, in whole GiB.
    node.wait_allocatable(8 * 79, CGPU_MEMORY)
    yield
    rig.kubectl("label", label, "cgpu-")
    node.wait_allocatable(800, CORES)
    node.wait_allocatable(0, CGPU_MEMORY)


def serves(rig: Rig, node: GpuNode, name: str, limits: dict[str, str], **spec: Any) -> None:
    """A pod gets what it asks for, and is limited to it; it is gone then."""
    submit(rig, name, limits, **spec)
    rig.wait_running(name)
    is_held(node, name)
    assert node.limited(name) in node.held()
    rig.kubectl("delete", "pod", name, "--now", "--wait=true")
    is_held(node)


@contextmanager
def coming_and_going(rig: Rig) -> Iterator[None]:
    """Pods with small shares come, one after the other, and end. All of them have got what they asked for.

    A slow node gets no more of them than a fast one: each that waits would make it slower.
    """
    stop, names = threading.Event(), []

    def go_on() -> None:
        while not stop.wait(2):
            if len(names) >= PASSING and rig.phase(names[-PASSING]) not in ("Succeeded", "Failed"):
                continue
            made = pod(
                f"passing-{len(names)}", {CORES: "5", MEMORY: "4"}, runtimeClassName="nvidia", restartPolicy="Never"
            )
            made["spec"]["containers"][0]["command"] = ["/bin/sleep", "5"]
            rig.api.create(PODS, made)
            names.append(made["metadata"]["name"])

    with ThreadPoolExecutor(1) as pool:
        going = pool.submit(go_on)
        try:
            yield
        finally:
            stop.set()
    going.result()
    assert names
    until(lambda: {rig.phase(name) for name in names} <= {"Succeeded", "Failed"}, "all to end")
    assert [rig.api.get(f"{PODS}/{name}")["status"] for name in names if rig.phase(name) == "Failed"] == []
    rig.kubectl("delete", "pods", *names)


def test_label_alone_switches_to_cgpu_and_back_to_vgpu(rig: Rig, node: GpuNode, site: Site, ran: Ran) -> None:
    with cgpu(rig, node):
        serves(rig, node, "memory", {CGPU_MEMORY: "4"})
        ran("cgpu", "local")


def test_an_upgrade_and_a_downgrade_under_load(rig: Rig, node: GpuNode, site: Site, ran: Ran) -> None:
    submit(rig, "before", SHARE)
    rig.wait_running("before")
    is_held(node, "before")
    held = node.held()
    for image, name in ((NEXT_IMAGE, "after-upgrade"), (IMAGE, "after-downgrade")):
        old = pods_of(rig, PLUGIN)
        with coming_and_going(rig):
            assert site.run("site", tags="gpu_plugins", gpu_mode="vgpu", gpu_plugins_image=image) > 0
            until(
                lambda old=old: (new := pods_of(rig, PLUGIN)) and not new.keys() & old.keys(),
                "a new plugin",
            )
        (plugin,) = pods_of(rig, PLUGIN).values()
        assert plugin["spec"]["containers"][0]["image"] == image
        submit(rig, name, SHARE)
        rig.wait_running("before", name)
    is_held(node, "before", "after-upgrade", "after-downgrade")
    assert {uuid: pods["before"] for uuid, pods in node.held().items() if "before" in pods} == {
        uuid: pods["before"] for uuid, pods in held.items()
    }
    ran("vgpu", "local", "another image and back under load")


def test_a_rollout_and_one_that_is_undone(rig: Rig, node: GpuNode, site: Site, ran: Ran) -> None:
    submit(rig, "lasting", SHARE)
    rig.wait_running("lasting")
    # The extender's image is there each time: so it is the plugin that is undone.
    for image, extender, ends in ((NEXT_IMAGE, NEXT_IMAGE, 0), (NO_IMAGE, NEXT_IMAGE, 2), (IMAGE, IMAGE, 0)):
        variables = {"gpu_mode": "vgpu", "gpu_plugins_image": image, "scheduler_image": extender, "rollout_soak": 10}
        with coming_and_going(rig):
            code, said = site.attempt("rollout", **variables)
        assert code == ends, said[-6000:]
        assert "The previous version is restored" in said or not ends
        until(lambda: images_of(rig, PLUGIN) == images_of(rig, EXTENDER) == {extender}, "its image")  # noqa: B023
        kept = rig.api.get(f"/apis/apps/v1/namespaces/kube-system/daemonsets/{PLUGIN}")
        assert kept["spec"]["updateStrategy"]["type"] == "RollingUpdate"
        assert "kube-accel.io/previous-object" not in kept["metadata"].get("annotations", {})
    is_held(node, "lasting")
    ran("vgpu", "local", "rolled out to another image, undone from one that is not there, and back, under load")


def test_a_reboot(rig: Rig, node: GpuNode, site: Site, ran: Ran) -> None:
    """Kubelet 1.36 refuses pods until their device plugin is back: who has a controller is made anew."""
    labels = {"app": "lasting"}
    template = pod("unused", SHARE, runtimeClassName="nvidia") | {"metadata": {"labels": labels}}
    spec = {"replicas": 3, "selector": {"matchLabels": labels}, "template": template}
    sets = "/apis/apps/v1/namespaces/default/replicasets"
    rig.api.create(sets, {"metadata": {"name": "lasting"}, "spec": spec})

    def holders() -> set[str]:
        return {name for pods in node.held().values() for name in pods}

    until(lambda: len(rig.running()) == 3 and holders() == rig.running(), "three pods")
    rig.reboot()
    node.wait_allocatable(800, CORES)
    # Those of before still run, as the API server has it, until kubelet says otherwise.
    until(lambda: started_since_boot(rig) == 3, "three pods that run in this boot")
    until(lambda: holders() == rig.running(), "the node to say who holds what")
    until(lambda: len(rig.api.get(PODS)["items"]) == 3, "pods that were refused to be removed")
    assert sum(cores for cores, _ in node.sums().values()) == 90
    for name in rig.running():
        assert node.limited(name) in node.held()
    rig.kubectl("delete", "replicaset", "lasting", "--wait=true")
    is_held(node)
    ran("vgpu", "local", "the node rebooted")


def started_since_boot(rig: Rig) -> int:
    """How many pods run of which containerd knows a container."""
    known = set(images.ctr("tasks", "list", "--quiet").split())
    statuses = [item["status"] for item in rig.api.get(PODS)["items"] if item["status"]["phase"] == "Running"]
    return sum(
        entry.get("containerID", "").rpartition("/")[2] in known
        for status in statuses
        for entry in status.get("containerStatuses", ())
    )


def test_the_extender_behind_the_api_server(rig: Rig, node: GpuNode, site: Site, ran: Ran) -> None:
    site.run("site", tags="scheduler", gpu_mode="vgpu", scheduler_layout="proxied")
    assert "/proxy/scheduler" in Path("/etc/kubernetes/kube-accel/scheduler.yaml").read_text()
    submit(rig, "proxied", SHARE)
    submit(rig, "odd", {CORES: "150", MEMORY: "4"})
    rig.wait_running("proxied")
    is_held(node, "proxied")
    until(lambda: "150" in conditions(rig, "odd"), "the reason")
    until(lambda: inspected(rig) == ({("proxied", 30, 8 * GIB, 0)}, {"odd"}), "kubectl inspect")
    ran("vgpu", "proxied")
    rig.kubectl("delete", "pod", "--now", "--wait=true", "proxied", "odd")
    with cgpu(rig, node):
        serves(rig, node, "memory", {CGPU_MEMORY: "4"})
        ran("cgpu", "proxied")


def test_a_second_scheduler(rig: Rig, node: GpuNode, site: Site, before: dict[Path, bytes], ran: Ran) -> None:
    site.run("site", tags="scheduler", gpu_mode="vgpu", scheduler_layout="secondary", scheduler_binpack_resources=[])
    assert MANAGED[0].read_bytes() == before[MANAGED[0]]
    serves(rig, node, "second", SHARE, schedulerName="accel-scheduler")
    ran("vgpu", "secondary")
    with cgpu(rig, node):
        serves(rig, node, "memory", {CGPU_MEMORY: "4"}, schedulerName="accel-scheduler")
        ran("cgpu", "secondary")


def test_pods_with_gpus_keep_the_mode_until_they_end_then_mps(rig: Rig, node: GpuNode, site: Site, ran: Ran) -> None:
    site.run("site", tags="scheduler", gpu_mode="vgpu")
    submit(rig, "share", SHARE)
    rig.wait_running("share")
    code, said = site.attempt("switch_mode", gpu_mode="mps")
    assert code != 0
    assert "default/share" in said
    rig.kubectl("delete", "pod", "--now", "share")

    assert site.run("switch_mode", gpu_mode="mps") > 0
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
    ran("mps", "local")
    rig.kubectl("delete", "pod", "--now", "--wait=true", *names)
    is_held(node)
    for layout, spec in (("proxied", {}), ("secondary", {"schedulerName": "accel-scheduler"})):
        site.run("site", tags="scheduler", gpu_mode="mps", scheduler_layout=layout, scheduler_binpack_resources=[])
        submit(rig, layout, limits, **spec)
        rig.wait_running(layout)
        is_held(node, layout)
        ran("mps", layout)
        rig.kubectl("delete", "pod", "--now", "--wait=true", layout)


# What this story does not bring about: a bind of which it is not known whether it was done has the pod looked at.
SELDOM = {
    "kube-accel-share": {("events", "create"), ("pods", "delete")},
    "kube-accel-extender": {("pods", "patch"), ("pods", "get")},
}


@pytest.mark.parametrize("account", SELDOM)
def test_an_account_may_do_what_it_does_and_no_more(rig: Rig, site: Site, account: str) -> None:
    found = rights.deeds(rig.plane.audit.read_text().splitlines(), account)
    # One that another layout replaces loses its rights before it ends.
    assert found.refused <= found.done
    assert rights.granted(rig, account) - found.done <= SELDOM[account]


def test_the_node_is_given_back(rig: Rig, node: GpuNode, site: Site, before: dict[Path, bytes], ran: Ran) -> None:
    site.run("uninstall")
    assert {path: path.read_bytes() for path in MANAGED} == before
    assert not list(Path("/etc/systemd/system").glob("*.mount"))
    assert not os.path.ismount(STATE / "containers")
    ours = ["--all-namespaces", "--selector=app.kubernetes.io/managed-by=accel.kubernetes", "--output=name"]
    kinds = f"{KINDS},{POLICIES}" if kubernetes() >= (1, 30) else KINDS
    assert rig.kubectl("get", kinds, *ours) == ""
    left = str(rig.node()["metadata"])
    assert "nvidia-device-enable" not in left
    assert "kube-accel" not in left
    until(lambda: not [n for n in (CORES, "nvidia.com/mps-core") if node.allocatable(n)], "no offers")
    ran("all", "all", "uninstalled")
