# SPDX-License-Identifier: Apache-2.0
"""What the kernel shows of a simulated node's GPUs: PCI devices with their NUMA node, and what a driver adds."""

from __future__ import annotations

import shutil
from pathlib import Path

from sim.nvml.topology import Topology

_CLASS_3D = 0x030200
_CLASS_BRIDGE = 0x068000
_CLASS_VGA = 0x030000
_BMC_VGA = ("0000:02:00.0", 0x20001A03)  # the board's own console: a display, but not a GPU of ours


def _devices(root: Path) -> Path:
    return root / "sys/bus/pci/devices"


def _write_device(root: Path, pci: str, pciid: int, pci_class: int, numa: int | None) -> None:
    device = _devices(root) / pci
    device.mkdir(parents=True, exist_ok=True)
    (device / "vendor").write_text(f"{pciid & 0xFFFF:#06x}\n")
    (device / "device").write_text(f"{pciid >> 16:#06x}\n")
    (device / "class").write_text(f"{pci_class:#08x}\n")
    (device / "numa_node").write_text(f"{-1 if numa is None else numa}\n")


def write(topology: Topology, root: Path) -> None:
    """Writes ``sys/bus/pci/devices`` under ``root``, as it is before any driver is loaded."""
    _write_device(root, *_BMC_VGA, _CLASS_VGA, 0)
    for gpu in topology.gpus:
        _write_device(root, gpu.pci, gpu.pciid, _CLASS_3D, gpu.numa)
    for switch in topology.nvswitches:
        _write_device(root, switch.pci, switch.pciid, _CLASS_BRIDGE, switch.numa)


def _device_files(topology: Topology, root: Path) -> list[Path]:
    minors = [gpu.index if gpu.minor is None else gpu.minor for gpu in topology.gpus]
    names = [f"nvidia{minor}" for minor in minors] + ["nvidiactl", "nvidia-uvm", "nvidia-uvm-tools"]
    return [root / "dev" / name for name in names]


def _link(path: Path, target: str) -> None:
    path.unlink(missing_ok=True)
    path.symlink_to(target)


def load_driver(topology: Topology, root: Path) -> None:
    """Adds what a loaded driver shows: ``sys/module/nvidia/version``, links both ways, plain files for device nodes."""
    driver = root / "sys/bus/pci/drivers/nvidia"
    driver.mkdir(parents=True, exist_ok=True)
    for gpu in topology.gpus:
        _link(_devices(root) / gpu.pci / "driver", "../../drivers/nvidia")
        _link(driver / gpu.pci, f"../../devices/{gpu.pci}")
    (root / "dev").mkdir(exist_ok=True)
    for file in _device_files(topology, root):
        file.touch()
    # Last: who sees it finds the rest.
    module = root / "sys/module/nvidia"
    module.mkdir(parents=True, exist_ok=True)
    (module / "version").write_text(f"{topology.system.driver}\n")


def unload_driver(topology: Topology, root: Path) -> None:
    """Takes away what ``load_driver`` added."""
    shutil.rmtree(root / "sys/module/nvidia", ignore_errors=True)
    for gpu in topology.gpus:
        (_devices(root) / gpu.pci / "driver").unlink(missing_ok=True)
    shutil.rmtree(root / "sys/bus/pci/drivers/nvidia", ignore_errors=True)
    for file in _device_files(topology, root):
        file.unlink(missing_ok=True)


def write_capabilities(topology: Topology, root: Path) -> None:
    """Writes ``proc/driver/nvidia/capabilities`` for the MIG devices there are, and their files below ``dev``.

    The driver numbers them through all GPU instances and compute instances there could be.
    """
    (root / "dev/nvidia-caps").mkdir(parents=True, exist_ok=True)
    minors = root / "proc/driver/nvidia-caps/mig-minors"
    minors.parent.mkdir(parents=True, exist_ok=True)
    lines = ["config 1", "monitor 2"]
    for mig in topology.migs:
        gpu = topology.gpus[mig.gpu]
        instance = root / f"proc/driver/nvidia/capabilities/gpu{gpu.minor or 0}/mig/gi{mig.gi}"
        number = 3 + mig.gpu * 135 + mig.gi * 9
        for directory, cap in ((instance, number), (instance / f"ci{mig.ci}", number + 1 + mig.ci)):
            directory.mkdir(parents=True, exist_ok=True)
            (directory / "access").write_text(f"DeviceFileMinor: {cap}\nDeviceFileMode: 292\nDeviceFileModify: 1\n")
            (root / f"dev/nvidia-caps/nvidia-cap{cap}").touch()
        lines += [
            f"gpu{mig.gpu}/gi{mig.gi}/access {number}",
            f"gpu{mig.gpu}/gi{mig.gi}/ci{mig.ci}/access {number + 1 + mig.ci}",
        ]
    minors.write_text("\n".join(lines) + "\n")
