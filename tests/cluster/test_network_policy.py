# SPDX-License-Identifier: Apache-2.0
"""The roles' NetworkPolicies in a real API server: it takes them, and keeps them as they were planned.

Nothing here enforces them, which is for a cluster's network to do.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from cluster.control_plane import ControlPlane, control_plane, lacking, wait_for
from cluster.test_admission import Cluster, there
from unit.roles.test_network_policy import DCGM, PEER, found, plugin, scheduler

pytestmark = pytest.mark.skipif(
    bool(lacking(("etcd", "kube-apiserver"))), reason=lacking(("etcd", "kube-apiserver")) or "all there"
)
SLICE = {"kind": "EndpointSlice", "endpoints": [{"addresses": ["172.16.0.5"]}]}
POLICIES = "/apis/networking.k8s.io/v1/namespaces/kube-system/networkpolicies"
NODE = {
    "kind": "Node",
    "metadata": {"name": "c1", "labels": {"node-role.kubernetes.io/control-plane": ""}},
    "spec": {"podCIDRs": ["10.244.0.0/24", "fd01::/64"]},
    "status": {"addresses": [{"type": "InternalIP", "address": text} for text in ("10.0.0.11", "fd00::11")]},
}


@pytest.fixture(scope="module")
def plane() -> Iterator[ControlPlane]:
    with control_plane() as started:
        wait_for(lambda: there(started.admin, "kube-system"), "namespace kube-system")
        yield started


@pytest.mark.parametrize("layout", ["proxied", "secondary"])
@pytest.mark.parametrize("peers", [[], [PEER, {"ipBlock": {"cidr": "10.9.0.0/16", "except": ["10.9.1.0/24"]}}]])
def test_policies_are_taken_and_kept_as_planned(plane: ControlPlane, layout: str, peers: list[Any]) -> None:
    network, named = found(SLICE, NODE), {"gpu_plugins_network_policy_from": peers}
    made = [
        item
        for item in (
            *plugin(**DCGM, **named, __gpu_plugins_network=network, __gpu_plugins_nodes={"resources": [NODE]}),
            *scheduler(
                layout, scheduler_network_policy_from=peers, scheduler_metrics_port=9447, __scheduler_cluster=network
            ),
        )
        if item["kind"] == "NetworkPolicy"
    ]
    assert len(made) == 3
    Cluster(plane).apply(made)
    kept = plane.admin.get(POLICIES)["items"]
    # A field that the API server fills in would be told as a difference by every validate.
    assert {item["metadata"]["name"]: item["spec"] for item in kept} == {
        item["metadata"]["name"]: item["spec"] for item in made
    }
