# SPDX-License-Identifier: Apache-2.0
"""The collection's own playbooks on a real node: DaemonSets, kubelet, static kube-scheduler, API server, containerd."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cluster import images
from cluster.node import GpuNode, pod
from cluster.rig import PODS, Rig
from cluster.site import Site
from sim.cluster.client import until

CORES, MEMORY = "tencent.com/vcuda-core", "tencent.com/vcuda-memory"
SHARE = {CORES: "30", MEMORY: "32"}
CONTAINERD_CONFIG = Path("/etc/containerd/config.toml")
KINDS = "daemonset,deployment,service,configmap,secret,serviceaccount,role,clusterrole,clusterrolebinding,runtimeclass"
WAIT_SECONDS = 120.0
pytestmark = pytest.mark.usefixtures("no_pods_left")


@pytest.fixture(scope="module")
def rig(bare_rig: Rig) -> Iterator[Rig]:
    images.load(images.DAEMONS.read_bytes())
    with bare_rig.static_scheduler():
        yield bare_rig


@pytest.fixture(scope="module")
def node(rig: Rig) -> Iterator[GpuNode]:
    with GpuNode(rig, "8xh100", driver=False) as made:
        yield made


@pytest.fixture(scope="module")
def site(rig: Rig, node: GpuNode) -> Site:
    return Site(rig)


def submit(rig: Rig, name: str, limits: dict[str, str], **spec: Any) -> None:
    rig.api.create(PODS, pod(name, limits, runtimeClassName="nvidia", **spec))


def environment(rig: Rig, name: str) -> dict[str, str]:
    lines = rig.kubectl("exec", name, "--", "env").splitlines()
    return dict(line.partition("=")[::2] for line in lines)


def test_a_bare_node_shares_its_gpus_and_is_given_back(rig: Rig, node: GpuNode, site: Site) -> None:
    manifest = Path("/etc/kubernetes/manifests/kube-scheduler.yaml")
    before = {path: path.read_bytes() for path in (manifest, CONTAINERD_CONFIG)}
    assert site.run("site", gpu_mode="vgpu") > 0
    assert (
        rig.kubectl("get", "node", r"--output=jsonpath={.items[0].status.allocatable.tencent\.com/vcuda-core}") == "800"
    )
    submit(rig, "share", SHARE)
    rig.wait_running("share")
    until(lambda: (30, 8 << 30) in node.sums().values(), "the node to say who holds what", WAIT_SECONDS)
    assert len(environment(rig, "share")["NVIDIA_VISIBLE_DEVICES"].split(",")) == 1
    assert site.run("site", gpu_mode="vgpu") == 0

    code, said = site.attempt("uninstall")
    assert code != 0
    assert "default/share" in said
    rig.kubectl("delete", "pod", "--now", "share")
    site.run("uninstall")
    assert {path: path.read_bytes() for path in before} == before
    ours = "--selector=app.kubernetes.io/managed-by=accel.kubernetes"
    assert rig.kubectl("get", KINDS, "--all-namespaces", ours, "--output=name") == ""
    node.wait_allocatable(0, CORES)
    said = str(rig.node()["metadata"])
    assert "nvidia-device-enable" not in said
    assert "kube-accel" not in said
