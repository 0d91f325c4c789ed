# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kube_accel.plugin.node.cdi_writer import CdiOptions, CdiWriter
from kube_accel.sharing.delivery import Delivery, Strategy
from kube_accel.sharing.whole import Part, whole
from unit.kube_accel.plugin.fakes import inventory, uuid

VERSION = "580.65.06"


def install(root: Path, version: str = VERSION, directory: str = "usr/lib/x86_64-linux-gnu") -> None:
    libraries = root / directory
    libraries.mkdir(parents=True, exist_ok=True)
    for name in ("libcuda", "libnvidia-ml"):
        (libraries / f"{name}.so.{version}").touch()
        (libraries / f"{name}.so.1").unlink(missing_ok=True)
        (libraries / f"{name}.so.1").symlink_to(f"{name}.so.{version}")
    (libraries / "libcuda.so").unlink(missing_ok=True)
    (libraries / "libcuda.so").symlink_to("libcuda.so.1")


class Node:
    """A writer, and the files it looks at."""

    def __init__(self, root: Path) -> None:
        self.root = root
        install(root)
        self.dev = root / "dev"
        self.dev.mkdir()
        for name in ("nvidia0", "nvidia1", "nvidiactl"):
            (self.dev / name).touch()
        self.file = root / "cdi/kube-accel.io-gpu.json"
        self.proc = root / "proc"
        self.proc.mkdir()
        self.writer = CdiWriter(CdiOptions(root / "cdi"), self.dev, self.proc, root / "sys")

    def update(self, gpus: int = 2, version: str = VERSION, strategy: Strategy = Strategy.CDI_CRI) -> None:
        self.write(self.parts(gpus), version, strategy)

    def write(self, parts: Iterable[Part], version: str = VERSION, strategy: Strategy = Strategy.CDI_CRI) -> None:
        self.writer.update(parts, version, Delivery((strategy,), driver_root_here=str(self.root)))

    @staticmethod
    def parts(gpus: int) -> tuple[Part, ...]:
        return tuple(map(whole, inventory(gpus).gpus))

    def document(self) -> dict[str, Any]:
        document: dict[str, Any] = json.loads(self.file.read_text())
        return document

    def names(self) -> list[str]:
        return [device["name"] for device in self.document()["devices"]]


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def test_whole_gpu_has_graphics_nodes_and_a_mig_device_has_not(node: Node) -> None:
    gpus = inventory(2).gpus
    for number, gpu in enumerate(gpus):
        drm = node.root / "sys/bus/pci/devices" / gpu.pci_address / "drm"
        drm.mkdir(parents=True)
        for name in (f"card{number}", f"renderD{128 + number}", "version"):
            (drm / name).touch()
    (node.dev / "dri").mkdir()
    for name in ("card0", "renderD128", "card1"):
        (node.dev / "dri" / name).touch()
    (node.proc / "devices").write_text("Character devices:\n235 nvidia-caps\n")
    slice_ = replace(whole(gpus[0]), id="MIG-1", uuid="MIG-1", device_nodes=("nvidia1", "nvidia-caps/nvidia-cap12"))
    node.write([*map(whole, gpus), slice_])
    found = {
        device["name"]: [each["path"] for each in device["containerEdits"]["deviceNodes"] if "dri" in each["path"]]
        for device in node.document()["devices"]
    }
    assert found == {uuid(0): ["/dev/dri/card0", "/dev/dri/renderD128"], uuid(1): ["/dev/dri/card1"], "MIG-1": []}


def test_mig_device_has_capabilities_without_nodes_on_the_host(node: Node) -> None:
    """The plugin may have cut it in its container, where the driver's library made the nodes."""
    gpu = whole(inventory(1).gpus[0])
    part = replace(gpu, id="MIG-1", uuid="MIG-1", device_nodes=("nvidia1", "nvidia-caps/nvidia-cap12"))
    node.write([part, gpu])
    assert node.names() == [uuid(0)], "it would be a container without a GPU"
    (node.proc / "devices").write_text("Character devices:\n  1 mem\n195 nvidia\n235 nvidia-caps\n\nBlock devices:\n")
    node.write([part])
    (device,) = node.document()["devices"]
    made = {"path": "/dev/nvidia-caps/nvidia-cap12", "type": "c", "major": 235, "minor": 12}
    assert device["containerEdits"]["deviceNodes"] == [{"path": "/dev/nvidia1"}, made]


def test_it_is_written_and_follows_gpus_driver_and_nodes(node: Node) -> None:
    node.update()
    assert node.names() == [uuid(0), uuid(1)]
    assert [path.name for path in node.file.parent.iterdir()] == [node.file.name], "no draft is left"
    node.update(gpus=1)
    assert node.names() == [uuid(0)]
    (node.dev / "nvidia-uvm").touch()
    node.update(gpus=1)
    assert {"path": "/dev/nvidia-uvm"} in node.document()["containerEdits"]["deviceNodes"]
    install(node.root, "590.1")
    node.update(version="590.1")
    libraries = [mount["hostPath"] for mount in node.document()["containerEdits"]["mounts"]]
    assert libraries
    assert all(path.endswith("590.1") for path in libraries)


def test_what_is_right_is_not_written_again(node: Node) -> None:
    node.update()
    before = node.file.stat().st_ino
    node.update()
    assert node.file.stat().st_ino == before
    node.file.write_text("{")
    node.update()
    assert node.names() == [uuid(0), uuid(1)]


def test_specification_stays_without_driver_and_cdi(node: Node) -> None:
    node.update()
    node.update(gpus=0)
    assert node.names() == [uuid(0), uuid(1)]
    node.update(gpus=1, strategy=Strategy.VOLUME_MOUNTS)
    assert node.names() == [uuid(0), uuid(1)]


def test_without_cdi_there_is_none(node: Node) -> None:
    node.update(strategy=Strategy.ENVVAR)
    assert not node.file.exists()


def test_a_driver_that_is_not_found_is_an_error(node: Node) -> None:
    with pytest.raises(OSError, match=r"no library of driver 1\.2 is below .*--container-driver-root"):
        node.update(version="1.2")
    assert not node.file.exists()


@pytest.mark.parametrize("program", ["nvidia-cdi-hook", "nvidia-ctk"])
def test_the_hook_is_found_on_the_host(node: Node, program: str) -> None:
    (node.root / "usr/bin").mkdir()
    (node.root / "usr/bin" / program).touch()
    node.update()
    assert {hook["path"] for hook in node.document()["containerEdits"]["hooks"]} == {f"/usr/bin/{program}"}
