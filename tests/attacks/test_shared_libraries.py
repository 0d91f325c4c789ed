# SPDX-License-Identifier: Apache-2.0
"""What a tenant does to the files that all containers of a node share: the interposer and the driver's libraries."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from attacks.conftest import POLICY, Attacked, attacked, needs_root
from kube_accel.model import Mode
from sim import driver
from unit.kube_accel.enforce.test_held_open import leasable
from waiting import wait

pytestmark = [pytest.mark.attack, needs_root]

LEASES = """
signal.signal(signal.SIGIO, signal.SIG_IGN)
files, answers = [], {}
for path in sys.argv[1:]:
    files.append(os.open(path, os.O_RDONLY))
    try:
        fcntl.fcntl(files[-1], fcntl.F_SETLEASE, fcntl.F_WRLCK)
        answers[path] = "leased"
    except OSError as error:
        answers[path] = errno.errorcode[error.errno]
print(json.dumps(answers), flush=True)
sys.stdin.read()
"""
CHANGES = """
answers = set()
for path in sys.argv[1:]:
    for change in (
        lambda: os.open(path, os.O_RDWR),
        lambda: os.truncate(path, 0),
        lambda: os.chmod(path, 0),
        lambda: os.chown(path, 1, 1),
        lambda: os.unlink(path),
        lambda: os.utime(path),
        lambda: os.setxattr(path, "user.a", b"a"),
    ):
        try:
            change()
            answers.add(path)
        except OSError as error:
            answers.add(errno.errorcode[error.errno])
print(*sorted(answers))
"""
USES = "from gpu.driver import Driver; driver = Driver(); driver.open(); print(driver.mem_info()[1])"


def _exclusivity(node: Attacked) -> None:
    """A neighbor starts and loads the driver; that takes seconds, and a lease is broken in 45 s."""
    begin = time.monotonic()
    neighbor = node.start("neighbor", gpu=1, gib=4)
    assert neighbor.run(USES) == f"{4 << 30}\n"
    assert time.monotonic() - begin < 20
    node.end(neighbor)
    node.unharmed()


def test_no_lease_is_had_on_a_file_that_containers_share(node: Attacked) -> None:
    tenant = node.start("tenant")
    shared = [mount.container_path for mount in tenant.got.mounts if mount.read_only and mount.container_path != POLICY]
    process = tenant.begin(LEASES, *shared)
    assert process.stdout is not None
    answers = json.loads(process.stdout.readline())
    assert len(answers) > 10
    assert set(answers.values()) == {"EAGAIN"}, answers
    _exclusivity(node)
    node.end(tenant)


def test_files_that_containers_share_cannot_be_changed(node: Attacked) -> None:
    tenant = node.start("vandal")
    shared = [mount.container_path for mount in tenant.got.mounts if mount.read_only]
    assert set(tenant.run(CHANGES, *shared).split()) <= {"EACCES", "EBUSY", "EROFS"}
    _exclusivity(node)
    node.end(tenant)


@pytest.mark.parametrize(
    ("mode", "flags"),
    [
        (Mode.VGPU, ["--enforcement=none"]),
        (Mode.MPS, ["--enforcement=mps"]),
        (Mode.PGPU, ["--device-list-strategy=cdi-annotations", "--cdi-dir={}"]),
    ],
    ids=["unenforced", "MPS alone", "whole GPUs by CDI"],
)
def test_the_driver_is_held_where_others_mount_it(tmp_path: Path, mode: Mode, flags: list[str]) -> None:
    with attacked(mode, *(flag.format(tmp_path) for flag in flags)) as node:
        libraries = {path.resolve() for path in driver.installed(node.root / "usr/lib")}
        assert len(libraries) == 2
        wait(lambda: not any(map(leasable, libraries)), "the driver's libraries to be held", 20)
