# SPDX-License-Identifier: Apache-2.0
"""How NVML cuts GPUs by MIG. Part of the worker: few imports."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from kube_accel.nvml.asking import Attempts, Calls, Record, number, profile, text, token
from kube_accel.nvml.sampling import each_mig_device

_ATTRIBUTES = {  # fields of nvmlDeviceAttributes_t
    "multiprocessors": "multiprocessorCount",
    "slices.gi": "gpuInstanceSliceCount",
    "slices.ci": "computeInstanceSliceCount",
    "engines.copy": "sharedCopyEngineCount",
    "engines.decoder": "sharedDecoderCount",
    "engines.encoder": "sharedEncoderCount",
    "engines.jpeg": "sharedJpegCount",
    "engines.ofa": "sharedOfaCount",
}


class MigReader:
    """Reads the MIG devices of GPUs, and keeps what cannot have changed."""

    def __init__(self, nvml: Calls | ModuleType, attempts: Attempts, capabilities: str) -> None:
        """``capabilities`` is the directory of the driver's capabilities."""
        self._nvml: Any = nvml
        self._attempts = attempts
        self._capabilities = capabilities
        self._known: dict[object, Record] = {}

    def mode(self, handle: object) -> int | None:
        """Return the current mode; None for a GPU without. Raises if it is unknown: the GPU must not be offered."""
        nvml = self._nvml
        try:
            current, _ = nvml.nvmlDeviceGetMigMode(handle)
        except nvml.NVMLError as error:
            if error.value in self._attempts.unsupported:
                return None
            raise
        return number(current)

    def devices(self, handle: object, minor: object) -> list[Record]:
        """Return the MIG devices of a GPU, by slot; without one that errs."""
        return each_mig_device(
            self._nvml, handle, lambda part, slot: self._device(part, slot, minor), self._attempts.failed
        )

    def _device(self, handle: object, slot: int, minor: object) -> Record:
        """Read one MIG device. Every poll asks for it, so that what cannot have changed is kept."""
        nvml = self._nvml
        uuid = token(nvml.nvmlDeviceGetUUID(handle))
        cut = profile(text(nvml.nvmlDeviceGetName(handle)).rpartition("MIG ")[2])
        known = self._known.get(uuid)
        if known is None or (known["profile"], known["slot"]) != (cut, slot):
            instance = f"gi{number(nvml.nvmlDeviceGetGpuInstanceId(handle))}"
            paths = (instance, f"{instance}/ci{number(nvml.nvmlDeviceGetComputeInstanceId(handle))}")
            attributes = self._attributes(handle)
            known = {
                "uuid": uuid,
                "slot": slot,
                "profile": cut,
                "memory": number(nvml.nvmlDeviceGetMemoryInfo(handle).total, least=1),
                "attributes": attributes or {},
                "caps": [cap for path in paths for cap in self._capability(f"gpu{minor}/mig/{path}")],
            }
            if attributes is not None:
                self._known[uuid] = known
        return known

    def _attributes(self, handle: object) -> Record | None:
        """Return what it has of its GPU; nothing where the driver does not report it, None where it errs."""
        try:
            found: Any = self._nvml.nvmlDeviceGetAttributes_v2(handle)
            return {name: number(getattr(found, field)) for name, field in _ATTRIBUTES.items()}
        except Exception as error:
            self._attempts.failed(error)
            return {} if getattr(error, "value", None) in self._attempts.unsupported else None

    def _capability(self, path: str) -> list[int]:
        """Return the minor number of the device file for access to a part of MIG; empty when it is not known."""
        try:
            with open(f"{self._capabilities}/{path}/access", encoding="ascii") as file:  # noqa: PTH123
                told = dict(line.split(":", 1) for line in file.read().splitlines() if ":" in line)
            return [int(told["DeviceFileMinor"])]
        except (OSError, ValueError, KeyError):
            return []
