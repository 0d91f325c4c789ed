# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from kube_accel.enforce.backend import Ask, Start
from kube_accel.enforce.containers import key_of
from kube_accel.enforce.interposer import Interposer, Paths
from kube_accel.enforce.policy import Limit
from kube_accel.enforce.shim import FILES
from kube_accel.plugin.node.driver_files import DriverFinder
from kube_accel.sharing.delivery import Delivery
from kube_accel.sharing.fraction import Kind
from unit.kube_accel.enforce.test_shim import library
from unit.kube_accel.plugin.fakes import inventory, uuid
from unit.kube_accel.plugin.node.test_cdi_writer import install

CARD = uuid(0)
IDS = (f"{CARD}::m1", f"{CARD}::m2")


def interposer(root: Path, build: bytes) -> Interposer:
    """Make the interposer of a daemon whose image has this build."""
    image = root / f"image-{build.decode()}"
    image.mkdir()
    for name in FILES:
        (image / name).write_bytes(library(more=build))
    paths = Paths(root / "state", image, root / "sys", root / "dev", root / "cdi")
    delivery = Delivery(driver_root_here=str(root))
    made = Interposer(paths, delivery, DriverFinder().find, "x86_64")
    assert made.unfit(inventory(1)) == ""
    return made


@pytest.fixture
def root(tmp_path: Path) -> Path:
    install(tmp_path, inventory(1).driver_version)
    return tmp_path


def test_the_build_of_a_container_that_outlived_a_reboot_stays(root: Path) -> None:
    """Kubelet goes on mounting what it was told at admission, and a tmpfs has forgotten what that was."""
    gpus = {gpu.uuid: gpu for gpu in inventory(1).gpus}
    before = interposer(root, b"A")
    got = before.grant(Ask(Kind.MEMORY, IDS, {CARD: 2}, gpus))
    mounted = [Path(path) for path in got.read_only_mounts.values() if Path(path).is_relative_to(root / "state/shim")]
    assert mounted
    shutil.rmtree(root / "state/containers")
    after = interposer(root, b"B")
    for _ in range(2):
        after.start(Start(IDS, (Limit(CARD, 1 << 30, 20),), "uid"))
        for build in (root / "state/shim").iterdir():
            os.utime(build, (0, 0))
        after.prune({key_of(IDS)})
        assert all(path.exists() for path in mounted)
    # Once it has ended nobody needs it.
    shutil.rmtree(root / "state/containers")
    for build in (root / "state/shim").iterdir():
        os.utime(build, (0, 0))
    after.prune(set())
    assert not any(path.exists() for path in mounted)
