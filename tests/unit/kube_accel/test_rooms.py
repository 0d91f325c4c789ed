# SPDX-License-Identifier: Apache-2.0
"""The daemon's rooms: imports go downwards only, so that no two rooms need each other."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from rooms import Arrow, Parts, arrows, upwards

SOURCE = Path(__file__).parents[3] / "roles/gpu_plugins/files/kube_accel/src/kube_accel"
FLOORS = (
    {"cli"},
    {"dra"},
    {"plugin", "extender"},
    {"plugin.mig", "plugin.tenancy"},
    {"plugin.configuration"},
    {"plugin.node"},
    {"plugin.allocation"},
    {"plugin.kubelet"},
    {"metrics", "enforce", "mig"},
    {"nvml", "web"},
    {"kube", "exclusions", "graphics", "listening", "logs", "stopping", "placement", "sharing", "files"},
    {"rpc"},
    {"http2"},
    {"inspect", "model"},
    {"shared"},
)


def room(parts: Parts) -> str:
    """The room of a module below ``kube_accel``. ``shared`` is what modules and daemon share, by links."""
    if SOURCE.joinpath(*parts).with_suffix(".py").is_symlink():
        return "shared"
    return ".".join(parts[:2]) if parts[0] == "plugin" and SOURCE.joinpath(*parts[:2]).is_dir() else parts[0]


@cache
def found() -> set[Arrow]:
    return {*arrows(SOURCE, "kube_accel", room)}


def test_every_room_is_on_a_floor() -> None:
    assert {name for arrow in found() for name in (arrow.start, arrow.end)} <= set().union(*FLOORS)


def test_a_room_imports_from_floors_below() -> None:
    assert found()
    assert upwards(found(), FLOORS) == set()
