# SPDX-License-Identifier: Apache-2.0
"""The command around an MPS control daemon, with stand-ins for nvidia-smi and nvidia-cuda-mps-control."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sim import mps
from sim.cluster import namespace

from .conftest import ROLES

SCRIPT = ROLES / "gpu_plugins/files/kube-accel-mps.sh"
UUID = "GPU-1"


class Gpu:
    """A GPU whose compute mode is a file, and the environment of its unit."""

    def __init__(self, root: Path) -> None:
        programs = root / "bin"
        mps.install(programs)
        self.mode = root / "mode"
        self.mode.write_text("Default\n")
        smi = programs / "nvidia-smi"
        act = f'case $3 in -c) echo "$4" >{self.mode} ;; *) cat {self.mode} ;; esac'
        smi.write_text(f'#!/bin/sh\n[ "$2" = {UUID} ] || exit 2\n{act}\n')
        smi.chmod(0o755)
        self.mounted = root / "mounted"
        for name, does in {"mount": f'echo "$*" >>{self.mounted}', "mountpoint": f"[ -e {self.mounted} ]"}.items():
            (programs / name).write_text(f"#!/bin/sh\n{does}\n")
            (programs / name).chmod(0o755)
        self.programs = programs
        self.pipe, self.shm, self.state = root / "pipe", root / "shm", root / "state"
        self.environment = os.environ | {
            "PATH": f"{programs}:{os.environ['PATH']}",
            "CUDA_MPS_PIPE_DIRECTORY": str(self.pipe),
            "CUDA_MPS_LOG_DIRECTORY": str(root / "log"),
            "KUBE_ACCEL_MPS_STATE": str(self.state),
            "KUBE_ACCEL_MPS_SHM": str(self.shm),
            "KUBE_ACCEL_MPS_SHM_SIZE": "1m",
            "KUBE_ACCEL_MPS_MULTIUSER": "true",
        }

    def call(self, action: str) -> None:
        subprocess.run(["sh", SCRIPT, action, UUID], env=self.environment, check=True, capture_output=True)

    def ask(self, command: str) -> str:
        control = ["nvidia-cuda-mps-control"]
        done = subprocess.run(control, input=command + "\n", env=self.environment, capture_output=True, text=True)
        return done.stdout.strip()


@pytest.fixture
def gpu(tmp_path: Path) -> Gpu:
    return Gpu(tmp_path)


@pytest.fixture
def daemon(gpu: Gpu) -> Iterator[subprocess.Popen[bytes]]:
    gpu.call("prepare")
    with subprocess.Popen(["sh", SCRIPT, "run", UUID], env=gpu.environment) as process:
        yield process
        process.kill()


def test_the_daemon_serves_with_its_defaults_until_told_to_quit(gpu: Gpu, daemon: subprocess.Popen[bytes]) -> None:
    gpu.call("defaults")
    assert float(gpu.ask("get_default_active_thread_percentage")) == 100
    gpu.call("quit")
    deadline = time.monotonic() + 10
    while daemon.poll() is None:
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_clients_of_any_user_can_reach_it(gpu: Gpu) -> None:
    gpu.call("prepare")
    assert gpu.pipe.stat().st_mode & 0o777 == 0o755


def test_what_containers_leave_in_shm_is_bounded_and_stays_over_a_restart(gpu: Gpu) -> None:
    if reason := namespace.forbidden():
        pytest.skip(f"no namespaces here: {reason}")
    for name in ("mount", "mountpoint"):
        (gpu.programs / name).unlink()
    prepare = f"sh {SCRIPT} prepare {UUID} >&2"
    fill = f"head -c 2m /dev/zero >{gpu.shm}/full 2>/dev/null"
    look = f"cat {gpu.shm}/file; stat -c %a {gpu.shm}; ! {fill}"
    script = f"set -e; {prepare}; echo kept >{gpu.shm}/file; {prepare}; {look}"
    done = subprocess.run(
        ["unshare", "--map-root-user", "--mount", "sh", "-c", script],
        env=gpu.environment,
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout) == (0, "kept\n1777\n"), done.stderr


def test_the_size_of_shm_follows_its_variable(gpu: Gpu) -> None:
    gpu.call("prepare")
    gpu.environment["KUBE_ACCEL_MPS_SHM_SIZE"] = "5%"
    gpu.call("prepare")
    first, second = gpu.mounted.read_text().splitlines()
    assert first.startswith("-t tmpfs -o nosuid,nodev,noexec,size=1m,")
    assert second.startswith("-o remount,size=5%,")


def test_with_selinux_containers_may_use_what_it_makes(gpu: Gpu, tmp_path: Path) -> None:
    said = tmp_path / "chcon"
    chcon = gpu.programs / "chcon"
    chcon.write_text(f'#!/bin/sh\necho "$*" >>{said}\n[ ! -e {tmp_path}/refuses ]\n')
    chcon.chmod(0o755)
    gpu.environment["KUBE_ACCEL_MPS_SYSFS"] = str(tmp_path / "sys")
    gpu.call("prepare")
    assert not said.exists()
    (tmp_path / "sys/fs/selinux").mkdir(parents=True)
    (tmp_path / "sys/fs/selinux/enforce").touch()
    gpu.call("prepare")
    with mps.daemon(gpu.programs / "nvidia-cuda-mps-control", gpu.pipe):
        gpu.call("defaults")
    label = "system_u:object_r:container_file_t:s0"
    assert said.read_text().splitlines() == [f"-R {label} {gpu.pipe}", f"{label} {gpu.shm}", f"-R {label} {gpu.pipe}"]
    (tmp_path / "refuses").touch()
    gpu.call("prepare")


@pytest.mark.parametrize(("before", "after"), [("Default", "DEFAULT"), ("Prohibited", "PROHIBITED")])
def test_the_compute_mode_of_before_comes_back(gpu: Gpu, before: str, after: str) -> None:
    gpu.mode.write_text(f"{before}\n")
    gpu.call("prepare")
    assert gpu.mode.read_text() == "EXCLUSIVE_PROCESS\n"
    # Killed, and started again.
    gpu.call("prepare")
    gpu.call("restore")
    assert gpu.mode.read_text() == f"{after}\n"
    assert not list(gpu.state.iterdir())
    gpu.mode.write_text("Exclusive_Process\n")
    gpu.call("restore")
    assert gpu.mode.read_text() == "Exclusive_Process\n"
