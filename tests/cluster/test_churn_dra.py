# SPDX-License-Identifier: Apache-2.0
"""A hundred pods with claims that come and go in mode dra, while everything that serves them is killed in turn.

``make churn`` runs it as long as it takes by default.
"""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from functools import partial

import pytest

from cluster.churn import Plan
from cluster.claim_churn import TEMPLATES, WHOLE, ClaimChurn, claiming, templates
from cluster.control_plane import SCHEDULER
from cluster.dra import CDI, DraNode
from cluster.node import STATE
from cluster.rig import CONTAINERD_PID, PODS, Rig, has_shares
from cluster.test_dra import node as node
from cluster.test_dra import rig as rig
from sim.cluster.client import until

STUCK_SECONDS = 300.0
STAYING = {"stays-0": ("share-20",), "stays-1": ("share-30", "share-20"), "stays-2": (WHOLE,)}
"""Pods that outlive everything, by what their containers claim."""
pytestmark = [pytest.mark.soak, pytest.mark.usefixtures("no_pods_left", "files")]


def end_containerd() -> None:
    """End it at once. The rig starts it anew."""
    with suppress(ProcessLookupError):
        os.kill(int(CONTAINERD_PID.read_text()), signal.SIGKILL)


def test_claims_come_and_go_while_their_servants_are_killed(rig: Rig, node: DraNode) -> None:
    if not has_shares():
        pytest.skip("shares of devices are on since Kubernetes 1.36")
    for template in templates():
        rig.api.create(TEMPLATES, template)
    with node.driver() as driver:
        for name, sizes in STAYING.items():
            rig.api.create(PODS, claiming(name, *sizes))
        rig.wait_running(*STAYING)
        before = node.prepared()
        assert len(before) == len(STAYING)
        killers = {"driver": driver.restart, "containerd": end_containerd}
        killers |= {name: partial(rig.restart, name) for name in ("kubelet", SCHEDULER, "kube-apiserver")}
        churn = ClaimChurn(rig, node, Plan(), killers)
        churn.run()
        stuck = churn.drain(STUCK_SECONDS)
        print("", *churn.report(), *churn.failures, *churn.wrong, *stuck, sep="\n")
        for name in stuck:
            print(rig.kubectl("describe", "pod", name), rig.kubectl("get", "resourceclaims", "--output=yaml"), sep="\n")
        assert (stuck, churn.wrong, churn.failures) == ([], [], [])

        until(lambda: node.prepared() == before, "all other claims to be released")
        rig.kubectl("delete", "pod", "--now", "--wait=true", *STAYING)
        until(lambda: node.prepared() == {}, "all claims to be released")
        assert not list(CDI.glob("kube-accel.io-claim-*"))
        assert not list((STATE / "containers").glob("[0-9a-f]*"))
        names = [f"whole-{number}" for number in range(8)]
        for name in names:
            rig.api.create(PODS, claiming(name, WHOLE))
        rig.wait_running(*names)
        rig.kubectl("delete", "pod", "--now", "--wait=true", *names)
        until(lambda: node.prepared() == {}, "the last claims to be released")
