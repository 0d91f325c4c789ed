# SPDX-License-Identifier: Apache-2.0
"""What kubectl sends beside what our product does: a namespace that is deleted, and a cordon."""

from __future__ import annotations

import os
import shutil
import subprocess

import pytest

from sim.cluster import Cluster
from sim.cluster.client import Api, pod, until

KUBECTL = shutil.which(
    "kubectl", path=os.pathsep.join([os.environ.get("KUBEBUILDER_ASSETS", ""), "/usr/local/kubebuilder/bin"])
)
NAMESPACES = "/api/v1/namespaces"


def test_a_deleted_namespace_goes_with_its_pods(api: Api) -> None:
    api.create(NAMESPACES, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "team"}})
    api.create(f"{NAMESPACES}/team/pods", pod("worker", "sleep", "1000"))
    until(lambda: api.get(f"{NAMESPACES}/team/pods/worker")["status"].get("phase") == "Running", "the pod to run")
    assert api.call("DELETE", f"{NAMESPACES}/team")[0] == 200
    until(lambda: api.call("GET", f"{NAMESPACES}/team")[0] == 404, "the namespace to go")
    assert api.call("GET", f"{NAMESPACES}/team/pods/worker")[0] == 404


def test_a_node_is_cordoned_by_a_strategic_merge(api: Api) -> None:
    for wanted in (True, None):
        body = {"spec": {"unschedulable": wanted}}
        assert api.call("PATCH", "/api/v1/nodes/n1", body, "application/strategic-merge-patch+json")[0] == 200
        assert api.get("/api/v1/nodes/n1")["spec"].get("unschedulable") == wanted


@pytest.mark.skipif(not KUBECTL, reason="no kubectl in KUBEBUILDER_ASSETS or /usr/local/kubebuilder/bin")
def test_kubectl_describes_why_a_pod_waits(cluster: Cluster, api: Api) -> None:
    wanting = {"resources": {"limits": {"example.org/none": "1"}}}
    api.create(f"{NAMESPACES}/default/pods", pod("big", "true", container=wanting))

    def described() -> str:
        command = [str(KUBECTL), "--kubeconfig", str(cluster.kubeconfig), "describe", "pod", "big"]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout

    until(lambda: "2 Insufficient example.org/none" in described().partition("\nEvents:")[2], "the event", 60)
