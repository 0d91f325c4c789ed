# SPDX-License-Identifier: Apache-2.0
"""What a tenant of mode mps does to what it shares with others: the control daemon's socket and /dev/shm.

Control daemons are started by the shipped command of their unit; the daemon and nvidia-smi are stand-ins.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from attacks.conftest import Attacked, Tenant, attacked, needs_root
from kube_accel.enforce.mps import PIPE_VARIABLE, UNSEEN, MpsPaths, probe
from kube_accel.model import Mode
from waiting import wait

pytestmark = [pytest.mark.attack, needs_root]

SCRIPT = Path(__file__).parents[2] / "roles/gpu_plugins/files/kube-accel-mps.sh"
TRIES = """
def replace(path):
    os.unlink(path)
    socket.socket(socket.AF_UNIX).bind(path)

def file(path, flags=os.O_RDONLY):
    if os.path.isdir(path):
        raise IsADirectoryError(path)
    return os.open(path, flags | os.O_NONBLOCK)

tries = {
    "remove": os.unlink,
    "remove the directory": os.rmdir,
    "rename": lambda path: os.rename(path, path + "-"),
    "replace": replace,
    "add a file": lambda path: os.open(path + "/more", os.O_CREAT | os.O_WRONLY),
    "add a socket": lambda path: socket.socket(socket.AF_UNIX).bind(path + "/control_privileged"),
    "link": lambda path: os.link(path, path + "-"),
    "symlink": lambda path: os.symlink("nowhere", path + "/link"),
    "hide": lambda path: os.chmod(path, 0),
    "open to all": lambda path: os.chmod(path, 0o6777),
    "give away": lambda path: os.chown(path, 0, 0),
    "date": os.utime,
    "mark": lambda path: os.setxattr(path, "user.x", b"x"),
    "lock": lambda path: fcntl.flock(file(path), fcntl.LOCK_EX | fcntl.LOCK_NB),
    "lease": lambda path: fcntl.fcntl(file(path), fcntl.F_SETLEASE, fcntl.F_RDLCK),
    "write rubbish": lambda path: os.write(file(path, os.O_WRONLY), os.urandom(1 << 12)),
}
for top in sys.argv[1:]:
    for name, act in tries.items():
        inside = os.listdir(top) if os.path.isdir(top) else []
        for path in [*(top + "/" + each for each in inside), top]:
            try:
                act(path)
                print(name, path)
            except OSError:
                pass
"""
"""Each on the socket and its directory, and none on what a link leads to."""
COMMANDS = {
    "quit": "Not enough privilege to execute quit command",
    "quit -t 0": "Not enough privilege to execute quit command",
    "set_default_active_thread_percentage 1": "Insufficient privileges for UID 0.",
    "set_default_device_pinned_mem_limit 0 1M": "Insufficient privileges for UID 0.",
    "set_default_client_priority 1": "Insufficient privileges for UID 0.",
}
SAYS = """
environment = {**os.environ, "CUDA_MPS_PIPE_DIRECTORY": sys.argv[2]}
for command in sys.argv[3:]:
    subprocess.run(sys.argv[1:2], input=command + "\\n", env=environment, text=True)
"""
SILENT = """
connection = socket.socket(socket.AF_UNIX)
connection.connect(sys.argv[1] + "/control")
print("connected", flush=True)
sys.stdin.read()
"""
_names = count()


class Unit:
    """What systemd does with the unit of a GPU's control daemon."""

    def __init__(self, node: Attacked, gpu: int) -> None:
        self.node, self.uuid = node, node.node.uuids[gpu]
        self.root = node.root / "mps" / self.uuid
        smi = node.root / "bin/nvidia-smi"
        smi.write_text("#!/bin/sh\necho Default\n")
        smi.chmod(0o755)
        self.environment = os.environ | {
            "PATH": f"{node.root}/bin:{os.environ['PATH']}",
            PIPE_VARIABLE: str(self.root / "pipe"),
            "CUDA_MPS_LOG_DIRECTORY": str(self.root / "log"),
            "KUBE_ACCEL_MPS_STATE": str(node.root / "mps-state"),
            "KUBE_ACCEL_MPS_SHM": str(self.root / "shm"),
            "KUBE_ACCEL_MPS_SHM_SIZE": "1m",
        }
        node.stack.callback(subprocess.run, ["umount", "--lazy", self.root / "shm"], check=True)
        self.restarts = 0
        self.restart()

    def restart(self) -> None:
        """End the control daemon and start another; the plugin has seen it then."""
        self.call("quit")
        self.start()
        self.restarts += 1
        wait(self._seen, "the plugin to see the new control daemon", 60)
        offered = self.node.node.devices
        wait(lambda: self.node.node.kubelet.allocatable() == offered, "all GPUs to be offered", 60)

    def _seen(self) -> bool:
        said = [line for line in self.node.logged() if line.get("gpu") == self.uuid]
        affected = [line for line in said if line["message"] == "MPS clients are affected"]
        return len(affected) >= self.restarts and said[-1].get("problem") == ""

    def call(self, action: str) -> None:
        subprocess.run(["sh", SCRIPT, action, self.uuid], env=self.environment, check=True, capture_output=True)

    def start(self) -> None:
        self.call("prepare")
        daemon = subprocess.Popen(["sh", SCRIPT, "run", self.uuid], env=self.environment)
        self.node.stack.callback(daemon.wait)
        self.node.stack.callback(daemon.kill)
        self.call("defaults")

    def problem(self) -> str:
        """What the plugin makes of the control daemon."""
        paths = MpsPaths(self.node.root / "mps", f"{self.node.root}/bin/nvidia-cuda-mps-control")
        return probe(paths, self.uuid, UNSEEN, client_limit=48).problem


def _pipe(tenant: Tenant) -> str:
    return tenant.got.envs[PIPE_VARIABLE]


def _say(tenant: Tenant, *commands: str) -> list[str]:
    program = tenant.node.root / "bin/nvidia-cuda-mps-control"
    return tenant.run(SAYS, program, _pipe(tenant), *commands).splitlines()


@pytest.fixture(scope="module")
def unit() -> Iterator[Unit]:
    if os.geteuid() != 0:
        pytest.skip(str(needs_root.kwargs["reason"]))
    with attacked(Mode.MPS, "--mps-interval=2", profile="mixed") as node:
        yield Unit(node, 0)


def _unharmed(unit: Unit, offered: dict[str, int]) -> None:
    """A neighbour on the same GPU starts, reaches the control daemon, and finds it as it was; the GPU is offered."""
    neighbour = unit.node.start(f"neighbour-{next(_names)}")
    assert [path.name for path in (unit.root / "client").iterdir()] == ["control"]
    assert _say(neighbour, "get_default_active_thread_percentage") == ["100.0"]
    assert unit.problem() == ""
    unit.node.end(neighbour)
    wait(lambda: unit.node.node.kubelet.allocatable() == offered, "all GPUs to be offered")
    unit.node.unharmed()


def test_a_tenant_changes_nothing_of_the_control_daemon(unit: Unit) -> None:
    offered = unit.node.node.kubelet.allocatable()
    tenant = unit.node.start(f"tenant-{next(_names)}")
    assert tenant.run(TRIES, _pipe(tenant)) == ""
    _unharmed(unit, offered)
    unit.node.end(tenant)


def test_a_tenant_does_not_command_the_control_daemon(unit: Unit) -> None:
    offered = unit.node.node.kubelet.allocatable()
    tenant = unit.node.start(f"tenant-{next(_names)}")
    for answer, said in zip(_say(tenant, *COMMANDS), COMMANDS.values(), strict=True):
        assert answer.startswith(said)
    _unharmed(unit, offered)
    unit.node.end(tenant)


