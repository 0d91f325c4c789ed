# SPDX-License-Identifier: Apache-2.0
"""The same figures by the names, labels and units of dcgm-exporter and gpu-manager, for dashboards that exist. Pure.

What we do not measure has no series: encoder, decoder, and activity where counters are not read.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from kube_accel.metrics.devices import Devices
from kube_accel.metrics.exposition import Family, Kind, Series
from kube_accel.metrics.sample import GpuSample, Rare, scaled
from kube_accel.metrics.tenancy import Container, Holding, Holdings
from kube_accel.model import Gpu, Inventory

_MIB = 1 << 20
_XID_SECONDS = 300.0
"""How long an XID is shown: dcgm-exporter keeps the last one for ever."""
_DCGM = (
    "gpu",
    "UUID",
    "pci_bus_id",
    "device",
    "modelName",
    "Hostname",
    "hostname",
    "DCGM_FI_DRIVER_VERSION",
    "container",
    "namespace",
    "pod",
)
"""dcgm-exporter spells the node's name in two ways, by its version."""
_MANAGER = ("pod_name", "namespace", "node", "container_name")


def _dcgm(name: str, text: str, kind: Kind = Kind.GAUGE) -> Family:
    return Family(f"DCGM_FI_{name}", kind, text, _DCGM)


_UTIL = _dcgm("DEV_GPU_UTIL", "GPU utilization (in %).")
_USED = _dcgm("DEV_FB_USED", "Framebuffer memory used (in MiB).")
_ACTIVE = _dcgm("PROF_GR_ENGINE_ACTIVE", "Ratio of time that kernels ran.")
_DEVICE = (
    _dcgm("DEV_MEM_COPY_UTIL", "Memory utilization (in %)."),
    _dcgm("DEV_FB_FREE", "Framebuffer memory free (in MiB)."),
    _dcgm("DEV_FB_RESERVED", "Framebuffer memory reserved (in MiB)."),
    _dcgm("DEV_SM_CLOCK", "SM clock frequency (in MHz)."),
    _dcgm("DEV_MEM_CLOCK", "Memory clock frequency (in MHz)."),
    _dcgm("DEV_GPU_TEMP", "GPU temperature (in C)."),
    _dcgm("DEV_MEMORY_TEMP", "Memory temperature (in C)."),
    _dcgm("DEV_POWER_USAGE", "Power draw (in W)."),
    _dcgm("DEV_TOTAL_ENERGY_CONSUMPTION", "Total energy consumption since boot (in mJ).", Kind.COUNTER),
    _dcgm("DEV_PCIE_REPLAY_COUNTER", "Total number of PCIe retries.", Kind.COUNTER),
    _dcgm("DEV_XID_ERRORS", "The last XID of five minutes, 0 for none."),
    _dcgm("DEV_CORRECTABLE_REMAPPED_ROWS", "Rows remapped for correctable errors.", Kind.COUNTER),
    _dcgm("DEV_UNCORRECTABLE_REMAPPED_ROWS", "Rows remapped for uncorrectable errors.", Kind.COUNTER),
    _dcgm("DEV_ROW_REMAP_FAILURE", "Whether remapping of rows has failed."),
)
_RATIOS = {
    "sm": _dcgm("PROF_SM_ACTIVE", "Ratio of time that multiprocessors had work."),
    "occupancy": _dcgm("PROF_SM_OCCUPANCY", "Ratio of warps resident."),
    "tensor": _dcgm("PROF_PIPE_TENSOR_ACTIVE", "Ratio of time that the tensor pipe worked."),
    "fp64": _dcgm("PROF_PIPE_FP64_ACTIVE", "Ratio of time that the FP64 pipe worked."),
    "fp32": _dcgm("PROF_PIPE_FP32_ACTIVE", "Ratio of time that the FP32 pipe worked."),
    "fp16": _dcgm("PROF_PIPE_FP16_ACTIVE", "Ratio of time that the FP16 pipe worked."),
    "dram": _dcgm("PROF_DRAM_ACTIVE", "Ratio of time that memory was read or written."),
}
_RATES = {
    "pcie_tx": _dcgm("PROF_PCIE_TX_BYTES", "PCIe bytes sent a second."),
    "pcie_rx": _dcgm("PROF_PCIE_RX_BYTES", "PCIe bytes received a second."),
    "nvlink_tx": _dcgm("PROF_NVLINK_TX_BYTES", "NVLink bytes sent a second."),
    "nvlink_rx": _dcgm("PROF_NVLINK_RX_BYTES", "NVLink bytes received a second."),
}
_CONTAINER_UTIL = Family("container_gpu_utilization", Kind.GAUGE, "gpu utilization", (*_MANAGER, "gpu"))
_CONTAINER_MEMORY = Family(
    "container_gpu_memory_total", Kind.GAUGE, "gpu memory usage in MiB", (*_MANAGER, "gpu_memory")
)
_REQUEST_UTIL = Family(
    "container_request_gpu_utilization", Kind.GAUGE, "request of gpu utilization", (*_MANAGER, "req_of_gpu")
)
_REQUEST_MEMORY = Family(
    "container_request_gpu_memory", Kind.GAUGE, "request of gpu memory in MiB", (*_MANAGER, "req_of_gpu_memory")
)


@dataclass(frozen=True, slots=True)
class Use:
    """What a container does with a GPU; None where that is not known."""

    memory_bytes: int | None
    ratio: float | None


Uses = Mapping[tuple[str, Container], Use]
"""By the GPU's UUID and the container."""


