# SPDX-License-Identifier: Apache-2.0
"""Containers that a real containerd makes by our CDI specification: with GPUs, with MIG devices, with none."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cluster.node import NVIDIA_MAJOR, ROOT, GpuNode, gpu_pod, pod
from cluster.rig import PODS, Rig
from cluster.runtime import needs_cdi
from sim.cluster.client import until
from sim.nvml import sysfs
from sim.nvml.topology import Topology

pytestmark = pytest.mark.usefixtures("no_pods_left")
LIBRARIES = "/usr/lib/x86_64-linux-gnu"
PROC = ROOT / "gpus/proc"


@pytest.fixture(scope="module")
def rig(bare_rig: Rig) -> Iterator[Rig]:
    needs_cdi()
    with bare_rig.plane.scheduler():
        yield bare_rig


@pytest.fixture
def node(rig: Rig, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[GpuNode]:
    """With the files of its driver in a directory of their own."""
    with GpuNode(rig, request.param) as made:
        version = Topology.load(ROOT / "gpusim.conf").system.driver
        libraries = tmp_path / LIBRARIES.lstrip("/")
        libraries.mkdir(parents=True)
        (libraries / f"libcuda.so.{version}").write_text(f"driver {version}")
        (libraries / "libcuda.so.1").symlink_to(f"libcuda.so.{version}")
        (tmp_path / "usr/bin").mkdir()
        (tmp_path / "usr/bin/nvidia-smi").write_text("#!/bin/sh\necho here it is\n")
        (tmp_path / "usr/bin/nvidia-smi").chmod(0o755)
        yield made


def flags(driver: Path) -> list[str]:
    return ["--device-list-strategy=cdi-cri", f"--nvidia-driver-root={driver}", "--cdi-dir=/var/run/cdi"]


def nodes(rig: Rig, name: str) -> set[str]:
    """The device nodes of NVIDIA's in the pod's container."""
    listed = rig.kubectl("exec", name, "--", "ls", "-R", "/dev").splitlines()
    return {entry for entry in listed if re.fullmatch(r"nvidia.*\d|nvidiactl|nvidia-uvm.*", entry)}


def says(rig: Rig, name: str, *command: str) -> str:
    return rig.kubectl("exec", name, "--", *command)


def asking(name: str, **variables: str) -> dict[str, Any]:
    """A pod without a GPU whose image asks for all there are."""
    made = pod(name, {})
    made["spec"]["containers"][0]["env"] = [{"name": key, "value": value} for key, value in variables.items()]
    return made


@pytest.mark.parametrize("node", ["8xh100"], indirect=True)
def test_container_sees_its_own_gpus_and_one_without_sees_none(rig: Rig, node: GpuNode, tmp_path: Path) -> None:
    with node.plugin("pgpu", 9445, *flags(tmp_path)):
        node.wait_allocatable(8)
        rig.api.create(PODS, gpu_pod("two", 2))
        rig.api.create(PODS, asking("none", NVIDIA_VISIBLE_DEVICES="all", NVIDIA_DRIVER_CAPABILITIES="all"))
        rig.wait_running("two", "none")
        control = {"nvidiactl", "nvidia-uvm", "nvidia-uvm-tools"}
        given = nodes(rig, "two") - control
        assert len(given) == 2
        assert nodes(rig, "two") - given == control
        held = [uuid for uuid, holder in _holders(node, 2).items() if holder == "two"]
        topology = Topology.load(ROOT / "gpusim.conf")
        assert given == {f"nvidia{gpu.index}" for gpu in topology.gpus if gpu.uuid in held}
        major = says(rig, "two", "stat", "-c", "%t", f"/dev/{min(given)}")
        assert int(major, 16) == NVIDIA_MAJOR
        assert says(rig, "two", "cat", f"{LIBRARIES}/libcuda.so.1").startswith("driver ")
        assert says(rig, "two", "/usr/bin/nvidia-smi") == "here it is\n"

        assert nodes(rig, "none") == set()
        assert "usr" not in says(rig, "none", "ls", "/").split()


def _holders(node: GpuNode, count: int) -> dict[str, str]:
    until(lambda: len(node.holders()) == count, "the annotation to say who holds what")
    return node.holders()


@pytest.mark.parametrize("node", ["4xa100-mig"], indirect=True)
def test_a_container_has_the_mig_device_it_was_given(rig: Rig, node: GpuNode, tmp_path: Path) -> None:
    topology = Topology.load(ROOT / "gpusim.conf")
    sysfs.write_capabilities(topology, PROC.parent)
    (mig,) = (mig for mig in topology.migs if mig.profile == "3g.20gb")
    shutil.rmtree(ROOT / "dev/nvidia-caps", ignore_errors=True)
    (PROC / "devices").write_text(f"Character devices:\n{NVIDIA_MAJOR + 1} nvidia-caps\n")
    with node.plugin("pgpu", 9445, *flags(tmp_path), "--mig-strategy=mixed", f"--proc-root={PROC}"):
        node.wait_allocatable(1, "nvidia.com/mig-3g.20gb")
        rig.api.create(PODS, pod("slice", {"nvidia.com/mig-3g.20gb": "1"}))
        rig.wait_running("slice")
        access = PROC / f"driver/nvidia/capabilities/gpu{mig.gpu}/mig/gi{mig.gi}"
        caps = {int(path.read_text().split()[1]) for path in access.rglob("access")}
        assert len(caps) == 2
        control = {"nvidiactl", "nvidia-uvm", "nvidia-uvm-tools"}
        expected = {f"nvidia{mig.gpu}", *(f"nvidia-cap{minor}" for minor in caps)}
        assert nodes(rig, "slice") == control | expected
