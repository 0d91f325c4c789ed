# SPDX-License-Identifier: Apache-2.0
"""Which pod has which part of each GPU: read from what the nodes' plugins publish, shown as a table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kube_accel.model import Gpu, Health, Mode
from kube_accel.placement.choose import WHOLE
from kube_accel.shared.quantity import human_bytes
from kube_accel.sharing.inventory_annotation import ANNOTATION, NodeInventory, decode


@dataclass(frozen=True)
class Slice:
    """What one pod has of a GPU."""

    pod: str
    """``namespace/pod``."""
    cores: int
    """Percent of the GPU; 0 where the mode divides memory alone."""
    memory_bytes: int


@dataclass(frozen=True)
class GpuRow:
    """One GPU of one node, and who has what of it."""

    node: str
    mode: str
    index: int
    model: str
    memory_bytes: int
    health: str
    reason: str
    slices: tuple[Slice, ...] | None
    """None when kubelet has not told who holds what."""

    @property
    def divides_cores(self) -> bool:
        return self.mode != Mode.CGPU

    @property
    def free(self) -> tuple[int, int]:
        """Percent and bytes that somebody could still get."""
        taken = self.slices or ()
        if self.health == Health.UNHEALTHY or any(part.cores >= WHOLE for part in taken):
            return 0, 0
        return WHOLE - sum(part.cores for part in taken), self.memory_bytes - sum(part.memory_bytes for part in taken)


def rows(nodes: Iterable[Mapping[str, Any]]) -> list[GpuRow]:
    """The GPUs of every node object that carries an inventory annotation, by node and index.

    Raises ValueError, naming the node, when an annotation is not one this version reads.
    """
    found = []
    for node in nodes:
        metadata = node["metadata"]
        text = (metadata.get("annotations") or {}).get(ANNOTATION)
        if text is None:
            continue
        try:
            inventory = decode(text)
        except ValueError as error:
            raise ValueError(f"node {metadata['name']}: annotation {ANNOTATION}: {error}") from error
        found += [_row(metadata["name"], gpu, inventory) for gpu in inventory.inventory.gpus]
    return sorted(found, key=lambda row: (row.node, row.index))


def _row(node: str, gpu: Gpu, inventory: NodeInventory) -> GpuRow:
    slices: dict[str, Slice] = {}
    for held in (inventory.held or {}).get(gpu.uuid, ()):
        pod = f"{held.namespace}/{held.pod}"
        before = slices.get(pod, Slice(pod, 0, 0))
        slices[pod] = Slice(pod, before.cores + held.cores, before.memory_bytes + held.memory_bytes)
    return GpuRow(
        node=node,
        mode=inventory.mode.value,
        index=gpu.index,
        model=gpu.model,
        memory_bytes=gpu.memory_bytes,
        health=inventory.health[gpu.uuid].health.value,
        reason=inventory.health[gpu.uuid].reason,
        slices=None if inventory.held is None else tuple(sorted(slices.values(), key=lambda part: part.pod)),
    )


def amounts(gpu: GpuRow, cores: int, memory_bytes: int) -> tuple[str, str]:
    """Cores and memory as people write them; cores are ``-`` where the mode does not divide them."""
    return f"{cores} %" if gpu.divides_cores else "-", human_bytes(memory_bytes)


def table(gpus: Sequence[GpuRow]) -> str:
    """A line for each slice, and one for what is left of a GPU."""
    lines = [("NODE", "MODE", "GPU", "MODEL", "HEALTH", "CORES", "MEMORY", "POD")]
    for gpu in gpus:
        health = f"{gpu.health}: {gpu.reason}" if gpu.reason else gpu.health
        card = (gpu.node, gpu.mode, str(gpu.index), gpu.model, health)
        if gpu.slices is None:
            lines.append((*card, "?", "?", "unknown"))
            continue
        parts = [(*amounts(gpu, part.cores, part.memory_bytes), part.pod) for part in gpu.slices]
        if all(gpu.free):
            parts.append((*amounts(gpu, *gpu.free), "free"))
        parts = parts or [("-", "-", "-")]
        lines += [(*(card if number == 0 else ("",) * len(card)), *part) for number, part in enumerate(parts)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if column in (5, 6) else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )
