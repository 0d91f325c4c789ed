# SPDX-License-Identifier: Apache-2.0
"""Which GPUs a node should have: those that answered lately to any daemon. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from kube_accel.model import Gpu

EXPECTED_SECONDS = 7 * 86400.0
"""How long a GPU that does not answer is missed."""


@dataclass(frozen=True, slots=True)
class Seen:
    """A GPU that has answered. Times are seconds since 1970, so that they mean something after a reboot."""

    slot: str
    """Its PCI address."""
    at: float
    """When it answered last."""
    healthy_at: float | None = None
    """When it was known to be healthy last."""


def follow(
    before: Mapping[str, Seen], gpus: Iterable[Gpu], answered: Collection[str], healthy: Collection[str], now: float
) -> dict[str, Seen]:
    """Return the GPUs to expect after a poll, by UUID. One whose slot another has was replaced, and is not missed."""
    current = {gpu.uuid: gpu.pci_address for gpu in gpus if gpu.uuid in answered}
    taken = set(current.values())
    found = {
        uuid: seen
        for uuid, seen in before.items()
        if uuid not in current and seen.slot not in taken and abs(now - seen.at) < EXPECTED_SECONDS
    }
    for uuid, slot in current.items():
        known = before.get(uuid)
        found[uuid] = Seen(slot, now, now if uuid in healthy else known.healthy_at if known is not None else None)
    return found
