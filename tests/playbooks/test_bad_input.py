# SPDX-License-Identifier: Apache-2.0
"""site.yml with an inventory that cannot work: it says what to do about it, before anything is changed."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from sim.cluster import Cluster, NodeSpec, Spec
from sim.inventory import write_inventory

from .conftest import play, state


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with (
        tempfile.TemporaryDirectory(prefix="accel-", ignore_cleanup_errors=True) as root,
        Cluster(Path(root), Spec("control", (NodeSpec("gpu-a", "t4"),))) as running,
    ):
        yield running


@pytest.fixture
def inventory(cluster: Cluster) -> Path:
    return write_inventory(cluster.root)


def refusal(cluster: Cluster, inventory: Path, collections: Path, **variables: Any) -> str:
    """Runs the site, which must fail and change nothing; returns the messages of the failed tasks."""
    before = state(cluster)
    done = play(collections, "accel.kubernetes.site", "-i", str(inventory), **variables)
    assert done.code != 0, done.output
    assert done.changed == 0, done.output
    assert state(cluster) == before
    return done.messages


def test_an_unknown_mode_names_the_host_and_the_modes(cluster: Cluster, inventory: Path, collections: Path) -> None:
    message = refusal(cluster, inventory, collections, gpu_mode="shared")
    assert "Unknown gpu_mode: gpu-a is shared; set it to one of pgpu" in message


@pytest.mark.parametrize("group", ["kube_control_plane", "gpu_nodes"])
def test_an_inventory_without_a_group_names_the_group(
    cluster: Cluster, inventory: Path, collections: Path, group: str
) -> None:
    document = yaml.safe_load(inventory.read_text())
    del document["all"]["children"][group]
    inventory.write_text(yaml.safe_dump(document))
    assert f"no host in the group '{group}'" in refusal(cluster, inventory, collections)


@pytest.mark.full
def test_a_missing_driver_names_the_variable(cluster: Cluster, inventory: Path, collections: Path) -> None:
    message = refusal(cluster, inventory, collections, driver_method="none")
    assert "No NVIDIA driver is loaded and driver_method is none" in message


def test_kubelet_and_image_are_missed_in_one_go(cluster: Cluster, inventory: Path, collections: Path) -> None:
    message = refusal(cluster, inventory, collections, gpu_plugins_kubelet_dir="/var/lib/other", gpu_plugins_image="")
    assert "/var/lib/other/device-plugins does not exist" in message
    assert "gpu_plugins_image is not set" in message


@pytest.mark.full
def test_an_image_that_cannot_be_assembled(cluster: Cluster, inventory: Path, collections: Path) -> None:
    message = refusal(
        cluster,
        inventory,
        collections,
        gpu_plugins_image="",
        kube_accel_image_assemble={"riscv64": {"base": "/srv/base.tar", "wheels": ["/srv/none/*.whl"]}},
        kube_accel_image_delivery="push",
    )
    assert "is by architecture, amd64 or arm64, and has riscv64" in message
    assert "needs base and wheels, kube_accel's among them, for each architecture: see riscv64" in message
    assert "name registry and repository in kube_accel_image_reference" in message


@pytest.mark.full
def test_an_image_is_named_or_assembled(cluster: Cluster, inventory: Path, collections: Path, tmp_path: Path) -> None:
    (tmp_path / "kube_accel-1-py3-none-any.whl").touch()
    parts = {"base": "/srv/base.tar", "wheels": [f"{tmp_path}/*.whl"]}
    message = refusal(cluster, inventory, collections, kube_accel_image_assemble={"amd64": parts})
    assert "gpu_plugins_image and kube_accel_image_assemble are both set" in message


FOREIGN = {
    "nvdp-nvidia-device-plugin": "nvcr.io/nvidia/k8s-device-plugin:v0.17.0",
    "nvidia-device-plugin-daemonset": "registry.example.com/mirror/plugin:1",  # the GPU operator's
    "hami-device-plugin": "projecthami/hami:v2.10.0",
}


def test_foreign_plugins_and_device_classes_stay_in_charge(
    cluster: Cluster, inventory: Path, collections: Path
) -> None:
    for name, image in FOREIGN.items():
        template = {
            "metadata": {"labels": {"name": name}},
            "spec": {"containers": [{"name": "ctr", "image": image}], "nodeSelector": {"no": "node"}},
        }
        head = {"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {"name": name}}
        spec = {"selector": {"matchLabels": {"name": name}}, "template": template}
        cluster.store.create("daemonsets", "kube-system", head | {"spec": spec})
    dra = {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": "gpu.nvidia.com"}}
    cluster.store.create("deviceclasses", "", dra | {"spec": {"extendedResourceName": "nvidia.com/gpu"}})
    try:
        message = refusal(cluster, inventory, collections)
    finally:
        for name in FOREIGN:
            cluster.store.delete("daemonsets", "kube-system", name)
        cluster.store.delete("deviceclasses", "", "gpu.nvidia.com")
    assert all(f"kube-system/{name}" in message for name in FOREIGN)
    assert "DeviceClass gpu.nvidia.com serves the same resources" in message
    assert "gpu_plugins_takeover=true" in message


@pytest.mark.full
def test_an_api_server_out_of_reach_names_the_variable(
    cluster: Cluster, inventory: Path, collections: Path, tmp_path: Path
) -> None:
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(re.sub(r"https://127.0.0.1:\d+", "https://127.0.0.1:1", cluster.kubeconfig.read_text()))
    message = refusal(cluster, inventory, collections, gpu_plugins_kubeconfig=str(kubeconfig))
    assert "set gpu_plugins_kubeconfig" in message
