# Apache License 2.0 (see https://www.apache.org/licenses/LICENSE-2.0)
# SPDX-License-Identifier: Apache-2.0
"""What a node's plugin says of its GPUs and who has them, in the annotation ``kube-accel.io/inventory``. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Callable, Dict, List, Mapping, Optional, Tuple

from . import label_names
from .modes import CORES
from .plugin_metrics import Place
from .plugin_pods import PodName
from .printable import line
from .reading import read_document, read_number, read_object, read_objects, read_text

INVENTORY = label_names.INVENTORY
ASSIGNMENT = label_names.ASSIGNMENT
_VERSION = 1
WHOLE = CORES
"""Cores of one GPU."""

_LONGEST_WHY = 200
_MOST_TEXT = 256 << 10
"""Characters of an annotation: the API server accepts no more for all of an object."""
_MOST_GPUS = 64
_MOST_HOLDERS = 1024
_MOST_NUMBER = 2**63 - 1
_TOKEN = re.compile(r"[A-Za-z0-9_.:-]{1,64}")
_NAME = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?")
_WORDS = re.compile(r"[\s\S]{0,1024}")

_Pod = Optional[Mapping[str, Any]]


@dataclass(frozen=True)
class Tenant:
    """What a container has of a GPU."""

    namespace: str
    pod: str
    container: str
    cores: int
    memory_bytes: int
    used_bytes: Optional[int] = None
    """None where it is not known."""
    why: str = ""
    """Why it has this GPU, as its pod says; empty where it is not known."""


@dataclass(frozen=True)
class GpuView:
    """A GPU and who has some of it."""

    uuid: str
    index: int
    model: str
    memory_bytes: int
    health: str
    """``healthy``, ``unhealthy`` or ``unknown``."""
    reason: str
    tenants: Tuple[Tenant, ...]
    faults: Tuple[str, ...] = ()
    """What its driver does not report about it although it may be handed out: function, cause and remedy."""
    mig: Tuple[str, ...] = ()
    """Profiles of the MIG devices that claims may have of it."""
    classes: Tuple[str, ...] = ()
    """Device classes of ours by which claims may have it, or parts of it."""
    cut_into: int = 0
    """Into how many fixed shares it is cut for claims; 0 for none."""

    @property
    def allocated_bytes(self) -> int:
        """Never more than there is, whatever the plugin reports."""
        return min(self.memory_bytes, sum(tenant.memory_bytes for tenant in self.tenants))

    @property
    def allocated_cores(self) -> int:
        """Percent of the GPU."""
        return min(WHOLE, sum(tenant.cores for tenant in self.tenants))

    @property
    def used_bytes(self) -> Optional[int]:
        """Return what all tenants use together; None unless all are known."""
        used = [tenant.used_bytes for tenant in self.tenants]
        known = [amount for amount in used if amount is not None]
        return sum(known) if len(known) == len(used) else None


@dataclass(frozen=True)
class UnreadableView:
    """A GPU that the driver shows and does not describe: it is not handed out."""

    index: int
    uuid: str
    """Empty where it is not reported."""
    reason: str


@dataclass(frozen=True)
class InventoryView:
    """What a node's plugin says in the annotation."""

    mode: str
    driver: str
    gpus: Tuple[GpuView, ...]
    told: bool
    """Whether kubelet has reported who holds what."""
    unreadable: Tuple[UnreadableView, ...] = ()

    @property
    def healthy(self) -> int:
        """GPUs that may be handed out."""
        return sum(gpu.health == "healthy" for gpu in self.gpus)


def read_inventory(
    text: object, used: Mapping[Place, int] = MappingProxyType({}), pod: Callable[[PodName], _Pod] = lambda name: None
) -> InventoryView:
    """Return what a text of the annotation ``kube-accel.io/inventory`` says. Raises ValueError, whatever the text."""
    said = read_document(text, _VERSION, _MOST_TEXT)
    mode, entries = read_text(said, "mode", _TOKEN), read_objects(said.get("gpus"), "gpus", _MOST_GPUS)
    gpus = sorted((_gpu(entry, used, pod, mode) for entry in entries), key=lambda gpu: gpu.index)
    driver = read_text(said, "driver", _TOKEN) if "driver" in said else ""
    unread = [_unreadable(entry) for entry in read_objects(said.get("unreadable") or [], "unreadable", _MOST_GPUS)]
    return InventoryView(mode, driver, tuple(gpus), all("held" in entry for entry in entries), tuple(unread))


def unreadable(node: str, annotation: str, error: ValueError) -> str:
    """Say of a node's annotation, which the plugin writes, why it cannot be read, and what to do."""
    return (
        f"annotation {annotation} cannot be read: {error}; use the release of the node's plugin, or run kubectl "
        f"annotate node {node} {annotation}- and the plugin writes it again"
    )


def _gpu(entry: Dict[str, Any], used: Mapping[Place, int], pod_of: Callable[[PodName], _Pod], mode: str) -> GpuView:
    """Return a GPU of the annotation. Raises ValueError."""
    uuid, memory = read_text(entry, "uuid", _TOKEN), read_number(entry, "memoryBytes", _MOST_NUMBER)
    tenants = []
    for holding in read_objects(entry.get("held") or [], "held", _MOST_HOLDERS):
        namespace, pod, container = (read_text(holding, key, _NAME) for key in ("namespace", "pod", "container"))
        amounts = WHOLE, memory
        if "cores" in holding:
            amounts = read_number(holding, "cores", WHOLE), read_number(holding, "memoryBytes", _MOST_NUMBER)
        have = used.get((uuid, namespace, pod, container))
        why = _why(pod_of((namespace, pod)), container, uuid, mode)
        tenants.append(Tenant(namespace, pod, container, *amounts, used_bytes=have, why=why))
    return GpuView(
        uuid,
        read_number(entry, "index", 1 << 16),
        read_text(entry, "model", _WORDS),
        memory,
        read_text(entry, "health", _TOKEN),
        read_text({"reason": "", **entry}, "reason", _WORDS),
        tuple(tenants),
        tuple(read_text({"faults": row}, "faults", _WORDS) for row in _rows(entry.get("faults"))),
    )


def _unreadable(entry: Dict[str, Any]) -> UnreadableView:
    """Return a GPU of the annotation that could not be read. Raises ValueError."""
    uuid = read_text(entry, "uuid", _TOKEN) if entry.get("uuid") is not None else ""
    return UnreadableView(read_number(entry, "index", 1 << 16), uuid, read_text(entry, "reason", _WORDS))


def _rows(value: object) -> List[Any]:
    """Return a list of the annotation, empty where there is none. Raises ValueError."""
    if value is None:
        return []
    if not isinstance(value, list) or len(value) > _MOST_GPUS:
        raise ValueError("faults: no list")
    return value


def _why(pod: Optional[Mapping[str, Any]], container: str, uuid: str, mode: str) -> str:
    """Return the extender's reason in the pod, which its owner may have overwritten, or that it did not choose."""
    if pod is None:
        return ""
    text = (pod["metadata"].get("annotations") or {}).get(ASSIGNMENT)
    if text is None:
        return "chosen on the node: no extender assigned it" if mode != "pgpu" else ""
    try:
        said = read_object(text, _MOST_TEXT)
        assigned = {share["uuid"] for share in said["containers"][container]}
        reason = said.get("why", {}).get(container, "")
    except (ValueError, LookupError, TypeError, AttributeError):
        return "its pod's assignment cannot be read"
    if uuid not in assigned:
        return "chosen on the node, instead of the one that the extender assigned"
    return line(reason, _LONGEST_WHY) if isinstance(reason, str) else ""