def dcgm(told: Devices, holdings: Holdings, uses: Uses, now: float) -> Iterator[tuple[Family, Series]]:
    """Yield a row a GPU, with the pod that has all of it; for shared GPUs a row a pod too, as far as known."""
    inventory = told.snapshot.inventory
    series: defaultdict[Family, dict[tuple[str, ...], float]] = defaultdict(dict)
    if inventory is None:
        return
    for gpu in inventory.gpus:
        held = holdings.get(gpu.uuid, ())
        containers = {holding.container for holding in held}
        alone = next(iter(containers)) if _whole(held) else Container("", "", "")
        row = _row(told.node, gpu, inventory, alone)
        for family, value in _of_gpu(gpu, told, now):
            if value is not None:
                series[family][row] = value
        for container in containers - {alone}:
            use = uses.get((gpu.uuid, container), Use(None, None))
            row = _row(told.node, gpu, inventory, container)
            for family, value in _of_use(use):
                if value is not None:
                    series[family][row] = value
    told_of = (_UTIL, _USED, _ACTIVE, *_DEVICE, *_RATIOS.values(), *_RATES.values())
    yield from ((family, series[family]) for family in told_of)


def gpu_manager(node: str, gpus: Iterable[Gpu], holdings: Holdings, uses: Uses) -> Iterator[tuple[Family, Series]]:
    """Yield percent and MiB by GPU and in total, and what was asked for."""
    index = {gpu.uuid: f"gpu{gpu.index}" for gpu in gpus}
    series: defaultdict[Family, dict[tuple[str, ...], float]] = defaultdict(dict)
    unknown: set[tuple[Family, tuple[str, ...]]] = set()

    def add(family: Family, labels: tuple[str, ...], value: float) -> None:
        series[family][labels] = series[family].get(labels, 0) + value

    for uuid, held in holdings.items():
        for holding in held:
            names = _names(node, holding.container)
            if holding.cores is not None:
                add(_REQUEST_UTIL, (*names, "total"), holding.cores)
            if holding.memory_bytes is not None:
                add(_REQUEST_MEMORY, (*names, "total"), holding.memory_bytes // _MIB)
        for container in {holding.container for holding in held}:
            names = _names(node, container)
            use = uses.get((uuid, container), Use(None, None))
            percent, mebibytes = _percent(use.ratio), _mebibytes(use.memory_bytes)
            for family, value in ((_CONTAINER_UTIL, percent), (_CONTAINER_MEMORY, mebibytes)):
                if value is None:
                    unknown.add((family, (*names, "total")))
                elif uuid in index:
                    add(family, (*names, index[uuid]), value)
                    add(family, (*names, "total"), value)
    for family, labels in unknown:
        series[family].pop(labels, None)
    families = (_CONTAINER_UTIL, _CONTAINER_MEMORY, _REQUEST_UTIL, _REQUEST_MEMORY)
    yield from ((family, series[family]) for family in families)


def _whole(held: Iterable[Holding]) -> bool:
    shares = {holding.container: 0.0 for holding in held}
    for holding in held:
        shares[holding.container] += holding.share
    return len(shares) == 1 and min(shares.values()) >= 1


def _row(node: str, gpu: Gpu, inventory: Inventory, container: Container) -> tuple[str, ...]:
    domain, rest = gpu.pci_address.split(":", 1)
    return (
        str(gpu.index),
        gpu.uuid,
        f"{int(domain, 16):08X}:{rest.upper()}",
        f"nvidia{gpu.minor}",
        gpu.model,
        node,
        node,
        inventory.driver_version,
        container.name,
        container.namespace,
        container.pod,
    )


def _of_use(use: Use) -> Iterator[tuple[Family, float | None]]:
    yield _UTIL, _percent(use.ratio)
    yield _USED, _mebibytes(use.memory_bytes)
    yield _ACTIVE, use.ratio


def _of_gpu(gpu: Gpu, told: Devices, now: float) -> Iterator[tuple[Family, float | None]]:
    sample, rare = (told.samples or {}).get(gpu.uuid), told.rare.get(gpu.uuid)
    if sample is None:
        return
    yield from _of_use(Use(sample.used_bytes, sample.busy.ratio if sample.busy is not None else None))
    xids = [(at, xid) for (uuid, xid), (_, at) in told.xids.items() if uuid == gpu.uuid and now - at < _XID_SECONDS]
    values = _values(sample, rare, float(max(xids)[1]) if xids else 0.0)
    yield from zip(_DEVICE, values, strict=True)
    if sample.profile is not None:
        yield from ((_RATIOS[name], value) for name, value in sample.profile.ratios.items() if name in _RATIOS)
        yield from ((_RATES[name], value) for name, value in sample.profile.rates.items())


def _values(sample: GpuSample, rare: Rare | None, xid: float) -> tuple[float | None, ...]:
    """Return the figures in the order of ``_DEVICE``."""
    reserved, clocks, rows = sample.reserved_bytes, sample.clocks, rare.remapped_rows if rare is not None else None
    used = sample.used_bytes
    return (
        _percent(sample.memory_busy.ratio if sample.memory_busy is not None else None),
        _mebibytes(None if used is None else max(0, sample.capacity_bytes - used - (reserved or 0))),
        _mebibytes(reserved),
        scaled(clocks.get("sm"), 1e-6),
        scaled(clocks.get("memory"), 1e-6),
        sample.temperatures.get("core"),
        sample.temperatures.get("memory"),
        sample.power_watts,
        scaled(sample.energy_joules, 1e3),
        sample.pcie_replays,
        xid,
        rows[0] if rows is not None else None,
        rows[1] if rows is not None else None,
        rare.remap_failed if rare is not None else None,
    )


def _names(node: str, container: Container) -> tuple[str, ...]:
    return container.pod, container.namespace, node, container.name


def _percent(ratio: float | None) -> float | None:
    return scaled(ratio, 100)


def _mebibytes(amount: int | None) -> int | None:
    return None if amount is None else amount // _MIB
