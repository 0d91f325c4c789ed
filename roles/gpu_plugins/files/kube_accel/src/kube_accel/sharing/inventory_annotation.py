# SPDX-License-Identifier: Apache-2.0
"""The node annotation that shows the rest of the cluster what a node's plugin sees and holds: written and read here."""

from __future__ import annotations

import json
import marshal
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

from kube_accel.model import Ancestor, Gpu, GpuHealth, GpuLink, Health, Inventory, Mode, UnreadableGpu
from kube_accel.shared import label_names
from kube_accel.shared.reading import read_document, read_list, read_number, read_objects, read_text

ANNOTATION: Final = label_names.INVENTORY
VERSION: Final = 1

_MAX_TEXT = 256 << 10
"""What the API server accepts for all annotations of an object."""
_MAX_GPUS = 64
_MAX_HOLDERS = 1024
_MAX_FAULTS = 8
"""Most faults of one GPU that are reported; a GPU with more is broken altogether."""
_MAX_NUMBER = 2**63 - 1
_TOKEN = re.compile(r"[A-Za-z0-9_.:-]{1,64}")
_NAME = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?")
_LINE = re.compile(r"[^\x00-\x1f\x7f\ud800-\udfff]{0,512}")


@dataclass(frozen=True, slots=True, order=True)
class Holding:
    """What one container holds of a GPU, as kubelet lists it; 100 cores are the whole GPU."""

    namespace: str
    pod: str
    container: str
    cores: int
    memory_bytes: int


@dataclass(frozen=True, slots=True)
class NodeInventory:
    """What the annotation says."""

    mode: Mode
    inventory: Inventory
    health: Mapping[str, GpuHealth]
    """By UUID, for every GPU of the inventory."""
    held: Mapping[str, tuple[Holding, ...]] | None
    """Holdings by UUID; a free GPU may be absent. None before kubelet's first list."""
    memory_unit: int | None = None
    """Bytes of one unit of the mode's memory resource; None where only whole GPUs are handed out."""
    divided: frozenset[str] = frozenset()
    """UUIDs of GPUs of which ``nvidia.com/gpu`` is not the whole: MIG devices, replicas or nothing are handed out."""


def encode(node: NodeInventory) -> str:
    """Return the annotation's text; the same state always gives the same text.

    A holding without amounts is the whole GPU. Links are ``[i, j, ancestor, nvlinks]`` with the two GPUs' places in
    the list and the ancestor's name in lower case. A GPU whose health is not given is of unknown health.

    ``faults`` of a GPU, and the node's ``unreadable`` GPUs, are there where there are some.
    """
    position = {gpu.uuid: place for place, gpu in enumerate(node.inventory.gpus)}
    links = sorted(
        (*sorted(position[uuid] for uuid in pair), link.ancestor.name.lower(), link.nvlinks)
        for pair, link in node.inventory.links.items()
        if pair <= position.keys()
    )
    document: dict[str, object] = {
        "version": VERSION,
        "mode": node.mode.value,
        "driver": node.inventory.driver_version,
        "cuda": node.inventory.cuda_version,
        "gpus": [_gpu_document(gpu, node) for gpu in node.inventory.gpus],
        "links": links,
    }
    if node.inventory.unreadable:
        document["unreadable"] = [
            {"index": gpu.index, "uuid": gpu.uuid, "reason": _line(gpu.reason)} for gpu in node.inventory.unreadable
        ]
    if node.memory_unit is not None:
        document["memoryUnit"] = node.memory_unit
    return json.dumps(document, separators=(",", ":"))


def decode(text: str) -> NodeInventory:
    """Return the node an annotation's text describes. Keys it does not know are left to later versions.

    Raises ValueError for everything that ``encode`` cannot have written, whatever the text.
    """
    document = read_document(text, VERSION, _MAX_TEXT)
    entries = read_objects(document.get("gpus"), "gpus", _MAX_GPUS)
    gpus = tuple(_gpu(entry) for entry in entries)
    if len({gpu.uuid for gpu in gpus}) < len(gpus):
        raise ValueError("gpus: two of them have the same UUID")
    told = any("held" in entry for entry in entries)
    return NodeInventory(
        mode=Mode(read_text(document, "mode", _TOKEN)),
        inventory=Inventory(
            driver_version=read_text(document, "driver", _TOKEN),
            cuda_version=_version(document.get("cuda"), "cuda"),
            gpus=gpus,
            links=_links(document.get("links"), gpus),
            unreadable=tuple(
                _unreadable(entry) for entry in read_objects(document.get("unreadable", []), "unreadable", _MAX_GPUS)
            ),
        ),
        health={
            gpu.uuid: GpuHealth(
                Health(read_text(entry, "health", _TOKEN)), read_text(entry, "reason", _LINE), faults=_faults(entry)
            )
            for gpu, entry in zip(gpus, entries, strict=True)
        },
        held={gpu.uuid: _held(gpu, entry) for gpu, entry in zip(gpus, entries, strict=True)} if told else None,
        memory_unit=read_number(document, "memoryUnit", _MAX_NUMBER, least=1) if "memoryUnit" in document else None,
        divided=frozenset(
            gpu.uuid for gpu, entry in zip(gpus, entries, strict=True) if not _flag(entry.get("whole", True), "whole")
        ),
    )


