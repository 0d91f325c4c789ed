# SPDX-License-Identifier: Apache-2.0
"""``kube-accel validate --pod`` in containers with a whole GPU, with a share, and with something wrong."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from native.conftest import GIB, MIB, Container

SHARE = ("--memory", str(4 * GIB))


def checked(container: Container, *options: str, **environment: str) -> dict[str, list[dict[str, Any]]]:
    """The checks by name; the command fails if and only if one of them does."""
    command = [sys.executable, "-m", "kube_accel.cli.main", "validate", "--pod", *options]
    env = container.environment | environment
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120)
    found: dict[str, list[dict[str, Any]]] = {}
    for check in json.loads(done.stdout)["checks"]:
        found.setdefault(check["name"], []).append(check)
    assert done.returncode == any(each["status"] == "fail" for row in found.values() for each in row), done.stderr
    return found


def failed(found: dict[str, list[dict[str, Any]]]) -> list[str]:
    return [f"{name}: {each['detail']}" for name, row in found.items() for each in row if each["status"] == "fail"]


@pytest.fixture
def only(container: Container) -> dict[str, str]:
    """The container is shown the GPU it has a share of, and no other."""
    return {"GPUSIM_VISIBLE": container.topology.gpus[0].uuid}


def test_a_share_is_seen_usable_and_no_larger_than_asked_for(container: Container, only: dict[str, str]) -> None:
    found = checked(container, *SHARE, **only)
    assert failed(found) == []
    assert {name: len(row) for name, row in found.items()} == {"nvml": 1, "gpus": 1, "share": 2, "cuda": 1, "limit": 1}
    assert found["limit"][0]["detail"] == "more than 4096 MiB is refused"
    assert {each["detail"] for each in found["share"]} == {"NVML shows 4096 MiB", "CUDA shows 4096 MiB"}
    assert container.account().used_bytes < 16 * MIB


def test_a_whole_gpu_has_no_limit_to_look_for(container: Container, only: dict[str, str]) -> None:
    uuid = only["GPUSIM_VISIBLE"]
    plain = {"LD_LIBRARY_PATH": str(container.libraries.driver), "NVIDIA_VISIBLE_DEVICES": uuid}
    found = checked(container, **plain, **only)
    assert failed(found) == []
    assert sorted(found) == ["cuda", "gpus", "nvml"]
    assert uuid in found["gpus"][0]["detail"]


def test_a_limit_that_does_not_hold_is_named(container: Container, only: dict[str, str]) -> None:
    plain = {"LD_LIBRARY_PATH": str(container.libraries.driver)}
    assert failed(checked(container, *SHARE, **plain, **only)) == [
        "share: NVML shows 81559 MiB, but the share has 4096",
        "share: CUDA shows 81559 MiB, but the share has 4096",
        "limit: over 4096 MiB cuMemAlloc returned 0, not 2",
    ]


@pytest.mark.parametrize(
    ("visible", "named", "says"),
    [
        (
            "all",
            "",
            ["gpus: NVML shows 8 GPUs, but the pod requests 1", "cuda: CUDA shows 8 devices, but the pod requests 1"],
        ),
        (None, "GPU-another", ["gpus: NVML does not show GPU-another of NVIDIA_VISIBLE_DEVICES"]),
    ],
)
def test_gpus_other_than_those_that_were_given_are_named(
    container: Container, only: dict[str, str], visible: str | None, named: str, says: list[str]
) -> None:
    environment = {"LD_LIBRARY_PATH": str(container.libraries.driver), "NVIDIA_VISIBLE_DEVICES": named}
    environment |= {} if visible else only
    assert failed(checked(container, **environment)) == says


def test_a_driver_that_is_missing_is_said_by_both(container: Container) -> None:
    empty = container.root / "empty"
    empty.mkdir()
    missing = failed(checked(container, LD_LIBRARY_PATH=str(empty)))
    assert [line.partition(":")[0] for line in missing] == ["nvml", "cuda"]
    assert "libcuda.so.1 cannot be loaded" in missing[1]
