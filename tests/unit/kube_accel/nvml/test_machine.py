# SPDX-License-Identifier: Apache-2.0
from pathlib import Path

import pytest

from kube_accel.nvml import machine
from sim.nvml import sysfs
from sim.nvml.profiles import PROFILES


def test_machine_facts_are_read_and_missing_ones_left_out(tmp_path: Path) -> None:
    topology = PROFILES["8xh100"]("node")
    sysfs.write(topology, tmp_path)
    root, addresses = tmp_path / "sys", [gpu.pci for gpu in topology.gpus]
    assert machine.pci_classes(root, addresses) == (0x030200,) * 8
    assert machine.pci_classes(root, [*addresses, "0000:ff:00.0"]) == ()
    assert machine.product(root) == ""
    (root / "class/dmi/id").mkdir(parents=True)
    (root / "class/dmi/id/product_name").write_bytes(b"PowerEdge \xff\n")
    assert machine.product(root) == "PowerEdge \ufffd"


def test_pcie_root_is_the_one_above_all_bridges(tmp_path: Path) -> None:
    devices = tmp_path / "bus/pci/devices"
    devices.mkdir(parents=True)
    place = tmp_path / "devices/pci0000:40/0000:40:01.0/0000:41:00.0"
    place.mkdir(parents=True)
    (devices / "0000:41:00.0").symlink_to(place)
    (devices / "0000:42:00.0").mkdir()
    addresses = ["0000:41:00.0", "0000:42:00.0", "0000:43:00.0"]
    assert machine.pcie_roots(tmp_path, addresses) == {"0000:41:00.0": "pci0000:40"}


def put(root: Path, name: str, text: str) -> None:
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / name).write_text(text)


@pytest.mark.parametrize(
    ("name", "text", "word"),
    [
        ("proc/sys/kernel/osrelease", "5.15.167.4-microsoft-standard-WSL2\n", "WSL2"),
        ("sys/devices/soc0/family", "Tegra\n", "Jetson"),
        ("sys/firmware/devicetree/base/compatible", "nvidia,p3701-0000\0nvidia,tegra234\0", "Jetson"),
        ("proc/sys/kernel/osrelease", "6.8.0-1021-azure\n", ""),
        ("sys/firmware/devicetree/base/compatible", "nvidia,dgx-spark\0", ""),
    ],
)
def test_a_machine_that_nvml_does_not_describe_is_named(tmp_path: Path, name: str, text: str, word: str) -> None:
    assert machine.unsupported_platform(tmp_path / "sys", tmp_path / "proc") == ""
    put(tmp_path, name, text)
    said = machine.unsupported_platform(tmp_path / "sys", tmp_path / "proc")
    assert (word in said, "it is not supported; use" in said) == (bool(word) or not said, bool(word))
