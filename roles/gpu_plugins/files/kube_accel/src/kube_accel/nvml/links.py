# SPDX-License-Identifier: Apache-2.0
"""How the GPUs of a node are connected, as NVML reports it. Part of the worker: few imports."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from types import ModuleType
from typing import Any

from kube_accel.nvml.asking import Attempts, Calls, Record, number, text
from kube_accel.nvml.device import Device, sysfs_address

_SWITCH = "switch"

Keep = Callable[[Device, Iterable[Record]], None]


def links_of(nvml: Calls | ModuleType, attempts: Attempts, devices: Iterable[Device], keep: Keep) -> list[Record]:
    """Return each pair once; a pair in which a GPU does not answer is left out. ``keep`` gets faults."""
    return _Links(nvml, attempts, keep).of([device for device in devices if device.readable])


class _Links:
    def __init__(self, nvml: Calls | ModuleType, attempts: Attempts, keep: Keep) -> None:
        self._nvml: Any = nvml
        self._attempts = attempts
        self._keep = keep

    def of(self, readable: list[Device]) -> list[Record]:
        """Return the links between these GPUs."""
        nvml = self._nvml
        nvlinks = {device.index: self._nvlinks(device) for device in readable}
        links: list[Record] = []
        for position, left in enumerate(readable):
            for right in readable[position + 1 :]:
                to_left, to_right = nvlinks[right.index], nvlinks[left.index]
                if to_left is None or to_right is None:
                    continue
                with self._attempts.about(left.index) as faults:
                    ancestor = self._attempts.optional(
                        lambda left=left, right=right: number(  # type: ignore[misc]
                            nvml.nvmlDeviceGetTopologyCommonAncestor(left.handle, right.handle)
                        )
                    )
                self._keep(left, faults)
                if ancestor is None:
                    continue
                direct = to_right.count(str(right.facts["pci"]))
                # Every GPU on NVSwitch reaches every other with all its links: a full mesh.
                count = direct or min(to_left.count(_SWITCH), to_right.count(_SWITCH))
                pair = [left.facts["uuid"], right.facts["uuid"]]
                links.append({"pair": pair, "ancestor": ancestor, "nvlinks": count})
        return links

    def _nvlinks(self, device: Device) -> list[str] | None:
        """Return the far end of each active NVLink: a GPU's PCI address or ``switch``. None when it is not known."""
        with self._attempts.about(device.index) as faults:
            ends = self._attempts.optional(lambda: self._far_ends(device.handle))
        self._keep(device, faults)
        return ends

    def _far_ends(self, handle: object) -> list[str]:
        nvml = self._nvml
        ends: list[str] = []
        for link in range(nvml.NVML_NVLINK_MAX_LINKS):
            try:
                if nvml.nvmlDeviceGetNvLinkState(handle, link) == nvml.NVML_FEATURE_ENABLED:
                    ends.append(self._far_end(handle, link))
            except nvml.NVMLError as error:
                if error.value == nvml.NVML_ERROR_INVALID_ARGUMENT:  # one past the last link of this model
                    break
                if error.value not in self._attempts.unsupported:
                    raise
        return ends

    def _far_end(self, handle: object, link: int) -> str:
        nvml = self._nvml
        kind = self._attempts.optional(lambda: nvml.nvmlDeviceGetNvLinkRemoteDeviceType(handle, link))
        if kind == nvml.NVML_NVLINK_DEVICE_TYPE_SWITCH:
            return _SWITCH
        return sysfs_address(text(nvml.nvmlDeviceGetNvLinkRemotePciInfo(handle, link).busId))
