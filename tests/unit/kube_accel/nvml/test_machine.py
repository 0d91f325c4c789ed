# SPDX-License-Identifier: Apache-2.0
from pathlib import Path

from kube_accel.nvml import machine
from sim.nvml import sysfs
from sim.nvml.profiles import PROFILES


def test_what_the_kernel_tells_is_read_and_what_it_does_not_is_left_out(tmp_path: Path) -> None:
    topology = PROFILES["8xh100"]("node")
    sysfs.write(topology, tmp_path)
    root, addresses = tmp_path / "sys", [gpu.pci for gpu in topology.gpus]
    assert machine.pci_classes(root, addresses) == (0x030200,) * 8
    assert machine.pci_classes(root, [*addresses, "0000:ff:00.0"]) == ()
    assert machine.product(root) == ""
    (root / "class/dmi/id").mkdir(parents=True)
    (root / "class/dmi/id/product_name").write_bytes(b"PowerEdge \xff\n")
    assert machine.product(root) == "PowerEdge \ufffd"
