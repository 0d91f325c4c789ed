# SPDX-License-Identifier: Apache-2.0
"""site.yml with a scheduler that cannot be configured as asked: it says what to do, before anything is changed."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from playbooks.scheduler import SITE, files, ours, play
from sim.cluster import Cluster, NodeSpec, Spec
from sim.inventory import write_inventory

VERSION = "kubescheduler.config.k8s.io/v1"
BINDER = {"urlPrefix": "http://127.0.0.1:9/theirs", "bindVerb": "bind", "managedResources": [{"name": "example.com/a"}]}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with (
        tempfile.TemporaryDirectory(prefix="ac", ignore_cleanup_errors=True) as root,
        Cluster(Path(root), Spec("control", (NodeSpec("gpu-a", "t4"),))) as running,
    ):
        yield running


@pytest.fixture
def inventory(cluster: Cluster) -> Path:
    return write_inventory(cluster.root, {"gpu-a": "vgpu"})


def refusal(cluster: Cluster, inventory: Path, **variables: Any) -> str:
    """Runs the site, which must fail and change nothing; the messages of the failed tasks."""
    before = [files(cluster, host) for host in ("control", "gpu-a")]
    output = play(inventory, SITE, fails=True, **variables)
    assert not re.search(r"changed=[1-9]", output), output
    assert [files(cluster, host) for host in ("control", "gpu-a")] == before
    assert ours(cluster) == []
    return " ".join(re.findall(r'"msg": "(.*?)"[,}]', output))


def without_control_plane(inventory: Path) -> None:
    document = yaml.safe_load(inventory.read_text())
    del document["all"]["children"]["kube_control_plane"]
    inventory.write_text(yaml.safe_dump(document))


@pytest.fixture
def theirs(cluster: Cluster) -> Iterator[Path]:
    """A configuration of others, which kube-scheduler is told to read."""
    tree = cluster.root / "control/etc/kubernetes"
    config, path = tree / "theirs/scheduler.yaml", tree / "manifests/kube-scheduler.yaml"
    config.parent.mkdir()
    before = path.read_text()
    manifest = yaml.safe_load(before)
    container = manifest["spec"]["containers"][0]
    container["command"].append("--config=/inside/scheduler.yaml")
    container["volumeMounts"].append({"name": "theirs", "mountPath": "/inside"})
    manifest["spec"]["volumes"].append({"name": "theirs", "hostPath": {"path": "/etc/kubernetes/theirs"}})
    path.write_text(yaml.safe_dump(manifest))
    yield config
    path.write_text(before)
    config.unlink()
    config.parent.rmdir()


def test_all_that_is_wrong_with_the_variables_is_said_in_one_go(cluster: Cluster, inventory: Path) -> None:
    quota = {"namespaces": {"team-a": {"limit": [{"cores": 100}]}}}
    message = refusal(cluster, inventory, scheduler_layout="beside", scheduler_policy="pack", scheduler_quota=quota)
    assert "scheduler_layout is 'beside'; set it to one of auto, local, proxied, secondary, none" in message
    assert "scheduler_policy is 'pack'; set it to binpack or spread" in message
    assert "did you mean limits?" in message


@pytest.mark.full
def test_local_layout_without_control_plane_names_a_remedy(cluster: Cluster, inventory: Path) -> None:
    without_control_plane(inventory)
    message = refusal(cluster, inventory, scheduler_layout="local")
    assert "no host in the group 'kube_control_plane'" in message
    assert "scheduler_layout=secondary" in message


@pytest.mark.full
def test_secondary_layout_is_checked_before_nodes_change(cluster: Cluster, inventory: Path) -> None:
    without_control_plane(inventory)
    quota = {"namespace": {}}
    message = refusal(cluster, inventory, scheduler_layout="secondary", scheduler_quota=quota, scheduler_image="")
    assert "did you mean namespaces?" in message
    assert "scheduler_image is not set" in message


@pytest.mark.full
@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            yaml.safe_dump({"apiVersion": VERSION, "kind": "KubeSchedulerConfiguration", "extenders": [BINDER]}),
            ["http://127.0.0.1:9/theirs", "Set scheduler_layout=proxied"],
        ),
        ("extenders: [\n", ["theirs/scheduler.yaml is not YAML, line"]),
        (f"apiVersion: {VERSION}beta1\nkind: KubeSchedulerConfiguration\n", ["v1beta1", "convert it"]),
        (f"apiVersion: {VERSION}\nkind: KubeSchedulerConfiguration\nextender: []\n", ["extender is no field"]),
    ],
    ids=["binder", "no YAML", "version", "field"],
)
def test_a_configuration_that_cannot_be_merged_into_is_named(
    cluster: Cluster, inventory: Path, theirs: Path, text: str, words: list[str]
) -> None:
    theirs.write_text(text)
    message = refusal(cluster, inventory, scheduler_layout="local")
    assert all(word in message for word in words), message
