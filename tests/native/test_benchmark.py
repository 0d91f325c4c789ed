# SPDX-License-Identifier: Apache-2.0
"""``kube-accel benchmark`` in containers with a whole GPU and with a share."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from native.conftest import Container

SOURCE = Path(__file__).parents[2] / "roles/gpu_plugins/files/kube_accel/src"
LAUNCH_SECONDS = 4096e-6
"""The simulated driver takes a microsecond for each block of a launch."""


def benchmark(container: Container, launches: int, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "kube_accel.cli.main", "benchmark", f"--launches={launches}"]
    visible = {"GPUSIM_VISIBLE": container.topology.gpus[0].uuid}
    env = container.environment | {"PYTHONPATH": str(SOURCE)} | visible | environment
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=120)


def test_work_on_a_whole_gpu_takes_the_time_of_its_launches(container: Container) -> None:
    done = benchmark(container, 250, LD_LIBRARY_PATH=str(container.libraries.driver))
    said = json.loads(done.stdout)
    assert said["launches"] == 250
    assert said["device"].startswith("NVIDIA ")
    assert 250 * LAUNCH_SECONDS <= said["seconds"] < 500 * LAUNCH_SECONDS


def test_a_gpu_that_cuda_does_not_show_is_an_error_by_name(container: Container) -> None:
    done = benchmark(container, 1, GPUSIM_VISIBLE="", LD_LIBRARY_PATH=str(container.libraries.driver))
    assert (done.returncode, done.stdout) == (1, "")
    assert "kube-accel benchmark: cuInit returned 100 CUDA_ERROR_NO_DEVICE" in done.stderr


@pytest.mark.parametrize("launches", ["0", "-1", "x", "100000001"])
def test_a_number_of_launches_that_is_none_is_refused(launches: str) -> None:
    command = [sys.executable, "-m", "kube_accel.cli.main", "benchmark", f"--launches={launches}"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2
    assert "is not a number of launches above 0 and at most 100000000" in done.stderr
