# SPDX-License-Identifier: Apache-2.0
"""What else a simulated host has: the library as a file, sysfs, nvidia-smi."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import sim.nvml
from sim.nvml import nvidia_smi, sysfs
from sim.nvml.profiles import PROFILES
from sim.nvml.topology import Topology, edit

HERE = Path(__file__).parent


def test_the_library_is_found_by_the_name_a_driver_gives_it(library: Path) -> None:
    dynamic = subprocess.run(["readelf", "-d", library], check=True, capture_output=True, text=True).stdout
    assert library.name == "libnvidia-ml.so.1"
    assert "soname: [libnvidia-ml.so.1]" in dynamic
    exported = subprocess.run(
        ["nm", "-D", "--defined-only", library], check=True, capture_output=True, text=True
    ).stdout
    assert {line.split()[2][:4] for line in exported.splitlines()} == {"nvml"}


def test_a_build_does_not_touch_a_library_in_use(tmp_path: Path) -> None:
    first = sim.nvml.build(tmp_path).stat()
    second = sim.nvml.build(tmp_path).stat()
    assert first.st_ino != second.st_ino
    assert [path.name for path in tmp_path.iterdir()] == ["libnvidia-ml.so.1"]


def test_no_compiler_warning(tmp_path: Path) -> None:
    sim.nvml.build(tmp_path, ["-Werror"])


@pytest.mark.full
def test_the_same_tests_under_sanitizers(tmp_path: Path) -> None:
    """Out-of-bounds, use after free and undefined behaviour would end the child with a report."""
    flags = ["-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
    sim.nvml.build(tmp_path, flags)
    runtime = subprocess.run(["gcc", "-print-file-name=libasan.so"], check=True, capture_output=True, text=True)
    environment = {
        **os.environ,
        "SIMNVML_CFLAGS": " ".join(flags),
        "LD_PRELOAD": runtime.stdout.strip(),
        "ASAN_OPTIONS": "detect_leaks=0:verify_asan_link_order=0",
        "PYTHONMALLOC": "malloc",
    }
    tests = [str(HERE / name) for name in ("test_queries.py", "test_codes.py", "test_live.py")]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests]
    result = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr


def read(path: Path) -> str:
    return path.read_text().strip()


def test_sysfs_before_during_and_after_a_driver(tmp_path: Path) -> None:
    topology = PROFILES["8xh100"]("n")
    sysfs.write(topology, tmp_path)
    before = sorted(tmp_path.rglob("*"))
    devices = tmp_path / "sys/bus/pci/devices"
    nvidia = [path.name for path in sorted(devices.iterdir()) if read(path / "vendor") == "0x10de"]
    gpus = [name for name in nvidia if read(devices / name / "class") == "0x030200"]
    assert gpus == [gpu.pci for gpu in topology.gpus]
    assert [name for name in nvidia if read(devices / name / "class") == "0x068000"] == [
        switch.pci for switch in topology.nvswitches
    ]
    assert read(devices / gpus[0] / "device") == "0x2330"
    assert [read(devices / name / "numa_node") for name in gpus] == ["0"] * 4 + ["1"] * 4

    sysfs.load_driver(topology, tmp_path)
    sysfs.load_driver(topology, tmp_path)
    assert read(tmp_path / "sys/module/nvidia/version") == topology.system.driver
    assert (devices / gpus[3] / "driver").resolve() == (tmp_path / "sys/bus/pci/drivers/nvidia").resolve()
    assert sorted(path.name for path in (tmp_path / "sys/bus/pci/drivers/nvidia").iterdir()) == gpus
    assert {"nvidia0", "nvidia7", "nvidiactl", "nvidia-uvm"} <= {path.name for path in (tmp_path / "dev").iterdir()}

    sysfs.unload_driver(topology, tmp_path)
    left = set(tmp_path.rglob("*")) - set(before)
    assert {path.relative_to(tmp_path).as_posix() for path in left} <= {"sys/module", "sys/bus/pci/drivers", "dev"}


def test_a_machine_without_numa_nodes_says_minus_one(tmp_path: Path) -> None:
    topology = PROFILES["mixed"]("n")
    sysfs.write(topology, tmp_path)
    assert read(tmp_path / "sys/bus/pci/devices" / topology.gpus[0].pci / "numa_node") == "-1"


@pytest.fixture
def host(library: Path, tmp_path: Path) -> Path:
    PROFILES["4xa100-mig"]("n").save(tmp_path / "gpusim.conf")
    return tmp_path


def smi(host: Path, library: Path | None, *arguments: str) -> tuple[int, list[str]]:
    environment = {"GPUSIM_FILE": str(host / "gpusim.conf")}
    if library is not None:
        environment["LD_LIBRARY_PATH"] = str(library.parent)
    command = [sys.executable, nvidia_smi.__file__, *arguments]
    result = subprocess.run(command, env=environment, capture_output=True, text=True)
    return result.returncode, result.stdout.splitlines()


def test_nvidia_smi_lists_gpus_and_mig_devices(host: Path, library: Path) -> None:
    topology = Topology.load(host / "gpusim.conf")
    code, lines = smi(host, library, "-L")
    assert code == 0
    assert lines[0] == f"GPU 0: NVIDIA A100-SXM4-40GB (UUID: {topology.gpus[0].uuid})"
    assert lines[8] == f"GPU 1: NVIDIA A100-SXM4-40GB (UUID: {topology.gpus[1].uuid})"
    assert lines[9] == f"  MIG 3g.20gb     Device  0: (UUID: {topology.migs[7].uuid})"
    assert len(lines) == 4 + len(topology.migs)


def test_nvidia_smi_answers_a_query(host: Path, library: Path) -> None:
    query = "--query-gpu=index,uuid,name,pci.bus_id,driver_version,memory.total"
    code, lines = smi(host, library, query, "--format=csv,noheader,nounits")
    uuid = Topology.load(host / "gpusim.conf").gpus[1].uuid
    assert code == 0
    assert lines[1] == f"1, {uuid}, NVIDIA A100-SXM4-40GB, 00000000:41:00.0, 580.159.04, 40960"
    assert len(lines) == 4
    assert smi(host, library, "--query-gpu=memory.total,index", "--format=csv,noheader") == (
        0,
        [f"40960 MiB, {index}" for index in range(4)],
    )


def test_nvidia_smi_without_driver_library_or_gpu(host: Path, library: Path) -> None:
    assert smi(host, library, "--query-gpu=colour", "--format=csv,noheader,nounits")[0] == 2
    assert smi(host, library, "--no-such-option")[0] == 2
    with edit(host / "gpusim.conf") as node:
        node.set_health(2, "lost")
    code, lines = smi(host, library, "-L")
    assert (code, lines[-1][:6]) == (15, "GPU 3:")
    with edit(host / "gpusim.conf") as node:
        node.system.driver = "none"
    code, lines = smi(host, library, "-L")
    assert code == 9
    assert lines[0].startswith("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.")
    assert smi(host, None, "-L")[0] == 12
    Topology.parse("system driver=580.1 cuda=13000").save(host / "gpusim.conf")
    assert smi(host, library, "-L") == (6, ["No devices were found"])
