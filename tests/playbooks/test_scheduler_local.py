# SPDX-License-Identifier: Apache-2.0
"""The extender beside kube-scheduler: certificates renewed, and uninstall of what was cut off half-way."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from playbooks.scheduler import (
    PLAY,
    SITE,
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
)
from sim.cluster import Cluster, NodeSpec, Spec
from sim.cluster.client import Api
from sim.inventory import write_inventory

pytestmark = pytest.mark.full

QUOTA = {"namespaces": {"default": {"limits": [{"cores": 150}]}}}


@dataclass
class Plane:
    cluster: Cluster
    api: Api
    inventory: Path
    before: dict[str, str]

    def extender(self) -> dict[str, Any]:
        (found,) = configuration(self.cluster, "control")["extenders"]
        extender: dict[str, Any] = found
        return extender

    def placed(self, name: str) -> str:
        """The node of a pod that is submitted now."""
        submit(self.api, name, 50, 20)
        try:
            return str(until(lambda: assignment(self.api, name), "the assignment")["node"])
        finally:
            remove(self.api, name)


@pytest.fixture(scope="module")
def plane() -> Iterator[Plane]:
    with (
        tempfile.TemporaryDirectory(prefix="ac", ignore_cleanup_errors=True) as root,
        Cluster(Path(root), Spec("control", (NodeSpec("worker", "t4"),))) as cluster,
    ):
        add_node(cluster, "gpus")
        inventory = write_inventory(cluster.root, {"worker": "vgpu"})
        yield Plane(cluster, Api(cluster.kubeconfig), inventory, files(cluster, "control"))


def test_failed_extender_leaves_scheduler_and_uninstalls(plane: Plane) -> None:
    """Half-installed: certificates and objects are there, kube-scheduler has not been told."""
    output = play(plane.inventory, PLAY, fails=True, scheduler_node_name="other", scheduler_timeout=3)
    assert "set scheduler_node_name" in output
    assert ours(plane.cluster)
    manifest = "kubernetes/manifests/kube-scheduler.yaml"
    assert files(plane.cluster, "control")[manifest] == plane.before[manifest]

    assert changed(play(plane.inventory, UNINSTALL))

    assert files(plane.cluster, "control") == plane.before
    assert ours(plane.cluster) == []
    assert changed(play(plane.inventory, UNINSTALL)) == []


def test_expiring_certificates_are_renewed_and_pods_placed(plane: Plane) -> None:
    play(plane.inventory, PLAY, scheduler_quota=QUOTA)
    first = plane.extender()["tlsConfig"]["certFile"]
    assert plane.placed("before") == "gpus"

    # They last ten years.
    tasks = changed(play(plane.inventory, PLAY, scheduler_pki_renew_days=3651))

    assert tasks[:1] == ["Create the extender's certificates"]
    assert "Configure the extender in kube-scheduler" in tasks
    assert plane.extender()["tlsConfig"]["certFile"] != first
    assert plane.placed("after") == "gpus"


@needs_kube_scheduler
def test_a_real_scheduler_reads_what_was_written(plane: Plane, tmp_path: Path) -> None:
    assert complaint(configuration(plane.cluster, "control"), plane.cluster.root / "control", tmp_path) == ""


def test_a_quota_stays_when_the_variable_is_emptied(plane: Plane) -> None:
    assert "configmaps kube-accel-quota" in ours(plane.cluster)


def test_it_stays_until_no_scheduler_calls_it(plane: Plane) -> None:
    """A second scheduler is to take its place, and the first cannot be configured."""
    # Pods of the simulated cluster share one network.
    words: dict[str, Any] = {"scheduler_layout": "secondary", "scheduler_extender_port": 9447}
    failing = {"scheduler_health_url": "http://127.0.0.1:9", "scheduler_timeout": 30}
    play(plane.inventory, SITE, "--tags=scheduler", fails=True, **words, **failing)
    assert {"daemonsets kube-accel-extender", "deployments accel-scheduler"} <= {*ours(plane.cluster)}
    assert plane.placed("meanwhile") == "gpus"

    play(plane.inventory, SITE, "--tags=scheduler", **words)

    assert "extenders" not in configuration(plane.cluster, "control")
    assert "daemonsets kube-accel-extender" not in ours(plane.cluster)
    assert "deployments accel-scheduler" in ours(plane.cluster)


def test_another_layout_takes_its_place(plane: Plane) -> None:
    play(plane.inventory, PLAY, scheduler_layout="proxied")
    assert "deployments kube-accel-extender" in ours(plane.cluster)
    assert "daemonsets kube-accel-extender" not in ours(plane.cluster)
    assert [item.get("bindVerb") for item in configuration(plane.cluster, "control")["extenders"]] == [None, None]
    assert plane.placed("moved") == "gpus"


def test_uninstall_leaves_what_was_there(plane: Plane) -> None:
    assert changed(play(plane.inventory, UNINSTALL))
    assert files(plane.cluster, "control") == plane.before
    assert ours(plane.cluster) == []
