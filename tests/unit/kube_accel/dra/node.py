# SPDX-License-Identifier: Apache-2.0
"""A node's claims: an API server in memory, GPUs, the driver's files, and directories for the rest."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from kube_accel.dra.checkpoint import Checkpoint
from kube_accel.dra.maker import Maker
from kube_accel.dra.node_devices import NodeDevices
from kube_accel.dra.offering import Offerer
from kube_accel.dra.partitioner import Partitioner
from kube_accel.dra.preparer import Preparer
from kube_accel.dra.shares import Shares
from kube_accel.dra.specifications import ClaimSpecifications
from kube_accel.dra.status import StatusWriter
from kube_accel.enforce.interposer import Interposer, Paths
from kube_accel.enforce.shim import FILES
from kube_accel.kube.client import KubeClient
from kube_accel.model import Gpu, GpuHealth
from kube_accel.nvml.gpus import HeldGpus
from kube_accel.plugin.node.cdi_writer import CdiDocuments, CdiOptions
from kube_accel.plugin.node.driver_files import DriverFinder
from kube_accel.sharing.delivery import Delivery
from unit.kube_accel.dra.api import FakeApi
from unit.kube_accel.enforce.test_shim import library
from unit.kube_accel.plugin.fakes import inventory, ready

POOL = "node-1/kube-accel"
DRIVER_FILES = ("libcuda.so.580.159.04", "libcuda.so.1")
NVML = "libnvidia-ml.so.580.159.04"


class ClaimNode:
    """With four GPUs. ``preparer`` makes another instance of the driver, which shares all files."""

    def __init__(self, root: Path) -> None:
        self.root, self.api = root, FakeApi()
        self.state, self.cdi = root / "state", root / "cdi"
        libraries = root / "usr/lib"
        for directory in (self.state, self.cdi, root / "dev", libraries):
            directory.mkdir(parents=True)
        (libraries / DRIVER_FILES[0]).touch()
        (libraries / DRIVER_FILES[1]).symlink_to(DRIVER_FILES[0])
        (libraries / NVML).touch()
        for name in ("nvidiactl", "nvidia-uvm", *(f"nvidia{minor}" for minor in range(4))):
            (root / "dev" / name).touch()
        self.boot_id = root / "boot_id"
        self.boot_id.write_text("first\n")
        self.devices = NodeDevices(root / "sys")
        self.see()

    def see(self, changed: Mapping[int, GpuHealth] | None = None, gpus: Mapping[int, Gpu] | None = None) -> None:
        """``gpus`` are others than those of before."""
        snapshot = ready(4, changed)
        known = inventory(4)
        known = replace(known, gpus=tuple((gpus or {}).get(gpu.index, gpu) for gpu in known.gpus))
        self.devices.see(replace(snapshot, inventory=known))

    def shares(self) -> Shares:
        """As a daemon has them whose image has an interposer."""
        image = self.root / "image"
        image.mkdir(exist_ok=True)
        for name in FILES:
            (image / name).write_bytes(library())
        paths = Paths(self.state, image, self.root / "sys", self.root / "dev", self.cdi)
        delivery = Delivery(driver_root_here=str(self.root))
        made = Shares(Interposer(paths, delivery, DriverFinder().find, "x86_64"))
        made.see(inventory(4))
        return made

    def maker(self, checkpoint: Checkpoint) -> Maker:
        """None of its GPUs is offered in parts."""
        return Maker(Partitioner(cast(HeldGpus, None), self.state), checkpoint, self.devices, Offerer(()))

    def preparer(self, shares: Shares | None = None, status: StatusWriter | None = None) -> Preparer:
        documents = CdiDocuments(CdiOptions(self.cdi), self.root / "dev", self.root / "proc", self.root / "sys")
        delivery = Delivery(driver_root_here=str(self.root))
        specifications = ClaimSpecifications(self.cdi, documents, delivery, shares or Shares(None))
        checkpoint = Checkpoint(self.state, self.boot_id)
        maker = self.maker(checkpoint)
        return Preparer(cast(KubeClient, self.api), POOL, checkpoint, specifications, self.devices, maker, status)

    def files(self) -> list[str]:
        """The specifications there are."""
        return sorted(path.name for path in self.cdi.iterdir())

    def specification(self, uid: str) -> dict[str, Any]:
        document: dict[str, Any] = json.loads((self.cdi / f"kube-accel.io-claim-{uid}.json").read_text())
        return document

    def checkpoint(self) -> dict[str, Any]:
        document: dict[str, Any] = json.loads((self.state / "claims.json").read_text())
        return document