INJECTION = "cuda_injection_path_shm"
NAMES_A_LIBRARY = """
text = b"\\0/evil.so".ljust(1024, b"\\0")
with open("/dev/shm/draft", "wb") as file:
    file.write(text)
tries = (
    os.unlink,
    os.rmdir,
    lambda path: os.rename("/dev/shm/draft", path),
    lambda path: os.rename(path, path + "-"),
    lambda path: os.link("/dev/shm/draft", path),
    lambda path: os.chown(path, 0, 0),
    lambda path: os.chmod(path, 0o666),
    lambda path: os.truncate(path, 1024),
)
for act in tries:
    try:
        act(sys.argv[1])
        print(act)
    except OSError:
        pass
try:
    with open(sys.argv[1], "wb") as file:
        file.write(text)
except OSError:
    pass
print(os.stat(sys.argv[1]).st_size)
os.unlink("/dev/shm/draft")
"""


@pytest.mark.parametrize("immutable", [True, False], ids=["immutable", "covered"])
def test_tenant_cannot_name_a_library_for_server_or_neighbours(unit: Unit, immutable: bool) -> None:
    file = unit.root / "shm" / INJECTION
    knows = subprocess.run(["chattr", "+i", file], capture_output=True).returncode == 0
    if immutable and not knows:
        pytest.skip("this kernel has no immutable files on a tmpfs")
    if not immutable and knows:
        subprocess.run(["chattr", "-i", file], check=True)
    offered = unit.node.node.kubelet.allocatable()
    tenant = unit.node.start(f"tenant-{next(_names)}")
    assert tenant.run(NAMES_A_LIBRARY, f"/dev/shm/{INJECTION}") == "0\n"
    assert file.is_file()
    assert file.stat().st_size == 0
    _unharmed(unit, offered)
    unit.node.end(tenant)


def test_a_full_shm_keeps_no_neighbour_from_starting(unit: Unit) -> None:
    offered = unit.node.node.kubelet.allocatable()
    tenant = unit.node.start(f"tenant-{next(_names)}")
    code = """
with open("/dev/shm/full", "wb") as file:
    try:
        for _ in range(64):
            os.posix_fallocate(file.fileno(), 0, os.fstat(file.fileno()).st_size + (1 << 16))
    except OSError as error:
        print(errno.errorcode[error.errno], os.fstat(file.fileno()).st_size)
"""
    assert tenant.run(code).split() == ["ENOSPC", str(1 << 20)], "its own file system, of the size of the variable"
    _unharmed(unit, offered)
    unit.node.end(tenant)


def test_container_finds_a_control_daemon_started_after_it(unit: Unit) -> None:
    offered = unit.node.node.kubelet.allocatable()
    tenant = unit.node.start(f"tenant-{next(_names)}")
    code = "print('up', flush=True)\nsys.stdin.readline()\n" + SAYS
    command = unit.node.root / "bin/nvidia-cuda-mps-control"
    process = tenant.begin(code, command, _pipe(tenant), "get_default_active_thread_percentage")
    assert process.stdout is not None
    assert process.stdout.readline().strip() == "up"
    unit.restart()
    assert process.communicate("\n")[0].strip() == "100.0"
    _unharmed(unit, offered)
    unit.node.end(tenant)


def test_silent_client_is_reported_and_costs_no_other_gpu(unit: Unit) -> None:
    offered = unit.node.node.kubelet.allocatable()
    tenant = unit.node.start(f"tenant-{next(_names)}")
    process = tenant.begin(SILENT, _pipe(tenant))
    assert process.stdout is not None
    assert process.stdout.readline().strip() == "connected"
    wait(lambda: unit.node.node.kubelet.allocatable() != offered, "the GPU to be withdrawn", 30)
    unit.node.end(unit.node.start(f"neighbour-{next(_names)}", gpu=1))
    process.kill()
    process.wait()
    _unharmed(unit, offered)
    unit.node.end(tenant)
