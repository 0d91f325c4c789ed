# SPDX-License-Identifier: Apache-2.0
import re
from typing import Any

import pytest

from kube_accel.sharing.delivery import Delivery, Grant, Strategy
from kube_accel.sharing.whole import grant, whole
from unit.kube_accel.plugin.fakes import inventory, uuid


def test_container_gets_gpus_in_index_order_with_minor_numbers() -> None:
    gpus = inventory(4).gpus
    granted = grant((whole(gpus[3]), whole(gpus[1])), lambda name: True)
    assert granted.environment == {"NVIDIA_VISIBLE_DEVICES": f"{uuid(1)},{uuid(3)}"}
    assert granted.device_nodes == (
        "nvidia2",
        "nvidia0",
        "nvidiactl",
        "nvidia-uvm",
        "nvidia-uvm-tools",
        "nvidia-modeset",
    )


def test_nodes_that_do_not_exist_are_left_out() -> None:
    granted = grant(map(whole, inventory(1).gpus), {"nvidia0", "nvidiactl"}.__contains__)
    assert granted.device_nodes == ("nvidia0", "nvidiactl")


def given(*strategies: Strategy, **options: Any) -> Grant:
    gpus = inventory(2).gpus
    return grant(
        (whole(gpus[1]), whole(gpus[0])), lambda name: True, Delivery(strategies, device_nodes=False, **options)
    )


VISIBLE = "/var/run/nvidia-container-devices"
QUALIFIED = (f"kube-accel.io/gpu={uuid(0)}", f"kube-accel.io/gpu={uuid(1)}")


def test_each_strategy_tells_it_in_its_own_way_and_no_other() -> None:
    assert given(Strategy.ENVVAR) == Grant({"NVIDIA_VISIBLE_DEVICES": f"{uuid(0)},{uuid(1)}"}, ())
    mounts = {f"{VISIBLE}/{uuid(gpu)}": "/dev/null" for gpu in (0, 1)}
    assert given(Strategy.VOLUME_MOUNTS) == Grant({"NVIDIA_VISIBLE_DEVICES": VISIBLE}, (), read_only_mounts=mounts)
    assert given(Strategy.CDI_CRI) == Grant({}, (), cdi_devices=QUALIFIED)
    annotations = {f"cdi.k8s.io/kube-accel_{uuid(0)}": ",".join(QUALIFIED)}
    assert given(Strategy.CDI_ANNOTATIONS) == Grant({}, (), annotations=annotations)
    prefixed = given(Strategy.CDI_ANNOTATIONS, annotation_prefix="example.com/").annotations
    assert prefixed == {f"example.com/kube-accel_{uuid(0)}": ",".join(QUALIFIED)}


@pytest.mark.attack
def test_the_null_device_of_the_host_is_mounted_read_only() -> None:
    """A tenant whose uid is 0 owns it, and would change its mode for the whole host."""
    for channels in ((), (0, 1)):
        got = given(Strategy.VOLUME_MOUNTS, imex_channels=channels)
        assert not got.mounts
        assert set(got.read_only_mounts.values()) == {"/dev/null"}


def test_the_key_of_an_annotation_is_one_that_runtimes_take() -> None:
    (key,) = given(Strategy.CDI_ANNOTATIONS).annotations
    prefix, _, name = key.partition("/")
    assert prefix == "cdi.k8s.io"
    assert re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,61}[A-Za-z0-9]", name)


def test_indices_name_the_gpus_where_that_was_asked_for() -> None:
    assert given(Strategy.ENVVAR, by_index=True).environment == {"NVIDIA_VISIBLE_DEVICES": "0,1"}
    assert set(given(Strategy.VOLUME_MOUNTS, by_index=True).read_only_mounts) == {f"{VISIBLE}/0", f"{VISIBLE}/1"}
    assert given(Strategy.CDI_CRI, by_index=True).cdi_devices == QUALIFIED


def test_the_runtime_is_told_of_what_else_is_wanted() -> None:
    found = given(Strategy.ENVVAR, gdrcopy=True, gds=True, mofed=True, imex_channels=(0,)).environment
    extras = {f"NVIDIA_{name}": "enabled" for name in ("GDRCOPY", "GDS", "MOFED")}
    assert found.items() > (extras | {"NVIDIA_IMEX_CHANNELS": "0"}).items()
    assert f"{VISIBLE}/imex/0" in given(Strategy.VOLUME_MOUNTS, imex_channels=(0,)).read_only_mounts
    assert given(Strategy.CDI_CRI, gds=True).environment == {}
