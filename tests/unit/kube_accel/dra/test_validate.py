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
        ({"shares": "shares are not offered: no interposer"}, "shares: shares are not offered: no interposer"),
    ],
)
def test_driver_is_checked_as_its_status_says(changed: dict[str, Any], failing: str) -> None:
    lines = [str(check) for check in check_dra(WELL | changed)]
    assert len(lines) == 3
    failed = [line for line in lines if line.startswith("fail")]
    assert [failing in line for line in failed] == [True] * bool(failing)
    if not failing:
        assert "registered, 2 claims prepared" in lines[0]
