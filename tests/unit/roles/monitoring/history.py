# SPDX-License-Identifier: Apache-2.0
"""Seven days of a cluster as Prometheus would have scraped them: every family, on a node of each mode."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from kube_accel.metrics.exposition import Family, Kind
from kube_accel.metrics.families import ALL
from unit.roles.monitoring.served import PAGES

DAYS = 7
STEP = 3600
GIB = 1 << 30
HOUR = 3600


@dataclass(frozen=True)
class Gpu:
    node: str
    index: int
    mode: str
    model: str
    gib: int
    is_called: str = ""

    @property
    def uuid(self) -> str:
        return self.is_called or f"GPU-{self.node}-{self.index}"


@dataclass(frozen=True)
class Part:
    """A MIG device."""

    gpu: Gpu
    slot: int
    profile: str
    gib: float

    @property
    def uuid(self) -> str:
        return f"MIG-{self.gpu.node}-{self.slot}"


@dataclass(frozen=True)
class Held:
    """What a pod has of a GPU, from one hour to another, and what it makes of it."""

    gpu: Gpu
    namespace: str
    pod: str
    part: float
    gib: float
    load: float
    uses: float
    begin: int = 0
    end: int = DAYS * 24
    container: str = "main"
    known: bool = True
    """Whether what it uses is known."""
    device: Part | None = None


H100, T4, A100 = "NVIDIA H100 80GB HBM3", "Tesla T4", "NVIDIA A100-SXM4-40GB"
GPUS = (
    Gpu("gpu-a", 0, "pgpu", H100, 80),
    Gpu("gpu-a", 1, "pgpu", H100, 80),
    Gpu("gpu-b", 0, "vgpu", H100, 80),
    Gpu("gpu-c", 0, "mps", T4, 15),
    Gpu("gpu-d", 0, "cgpu", T4, 15),
    # Those of the pages of real exporters.
    Gpu("gpu-e", 0, "pgpu", A100, 40, "GPU-34319582-d595-d1c7-d1d2-179bcfa61660"),
    Gpu("gpu-f", 0, "pgpu", T4, 15, "GPU-84412445-5790-0b3f-f714-da8aa3b2c0b0"),
)
PARTS = tuple(Part(GPUS[5], slot, profile, gib) for slot, (profile, gib) in enumerate((("1g.5gb", 5), ("3g.20gb", 20))))
HELD = (
    Held(GPUS[0], "research", "train-0", 1, 80, 0.9, 0.8),
    Held(GPUS[1], "team-a", "notebook", 1, 80, 0.01, 0.1, 24),
    Held(GPUS[2], "team-a", "serve-0", 0.3, 24, 0.2, 0.6),
    Held(GPUS[2], "team-b", "serve-1", 0.5, 40, 0.4, 0.9, 0, 100),
    Held(GPUS[3], "team-b", "batch", 0.5, 7, 0.3, 0.5, 48),
    Held(GPUS[4], "default", "cgpu-1", 4 / 15, 4, 0.2, 0.7),
    Held(GPUS[4], "default", "cgpu-1", 2 / 15, 2, 0, 0, container="static", known=False),
    Held(GPUS[4], "default", "cgpu-2", 8 / 15, 8, 0.1, 0.2, 12),
    Held(GPUS[2], "sliced", "mystery", 0.1, 0, 0, 0, known=False),
    Held(GPUS[5], "research", "cut", 3 / 7, 20, 0, 0.4, device=PARTS[1]),
)
OTHERS: Mapping[str, tuple[str, ...]] = {
    "sensor": ("core", "memory"),
    "domain": ("graphics", "sm", "memory", "video"),
    "type": ("corrected", "uncorrected"),
    "state": ("expected", "visible", "healthy"),
    "collector": ("nvml", "containers", "page"),
    "xid": ("31",),
    "resource": ("nvidia.com/gpu",),
    "direction": ("tx", "rx"),
    "pipe": ("tensor", "fp64", "fp32", "fp16"),
}
REASONS = {"throttle": ("power", "thermal"), "unattributed": ("driver", "host"), "alloc": ("quota", "device", "policy")}


_IDENTITY = {"node", "uuid", "namespace", "pod", "container", "mode", "model", "index", "pci_bus_id"}

Subject = Held | Gpu | Part | tuple[Held, ...] | str
"""Whom a series is about: a container, a GPU, a MIG device, what a namespace has on a node, a node."""


def samples(end: int) -> str:
    """OpenMetrics text of the seven days before ``end``, in seconds since 1970."""
    begin = end - DAYS * 24 * HOUR
    lines = []
    for family in (*ALL, *EXTENDER):
        for subject, labels in _subjects(family):
            first, last = (subject.begin, subject.end) if isinstance(subject, Held) else (0, DAYS * 24)
            shown = ",".join(f'{name}="{text}"' for name, text in labels.items())
            for at in range(first * HOUR, last * HOUR + 1, STEP):
                lines.append(f"{family.name}{{{shown}}} {_value(family, subject, labels, at, begin):.9g} {begin + at}")
    for series, value in foreign():
        lines += [f"{series} {value} {at}" for at in range(begin, end + 1, STEP)]
    return "\n".join([*lines, "# EOF\n"])


def foreign() -> list[tuple[str, str]]:
    """The series of other exporters, and the value of each."""
    lines = [line for page in sorted(PAGES.iterdir()) for line in page.read_text().splitlines()]
    return [
        (series, value) for series, _, value in (line.rpartition(" ") for line in lines if line[:1] not in ("#", ""))
    ]


_NAMESPACE = ("namespace", "model", "resource")
EXTENDER = (
    Family("accel_namespace_gpu_quota", Kind.GAUGE, "", _NAMESPACE),
    Family("accel_namespace_gpu_quota_used", Kind.GAUGE, "", _NAMESPACE),
    Family("accel_pending_gpu_pods", Kind.GAUGE, "", ("namespace", "mode")),
    Family("accel_extender_nodes", Kind.GAUGE, "", ()),
)
"""What is asked for of what the extender serves."""


def _subjects(family: Family) -> Iterator[tuple[Subject, dict[str, str]]]:
    for subject, known in _known(family):
        reasons = next((words for part, words in REASONS.items() if part in family.name), ("one",))
        rest = [name for name in family.labels if name not in known]
        choices = [reasons if name == "reason" else OTHERS.get(name, ("one",)) for name in rest]
        for words in itertools.product(*choices):
            labels = known | dict(zip(rest, words, strict=True))
            yield subject, {name: labels[name] for name in family.labels}


def _known(family: Family) -> Iterator[tuple[Subject, dict[str, str]]]:
    """Whom a family is about, by its labels."""
    if "container" in family.labels:
        of_use = family.name.endswith(("memory_used_bytes", "memory_peak_bytes"))
        of_time = family.name.endswith(("utilization_ratio", "busy_seconds_total", "active_timestamp_seconds"))
        of_part = "device" in family.labels
        for held in HELD:
            told = held.known or not (of_use or of_time)
            if told and not (of_time and held.device) and (held.device or not of_part):
                yield held, _of(held.gpu) | _of_pod(held)
    elif "device" in family.labels:
        yield from ((part, _of(part.gpu) | _of_part(part)) for part in PARTS)
    elif "uuid" in family.labels:
        yield from ((gpu, _of(gpu)) for gpu in GPUS)
    elif "model" in family.labels and "namespace" in family.labels and "node" in family.labels:
        groups = itertools.groupby(sorted(HELD, key=_payer), _payer)
        names = ("node", "namespace", "mode", "model")
        yield from ((tuple(found), dict(zip(names, payer, strict=True))) for payer, found in groups)
    elif "model" in family.labels and "node" in family.labels:
        yield from ((node, {"node": node, "model": _on(node)[0].model}) for node in NODES)
    elif "node" in family.labels:
        yield from ((node, {"node": node, "mode": _on(node)[0].mode}) for node in NODES)
    else:
        names = ("team-a", "team-b") if "namespace" in family.labels else ("",)
        yield from (("extender", {"namespace": name, "mode": "vgpu", "model": H100}) for name in names)


NODES = tuple(dict.fromkeys(gpu.node for gpu in GPUS))


def _payer(held: Held) -> tuple[str, str, str, str]:
    return held.gpu.node, held.namespace, held.gpu.mode, held.gpu.model


def _on(node: str) -> list[Gpu]:
    return [gpu for gpu in GPUS if gpu.node == node]


def _of(gpu: Gpu) -> dict[str, str]:
    place = {"index": str(gpu.index), "pci_bus_id": f"0000:0{gpu.index}:00.0"}
    return {"node": gpu.node, "uuid": gpu.uuid, "mode": gpu.mode, "model": gpu.model} | place


def _of_part(part: Part) -> dict[str, str]:
    return {"device": part.uuid, "slot": str(part.slot), "profile": part.profile}


def _of_pod(held: Held) -> dict[str, str]:
    pod = {"namespace": held.namespace, "pod": held.pod, "container": held.container}
    return pod | (_of_part(held.device) if held.device else {})


def _wave(at: int) -> float:
    """From 0.5 at night to 1 by day."""
    return 0.75 + 0.25 * math.sin(2 * math.pi * at / (24 * HOUR))


def _value(family: Family, subject: Subject, labels: Mapping[str, str], at: int, begin: int) -> float:
    name = family.name.removeprefix("accel_")
    if isinstance(subject, Held):
        return _of_container(name, subject, at, begin)
    if isinstance(subject, Gpu):
        return _of_gpu(name, subject, at, begin)
    if isinstance(subject, Part):
        return {"mig_info": 1, "mig_memory_capacity_bytes": subject.gib * GIB, "mig_memory_used_bytes": GIB}.get(
            name, 0.5
        )
    if isinstance(subject, tuple):
        had = sum(held.part * _had(held, at) for held in subject)
        busy = sum(held.part * held.load * _had(held, at) for held in subject)
        return {"namespace_gpu_seconds_total": had, "namespace_gpu_busy_seconds_total": busy}.get(name, had * GIB)
    known: dict[str, float] = {
        "node_gpu_seconds_total": len(_on(subject)) * at,
        "node_gpus": len(_on(subject)),
        "collector_last_success_timestamp_seconds": begin + at,
        "collector_duration_seconds": 0.01,
        "namespace_gpu_quota": 8,
        "namespace_gpu_quota_used": 3,
    }
    return known.get(name, at / HOUR if family.kind is Kind.COUNTER else 1)


def _had(held: Held, at: int) -> int:
    """Seconds, up to now."""
    return max(0, min(at, held.end * HOUR) - held.begin * HOUR)


def _of_container(name: str, held: Held, at: int, begin: int) -> float:
    used = held.uses * held.gib * GIB * _wave(at)
    known: dict[str, float] = {
        "container_gpu_core_request_ratio": held.part,
        "container_gpu_memory_request_bytes": held.gib * GIB,
        "container_gpu_allocated_gpus": held.part,
        "container_gpu_memory_used_bytes": used,
        # The notebook bursts between two scrapes.
        "container_gpu_memory_peak_bytes": (0.8 if held.pod == "notebook" else held.uses) * held.gib * GIB,
        "container_gpu_utilization_ratio": held.load * _wave(at),
        "container_gpu_busy_seconds_total": held.load * _had(held, at),
        "container_gpu_last_active_timestamp_seconds": begin + at - 60,
        "container_gpu_alloc_failures_total": at // (24 * HOUR),
    }
    return known.get(name, 1)


def _of_gpu(name: str, gpu: Gpu, at: int, begin: int) -> float:
    there = [held for held in HELD if held.gpu == gpu and held.begin * HOUR <= at <= held.end * HOUR]
    allocated = sum(held.gib for held in there) * GIB
    used = sum(_of_container("container_gpu_memory_used_bytes", held, at, begin) for held in there)
    load = sum(held.load for held in there) * _wave(at)
    known: dict[str, float] = {
        "gpu_utilization_ratio": load,
        "gpu_memory_capacity_bytes": gpu.gib * GIB,
        "gpu_memory_used_bytes": used + 2 * 100 * (1 << 20),
        "gpu_memory_reserved_bytes": 300 * (1 << 20),
        "gpu_memory_allocated_bytes": allocated,
        "gpu_memory_unallocated_bytes": gpu.gib * GIB - allocated,
        "gpu_memory_unattributed_bytes": 100 * (1 << 20),
        "gpu_temperature_celsius": 35 + 40 * load,
        "gpu_power_watts": 70 + 300 * load,
        "gpu_power_limit_watts": 700,
        "gpu_clock_hertz": 1.2e9 + 0.6e9 * load,
        "gpu_xid_last_timestamp_seconds": begin + at // (48 * HOUR) * 48 * HOUR,
        "gpu_row_remap_failure": 0,
    }
    return known.get(name, at / HOUR if name.endswith("_total") else 1)
