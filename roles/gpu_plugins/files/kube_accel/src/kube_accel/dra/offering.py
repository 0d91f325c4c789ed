# SPDX-License-Identifier: Apache-2.0
"""Of which GPUs MIG devices are made for claims: by what is offered, what the GPUs can be cut into, and what is held.

What claims hold stays offered as it is, whatever an administrator changes.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from kube_accel.dra.checkpoint import Holdings
from kube_accel.dra.partitions import Divided, divided, lacking
from kube_accel.model import Gpu, Inventory
from kube_accel.shared.mig_geometry import Card
from kube_accel.shared.mig_offers import MigOffer, offered_profiles

_log = logging.getLogger(__name__)

_HOPPER: Final = (9, 0)
"""The first architecture whose MIG mode changes without a reset of the GPU."""


@dataclass(frozen=True, slots=True)
class Offering:
    """What is offered now."""

    divided: Mapping[str, Divided] = field(default_factory=lambda: MappingProxyType({}))
    """By the GPU's UUID."""
    doubtful: frozenset[str] = frozenset()
    """UUIDs of GPUs with MIG devices that nobody knows of."""
    notes: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    """What keeps a GPU from what is offered of it, by its UUID."""


NOTHING: Final = Offering()


def unknown(gpu: Gpu, holdings: Holdings) -> tuple[str, ...]:
    """Return a GPU's MIG devices that no claim has; none while one is being made."""
    held = holdings.of(gpu.uuid)
    if any(not device.uuid for device in held):
        return ()
    known = {device.uuid for device in held}
    return tuple(mig.uuid for mig in gpu.mig_devices if mig.uuid not in known)


def offering(
    inventory: Inventory, cards: Mapping[str, Card], offers: tuple[MigOffer, ...], holdings: Holdings, allowed: bool
) -> Offering:
    """Return what is to be published of MIG devices that are made for claims; what is held alone unless ``allowed``."""
    found: dict[str, Divided] = {}
    notes: dict[str, str] = {}
    for gpu in inventory.gpus:
        profiles = offered_profiles(offers, gpu.index, gpu.uuid, gpu.pci_address, gpu.model) if allowed else ()
        held = [each.placement for each in holdings.of(gpu.uuid) if each.placement is not None]
        card = cards.get(gpu.uuid)
        if not profiles and not held and gpu.uuid not in holdings.switched:
            continue
        obstacle = _obstacle(gpu, card, holdings)
        if obstacle or card is None:
            notes[gpu.uuid] = obstacle
            continue
        if lacks := lacking(card, profiles):
            notes[gpu.uuid] = lacks
        found[gpu.uuid] = divided(card, profiles, held, not gpu.mig_enabled or gpu.uuid in holdings.switched)
    return Offering(found, notes=notes)


def _obstacle(gpu: Gpu, card: Card | None, holdings: Holdings) -> str:
    """Return why MIG devices cannot be made on a GPU; empty where they can."""
    if card is None:
        return "NVML does not say what it can be cut into"
    if card.enabled is None:
        return "it has no MIG mode"
    if any(each.parent and each.placement is None for each in holdings.of(gpu.uuid)):
        return "claims have MIG devices that were there before; it is offered after them"
    if not gpu.mig_enabled and gpu.compute_capability < _HOPPER:
        return "its MIG mode is off, and changes with a reset only; turn it on by gpu_plugins_mig_config"
    return ""


class Offerer:
    """Follows the GPUs of which MIG devices are made."""

    def __init__(self, offers: tuple[MigOffer, ...]) -> None:
        self._offers = offers
        self._cards: Mapping[str, Card] = {}
        self._suspects: frozenset[str] = frozenset()
        """MIG devices that nobody knew of at the last look."""
        self._told: Mapping[str, str] = {}
        self.current = NOTHING

    @property
    def wanted(self) -> bool:
        """Return whether an administrator offers MIG devices that are made."""
        return bool(self._offers)

    def read(self, cards: Iterable[Card]) -> None:
        """Note what the GPUs can be cut into; what was known of one stays, since MIG mode tells more of it."""
        self._cards = {card.uuid: card for card in cards} | dict(self._cards)

    def lacks(self, inventory: Inventory, holdings: Holdings) -> bool:
        """Return whether what GPUs can be cut into has to be read."""
        needed = self._offers or any(each.placement for each in holdings.devices) or holdings.switched
        return bool(needed) and any(gpu.uuid not in self._cards for gpu in inventory.gpus if gpu.mig_capable)

    def now(self, inventory: Inventory, holdings: Holdings) -> Offering:
        """Return what can be made, whoever publishes it, and whatever is on the GPUs."""
        return offering(inventory, self._cards, self._offers, holdings, allowed=True)

    def look(self, inventory: Inventory, holdings: Holdings, allowed: bool) -> Offering:
        """Return what to publish. MIG devices that nobody knows of count at the second look at them."""
        found = offering(inventory, self._cards, self._offers, holdings, allowed)
        strange = {gpu.uuid: unknown(gpu, holdings) for gpu in inventory.gpus if gpu.uuid in found.divided}
        stay = {gpu: [uuid for uuid in uuids if uuid in self._suspects] for gpu, uuids in strange.items()}
        self._suspects = frozenset(uuid for uuids in strange.values() for uuid in uuids)
        told = {
            gpu: f"{', '.join(uuids)} was not made for a claim; destroy it, or offer no MIG devices of the GPU"
            for gpu, uuids in stay.items()
            if uuids
        }
        self.current = Offering(found.divided, frozenset(told), {**found.notes, **told})
        for uuid, note in self.current.notes.items():
            if self._told.get(uuid) != note:
                _log.warning("MIG devices are not made on a GPU as offered", extra={"gpu": uuid, "reason": note})
        self._told = self.current.notes
        return self.current
