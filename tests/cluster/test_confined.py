# SPDX-License-Identifier: Apache-2.0
"""Shares in containers that may do little, and shares brought by CDI: limited by the interposer, on simulated GPUs."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cluster import images
from cluster.control_plane import entry, extender_beside, free_port
from cluster.node import STATE, TOPOLOGY, GpuNode, pod
from cluster.rig import PODS, Rig
from sim.driver import installed

pytestmark = pytest.mark.usefixtures("no_pods_left")
CORES = "tencent.com/vcuda-core"
SHARE = {CORES: "30", "tencent.com/vcuda-memory": "16"}
"""4 GiB."""
GPUS = Path("/run/gpus")
CONFINED = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "readOnlyRootFilesystem": True,
    "runAsGroup": 65532,
    "runAsNonRoot": True,
    "runAsUser": 65532,
    "seccompProfile": {"type": "RuntimeDefault"},
}


@pytest.fixture(scope="module")
def rig(bare_rig: Rig) -> Iterator[Rig]:
    images.load(images.cuda())
    port = free_port()
    with extender_beside(bare_rig.plane, port), bare_rig.plane.scheduler([entry(bare_rig.plane, port)]):
        yield bare_rig


@pytest.fixture
def files(h100: GpuNode) -> None:
    """What the simulated driver in a container reads of the GPUs and writes of their memory."""
    GPUS.mkdir(exist_ok=True)
    (GPUS / "gpusim.conf").write_text(TOPOLOGY.read_text())
    memory = GPUS / "gpusim.conf.cuda"
    memory.touch()
    memory.chmod(0o666)


def cuda(name: str, *, confined: bool, **spec: Any) -> dict[str, Any]:
    """A pod with 4 GiB of a GPU."""
    made = pod(name, SHARE, volumes=[{"name": "gpus", "hostPath": {"path": str(GPUS)}}], **spec)
    (container,) = made["spec"]["containers"]
    container |= {
        "image": images.CUDA,
        "env": [{"name": "GPUSIM_FILE", "value": "/gpus/gpusim.conf"}],
        "volumeMounts": [{"name": "gpus", "mountPath": "/gpus"}],
        "securityContext": CONFINED if confined else {},
    }
    return made


def says(rig: Rig, name: str, *command: str) -> str:
    try:
        return rig.kubectl("exec", name, "--", *command)
    except subprocess.CalledProcessError as error:
        raise AssertionError(error.stderr) from error


def limited(rig: Rig, name: str) -> None:
    """Three of four GiB are given, and six refused."""
    assert says(rig, name, "take", "3072", "6144", "3072") == "0 2 0 4096\n"


@pytest.mark.usefixtures("files")
def test_a_container_that_may_do_nothing_is_limited(rig: Rig, h100: GpuNode) -> None:
    with h100.plugin("vgpu"):
        h100.wait_allocatable(800, CORES)
        rig.api.create(PODS, cuda("confined", confined=True))
        rig.wait_running("confined")
        limited(rig, "confined")
        assert says(rig, "confined", "id", "-u") == "65532\n"
        status = dict(re.findall(r"^(\w+):\t(\S+)", says(rig, "confined", "cat", "/proc/1/status"), re.MULTILINE))
        assert (int(status["CapBnd"], 16), status["NoNewPrivs"], status["Seccomp"]) == (0, "1", "2")
        with pytest.raises(AssertionError, match="Read-only file system"):
            says(rig, "confined", "touch", "/file")


@pytest.mark.usefixtures("files")
def test_a_share_brought_by_cdi_is_limited(rig: Rig, h100: GpuNode) -> None:
    said = subprocess.run(["ctr", "version"], check=True, capture_output=True, text=True).stdout
    if max(int(number) for number in re.findall(r"Version: +v?(\d+)", said)) < 2:
        pytest.skip("CDI needs containerd 2: name the directory of its programs in RIG_CONTAINERD")
    with h100.plugin("vgpu", 9445, "--device-list-strategy=cdi-cri", "--cdi-dir=/var/run/cdi"):
        h100.wait_allocatable(800, CORES)
        rig.api.create(PODS, cuda("brought", confined=False))
        rig.api.create(PODS, cuda("confined", confined=True))
        rig.wait_running("brought", "confined")
        for name in ("brought", "confined"):
            h100.limited(name)
            limited(rig, name)


@pytest.fixture
def mappable(h100: GpuNode, tmp_path: Path) -> Iterator[Path]:
    """The driver's root, of a node as a user namespace needs it.

    What is mounted lies on file systems that can be mapped, which the overlay of this machine is not. And a sysfs is to
    be seen whole somewhere: the simulated GPUs cover parts of the first.
    """
    driver = Path(tempfile.mkdtemp(prefix="driver-", dir="/run"))
    driver.chmod(0o755)
    subprocess.run(["mount", "-t", "sysfs", "sysfs", tmp_path], check=True)
    STATE.mkdir(exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "state", STATE], check=True)
    for library in installed(Path("/usr/lib")):
        copy = driver / library.relative_to("/")
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(library, copy, follow_symlinks=False)
    yield driver
    subprocess.run(["umount", "--lazy", STATE, tmp_path], check=True)


@pytest.mark.usefixtures("files")
@pytest.mark.parametrize("strategy", ["envvar", "cdi-cri"])
def test_a_container_in_a_user_namespace_is_limited(rig: Rig, h100: GpuNode, mappable: Path, strategy: str) -> None:
    programs = os.pathsep.join([os.environ.get("RIG_CONTAINERD", ""), os.environ["PATH"]])
    features = json.loads(
        subprocess.run(
            ["runc", "features"], env={**os.environ, "PATH": programs}, check=True, capture_output=True
        ).stdout
    )
    if not features["linux"].get("mountExtensions", {}).get("idmap", {}).get("enabled"):
        pytest.skip("a user namespace needs runc 1.2: name the directory of such programs in RIG_CONTAINERD")
    flags = (f"--device-list-strategy={strategy}", "--cdi-dir=/var/run/cdi", f"--nvidia-driver-root={mappable}")
    with h100.plugin("vgpu", 9445, *flags):
        h100.wait_allocatable(800, CORES)
        rig.api.create(PODS, cuda("mapped", confined=False, hostUsers=False))
        rig.api.create(PODS, cuda("confined", confined=True, hostUsers=False))
        rig.wait_running("mapped", "confined")
        for name, user in (("mapped", "0"), ("confined", "65532")):
            h100.limited(name)
            limited(rig, name)
            assert says(rig, name, "id", "-u") == f"{user}\n"
            assert int(says(rig, name, "cat", "/proc/self/uid_map").split()[1]) >= 65536
