# SPDX-License-Identifier: Apache-2.0
from kube_accel.sharing.whole import grant, whole
from unit.kube_accel.plugin.fakes import inventory, uuid


def test_a_container_gets_its_gpus_in_index_order_with_their_minor_numbers() -> None:
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
