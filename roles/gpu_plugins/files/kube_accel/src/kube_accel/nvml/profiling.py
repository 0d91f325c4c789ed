# SPDX-License-Identifier: Apache-2.0
"""What parts of a GPU do, by its counters: NVML's GPM, of Hopper and later. Part of the worker: few imports.

Two samples make a figure, of the time between them: those of one collection and of the one before.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from types import ModuleType
from typing import Any

Key = tuple[str, int | None]
"""A GPU's UUID, and a GPU instance of it or None for all."""

_METRICS = {  # NVML_GPM_METRIC_*: name on the wire. Percent, and MiB a second.
    1: "engine",
    2: "sm",
    3: "occupancy",
    5: "tensor",
    10: "dram",
    11: "fp64",
    12: "fp32",
    13: "fp16",
    20: "pcie_tx",
    21: "pcie_rx",
    60: "nvlink_rx",
    61: "nvlink_tx",
}


class Profiler:
    """Reads GPUs, and remembers the last sample of each. What is not to be had is None, whatever NVML says of it.

    Samples are as many as GPUs and GPU instances there were: after another cut of a GPU there is another process.
    """

    def __init__(self, nvml: ModuleType, failed: Callable[[Exception], None] = lambda error: None) -> None:
        """``failed`` is called with the reason why something is not to be had."""
        self._nvml = nvml
        self._failed = failed
        self._offered: dict[str, bool] = {}
        self._samples: dict[Key, list[Any]] = {}
        """Two of each: the older, if there is one, and one that is free."""
        self._sampled: set[Key] = set()

    def read(self, handle: object, uuid: str, instance: int | None = None) -> dict[str, float] | None:
        """Return figures by metric; none at the first call. ``instance`` for a GPU instance of a GPU in MIG mode."""
        key = uuid, instance
        try:
            if not self._offers(handle, uuid):
                return None
            older, newer = self._samples.get(key) or self._allocate(key)
            if instance is None:
                self._nvml.nvmlGpmSampleGet(handle, newer)
            else:
                self._nvml.nvmlGpmMigSampleGet(handle, instance, newer)
            found = self._between(older, newer) if key in self._sampled else {}
        except Exception as error:
            self._sampled.discard(key)
            self._failed(error)
            return None
        self._sampled.add(key)
        self._samples[key] = [newer, older]
        return found

    def _offers(self, handle: object, uuid: str) -> bool:
        if uuid not in self._offered:
            try:
                self._offered[uuid] = bool(self._nvml.nvmlGpmQueryDeviceSupport(handle).isSupportedDevice)
            except (self._nvml.NVMLError_NotSupported, self._nvml.NVMLError_FunctionNotFound):
                self._offered[uuid] = False
        return self._offered[uuid]

    def _allocate(self, key: Key) -> list[Any]:
        pair = self._samples[key] = [self._nvml.nvmlGpmSampleAlloc(), self._nvml.nvmlGpmSampleAlloc()]
        return pair

    def _between(self, older: object, newer: object) -> dict[str, float]:
        nvml = self._nvml
        wanted = nvml.c_nvmlGpmMetricsGet_t(version=nvml.NVML_GPM_METRICS_GET_VERSION, numMetrics=len(_METRICS))
        wanted.sample1, wanted.sample2 = older, newer
        for entry, metric in zip(wanted.metrics, _METRICS, strict=False):
            entry.metricId = metric
        nvml.nvmlGpmMetricsGet(wanted)
        told = wanted.metrics[: len(_METRICS)]
        return {
            _METRICS[entry.metricId]: entry.value
            for entry in told
            if entry.nvmlReturn == nvml.NVML_SUCCESS and math.isfinite(entry.value)
        }
