# SPDX-License-Identifier: Apache-2.0
"""What a tenant and a local user do to the files of a container, while a neighbour starts."""

from __future__ import annotations

import functools
import stat
import subprocess
import time
from itertools import count

import pytest
from ansible_collections.accel.kubernetes.plugins.module_utils.host import account_mount

from attacks.conftest import POLICY, STATE, Attacked, attacked, needs_root, stranger
from kube_accel.enforce import spares as spare_files
from kube_accel.model import Mode
from waiting import wait

pytestmark = [pytest.mark.attack, needs_root]

LEASE = """
signal.signal(signal.SIGIO, signal.SIG_IGN)
path, kind, grow = sys.argv[1], int(sys.argv[2]), sys.argv[3] == "True"
file = os.open(path, os.O_RDONLY)
if grow:
    os.truncate(path, os.stat(path).st_size + 1)
try:
    fcntl.fcntl(file, fcntl.F_SETLEASE, kind)
    print("leased", flush=True)
except OSError as error:
    print(errno.errorcode[error.errno], flush=True)
sys.stdin.read()
"""
LOCK = """
file = os.open(sys.argv[1], os.O_RDWR)
fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
print("locked", flush=True)
sys.stdin.read()
"""
AGAIN = """
path = sys.argv[1]
while True:
    try:
        os.truncate(path, 1 << 20)
    except OSError:
        pass
    time.sleep(0.1)
"""
CHANGES = {
    "setuid": "os.chmod(sys.argv[1], 0o6755)",
    "hidden": "os.chmod(sys.argv[1], 0)",
    "grown": "os.truncate(sys.argv[1], 1 << 24)",
    "sparse": "os.truncate(sys.argv[1], 1 << 40)",
    "hidden and filled": (
        "file = os.open(sys.argv[1], os.O_RDWR); os.fchmod(file, 0); os.posix_fallocate(file, 0, 8 << 20)"
    ),
    "cut": "os.truncate(sys.argv[1], 0)",
}
_names = count()


def _exclusivity(node: Attacked) -> None:
    """A neighbour starts, as kubelet sees it; a start takes hundredths of a second, and a lease is broken in 45 s."""
    begin = time.monotonic()
    node.end(node.start(f"neighbour-{next(_names)}", gpu=1))
    assert time.monotonic() - begin < 20


def _prepared(node: Attacked) -> None:
    """The plugin has made the files of the next starts, as it has soon after its own."""
    spares = functools.partial((node.state_dir / "containers").glob, ".spare-*/*/policy")
    wait(lambda: len(list(spares())) == spare_files.KEPT, "the spare files of the next starts")


def _bound(node: Attacked, mib: int) -> None:
    """Mount on the directory of the accounts what the role mounts there; the plugin goes on."""
    where = node.state_dir / "containers"
    options = account_mount.options(mib)
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, account_mount.SOURCE, where], check=True)
    node.stack.callback(subprocess.run, ["umount", "--lazy", where], check=True)


@pytest.mark.parametrize("kind", [0, 1], ids=["read", "write"])
@pytest.mark.parametrize("path", [STATE, POLICY])
def test_no_lease_is_had_on_a_file_of_a_container(node: Attacked, path: str, kind: int) -> None:
    tenant = node.start(f"tenant-{next(_names)}")
    process = tenant.begin(LEASE, path, kind, path == STATE)
    assert process.stdout is not None
    assert process.stdout.readline().strip() == "EAGAIN"
    _exclusivity(node)
    node.end(tenant)
    node.unharmed()


