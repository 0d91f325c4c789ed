# SPDX-License-Identifier: Apache-2.0
"""``kube-accel validate --share`` in containers: alone, beside a neighbor, and where a limit does not hold."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from kube_accel.enforce.policy import Limit
from native.conftest import GIB, Container

SOURCE = Path(__file__).parents[2] / "roles/gpu_plugins/files/kube_accel/src"
SHARE = (f"--memory={4 * GIB}", "--cores=30", "--seconds=3")

LEAST = 0.15
"""What a busy machine leaves a program of its 30 %; it never gets more."""


def start(container: Container, *options: str, **environment: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "kube_accel.cli.main", "validate", "--share", *options]
    visible = {"GPUSIM_VISIBLE": container.topology.gpus[0].uuid}
    env = container.environment | {"PYTHONPATH": str(SOURCE)} | visible | environment
    return subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def told(process: subprocess.Popen[str]) -> tuple[list[str], dict[str, Any]]:
    """The lines of the table, and what the line of JSON says."""
    out, err = process.communicate(timeout=120)
    *table, last = out.splitlines()
    said: dict[str, Any] = json.loads(last)
    failed = [check["name"] for check in said["checks"] if check["status"] == "fail"]
    assert process.returncode == bool(failed), err
    return table, said


def results(said: dict[str, Any]) -> dict[str, str]:
    return {check["name"]: check["status"] for check in said["checks"]}


def test_a_share_is_proved_to_its_last_byte(container: Container) -> None:
    table, said = told(start(container, *SHARE))
    figures = said["share"]
    assert set(results(said).values()) == {"ok"}
    assert figures["nvml_bytes"] == figures["cuda_bytes"] == figures["got_bytes"] == 4 * GIB
    assert figures["beyond_code"] == 2
    assert LEAST < figures["gpu_time_ratio"] < 0.35
    assert table[0].split() == ["CHECK", "RESULT", "FOUND"]
    assert "4096 of 4096 MiB were given" in "\n".join(table)
    assert container.account().used_bytes == 0


def test_a_neighbor_leaves_a_share_its_time(container: Container, tmp_path: Path) -> None:
    uuid = container.topology.gpus[0].uuid
    neighbor = Container(tmp_path / "neighbor", container.libraries, container.topology, [Limit(uuid, 4 * GIB, 30)])
    neighbor.gpus.unlink()
    neighbor.gpus.symlink_to(container.gpus)
    both = [start(each, *SHARE, GPUSIM_FILE=str(container.gpus)) for each in (container, neighbor)]
    for _table, said in map(told, both):
        assert results(said)["GPU time"] == "ok"
        assert LEAST < said["share"]["gpu_time_ratio"] < 0.35


def test_limits_that_do_not_hold_are_named(container: Container) -> None:
    _table, said = told(start(container, *SHARE, LD_LIBRARY_PATH=str(container.libraries.driver)))
    assert results(said) == {
        "nvml": "ok",
        "share": "fail",
        "last byte": "fail",
        "beyond": "ok",
        "GPU time": "fail",
    }
    assert said["share"]["gpu_time_ratio"] > 0.9


def test_a_program_without_a_driver_says_so(container: Container) -> None:
    empty = container.root / "empty"
    empty.mkdir()
    table, said = told(start(container, *SHARE, LD_LIBRARY_PATH=str(empty)))
    assert results(said) == {"nvml": "fail", "cuda": "fail"}
    assert "libcuda.so.1 cannot be loaded" in "\n".join(table)
