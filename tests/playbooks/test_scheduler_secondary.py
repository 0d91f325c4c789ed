# SPDX-License-Identifier: Apache-2.0
"""A control plane that cannot be edited, and is no host of the inventory: a second scheduler with the extender."""

from __future__ import annotations

import base64
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from playbooks.scheduler import (
    CORE,
    ON_LOCALHOST,
    PODS,
    add_node,
    assignment,
    changed,
    complaint,
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

INSTALL, UNINSTALL = ON_LOCALHOST.format(tasks="secondary"), ON_LOCALHOST.format(tasks="uninstall")
POD = f"{CORE}/pods?labelSelector=app.kubernetes.io%2Fname%3Dkube-accel-extender"


@dataclass
class Managed:
    cluster: Cluster
    api: Api
    inventory: Path
    before: dict[str, str]


@pytest.fixture(scope="module")
def managed() -> Iterator[Managed]:
    with (
        tempfile.TemporaryDirectory(prefix="ac", ignore_cleanup_errors=True) as root,
        Cluster(Path(root), Spec("control", (NodeSpec("worker", "t4"),))) as cluster,
    ):
        add_node(cluster, "gpus")
        inventory = write_inventory(cluster.root, {"worker": "vgpu"}, scheduler_layout="secondary")
        document = yaml.safe_load(inventory.read_text())
        del document["all"]["children"]["kube_control_plane"]
        inventory.write_text(yaml.safe_dump(document))
        yield Managed(cluster, Api(cluster.kubeconfig), inventory, files(cluster, "control"))


def placed(managed: Managed, name: str) -> str:
    """The node of a pod that asks for the second scheduler now."""
    submit(managed.api, name, 50, 20, schedulerName="accel-scheduler")
    try:
        return str(until(lambda: assignment(managed.api, name), "the assignment")["node"])
    finally:
        remove(managed.api, name)


def test_secondary_places_only_pods_that_name_it(managed: Managed) -> None:
    assert changed(play(managed.inventory, INSTALL))
    assert placed(managed, "first") == "gpus"
    (pod,) = managed.api.call("GET", POD)[1]["items"]
    assert {item["name"]: item["ready"] for item in pod["status"]["containerStatuses"]} == {
        "extender": True,
        "kube-scheduler": True,
    }
    body = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "plain"}}
    container = {"name": "main", "image": "none", "command": ["sleep", "1000"]}
    managed.api.call("POST", PODS, body | {"spec": {"containers": [container]}})
    until(lambda: managed.api.call("GET", f"{PODS}/plain")[1]["spec"].get("nodeName") == "worker", "the plain pod")
    remove(managed.api, "plain")


@needs_kube_scheduler
def test_a_real_scheduler_reads_what_it_is_given(managed: Managed, tmp_path: Path) -> None:
    store = managed.cluster.store
    config = yaml.safe_load(store.get("configmaps", "kube-system", "accel-scheduler")["data"]["scheduler.yaml"])
    certificates = tmp_path / "etc/kube-accel/certificates"
    certificates.mkdir(parents=True)
    for name, value in store.get("secrets", "kube-system", "kube-accel-extender-tls")["data"].items():
        (certificates / name).write_bytes(base64.b64decode(value))
    # In its pod it has a service account instead.
    config["clientConnection"] = {"kubeconfig": str(managed.cluster.kubeconfig)}
    assert complaint(config, tmp_path, tmp_path) == ""


def test_a_second_run_changes_nothing(managed: Managed) -> None:
    assert changed(play(managed.inventory, INSTALL)) == []
    assert files(managed.cluster, "control") == managed.before


def test_certificates_near_their_end_are_renewed_with_a_new_pod(managed: Managed) -> None:
    (old,) = managed.api.call("GET", POD)[1]["items"]

    tasks = changed(play(managed.inventory, INSTALL, scheduler_pki_renew_days=3651))

    assert tasks[:2] == ["Create certificates in the temporary directory", "Store the certificates in a Secret"]

    def replaced() -> bool:
        items = managed.api.call("GET", POD)[1]["items"]
        return [item["metadata"]["uid"] for item in items] != [old["metadata"]["uid"]] and len(items) == 1

    until(replaced, "a new pod")
    assert placed(managed, "second") == "gpus"


def test_uninstall_leaves_what_was_there_and_shows_no_key(managed: Managed) -> None:
    keys = managed.cluster.store.get("secrets", "kube-system", "kube-accel-extender-tls")["data"]
    output = play(managed.inventory, UNINSTALL, "-v")
    assert "Secret kube-accel-extender-tls" in output
    assert [name for name, value in keys.items() if value in output] == []
    assert ours(managed.cluster) == []
    assert files(managed.cluster, "control") == managed.before
