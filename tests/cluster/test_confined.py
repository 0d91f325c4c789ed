# SPDX-License-Identifier: Apache-2.0
"""Shares in containers that may do little, and shares brought by CDI: limited by the interposer, on simulated GPUs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cluster import images
from cluster.control_plane import entry, extender_beside, free_port
from cluster.node import GPUS, GpuNode, pod
from cluster.rig import PODS, Rig
from cluster.runtime import needs_cdi, needs_user_namespaces

pytestmark = pytest.mark.usefixtures("no_pods_left")
CORES = "tencent.com/vcuda-core"
SHARE = {CORES: "30", "tencent.com/vcuda-memory": "16"}
"""4 GiB."""
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
    return rig.kubectl("exec", name, "--", *command)


def finds(rig: Rig, name: str) -> None:
    """The loader's cache, of which the image has none, knows the driver."""
    listed = says(rig, name, "/sbin/ldconfig", "-p")
    assert {"libcuda.so.1", "libnvidia-ml.so.1"} <= {line.split()[0] for line in listed.splitlines() if "=>" in line}


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
    needs_cdi()
    with h100.plugin("vgpu", 9445, "--device-list-strategy=cdi-cri", "--cdi-dir=/var/run/cdi"):
        h100.wait_allocatable(800, CORES)
        rig.api.create(PODS, cuda("brought", confined=False))
        rig.api.create(PODS, cuda("confined", confined=True))
        rig.wait_running("brought", "confined")
        for name in ("brought", "confined"):
            h100.limited(name)
            limited(rig, name)
            finds(rig, name)


@pytest.mark.usefixtures("files")
@pytest.mark.parametrize("strategy", ["envvar", "cdi-cri"])
def test_a_container_in_a_user_namespace_is_limited(rig: Rig, h100: GpuNode, mappable: Path, strategy: str) -> None:
    needs_user_namespaces()
    flags = (f"--device-list-strategy={strategy}", "--cdi-dir=/var/run/cdi", f"--nvidia-driver-root={mappable}")
    with h100.plugin("vgpu", 9445, *flags):
        h100.wait_allocatable(800, CORES)
        rig.api.create(PODS, cuda("mapped", confined=False, hostUsers=False))
        rig.api.create(PODS, cuda("confined", confined=True, hostUsers=False))
        rig.wait_running("mapped", "confined")
        for name, user in (("mapped", "0"), ("confined", "65532")):
            h100.limited(name)
            limited(rig, name)
            if strategy == "cdi-cri":
                finds(rig, name)
            assert says(rig, name, "id", "-u") == f"{user}\n"
            assert int(says(rig, name, "cat", "/proc/self/uid_map").split()[1]) >= 65536
