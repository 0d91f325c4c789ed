# SPDX-License-Identifier: Apache-2.0
"""Shares of GPUs on a real kubelet, placed by our extender beside a real scheduler, in the local layout."""

from __future__ import annotations

import os
import ssl
import subprocess
import sys
import urllib.request
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from cluster.node import GpuNode, pod
from cluster.rig import PODS, Rig, missing
from sim.cluster.client import until

WAIT_SECONDS = 60.0
EXTENDER = "127.0.0.1:9446"
RESOURCES = ("tencent.com/vcuda-core", "tencent.com/vcuda-memory", "aliyun.com/gpu-mem")
GIB = 1 << 30


def vgpu(cores: int, blocks: int) -> dict[str, str]:
    return {"tencent.com/vcuda-core": str(cores), "tencent.com/vcuda-memory": str(blocks)}


@pytest.fixture(scope="module")
def rig() -> Iterator[Rig]:
    if lacks := missing():
        pytest.skip("no real cluster here; missing: " + ", ".join(lacks))
    cluster = Rig()
    cluster.scheduler = scheduler_config(cluster)
    with cluster, extender(cluster):
        yield cluster


def scheduler_config(rig: Rig) -> dict[str, Any]:
    certificate, key = rig.certificate("extender-client")
    tls = {"caFile": str(rig.ca), "certFile": str(certificate), "keyFile": str(key)}
    entry = {
        "urlPrefix": f"https://{EXTENDER}/scheduler",
        "filterVerb": "predicates",
        "prioritizeVerb": "priorities",
        "preemptVerb": "preemption",
        "bindVerb": "bind",
        "weight": 1,
        "enableHTTPS": True,
        "tlsConfig": tls,
        "nodeCacheCapable": True,
        "managedResources": [{"name": name, "ignoredByScheduler": False} for name in RESOURCES],
    }
    return {"extenders": [entry]}


@contextmanager
def extender(rig: Rig) -> Iterator[None]:
    certificate, key = rig.certificate("extender", "127.0.0.1")
    command = [
        str(Path(sys.executable).with_name("kube-accel")),
        "extender",
        f"--listen={EXTENDER}",
        f"--tls-cert={certificate}",
        f"--tls-key={key}",
        f"--client-ca={rig.ca}",
        f"--kubeconfig={rig.kubeconfig('extender-account', group='system:masters')}",
    ]
    with (rig.directory / "log" / "extender").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env=os.environ)
    try:
        context = ssl.create_default_context(cafile=str(rig.ca))
        until(lambda: answers(f"https://{EXTENDER}/readyz", context), f"the extender; log {log.name}", WAIT_SECONDS)
        yield
    finally:
        process.terminate()
        process.wait(WAIT_SECONDS)


def answers(url: str, context: ssl.SSLContext) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5, context=context) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


@pytest.fixture
def no_pods_left(rig: Rig) -> Iterator[None]:
    yield
    rig.kubectl("delete", "pods", "--all", "--now", "--wait=true")


def sums(node: GpuNode) -> dict[str, tuple[int, int]]:
    """GPU UUID to the cores and memory its pods hold together."""
    found: dict[str, tuple[int, int]] = defaultdict(lambda: (0, 0))
    for uuid, pods in node.held().items():
        found[uuid] = (sum(cores for cores, _ in pods.values()), sum(memory for _, memory in pods.values()))
    return found


@pytest.mark.usefixtures("no_pods_left")
def test_vgpu_shares_are_placed_held_and_never_overcommitted(rig: Rig) -> None:
    with GpuNode(rig, "8xh100", "vgpu", "tencent.com/vcuda-core") as node, node.plugin():
        node.wait_allocatable(800)
        rig.api.create(PODS, pod("pair", vgpu(30, 32), vgpu(30, 32)))
        rig.api.create(PODS, pod("whole", vgpu(100, 0) | {"tencent.com/vcuda-memory": "4"}))
        rig.api.create(PODS, pod("bad", {"tencent.com/vcuda-core": "150", "tencent.com/vcuda-memory": "4"}))
        rig.wait_running("pair", "whole")
        until(lambda: len(node.held()) >= 2, "the node to say who holds what", WAIT_SECONDS)
        pair = [pods["pair"] for pods in node.held().values() if "pair" in pods]
        assert pair, node.held()
        assert rig.phase("bad") == "Pending"
        assert "150" in rig.kubectl("describe", "pod", "bad")

        names = [f"half-{number}" for number in range(16)]
        for name in names:
            rig.api.create(PODS, pod(name, vgpu(50, 100)))
        # Seven GPUs are left for halves: one is whole, and one has 40 % left.
        until(lambda: sum(rig.phase(name) == "Running" for name in names) == 12, "12 halves to run", WAIT_SECONDS)
        until(lambda: sum(len(pods) for pods in node.held().values()) >= 14, "the node to say so", WAIT_SECONDS)
        assert all(cores <= 100 and memory <= 80 * GIB for cores, memory in sums(node).values())
        waiting = [name for name in names if rig.phase(name) == "Pending"]
        assert len(waiting) == 4
        rig.kubectl("delete", "pod", "--now", "whole", "pair")
        rig.wait_running(*names)


@pytest.mark.usefixtures("no_pods_left")
def test_shares_survive_the_death_of_plugin_and_kubelet(rig: Rig) -> None:
    with GpuNode(rig, "8xh100", "vgpu", "tencent.com/vcuda-core") as node:
        first = node.start_plugin()
        node.wait_allocatable(800)
        rig.api.create(PODS, pod("before", vgpu(70, 100)))
        rig.wait_running("before")
        until(lambda: node.held(), "the node to say who holds what", WAIT_SECONDS)
        held = node.held()
        first.kill()
        first.wait()
        with node.plugin():
            node.wait_allocatable(800)
            rig.restart("kubelet")
            node.wait_allocatable(800)
            rig.api.create(PODS, pod("after", vgpu(70, 100)))
            rig.wait_running("before", "after")
            until(lambda: len(node.held()) == 2, "both shares", WAIT_SECONDS)
            assert {uuid: pods for uuid, pods in node.held().items() if "before" in pods} == held


@pytest.mark.usefixtures("no_pods_left")
def test_cgpu_memory_is_shared(rig: Rig) -> None:
    with GpuNode(rig, "t4", "cgpu", "aliyun.com/gpu-mem") as node, node.plugin():
        until(lambda: 14 <= node.allocatable() <= 16, "the T4's memory in GiB", WAIT_SECONDS)
        for name, gib in (("a", 4), ("b", 8), ("c", 8)):
            rig.api.create(PODS, pod(name, {"aliyun.com/gpu-mem": str(gib)}))
        until(lambda: sorted(rig.phase(name) for name in "abc") == ["Pending", "Running", "Running"], "two to run", 60)
        until(lambda: sum(len(pods) for pods in node.held().values()) == 2, "the node to say so", WAIT_SECONDS)
        ((_, memory),) = sums(node).values()
        assert memory in (12 * GIB, 16 * GIB)
