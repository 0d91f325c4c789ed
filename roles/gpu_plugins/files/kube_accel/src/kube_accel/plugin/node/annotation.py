# SPDX-License-Identifier: Apache-2.0
"""The node annotation that shows the rest of the cluster what this node has and holds."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from kube_accel.model import Inventory, Mode, Share, Snapshot
from kube_accel.plugin.kubelet.holdings import Held, Holder
from kube_accel.plugin.node.reconcile import reconcile_loop
from kube_accel.sharing.inventory_annotation import ANNOTATION, Holding, NodeInventory, encode
from kube_accel.sharing.whole import Part

_log = logging.getLogger(__name__)

_BETWEEN_WRITES = 1.0
_BACK_OFF = (1.0, 30.0)
_REASSERT = 300.0
"""Seconds after which an unchanged annotation is sent again, for a Node object that was created again."""


def render(
    snapshot: Snapshot,
    held: Mapping[str, tuple[Holding, ...]] | None,
    mode: Mode,
    memory_unit: int | None = None,
    divided: frozenset[str] = frozenset(),
) -> str | None:
    """Return the annotation's text; None while no GPU was read. ``held`` is by UUID, None while not known."""
    if snapshot.inventory is None:
        return None
    return encode(NodeInventory(mode, snapshot.inventory, snapshot.health, held, memory_unit, divided))


def whole_holdings(held: Held, inventory: Inventory, parts: Iterable[Part]) -> dict[str, tuple[Holding, ...]]:
    """Return the holders of parts. Pure.

    One with memory of its own counts for as many cores as it has of the memory; each of *n* replicas for a part in *n*
    of both, though it may use all.
    """
    parts = tuple(parts)
    replicas = Counter(part.uuid for part in parts)
    taken: dict[str, Counter[tuple[Holder, int, int]]] = {gpu.uuid: Counter() for gpu in inventory.gpus}
    total = {gpu.uuid: gpu.memory_bytes for gpu in inventory.gpus}
    for part in parts:
        memory = total[part.gpu.uuid] if part.memory_bytes is None else part.memory_bytes
        taken[part.gpu.uuid].update((holder, memory, replicas[part.uuid]) for holder in held.get(part.id, ()))
    found: dict[str, tuple[Holding, ...]] = {}
    for uuid, counted in taken.items():
        amounts: Counter[Holder] = Counter()
        for (holder, memory, divisor), count in counted.items():
            amounts[holder] += memory * count // divisor
        found[uuid] = tuple(
            Holding(holder.namespace, holder.pod, holder.container, max(1, 100 * memory // total[uuid]), memory)
            for holder, amount in sorted(amounts.items())
            for memory in (min(amount, total[uuid]),)
        )
    return found


def share_holdings(held: Mapping[Holder, Iterable[Share]]) -> dict[str, tuple[Holding, ...]]:
    """Return the holders of shares. Pure."""
    found: defaultdict[str, list[Holding]] = defaultdict(list)
    for holder, shares in held.items():
        for share in shares:
            holding = Holding(holder.namespace, holder.pod, holder.container, share.cores, share.memory_bytes)
            found[share.uuid].append(holding)
    return {uuid: tuple(sorted(holdings)) for uuid, holdings in found.items()}


class AnnotationWriter:
    """Writes the annotation when it changed, from a thread of its own; an absent API server only delays it."""

    def __init__(self, node: str, service_account_dir: Path, text: Callable[[], str | None]) -> None:
        self._node = node
        self._service_account_dir = service_account_dir
        self._text = text
        self._wake = threading.Event()

    def wake(self) -> None:
        """Compare the text again: it may have changed. Returns at once."""
        self._wake.set()

    def run(self) -> None:
        """Write for ever; returns where there is no API server."""
        # Loaded here: TLS and HTTP are not needed to serve kubelet, which is waited for.
        from kube_accel.kube.api import ApiError, in_cluster

        api = in_cluster(self._service_account_dir)
        if api is None:
            _log.info("no API server in the environment: the node is not annotated", extra={"annotation": ANNOTATION})
            return
        written: str | None = None
        reassert_at = 0.0

        def write() -> bool:
            nonlocal written, reassert_at
            text = self._text()
            if text is None or (text == written and time.monotonic() < reassert_at):
                return False
            api.annotate_node(self._node, {ANNOTATION: text})
            _log.info("the node is annotated", extra={"node": self._node, "annotation": ANNOTATION})
            written, reassert_at = text, time.monotonic() + _REASSERT
            time.sleep(_BETWEEN_WRITES)
            return True

        reconcile_loop(write, self._wake, _REASSERT, _BACK_OFF, (ApiError,), self._failed)

    def _failed(self, reason: str) -> None:
        _log.warning("the node is not annotated", extra={"node": self._node, "reason": reason})
