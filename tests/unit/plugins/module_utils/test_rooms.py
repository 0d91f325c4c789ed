# SPDX-License-Identifier: Apache-2.0
"""The rooms of module_utils: imports go downwards only, so that no two rooms need each other."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from rooms import Arrow, arrows, upwards

SOURCE = Path(__file__).parents[4] / "plugins/module_utils"
FLOORS = (
    {"benchmark", "oci", "runtime", "scheduler"},
    {"diagnosis", "host", "gpu_plugins"},
    {"dcgm_exporter", "kube_accel_image"},
    {"cluster", "cuda", "documents", "driver", "gpus", "migration", "monitoring", "playbooks", "usage"},
    {"shared"},
)


@cache
def found() -> set[Arrow]:
    return {*arrows(SOURCE, "ansible_collections.accel.kubernetes.plugins.module_utils", lambda parts: parts[0])}


def test_every_file_is_in_a_room() -> None:
    assert [*SOURCE.glob("*.py")] == []
    assert {path.name for path in SOURCE.iterdir() if path.name != "__pycache__"} == set().union(*FLOORS)


def test_a_room_imports_from_floors_below() -> None:
    assert found()
    assert upwards(found(), FLOORS) == set()
