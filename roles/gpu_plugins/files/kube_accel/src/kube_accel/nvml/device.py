# SPDX-License-Identifier: Apache-2.0
"""A GPU as the worker enumerates it. Part of the worker: few imports."""

from __future__ import annotations

from collections.abc import Iterable

from kube_accel.nvml.asking import Record, token


class Device:
    """One GPU as enumerated: its handle, None when there is none to be had, what was read of it, and what was not."""

    def __init__(self, handle: object, facts: Record, faults: Iterable[Record] = ()) -> None:
        self.handle = handle
        self.facts = facts
        self.faults = tuple(faults)

    @property
    def index(self) -> int:
        """Return NVML's number of the GPU."""
        return int(str(self.facts["index"]))

    @property
    def readable(self) -> bool:
        """Return whether all its facts could be read."""
        return "error" not in self.facts


def sysfs_address(bus_id: str) -> str:
    """Spell NVML's ``00000000:1A:00.0`` as sysfs does, ``0000:1a:00.0``."""
    domain, rest = bus_id.lower().split(":", 1)
    return token(f"{int(domain, 16):04x}:{rest}")
