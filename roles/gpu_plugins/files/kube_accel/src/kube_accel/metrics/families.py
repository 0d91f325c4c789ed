# SPDX-License-Identifier: Apache-2.0
"""Every family the plugin serves: base units, ratios from 0 to 1, ``_total`` for counters.

docs/reference/metrics.md has a table of them.
"""

from __future__ import annotations

from typing import Final

from kube_accel.metrics.exposition import Family, Kind

_GPU = ("node", "uuid")
_CONTAINER = (*_GPU, "namespace", "pod", "container", "mode")


def _gauge(name: str, text: str, labels: tuple[str, ...] = _GPU) -> Family:
    return Family(f"accel_{name}", Kind.GAUGE, text, labels)


def _counter(name: str, text: str, labels: tuple[str, ...] = _GPU) -> Family:
    return Family(f"accel_{name}_total", Kind.COUNTER, text, labels)


GPU_INFO: Final = _gauge(
    "gpu_info",
    "A GPU of this node. The value is always 1: join it for its labels.",
    (*_GPU, "index", "model", "pci_bus_id", "mode", "driver_version", "cuda_version"),
)
GPU_HEALTHY: Final = _gauge("gpu_healthy", "Whether new pods may get the GPU. Absent while unknown.")
GPU_HEALTHY_AT: Final = _gauge(
    "gpu_last_healthy_timestamp_seconds", "When the GPU was last known to be healthy, in seconds since 1970."
)
GPU_UTILIZATION: Final = _gauge(
    "gpu_utilization_ratio", "Part of the time since the last collection in which a kernel ran."
)
GPU_BUSY: Final = _counter(
    "gpu_busy_seconds", "Time in which a kernel ran, by all samples of the driver while the GPU was watched."
)
GPU_BANDWIDTH: Final = _gauge(
    "gpu_memory_bandwidth_utilization_ratio",
    "Part of the time since the last collection in which memory was read or written.",
)
GPU_CAPACITY: Final = _gauge("gpu_memory_capacity_bytes", "Memory of the GPU.")
GPU_USED: Final = _gauge("gpu_memory_used_bytes", "Memory in use, without what the driver reserves.")
GPU_RESERVED: Final = _gauge("gpu_memory_reserved_bytes", "Memory the driver keeps for itself.")
GPU_ALLOCATED: Final = _gauge("gpu_memory_allocated_bytes", "Memory that containers have, used or not.")
GPU_UNALLOCATED: Final = _gauge("gpu_memory_unallocated_bytes", "Memory that no container has.")
GPU_UNATTRIBUTED: Final = _gauge(
    "gpu_memory_unattributed_bytes",
    "Memory in use that belongs to no single container, by reason: driver (no process has it), host (a process outside "
    "pods), mps_server, shared (indistinguishable containers), unknown.",
    (*_GPU, "reason"),
)
GPU_TEMPERATURE: Final = _gauge("gpu_temperature_celsius", "Temperature by sensor: core, memory.", (*_GPU, "sensor"))
GPU_POWER: Final = _gauge("gpu_power_watts", "Power drawn.")
GPU_POWER_LIMIT: Final = _gauge("gpu_power_limit_watts", "Power limit in force.")
GPU_ENERGY: Final = _counter("gpu_energy_joules", "Energy used since the driver was loaded.")
GPU_CLOCK: Final = _gauge("gpu_clock_hertz", "Clock by domain: graphics, sm, memory, video.", (*_GPU, "domain"))
GPU_SM_ACTIVE: Final = _gauge("gpu_sm_active_ratio", "Part of the multiprocessors' time in which they had work.")
GPU_SM_OCCUPANCY: Final = _gauge("gpu_sm_occupancy_ratio", "Resident warps, as a part of the maximum.")
GPU_PIPES: Final = _gauge(
    "gpu_pipe_active_ratio", "Part of the time that a pipe worked: tensor, fp64, fp32, fp16.", (*_GPU, "pipe")
)
GPU_DRAM: Final = _gauge("gpu_dram_bandwidth_ratio", "Used bandwidth of the memory, as a part of the maximum.")
GPU_PCIE: Final = _gauge(
    "gpu_pcie_bytes_per_second", "Throughput of PCIe, by direction: tx (from the GPU), rx.", (*_GPU, "direction")
)
GPU_NVLINK: Final = _gauge(
    "gpu_nvlink_bytes_per_second",
    "Throughput of all NVLinks, by direction: tx (from the GPU), rx.",
    (*_GPU, "direction"),
)
_MIG = (*_GPU, "device")
MIG_INFO: Final = _gauge(
    "mig_info",
    "A MIG device. The value is always 1: index is its GPU's, slot its number there.",
    (*_MIG, "index", "slot", "profile"),
)
MIG_CAPACITY: Final = _gauge("mig_memory_capacity_bytes", "Memory of a MIG device.", _MIG)
MIG_USED: Final = _gauge("mig_memory_used_bytes", "Memory of a MIG device that is in use.", _MIG)
MIG_ENGINE: Final = _gauge("mig_engine_active_ratio", "Part of the time in which a kernel ran on a MIG device.", _MIG)
MIG_SM_ACTIVE: Final = _gauge(
    "mig_sm_active_ratio", "Part of the time of a MIG device's multiprocessors in which they had work.", _MIG
)
MIG_SM_OCCUPANCY: Final = _gauge(
    "mig_sm_occupancy_ratio", "Resident warps of a MIG device, as a part of the maximum.", _MIG
)
MIG_PIPES: Final = _gauge(
    "mig_pipe_active_ratio", "Part of the time that a pipe of a MIG device worked.", (*_MIG, "pipe")
)
MIG_DRAM: Final = _gauge(
    "mig_dram_bandwidth_ratio", "Used bandwidth of a MIG device's memory, as a part of the maximum.", _MIG
)
GPU_XIDS: Final = _counter(
    "gpu_xid_errors",
    "XID errors reported, including those before the last start of this daemon or node.",
    (*_GPU, "xid"),
)
GPU_XID_AT: Final = _gauge(
    "gpu_xid_last_timestamp_seconds", "When an XID was last reported, in seconds since 1970.", (*_GPU, "xid")
)
GPU_ECC: Final = _counter(
    "gpu_ecc_errors", "ECC errors since the driver was loaded, by type: corrected, uncorrected.", (*_GPU, "type")
)
GPU_REMAP_FAILURE: Final = _gauge(
    "gpu_row_remap_failure", "1 if a faulty memory row could not be remapped: replace the GPU."
)
GPU_THROTTLED: Final = _counter(
    "gpu_throttle_seconds",
    "Time with clocks held down, by reason: power, thermal, sync_boost, board_limit, reliability.",
    (*_GPU, "reason"),
)
NODE_GPUS: Final = _gauge(
    "node_gpus",
    "GPUs by state: expected (answered within a week, and not replaced), visible (answers now), healthy.",
    ("node", "state"),
)
CONTAINER_CORES: Final = _gauge(
    "container_gpu_core_request_ratio", "Part of the GPU's cores that the container asked for.", _CONTAINER
)
CONTAINER_REQUEST: Final = _gauge(
    "container_gpu_memory_request_bytes", "Memory of the GPU that the container asked for.", _CONTAINER
)
CONTAINER_MIG: Final = _gauge(
    "container_mig_info",
    "The MIG device of a container. The value is always 1: join it for its labels.",
    (*_CONTAINER, "device"),
)
CONTAINER_ALLOCATED: Final = _gauge(
    "container_gpu_allocated_gpus",
    "Part of the GPU that the container is charged for: the larger of its parts of cores and memory. Scaled if the "
    "parts of one GPU add up to more than one.",
    _CONTAINER,
)
CONTAINER_USED: Final = _gauge(
    "container_gpu_memory_used_bytes", "Memory of the GPU that the container uses.", _CONTAINER
)
CONTAINER_PEAK: Final = _gauge(
    "container_gpu_memory_peak_bytes",
    "The most memory that the container used at any collection since it got the GPU.",
    _CONTAINER,
)
CONTAINER_UTILIZATION: Final = _gauge(
    "container_gpu_utilization_ratio",
    "Part of the time since the last collection in which the GPU ran the container's kernels.",
    _CONTAINER,
)
CONTAINER_BUSY: Final = _counter(
    "container_gpu_busy_seconds", "Time in which the GPU ran the container's kernels.", _CONTAINER
)
CONTAINER_PROCESSES: Final = _gauge(
    "container_gpu_processes", "Processes of the container that have memory of the GPU.", _CONTAINER
)
CONTAINER_ACTIVE: Final = _gauge(
    "container_gpu_last_active_timestamp_seconds",
    "When the container was last seen to run a kernel, in seconds since 1970.",
    _CONTAINER,
)
CONTAINER_FAILURES: Final = _counter(
    "container_gpu_alloc_failures",
    "Refused allocations of GPU memory, by reason: quota (the container's limit), device (the GPU is full), policy "
    "(the limits could not be read).",
    (*_CONTAINER, "reason"),
)
PADDLE_FAILURES: Final = Family(
    "paddle_gpu_malloc_failed_total",
    Kind.COUNTER,
    "Refused allocations of GPU memory, for any reason, of a container whose pod says that it runs PaddlePaddle.",
    _CONTAINER,
)
_NAMESPACE = ("node", "namespace", "mode", "model")
NAMESPACE_GPU: Final = _counter(
    "namespace_gpu_seconds",
    "GPU-seconds charged: accel_container_gpu_allocated_gpus over time, including pods that lived for seconds.",
    _NAMESPACE,
)
NAMESPACE_MEMORY: Final = _counter(
    "namespace_gpu_memory_byte_seconds", "Memory of GPUs that containers had, over time.", _NAMESPACE
)
NAMESPACE_BUSY: Final = _counter(
    "namespace_gpu_busy_seconds", "Time in which GPUs ran kernels of containers, as far as known.", _NAMESPACE
)
NODE_SECONDS: Final = _counter(
    "node_gpu_seconds",
    "GPU-seconds that the node offered: those that no namespace is charged for were free.",
    ("node", "model"),
)
LEDGER_INFO: Final = _gauge(
    "ledger_info",
    "The ledger of a node's charges. The value is always 1. A new one begins after a loss.",
    ("node", "ledger"),
)
PLUGIN_REGISTERED: Final = _gauge(
    "device_plugin_registered", "Whether kubelet knows the plugin of a resource.", ("node", "resource")
)
PLUGIN_HEALTHY_AT: Final = _gauge(
    "device_plugin_last_healthy_timestamp_seconds",
    "When kubelet last knew the plugin of a resource and its list had a healthy device, in seconds since 1970.",
    ("node", "resource"),
)
ALLOCATE_REQUESTS: Final = _counter(
    "allocate_requests",
    "Kubelet's calls of Allocate, by outcome: ok, refused (answered with an error), failed (a fault of the plugin).",
    ("node", "resource", "outcome"),
)
PLUGIN_CALLS: Final = _counter(
    "device_plugin_calls",
    "Kubelet's calls, by name: allocate, preferred (GetPreferredAllocation), prestart (PreStartContainer). "
    "Of the DRA driver, claims: prepare, unprepare.",
    ("node", "resource", "call"),
)
PLUGIN_CALL_SECONDS: Final = _counter(
    "device_plugin_call_seconds", "Time that the answers to these calls took.", ("node", "resource", "call")
)
PENDING: Final = _gauge(
    "pending_gpu_pods",
    "Pods that ask for GPUs and have no node yet, by mode. Mode refused: no node can ever give what they ask for.",
    ("node", "namespace", "mode"),
)
COLLECTOR_SUCCESS: Final = _gauge(
    "collector_success", "Whether a part of the last collection succeeded.", ("node", "collector")
)
COLLECTOR_DURATION: Final = _gauge(
    "collector_duration_seconds", "How long a part of the last collection took.", ("node", "collector")
)
COLLECTOR_AT: Final = _gauge(
    "collector_last_success_timestamp_seconds",
    "When a part of a collection last succeeded, in seconds since 1970: the age of what is shown.",
    ("node", "collector"),
)
COLLECTOR_FAILURES: Final = _counter(
    "collector_failures",
    "Failures of a part of a collection, by reason. For nvml: the driver's state, gpu (no answer), value (missing), "
    "profiling (no counters). For others: kubelet, namespace (host processes hidden), api_server.",
    ("node", "collector", "reason"),
)
COLLECTOR_SERIES: Final = _gauge("collector_series", "Series of the page. The daemon warns above 20000.", ("node",))
ATTRIBUTION: Final = _counter(
    "attribution",
    "Attempts to find the container of a process, of GPU time, or of a part of a GPU, by method and outcome.",
    ("node", "method", "outcome"),
)
BUILD_INFO: Final = _gauge("build_info", "This daemon, always 1.", ("node", "version", "mode"))

ALL: Final = tuple(value for value in list(globals().values()) if isinstance(value, Family))
