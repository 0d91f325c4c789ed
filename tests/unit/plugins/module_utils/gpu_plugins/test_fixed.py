# SPDX-License-Identifier: Apache-2.0
"""A site waits until the GPUs of a node are cut into fixed shares, but for those that claims keep as they are."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.accel.kubernetes.plugins.module_utils.gpu_plugins.offer import Offer, Settings, offer

from kube_accel.dra.slices import DRIVER, devices
from kube_accel.shared.modes import dra_pool
from unit.kube_accel.plugin.fakes import inventory, uuid
from unit.plugins.module_utils.gpu_plugins.test_offer import gpu

NAME = "node-1"
FACTS = {
    "driver_version": inventory(2).driver_version,
    "cuda_version": "13.0",
    "gpus": [{**gpu(), "index": index, "uuid": uuid(index)} for index in range(2)],
}


def claim(device: str, node: str = NAME, driver: str = DRIVER) -> dict[str, Any]:
    results = [{"driver": driver, "pool": dra_pool(node), "device": device}]
    return {"status": {"allocation": {"devices": {"results": results}}}}


def offered(wanted: int, first: int, second: int, *claims: object, good: tuple[int, ...] = (0, 1)) -> Offer:
    """Of two GPUs, each cut into so many shares."""
    healthy = {uuid(index) for index in good}
    made = devices(inventory(2), healthy, {}, fixed={"gpu-00": first, "gpu-01": second})
    node = {"metadata": {"name": NAME}, "status": {}}
    settings = Settings("dra", fixed_shares=wanted)
    return offer(node, FACTS, "dra", settings, [{"spec": {"devices": list(made)}}], {"resources": list(claims)})


@pytest.mark.parametrize(
    ("wanted", "first", "second", "claims", "left"),
    [
        (4, 4, 4, [], []),
        (0, 0, 0, [], []),
        (4, 4, 0, [], [1]),
        (4, 2, 4, [], [0]),
        (0, 4, 0, [], [0]),
        (4, 0, 0, [claim("gpu-00")], [1]),
        (4, 0, 2, [claim("gpu-00"), claim("gpu-01-2of2")], []),
        (4, 0, 4, [claim("gpu-00", node="other")], [0]),
        (4, 0, 4, [claim("gpu-00", driver="gpu.nvidia.com")], [0]),
        (4, 0, 4, [{"status": {}}, 7], [0]),
    ],
)
def test_gpus_are_waited_for_unless_a_claim_keeps_them(
    wanted: int, first: int, second: int, claims: list[object], left: list[int]
) -> None:
    found = offered(wanted, first, second, *claims)
    assert found.missing == []
    assert found.complete is not bool(left)
    assert [uuid(index) in found.uncut for index in range(2)] == [index in left for index in range(2)]
    assert ("cut into 4 shares" in found.uncut) is bool(left and wanted)


def test_sick_gpu_is_missing_and_no_more() -> None:
    found = offered(4, 4, 4, good=(0,))
    assert (found.uncut, found.missing) == ("", ["1 of 2 gpu.kube-accel.io"])
