# SPDX-License-Identifier: Apache-2.0
"""Every family the plugin serves: base units, ratios from 0 to 1, ``_total`` for counters.

docs/metrics.md has a table of them.
"""

from __future__ import annotations

from typing import Final

from kube_accel.metrics.exposition import Family, Kind

_GPU = ("node", "uuid")


def _gauge(name: str, text: str, labels: tuple[str, ...] = _GPU) -> Family:
    return Family(f"accel_{name}", Kind.GAUGE, text, labels)


def _counter(name: str, text: str, labels: tuple[str, ...] = _GPU) -> Family:
    return Family(f"accel_{name}_total", Kind.COUNTER, text, labels)


GPU_INFO: Final = _gauge(
    "gpu_info",
    "A GPU of this node, always 1; join it for what the labels say.",
    (*_GPU, "index", "model", "pci_bus_id", "mode", "driver_version", "cuda_version"),
)
GPU_HEALTHY: Final = _gauge("gpu_healthy", "Whether the GPU may be handed out; absent while that is not known.")
GPU_UTILIZATION: Final = _gauge(
    "gpu_utilization_ratio", "Part of the time since the last collection in which a kernel ran."
)
GPU_BUSY: Final = _counter(
    "gpu_busy_seconds", "Time in which a kernel ran, by all samples the driver took while it was watched."
)
GPU_BANDWIDTH: Final = _gauge(
    "gpu_memory_bandwidth_utilization_ratio",
    "Part of the time since the last collection in which memory was read or written.",
)
GPU_CAPACITY: Final = _gauge("gpu_memory_capacity_bytes", "Memory of the GPU.")
GPU_USED: Final = _gauge("gpu_memory_used_bytes", "Memory in use, without what the driver reserves.")
GPU_RESERVED: Final = _gauge("gpu_memory_reserved_bytes", "Memory the driver keeps for itself.")
GPU_TEMPERATURE: Final = _gauge("gpu_temperature_celsius", "Temperature by sensor: core, memory.", (*_GPU, "sensor"))
GPU_POWER: Final = _gauge("gpu_power_watts", "Power drawn.")
GPU_POWER_LIMIT: Final = _gauge("gpu_power_limit_watts", "Power limit in force.")
GPU_ENERGY: Final = _counter("gpu_energy_joules", "Energy used since the driver was loaded.")
GPU_CLOCK: Final = _gauge("gpu_clock_hertz", "Clock by domain: graphics, sm, memory, video.", (*_GPU, "domain"))
GPU_XIDS: Final = _counter("gpu_xid_errors", "XID errors reported since this daemon started.", (*_GPU, "xid"))
GPU_XID_AT: Final = _gauge(
    "gpu_xid_last_timestamp_seconds", "When an XID was reported last, in seconds since 1970.", (*_GPU, "xid")
)
GPU_ECC: Final = _counter(
    "gpu_ecc_errors", "ECC errors since the driver was loaded, by type: corrected, uncorrected.", (*_GPU, "type")
)
GPU_REMAP_FAILURE: Final = _gauge(
    "gpu_row_remap_failure", "1 when a faulty memory row could not be remapped: the GPU has to be replaced."
)
GPU_THROTTLED: Final = _counter(
    "gpu_throttle_seconds",
    "Time with clocks held down, by reason: power, thermal, sync_boost, board_limit, reliability.",
    (*_GPU, "reason"),
)
NODE_GPUS: Final = _gauge(
    "node_gpus",
    "GPUs by state: expected (ever seen since this daemon started), visible (answer), healthy.",
    ("node", "state"),
)
PLUGIN_REGISTERED: Final = _gauge(
    "device_plugin_registered", "Whether kubelet knows the plugin of a resource.", ("node", "resource")
)
COLLECTOR_SUCCESS: Final = _gauge(
    "collector_success", "Whether a part of the last collection succeeded.", ("node", "collector")
)
COLLECTOR_DURATION: Final = _gauge(
    "collector_duration_seconds", "How long a part of the last collection took.", ("node", "collector")
)
COLLECTOR_AT: Final = _gauge(
    "collector_last_success_timestamp_seconds",
    "When a part of a collection succeeded last, in seconds since 1970: the age of what is shown.",
    ("node", "collector"),
)
COLLECTOR_FAILURES: Final = _counter(
    "collector_failures",
    "Failures of a part, by reason: for nvml the driver's state or gpu (one GPU did not answer).",
    ("node", "collector", "reason"),
)
BUILD_INFO: Final = _gauge("build_info", "This daemon, always 1.", ("node", "version", "mode"))

ALL: Final = tuple(value for value in list(globals().values()) if isinstance(value, Family))
