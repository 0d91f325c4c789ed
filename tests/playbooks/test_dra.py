# SPDX-License-Identifier: Apache-2.0
"""A node of mode dra is served by ResourceSlices, served again, never switched in place, and given back."""

from __future__ import annotations

import re

import pytest

from sim.cluster import NodeSpec, Spec
from sim.cluster.client import Api
from sim.inventory import write_inventory

from .conftest import Playbooks, Start, state
from .test_uninstall import hosts, left, objects

pytestmark = pytest.mark.full
MODES = {"gpu-a": "dra", "gpu-b": "pgpu"}
CLASS = "/apis/resource.k8s.io/v1/deviceclasses/gpu.kube-accel.io"
SLICES = "/apis/resource.k8s.io/v1/resourceslices"


@pytest.fixture(scope="module")
def books(start: Start) -> Playbooks:
    """Bare hosts."""
    books = start(Spec("control", (NodeSpec("gpu-a", "8xh100"), NodeSpec("gpu-b", "t4"))))
    write_inventory(books.cluster.root, MODES)
    return books


def test_node_serves_by_slices_once_and_is_given_back(books: Playbooks) -> None:
    cluster, api = books.cluster, Api(books.cluster.kubeconfig)
    before = hosts(cluster) | objects(cluster)
    done = books.run("accel.kubernetes.site")
    assert done.code == 0, done.output
    (found,) = api.get(SLICES)["items"]
    assert (found["spec"]["nodeName"], len(found["spec"]["devices"])) == ("gpu-a", 8)
    # The simulated cluster is older than the first version that serves them so.
    assert "extendedResourceName" not in api.get(CLASS)["spec"]
    assert "nvidia.com/gpu" not in api.get("/api/v1/nodes/gpu-a")["status"]["allocatable"]
    assert api.get("/api/v1/nodes/gpu-b")["status"]["allocatable"]["nvidia.com/gpu"] == "1"

    again = books.run("accel.kubernetes.site")
    assert (again.code, again.changed) == (0, 0), again.output

    served = state(cluster)
    for modes in ({"gpu-a": "pgpu", "gpu-b": "pgpu"}, {"gpu-a": "dra", "gpu-b": "dra"}):
        refused = books.run("accel.kubernetes.site", inventory=write_inventory(cluster.root, modes))
        assert (refused.code != 0, refused.changed) == (True, 0), refused.output
        assert re.search(r"does not go over to mode \w+ in place", refused.messages), refused.output
    assert state(cluster) == served
    write_inventory(cluster.root, MODES)

    done = books.run("accel.kubernetes.uninstall", driver_uninstall=True)
    assert done.code == 0, done.output
    # Kubelet makes the directory for the pod, and others use it as well.
    after = {line for line in hosts(cluster) if line != "gpu-a/var/run/cdi 0o40755"}
    rest = left(before, after | objects(cluster))
    assert not rest, "\n".join(rest)
