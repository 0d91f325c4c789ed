# SPDX-License-Identifier: Apache-2.0
"""What the kernel's sysfs says about the machine and its GPUs, without NVML."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path


def product(sysfs_root: Path) -> str:
    """Return the board's product name, empty where the kernel does not report it."""
    return _text(sysfs_root / "class/dmi/id/product_name").strip()


_WSL = (
    "this is WSL2, whose driver does not tell what the plugin needs of GPUs: it is not supported; use a Linux host with"
    " the NVIDIA driver for Linux"
)
_JETSON = (
    "this is a Jetson, whose integrated GPU NVML does not describe: it is not supported; use NVIDIA's device plugin"
    " with --device-discovery-strategy=tegra on this node"
)


def unsupported_platform(sysfs_root: Path, proc_root: Path) -> str:
    """Return why this machine's GPUs cannot be managed whatever NVML says, with the remedy; empty if they can."""
    release = _text(proc_root / "sys/kernel/osrelease").lower()
    if "microsoft" in release and "wsl" in release:
        return _WSL
    family = _text(sysfs_root / "devices/soc0/family")
    compatible = _text(sysfs_root / "firmware/devicetree/base/compatible")
    return _JETSON if "tegra" in family.lower() or "nvidia,tegra" in compatible else ""


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def pci_classes(sysfs_root: Path, addresses: Iterable[str]) -> tuple[int, ...]:
    """Return the PCI class codes of these devices; none at all when one of them is not known."""
    found = []
    for address in addresses:
        try:
            found.append(int((sysfs_root / "bus/pci/devices" / address / "class").read_text(), 16))
        except (OSError, ValueError):
            return ()
    return tuple(found)


def pcie_roots(sysfs_root: Path, addresses: Iterable[str]) -> dict[str, str]:
    """Return the PCIe root of each device, ``pci0000:00``, by address; without those the kernel does not place."""
    found = {}
    for address in addresses:
        # .../devices/pci0000:00/0000:00:01.0/0000:01:00.0, through whatever bridges there are.
        place = (sysfs_root / "bus/pci/devices" / address).resolve().parts
        roots = [part for part in place if part.startswith("pci") and ":" in part]
        if roots:
            found[address] = roots[0]
    return found
