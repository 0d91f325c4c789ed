# SPDX-License-Identifier: Apache-2.0
"""A hundred pods that come and go in each fractional mode, while everything that serves them is killed in turn.

The daemons are the role's DaemonSets. ``make churn`` runs it as long as it takes by default.
"""

from __future__ import annotations

import os
from contextlib import suppress

import pytest

from cluster.churn import Books, Churn, Plan, limits
from cluster.node import TOPOLOGY, GpuNode, pod
from cluster.rig import PODS, Rig
from cluster.site import Site
from kube_accel.kube.podresources import PodResourcesError
from kube_accel.model import Mode
from sim.cluster.client import until
from sim.nvml.topology import Topology

MODES = [Mode(name) for name in os.environ.get("KUBE_ACCEL_CHURN_MODES", "vgpu,mps,cgpu").split(",")]
STUCK_SECONDS = 300.0
STAYING = {"stays-0": (20,), "stays-1": (30, 20), "stays-2": (50,)}
"""Pods that outlive everything, by percent of a GPU for each container."""
pytestmark = [pytest.mark.soak, pytest.mark.usefixtures("no_pods_left")]


@pytest.fixture(scope="module")
def site(rig: Rig, node: GpuNode) -> Site:
    site = Site(rig)
    site.run("site", gpu_mode=MODES[0].value)
    return site


def agree(books: Books, holders: set[str]) -> None:
    """Until kubelet and the ledger say the same, and that these pods hold something and no others."""

    def said() -> bool:
        with suppress(PodResourcesError):
            kubelet = books.kubelet()
            return kubelet == books.ledger() and {part.pod for part in kubelet} == holders
        return False

    try:
        until(said, f"{holders} to hold something")
    except AssertionError as error:
        raise AssertionError(books.told()) from error


@pytest.mark.parametrize("mode", MODES)
def test_pods_come_and_go_while_their_servants_are_killed(rig: Rig, node: GpuNode, site: Site, mode: Mode) -> None:
    site.run("site", tags="gpu_plugins", gpu_mode=mode.value)
    cards = {gpu.uuid: gpu.mem for gpu in Topology.load(TOPOLOGY).gpus}
    for name, percents in STAYING.items():
        rig.api.create(PODS, pod(name, *(limits(mode, each) for each in percents), runtimeClassName="nvidia"))
    rig.wait_running(*STAYING)
    churn = Churn(rig, mode, Plan(), cards)
    books = churn.books
    agree(books, set(STAYING))
    before = books.kubelet()

    churn.run()
    stuck = churn.drain(STUCK_SECONDS)
    print("", *churn.report(), *churn.failures, *books.wrong, *stuck, sep="\n")
    if stuck:
        # What they wait for is held by these, as the node says, or by nobody.
        print(*node.held().items(), *books.told(), rig.kubectl("get", "pods", "--output=wide"), sep="\n")
    assert stuck == []
    assert books.wrong == []
    assert churn.failures == []

    agree(books, set(STAYING))
    assert books.kubelet() == before
    for name in STAYING:
        assert node.limited(name) in {part.gpu for part in before if part.pod == name}
    rig.kubectl("delete", "pod", "--now", "--wait=true", *STAYING)
    agree(books, set())
    until(lambda: not node.held(), "the node to say that nothing is held")
    # What the extender or kubelet still took for held could not be had.
    names = [f"whole-{number}" for number in range(len(cards))]
    for name in names:
        rig.api.create(PODS, pod(name, limits(mode, 100), runtimeClassName="nvidia"))
    rig.wait_running(*names)
    rig.kubectl("delete", "pod", "--now", "--wait=true", *names)
    until(lambda: not node.held(), "the node to be empty for the next mode")