def _gpu_document(gpu: Gpu, node: NodeInventory) -> dict[str, object]:
    health = node.health.get(gpu.uuid, GpuHealth(Health.UNKNOWN, "not read"))
    document: dict[str, object] = {
        "uuid": gpu.uuid,
        "index": gpu.index,
        "minor": gpu.minor,
        "model": _line(gpu.model),
        "memoryBytes": gpu.memory_bytes,
        "computeCapability": gpu.compute_capability,
        "pciAddress": gpu.pci_address,
        "numaNode": gpu.numa_node,
        "mig": gpu.mig_enabled,
        "health": health.health.value,
        "reason": _line(health.reason),
    }
    if health.faults:
        document["faults"] = [_line(fault) for fault in health.faults[:_MAX_FAULTS]]
    if gpu.uuid in node.divided:
        document["whole"] = False
    if node.held is not None:
        document["held"] = [_holding_document(holding) for holding in sorted(node.held.get(gpu.uuid, ()))]
    return document


def _holding_document(holding: Holding) -> dict[str, object]:
    document: dict[str, object] = {
        "namespace": _name(holding.namespace),
        "pod": _name(holding.pod),
        "container": _name(holding.container),
    }
    if holding.cores < 100:
        document |= {"cores": holding.cores, "memoryBytes": holding.memory_bytes}
    return document


def _gpu(entry: dict[str, Any]) -> Gpu:
    return Gpu(
        uuid=sys.intern(read_text(entry, "uuid", _TOKEN)),
        index=read_number(entry, "index", 1 << 16),
        minor=read_number(entry, "minor", 1 << 16),
        model=sys.intern(read_text(entry, "model", _LINE)),
        memory_bytes=read_number(entry, "memoryBytes", _MAX_NUMBER, least=1),
        compute_capability=_version(entry.get("computeCapability"), "computeCapability"),
        pci_address=sys.intern(read_text(entry, "pciAddress", _TOKEN)),
        numa_node=None if entry.get("numaNode") is None else read_number(entry, "numaNode", 1 << 16),
        mig_enabled=_flag(entry.get("mig"), "mig"),
    )


def _unreadable(entry: dict[str, Any]) -> UnreadableGpu:
    uuid = None if entry.get("uuid") is None else read_text(entry, "uuid", _TOKEN)
    return UnreadableGpu(read_number(entry, "index", 1 << 16), uuid, read_text(entry, "reason", _LINE))


def _faults(entry: dict[str, Any]) -> tuple[str, ...]:
    rows = read_list(entry.get("faults", []), "faults", _MAX_FAULTS)
    return tuple(read_text({"faults": row}, "faults", _LINE) for row in rows)


def _held(gpu: Gpu, entry: dict[str, Any]) -> tuple[Holding, ...]:
    return tuple(
        Holding(
            namespace=read_text(holding, "namespace", _NAME),
            pod=read_text(holding, "pod", _NAME),
            container=read_text(holding, "container", _NAME),
            cores=read_number(holding, "cores", 100) if "cores" in holding else 100,
            memory_bytes=read_number(holding, "memoryBytes", _MAX_NUMBER) if "cores" in holding else gpu.memory_bytes,
        )
        for holding in read_objects(entry.get("held", []), "held", _MAX_HOLDERS)
    )


def _links(value: object, gpus: Sequence[Gpu]) -> dict[frozenset[str], GpuLink]:
    rows = read_list(value, "links", _MAX_GPUS * _MAX_GPUS // 2)
    return {
        frozenset((gpus[left].uuid, gpus[right].uuid)): link
        for left, right, link in _read_rows(marshal.dumps(rows, 2), len(gpus))
    }


@lru_cache(64)
def _read_rows(rows: bytes, gpus: int) -> tuple[tuple[int, int, GpuLink], ...]:
    """Return the links between so many GPUs, by their places. ``rows`` is marshaled, as a list cannot be remembered.

    Most nodes of a cluster are built alike, and their links are read once. Raises ValueError.
    """
    links = []
    for entry in marshal.loads(rows):  # noqa: S302 - marshaled by ``_links``
        row = dict(zip(("i", "j", "ancestor", "nvlinks"), read_list(entry, "links", 4, least=4), strict=True))
        left, right = (read_number(row, key, gpus - 1) for key in ("i", "j"))
        if left == right:
            raise ValueError("links: one joins a GPU with itself")
        name = read_text(row, "ancestor", _TOKEN).upper()
        if name not in Ancestor.__members__:
            raise ValueError("links: not the name of an ancestor")
        links.append((left, right, GpuLink(Ancestor[name], read_number(row, "nvlinks", 1024))))
    return tuple(links)


def _version(value: object, key: str) -> tuple[int, int]:
    row = dict(zip(("major", "minor"), read_list(value, key, 2, least=2), strict=True))
    return read_number(row, "major", 1 << 16), read_number(row, "minor", 1 << 16)


def _flag(value: object, key: str) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"{key}: neither true nor false")
    return value


def _name(text: str) -> str:
    """Change a name of kubelet's so that ``decode`` accepts it: one odd name must not cost the annotation."""
    if _NAME.fullmatch(text):
        return text
    return re.sub(r"[^a-z0-9]+", "-", text.lower())[:200].strip("-") or "unreadable"


def _line(text: str) -> str:
    """Write text of a driver as one line that ``decode`` accepts."""
    return re.sub(r"[\x00-\x1f\x7f\ud800-\udfff]+", " ", text)[:512]
