# SPDX-License-Identifier: Apache-2.0
"""The tutorial on claims, as a reader types it, from a bare node to three pods."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster import images
from cluster.control_plane import BINARIES
from cluster.dra import SLICES
from cluster.node import NVIDIA_MAJOR, ROOT, TOPOLOGY, GpuNode
from cluster.rig import NODE, Rig, kubernetes, programs_path
from cluster.runtime import needs_cdi
from cluster.site import Site
from demo.pages import ON_KUBERNETES, Reader
from sim.nvml import sysfs
from sim.nvml.topology import Mig

PAGE = Path(__file__).parents[2] / ON_KUBERNETES[0]
IMAGE = "docker.io/nvidia/cuda:12.4.1-base-ubuntu22.04"
PODS = "/api/v1/namespaces/claims/pods"


@pytest.fixture
def reader(rig: Rig, node: GpuNode, monkeypatch: pytest.MonkeyPatch) -> Reader:
    """Somebody with the inventory of the rig's node, which is control plane too."""
    if kubernetes() < (1, 36):
        pytest.skip("the tutorial is for Kubernetes 1.36 and newer")
    needs_cdi()
    images.load(images.smi(IMAGE, TOPOLOGY.read_bytes()))
    for name, value in {
        "PATH": os.pathsep.join((str(BINARIES), programs_path())),
        "SIMHOST_ROOT": "/",
        "GPUSIM_FILE": str(TOPOLOGY),
    }.items():
        monkeypatch.setenv(name, value)
    Site(rig)
    return Reader(rig.plane.root, rig.plane.root / "admin.conf", {"gpu-1": NODE})


@pytest.fixture
def _capabilities(node: GpuNode) -> Iterator[None]:
    """What the driver shows of MIG devices that there may be, in place of the host's."""
    made = ROOT / "gpus/proc"
    with node.edit() as topology:
        before = list(topology.migs)
        topology.migs += [Mig(gpu=2, gi=gi, ci=0, profile="", mem=0, uuid="") for gi in range(15)]
        sysfs.write_capabilities(topology, made.parent)
        topology.migs = before
    shutil.rmtree(ROOT / "dev/nvidia-caps", ignore_errors=True)
    (made / "devices").write_text(f"Character devices:\n{NVIDIA_MAJOR + 1} nvidia-caps\n")
    mounts = [(made / "devices", "/proc/devices"), (made / "driver", "/proc/driver")]
    for source, target in mounts:
        subprocess.run(["mount", "--bind", source, target], check=True)
    yield
    for _, target in mounts:
        subprocess.run(["umount", "--lazy", target], check=True)


@pytest.mark.usefixtures("_capabilities")
def test_reader_has_a_whole_gpu_a_share_and_a_mig_device(rig: Rig, node: GpuNode, reader: Reader) -> None:
    typed = reader.read(PAGE, (r"kubectl delete namespace \S+",))
    assert typed[-1] == "kubectl inspect gpu -d gpu-1"
    running = {item["metadata"]["name"]: item["status"]["phase"] for item in rig.api.get(PODS)["items"]}
    assert running == dict.fromkeys(("share", "slice", "whole"), "Running")
    claims = rig.api.get("/apis/resource.k8s.io/v1/namespaces/claims/resourceclaims")["items"]
    results = [result for claim in claims for result in claim["status"]["allocation"]["devices"]["results"]]
    devices = sorted(result["device"] for result in results)
    assert [name.partition("-mig")[0] for name in devices] == ["gpu-00", "gpu-01", "gpu-02"]
    assert {each["spec"]["driver"] for each in rig.api.get(SLICES)["items"]} == {"gpu.kube-accel.io"}
    assert json.dumps(rig.node()["status"]["allocatable"]).count("nvidia.com") == 0
    reader.read(PAGE, (r"(?!kubectl delete namespace).*",))