def test_locks_of_a_tenant_keep_nobody(node: Attacked) -> None:
    tenant = node.start(f"tenant-{next(_names)}")
    process = tenant.begin(LOCK, STATE)
    assert process.stdout is not None
    assert process.stdout.readline().strip() == "locked"
    _exclusivity(node)
    node.end(tenant)
    node.unharmed()


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_changed_account_is_put_right_and_told(node: Attacked, change: str) -> None:
    tenant = node.start(f"tenant-{next(_names)}")
    before = tenant.state.stat()
    tenant.run(change, STATE)
    _exclusivity(node)

    def right() -> bool:
        now = tenant.state.stat()
        return (now.st_size, stat.S_IMODE(now.st_mode), now.st_blocks) == (
            before.st_size,
            stat.S_IMODE(before.st_mode),
            before.st_blocks,
        )

    wait(right, "the account to be put right", 20)
    told = (tenant.pod.name, "GpuAccountChanged")
    wait(lambda: told in [event[:2] for event in node.events()], "the event", 60)
    assert not node.removed(tenant)
    node.end(tenant)
    node.unharmed()


@pytest.mark.full
def test_a_tenant_that_goes_on_loses_its_pod(node: Attacked) -> None:
    tenant = node.start(f"tenant-{next(_names)}")
    tenant.begin(AGAIN, STATE)
    wait(lambda: node.removed(tenant), "the pod to be deleted", 120)
    assert (tenant.pod.name, "GpuAccountAbused") in [event[:2] for event in node.events()]
    _exclusivity(node)
    node.end(tenant)
    node.unharmed()


@pytest.mark.full
def test_a_pod_is_kept_where_abuse_is_only_told() -> None:
    with attacked(Mode.VGPU, "--account-abuse=event") as node:
        tenant = node.start("tenant")
        tenant.begin(AGAIN, STATE)
        wait(lambda: "GpuAccountAbused" in [event[1] for event in node.events()], "the event", 120)
        assert not node.removed(tenant)


def test_a_start_needs_no_room_on_a_full_file_system() -> None:
    with attacked(Mode.VGPU, state_mib=32) as node:
        tenant = node.start("tenant")
        _prepared(node)
        tenant.begin(
            "file = os.open(sys.argv[1], os.O_RDWR)\nos.fchmod(file, 0)\n"
            "print('open', flush=True)\nsize = 1 << 20\nwhile True:\n"
            "    try:\n        os.posix_fallocate(file, 0, size)\n        size += 1 << 16\n"
            "    except OSError:\n        time.sleep(0.01)\n",
            STATE,
        )
        for _ in range(10):
            _exclusivity(node)
        node.unharmed()


def test_accounts_cannot_fill_the_disk() -> None:
    with attacked(Mode.VGPU, "--account-abuse=event") as node:
        _prepared(node)
        _bound(node, 32)
        tenant = node.start("tenant")
        # What was made before lies below the tmpfs now; a host mounts it before the plugin starts.
        _prepared(node)
        assert tenant.state.stat().st_dev != node.state_dir.stat().st_dev
        process = tenant.begin(
            "file = os.open(sys.argv[1], os.O_RDWR)\nos.fchmod(file, 0)\nsize = 1 << 20\n"
            "while size < 64 << 20:\n"
            "    try:\n        os.posix_fallocate(file, 0, size)\n        size += 1 << 16\n"
            "    except OSError as error:\n"
            "        print(errno.errorcode[error.errno], flush=True)\n        time.sleep(0.01)\n"
            "print('grown', flush=True)\nsys.stdin.read()\n",
            STATE,
        )
        assert process.stdout is not None
        assert process.stdout.readline().strip() == "ENOSPC"
        for _ in range(10):
            _exclusivity(node)
        assert process.poll() is None
        node.unharmed()


def test_the_state_is_closed_to_local_users(node: Attacked) -> None:
    tenant = node.start(f"tenant-{next(_names)}")
    code = """
found = []
for path in sys.argv[1:]:
    try:
        os.open(path, os.O_RDONLY)
        found.append(path)
    except PermissionError:
        pass
print(json.dumps(found))
"""
    paths = [node.state_dir, node.state_dir / "ledger.db", node.state_dir / "ledger.db-wal", tenant.state]
    assert stranger(code, *paths).strip() == "[]"
    assert stat.S_IMODE((node.state_dir / "ledger.db").stat().st_mode) == 0o600
    node.end(tenant)
