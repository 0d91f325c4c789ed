# SPDX-License-Identifier: Apache-2.0
"""What a device of the driver is by its name, for all who read slices."""

from __future__ import annotations

import pytest

from kube_accel.dra.slices import devices
from kube_accel.shared.claim_devices import DeviceName, cut, device_names, device_of
from unit.kube_accel.plugin.fakes import inventory, uuid


def test_every_device_that_is_published_is_known_by_its_name() -> None:
    made = devices(inventory(2), {uuid(0), uuid(1)}, {}, fixed={"gpu-01": 3})
    found = {str(device["name"]): device_of(device["name"]) for device in made}
    shares = {name: DeviceName(1, False, 3) for name in device_names("gpu-01", 3)}
    assert found == {"gpu-00": DeviceName(0, False, 0), **shares}
    assert {cut(name) for name in shares} == {("gpu-01", 3)}


@pytest.mark.parametrize("name", ["gpu-07-mig-1g10gb-3", "gpu-00-mig-1c2g10gbme-12"])
def test_mig_device_is_no_share(name: str) -> None:
    found = device_of(name)
    assert found is not None
    assert (found.is_mig, found.cut_into) == (True, 0)


@pytest.mark.parametrize(
    "name", ["", "gpu", "gpu-1", "gpu-00-0of4", "gpu-00-1of0", "gpu-00-1of4x", "gpu-00\n", "x-gpu-00"]
)
def test_names_of_others_are_not_taken_for_ours(name: str) -> None:
    assert device_of(name) is None
