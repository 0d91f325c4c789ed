# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether the GPUs of a node are cut into fixed shares as they are to be. Pure."""

from __future__ import annotations

from typing import Any, Collection, Dict, Iterable, List, Mapping, Set

from ..shared.claim_devices import device_of
from ..shared.modes import DRA_DRIVER, dra_pool
from ..shared.registers import mapping, mappings, resources


def uncut(
    slices: Iterable[Mapping[str, Any]], claims: Mapping[str, Any], node: str, number: int, gpus: Collection[str]
) -> List[str]:
    """Return the UUIDs of those of these GPUs that the slices have otherwise than cut into so many shares, 0 for whole.

    A GPU that claims have stays cut as it was, and is none of them. One that is in no slice is missing, which is
    another matter.
    """
    held = {name for claim in resources(claims) for name in devices_of(claim, node)}
    ways: Dict[str, Set[int]] = {}
    kept: Set[str] = set()
    for item in slices:
        for device in _devices(mapping(item.get("spec"))):
            name, uuid = str(device.get("name")), _uuid(device)
            known = device_of(name)
            if known is not None and not known.is_mig and uuid in gpus:
                ways.setdefault(uuid, set()).add(known.cut_into)
                kept |= {uuid} if name in held else set()
    return sorted(uuid for uuid, found in ways.items() if found != {number} and uuid not in kept)


def has_cut_gpus(slices: Iterable[Mapping[str, Any]]) -> bool:
    """Return whether a device of our driver is a fixed share, on any node."""
    specs = (mapping(item.get("spec")) for item in slices)
    names = (str(each.get("name")) for spec in specs if spec.get("driver") == DRA_DRIVER for each in _devices(spec))
    return any(known is not None and known.cut_into > 0 for known in map(device_of, names))


def _devices(spec: Mapping[str, Any]) -> List[Mapping[str, Any]]:
    return mappings(spec.get("devices"))


def devices_of(claim: Mapping[str, Any], node: str) -> List[str]:
    """Return the devices of our driver that a claim has of a node."""
    devices = mapping(mapping(mapping(claim.get("status")).get("allocation")).get("devices"))
    wanted = DRA_DRIVER, dra_pool(node)
    found = (each for each in mappings(devices.get("results")) if (each.get("driver"), each.get("pool")) == wanted)
    return [str(each.get("device")) for each in found]


def _uuid(device: Mapping[str, Any]) -> str:
    return str(mapping(mapping(device.get("attributes")).get("uuid")).get("string"))
