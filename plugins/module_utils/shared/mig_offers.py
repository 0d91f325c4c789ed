# Apache License 2.0 (see https://www.apache.org/licenses/LICENSE-2.0)
# SPDX-License-Identifier: Apache-2.0
"""Of which GPUs claims may have MIG devices that are made for them, and of which profiles. Pure."""

from __future__ import annotations

from typing import Any, List, Mapping, NamedTuple, Tuple

from .gpu_exclusion import Exclusion, parse
from .mig_geometry import profile_problem

_KEYS = ("gpus", "profiles")


class MigOffer(NamedTuple):
    """Profiles that are offered of some GPUs."""

    gpus: Tuple[Exclusion, ...]
    """What names them; empty for all."""
    profiles: Tuple[str, ...]


def parse_offers(document: object) -> Tuple[MigOffer, ...]:
    """Return the offers of a list whose entries have ``profiles``, and ``gpus`` as a list of excluded GPUs has them.

    Raises ValueError that says what is wrong with the first entry that cannot be used.
    """
    if not isinstance(document, (list, tuple)):
        raise ValueError(f"{document!r} is no list of offers")
    return tuple(_offer(f"offer {number}", entry) for number, entry in enumerate(document, 1))


def _offer(what: str, entry: object) -> MigOffer:
    if not isinstance(entry, Mapping):
        raise ValueError(f"{what} is {entry!r}, and has to be a mapping with the keys {' and '.join(_KEYS)}")
    unknown = [key for key in entry if key not in _KEYS]
    if unknown:
        raise ValueError(f"{what} has the unknown key {unknown[0]!r} (known: {', '.join(_KEYS)})")
    profiles = entry.get("profiles")
    if not isinstance(profiles, (list, tuple)) or not profiles:
        raise ValueError(f"{what}: profiles is required, a list of MIG profiles as 1g.18gb")
    problem = next(filter(None, map(profile_problem, profiles)), "")
    gpus: Tuple[Exclusion, ...] = ()
    try:
        gpus = parse(entry["gpus"]) if entry.get("gpus") is not None else ()
    except ValueError as error:
        problem = str(error)
    if not gpus and not problem and entry.get("gpus") is not None:
        problem = "gpus names none; leave it out for all of them"
    if problem:
        raise ValueError(f"{what}: {problem}")
    return MigOffer(gpus, tuple(dict.fromkeys(profiles)))


def offered_profiles(
    offers: Tuple[MigOffer, ...], index: int, uuid: str, pci_address: str, model: str
) -> Tuple[str, ...]:
    """Return the profiles that are offered of a GPU, in the order of the offers."""
    found: List[str] = []
    for offer in offers:
        if not offer.gpus or any(each.names(index, uuid, pci_address, model) for each in offer.gpus):
            found += offer.profiles
    return tuple(dict.fromkeys(found))


def plain(offers: Tuple[MigOffer, ...]) -> List[Mapping[str, Any]]:
    """Return offers as ``parse_offers`` reads them."""
    return [
        {**({"gpus": [each.text for each in offer.gpus]} if offer.gpus else {}), "profiles": list(offer.profiles)}
        for offer in offers
    ]
