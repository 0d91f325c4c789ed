# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from kube_accel.shared.offers import Replication
from kube_accel.sharing.cdi import DriverFiles, HostNodes, extra_nodes, specification
from kube_accel.sharing.delivery import Delivery
from kube_accel.sharing.replication import replicated
from kube_accel.sharing.whole import RESOURCE, Part, layout, whole
from unit.kube_accel.plugin.fakes import inventory, uuid

LIBRARY = "/usr/lib64/libcuda.so.580.1"
FILES = DriverFiles(
    (LIBRARY, "/usr/bin/nvidia-smi"), ("/run/nvidia-persistenced/socket",), {"/usr/lib64/libcuda.so.1": LIBRARY}
)


def made(
    parts: Iterable[Part],
    hook: str | None = None,
    driver_root: str = "/",
    more_nodes: Iterable[str] = (),
    **host: Any,
) -> dict[str, Any]:
    nodes = HostNodes(**{"exists": lambda name: name != "nvidia-modeset"} | host)
    document = specification(parts, FILES, driver_root, nodes, more_nodes, hook)
    assert document is not None
    return document


def paths(edits: dict[str, Any]) -> list[str]:
    return [node["path"] for node in edits.get("deviceNodes", ())]


def test_every_gpu_is_a_device_by_its_uuid() -> None:
    document = made(map(whole, inventory(2).gpus))
    assert document["kind"] == "kube-accel.io/gpu"
    devices = {device["name"]: paths(device["containerEdits"]) for device in document["devices"]}
    assert devices == {uuid(0): ["/dev/nvidia1"], uuid(1): ["/dev/nvidia0"]}
    assert paths(document["containerEdits"]) == ["/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools"]
    assert document["containerEdits"]["env"] == ["NVIDIA_VISIBLE_DEVICES=void"]


def test_replicas_are_one_device() -> None:
    parts = replicated(layout(inventory(1)), [Replication(RESOURCE, RESOURCE, 3)])[RESOURCE]
    assert [device["name"] for device in made(parts)["devices"]] == [uuid(0)]


def test_a_slice_brings_its_own_nodes() -> None:
    nodes = ("nvidia0", "nvidia-caps/nvidia-cap12")
    part = replace(whole(inventory(1).gpus[0]), id="MIG-1", uuid="MIG-1", device_nodes=nodes)
    (device,) = made([part])["devices"]
    assert (device["name"], paths(device["containerEdits"])) == ("MIG-1", [f"/dev/{node}" for node in nodes])


def test_a_gpu_without_its_node_is_no_device() -> None:
    document = made(map(whole, inventory(2).gpus), exists="nvidia0".__eq__)
    assert [device["name"] for device in document["devices"]] == [uuid(1)]
    assert specification(map(whole, inventory(2).gpus), FILES, "/", HostNodes(lambda name: False)) is None


def mounts(document: dict[str, Any]) -> dict[str, str]:
    return {mount["containerPath"]: mount["hostPath"] for mount in document["containerEdits"]["mounts"]}


def test_links_are_made_by_the_hook_or_else_mounted() -> None:
    parts = [whole(inventory(1).gpus[0])]
    files = {path: path for path in (LIBRARY, "/usr/bin/nvidia-smi", "/run/nvidia-persistenced/socket")}
    without = made(parts)
    assert mounts(without) == files | {"/usr/lib64/libcuda.so.1": LIBRARY}
    assert "hooks" not in without["containerEdits"]
    document = made(parts, hook="/usr/bin/nvidia-cdi-hook")
    assert mounts(document) == files
    assert [(hook["path"], hook["args"]) for hook in document["containerEdits"]["hooks"]] == [
        (
            "/usr/bin/nvidia-cdi-hook",
            ["nvidia-cdi-hook", "create-symlinks", "--link", "libcuda.so.580.1::/usr/lib64/libcuda.so.1"],
        ),
        ("/usr/bin/nvidia-cdi-hook", ["nvidia-cdi-hook", "update-ldcache", "--folder", "/usr/lib64"]),
    ]
    hooks = made(parts, hook="/usr/bin/nvidia-ctk")["containerEdits"]["hooks"]
    assert [hook["args"][:3] for hook in hooks] == [
        ["nvidia-ctk", "hook", "create-symlinks"],
        ["nvidia-ctk", "hook", "update-ldcache"],
    ]


def test_driver_in_its_own_directory_is_mounted_where_looked_for() -> None:
    document = made([whole(inventory(1).gpus[0])], driver_root="/run/nvidia/driver")
    assert mounts(document)[LIBRARY] == f"/run/nvidia/driver{LIBRARY}"
    assert mounts(document)["/usr/lib64/libcuda.so.1"] == f"/run/nvidia/driver{LIBRARY}"


def test_switches_bring_nodes() -> None:
    dev = {"": ["nvidia-fs1", "nvidia-fs0", "null"], "infiniband": ["uverbs0", "rdma_cm", "umad0"]}
    everything = Delivery(gdrcopy=True, gds=True, mofed=True, imex_channels=(0,))
    assert extra_nodes(everything, dev.__getitem__) == (
        "nvidia-caps-imex-channels/channel0",
        "gdrdrv",
        "nvidia-fs0",
        "nvidia-fs1",
        "infiniband/rdma_cm",
        "infiniband/uverbs0",
    )
    assert extra_nodes(Delivery(), dev.__getitem__) == ()
    document = made([whole(inventory(1).gpus[0])], more_nodes=("gdrdrv",))
    assert "/dev/gdrdrv" in paths(document["containerEdits"])
