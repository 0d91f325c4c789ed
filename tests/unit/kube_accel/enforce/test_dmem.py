# SPDX-License-Identifier: Apache-2.0
from dataclasses import replace
from pathlib import Path

import pytest

from kube_accel.enforce.backend import EnforceError, Start, Unenforced
from kube_accel.enforce.dmem import Dmem
from kube_accel.enforce.policy import Limit
from kube_accel.model import Mode
from kube_accel.sharing.profile import PROFILES
from unit.kube_accel.plugin.fakes import inventory, uuid

GIB = 1 << 30
UID = "3f2a7c1e-0b6d-4a55-9f10-6a1c2b3d4e5f"
GPUS = replace(inventory(1), driver_version="615.10")


class World:
    def __init__(self, root: Path) -> None:
        self.asked: list[tuple[str, str, int]] = []
        self.problem = ""
        self.cgroups = root / "fs/cgroup"
        self.cgroups.mkdir(parents=True)
        (self.cgroups / "cgroup.controllers").touch()
        plain = Unenforced(PROFILES[Mode.VGPU], lambda name: True)
        self.dmem = Dmem(plain, self.limit, root)

    def limit(self, gpu: str, cgroup: str, memory: int, timeout: float) -> str:
        self.asked.append((gpu, cgroup, memory))
        return self.problem

    def start(self, uid: str = UID) -> None:
        limits = (Limit(uuid(0), 4 * GIB, 30), Limit(uuid(1), 0, 100))
        self.dmem.start(Start((), limits, uid, {uuid(0): GIB}))


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


@pytest.mark.parametrize(
    "path",
    [
        f"kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{UID.replace('-', '_')}.slice",
        f"kubepods.slice/kubepods-pod{UID.replace('-', '_')}.slice",
        f"kubepods/besteffort/pod{UID}",
        f"kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-pod{UID.replace('-', '_')}.slice",
    ],
)
def test_a_pods_cgroup_has_what_all_its_containers_have(world: World, path: str) -> None:
    (world.cgroups / path).mkdir(parents=True)
    world.start()
    assert world.asked == [(uuid(0), f"/sys/fs/cgroup/{path}", 5 * GIB)]


def test_a_container_that_cannot_be_limited_does_not_start(world: World) -> None:
    with pytest.raises(EnforceError, match="has not reported its pod yet"):
        world.start("")
    with pytest.raises(EnforceError, match="has no cgroup"):
        world.start()
    (world.cgroups / f"kubepods/pod{UID}").mkdir(parents=True)
    world.problem = "Not Supported"
    with pytest.raises(EnforceError, match="cannot be limited: Not Supported"):
        world.start()


def test_it_needs_a_driver_and_a_kernel_that_know_it(world: World) -> None:
    assert world.dmem.unfit(GPUS) == ""
    assert "that is from 615 on" in world.dmem.unfit(inventory(1))
    (world.cgroups / "cgroup.controllers").unlink()
    assert "version 1" in world.dmem.unfit(GPUS)
