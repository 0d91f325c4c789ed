# SPDX-License-Identifier: Apache-2.0
"""What the kernel's sysfs tells of the machine and its GPUs, without NVML."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path


def product(sysfs_root: Path) -> str:
    """The board's product name, empty where the kernel does not tell it."""
    try:
        return (sysfs_root / "class/dmi/id/product_name").read_text(errors="replace").strip()
    except OSError:
        return ""


def pci_classes(sysfs_root: Path, addresses: Iterable[str]) -> tuple[int, ...]:
    """PCI class codes of these devices; none at all when one of them is not told."""
    found = []
    for address in addresses:
        try:
            found.append(int((sysfs_root / "bus/pci/devices" / address / "class").read_text(), 16))
        except (OSError, ValueError):
            return ()
    return tuple(found)
