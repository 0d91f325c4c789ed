# Apache License 2.0 (see https://www.apache.org/licenses/LICENSE-2.0)
# SPDX-License-Identifier: Apache-2.0
"""Names of the devices by which claims have GPUs, MIG devices, and fixed shares: who reads slices knows them too. Pure.

A fixed share is a device of its own, since clusters before Kubernetes 1.36 keep no sizes in claims. Its name says all
of it: it is known by that also after the GPU is no longer cut so.
"""

from __future__ import annotations

import re
from typing import NamedTuple, Optional, Tuple

MIG = "-mig-"
"""What the name of a MIG device has, and that of a GPU has not."""
AT = "-at-"
"""What the name of a MIG device has that is made for a claim, and that of one that is there without has not."""
_FIXED = re.compile(r"(gpu-[0-9]{2,})-([1-9][0-9]{0,2})of([1-9][0-9]{0,2})\Z")
_DEVICE = re.compile(r"gpu-([0-9]{2,4})(-mig-[a-z0-9-]+)?\Z")


class DeviceName(NamedTuple):
    """What a device is, by its name."""

    gpu: int
    """Index of its GPU."""
    is_mig: bool
    cut_into: int
    """Into how many fixed shares its GPU is cut, of which it is one; 0 for all of a GPU or a MIG device."""


def gpu_device(index: int) -> str:
    """Return the device of a whole GPU."""
    return f"gpu-{index:02}"


def device_names(whole: str, number: int) -> Tuple[str, ...]:
    """Return the devices of a GPU that is cut into so many fixed shares; 0 for one that is not."""
    return tuple(f"{whole}-{place}of{number}" for place in range(1, number + 1)) if number else (whole,)


def cut(device: str) -> Tuple[str, int]:
    """Return the device of the GPU that a device is of, and into how many fixed shares that is cut; 0 for none."""
    found = _FIXED.match(device)
    return (device, 0) if found is None else (found.group(1), int(found.group(3)))


def device_of(device: str) -> Optional[DeviceName]:
    """Return what a device is; None for one that has no name of ours."""
    whole, number = cut(device)
    found = _DEVICE.match(whole)
    return None if found is None else DeviceName(int(found.group(1)), found.group(2) is not None, number)
