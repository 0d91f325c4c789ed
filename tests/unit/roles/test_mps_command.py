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
        self.pipe, self.shm, self.state = root / "pipe", root / "shm", root / "state"
        self.environment = os.environ | {
            "PATH": f"{programs}:{os.environ['PATH']}",
            "CUDA_MPS_PIPE_DIRECTORY": str(self.pipe),
            "CUDA_MPS_LOG_DIRECTORY": str(root / "log"),
            "KUBE_ACCEL_MPS_STATE": str(self.state),
            "KUBE_ACCEL_MPS_SHM": str(self.shm),
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
    assert gpu.shm.stat().st_mode & 0o7777 == 0o1777


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
