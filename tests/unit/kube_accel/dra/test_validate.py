# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from typing import Any

import pytest

from kube_accel.cli.validate import check_dra

WELL: dict[str, Any] = {
    "registered": True,
    "registration": "",
    "slices": "as they should be",
    "shares": "offered",
    "mig": "offered",
    "gpus": {},
    "claims": {"uid-a": "team/a", "uid-b": "team/b"},
}


@pytest.mark.parametrize(
    ("changed", "failing"),
    [
        ({}, ""),
        ({"shares": "off"}, ""),
        (
            {"registered": False, "registration": "kubelet has not asked"},
            "driver: not registered: kubelet has not asked",
        ),
        ({"slices": "slices are not written: refused"}, "slices: slices are not written: refused"),
        ({"mig": "MIG devices are not made: no counters"}, "MIG devices: MIG devices are not made: no counters"),
        ({"shares": "shares are not offered: no interposer"}, "shares: shares are not offered: no interposer"),
    ],
)
def test_driver_is_checked_as_its_status_says(changed: dict[str, Any], failing: str) -> None:
    lines = [str(check) for check in check_dra(WELL | changed)]
    assert len(lines) == 4
    failed = [line for line in lines if line.startswith("fail")]
    assert [failing in line for line in failed] == [True] * bool(failing)
    if not failing:
        assert "registered, 2 claims prepared" in lines[0]


def test_gpu_of_which_no_mig_device_is_made_is_warned_of() -> None:
    *_, line = (str(check) for check in check_dra(WELL | {"gpus": {"GPU-1": "it has no MIG mode"}}))
    assert line.startswith("warn  MIG devices: GPU GPU-1: it has no MIG mode")
