# Apache License 2.0 (see https://www.apache.org/licenses/LICENSE-2.0)
# SPDX-License-Identifier: Apache-2.0
"""Which GPUs of a machine are left alone: those that are excluded, and display cards. Pure."""

from __future__ import annotations

import re
from typing import Iterable, NamedTuple, Optional, Tuple

DISPLAY_CARDS = ("DGX Display", "NVIDIA DGX Display")
"""The display cards of a DGX Station, which NVIDIA's device plugin leaves out too (go-nvlib, skipped devices)."""

_UUID = re.compile(r"GPU-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)
_ADDRESS = re.compile(r"(?:([0-9a-f]{1,8}):)?([0-9a-f]{1,2}):([0-9a-f]{1,2})(?:\.0)?", re.IGNORECASE)
_DISPLAY = "display card"


class Exclusion(NamedTuple):
    """One entry of a list of excluded GPUs."""

    text: str
    """As it was written."""
    by: str
    """What it goes by: ``index``, ``uuid``, ``pci_address`` or ``model``."""
    value: str
    """In one spelling; a model is a pattern in which ``*`` stands for anything."""

    def names(self, index: int, uuid: Optional[str], pci_address: Optional[str], model: Optional[str]) -> bool:
        """Return whether the entry names the GPU of which this is known; None stands for what could not be read."""
        if self.by == "model":
            return _matches(self.value, model or "")
        known = {"index": str(index), "uuid": (uuid or "").lower(), "pci_address": _address(pci_address or "")}
        return known[self.by] == self.value


def parse(entries: object) -> Tuple[Exclusion, ...]:
    """Return the entries of a list: UUIDs, indices as NVML counts, PCI addresses, or models, with ``*`` for anything.

    Raises ValueError that names the first entry which is none of these.
    """
    if not isinstance(entries, (list, tuple)):
        raise ValueError(f"{entries!r} is no list of GPUs")
    return tuple(_parsed(entry) for entry in entries)


def _parsed(entry: object) -> Exclusion:
    text = str(entry).strip() if isinstance(entry, (str, int)) and not isinstance(entry, bool) else ""
    if text.isascii() and text.isdigit():
        return Exclusion(text, "index", str(int(text)))
    if _UUID.fullmatch(text):
        return Exclusion(text, "uuid", text.lower())
    if _ADDRESS.fullmatch(text):
        return Exclusion(text, "pci_address", _address(text))
    if ":" in text or text.startswith(("GPU-", "MIG-", "-")) or not re.search("[A-Za-z]", text):
        raise ValueError(
            f"{entry!r} names no GPU: give its UUID (GPU-...), its index, its PCI address (0000:3b:00.0) or its model, "
            "in which * stands for anything"
        )
    return Exclusion(text, "model", text)


def excluded_by(
    exclusions: Iterable[Exclusion],
    index: int,
    uuid: Optional[str] = None,
    pci_address: Optional[str] = None,
    model: Optional[str] = None,
) -> str:
    """Return the text of the first entry that names a GPU; ``display card`` for one, empty for a GPU that is used."""
    if model in DISPLAY_CARDS:
        return _DISPLAY
    found = (each.text for each in exclusions if each.names(index, uuid, pci_address, model))
    return next(found, "")


def _address(text: str) -> str:
    """Return a PCI address without leading zeros and function, so that all spellings of one are the same."""
    parts = _ADDRESS.fullmatch(text.strip())
    return "" if parts is None else ":".join(f"{int(part or '0', 16):x}" for part in parts.groups())


def _matches(pattern: str, model: str) -> bool:
    """Return whether a model is as the pattern says, in the spelling of NVML or in that of node labels, with dashes."""
    wanted = ".*".join(re.escape(_plain(part)) for part in pattern.split("*"))
    return re.fullmatch(wanted, _plain(model)) is not None


def _plain(text: str) -> str:
    return re.sub(r"[\s-]+", " ", text).lower()
