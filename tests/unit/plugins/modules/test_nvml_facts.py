# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import ctypes
import platform
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
from ansible_collections.accel.kubernetes.plugins.module_utils.gpus import nvml
from ansible_collections.accel.kubernetes.plugins.module_utils.shared.nvml_library import Nvml, NvmlError

import sim.nvml
from sim.nvml import sysfs
from sim.nvml.profiles import PROFILES
from sim.nvml.topology import Topology

Read = Callable[..., dict[str, Any]]


@pytest.fixture
def topology_file(tmp_path: Path) -> Path:
    return tmp_path / "gpusim.conf"


@pytest.fixture
def read(run_module: Read, tmp_path: Path, topology_file: Path) -> Read:
    """Runs the module on a machine with the simulated library and returns what it says."""
    sim.nvml.build(tmp_path / "lib")

    def run(*, check: bool = False, environment: dict[str, str] | None = None, **options: Any) -> dict[str, Any]:
        result = run_module(
            "nvml_facts",
            {"sysfs_root": str(tmp_path / "sys"), **options},
            check=check,
            environment={"LD_LIBRARY_PATH": str(tmp_path / "lib"), "GPUSIM_FILE": str(topology_file)}
            | (environment or {}),
        )
        assert not result["changed"]
        assert result["ansible_facts"] == {"accel_nvml": result["nvml"]}
        facts: dict[str, Any] = result["nvml"]
        return facts

    return run


@pytest.fixture(params=sorted(PROFILES))
def topology(request: pytest.FixtureRequest, tmp_path: Path, topology_file: Path) -> Topology:
    topology = PROFILES[request.param]("node-1")
    topology.save(topology_file)
    sysfs.write(topology, tmp_path)
    return topology


def test_every_gpu_of_every_kind_of_machine_is_told(read: Read, topology: Topology) -> None:
    facts = read()

    assert facts["available"]
    assert facts["driver_version"] == topology.system.driver
    assert facts["cuda_version"] == "13.0"
    assert [
        (gpu["index"], gpu["uuid"], gpu["model"], gpu["memory_bytes"], gpu["compute_capability"], gpu["pci_address"])
        for gpu in facts["gpus"]
    ] == [(gpu.index, gpu.uuid, gpu.model, gpu.mem, gpu.cc, gpu.pci) for gpu in topology.gpus]
    assert [gpu["numa_node"] for gpu in facts["gpus"]] == [gpu.numa for gpu in topology.gpus]
    assert [gpu["mig"] for gpu in facts["gpus"]] == [
        {
            "supported": gpu.mig is not None,
            "enabled": bool(gpu.mig),
            "devices": [
                {"uuid": mig.uuid, "profile": mig.profile, "slot": mig.slot}
                for mig in topology.migs
                if mig.gpu == gpu.index
            ],
        }
        for gpu in topology.gpus
    ]
    assert {gpu["health"] for gpu in facts["gpus"]} == {"healthy"}
    count = len(topology.gpus)
    assert len(facts["links"]) == count * (count - 1) // 2


def test_links_say_ancestor_and_nvlinks(read: Read, topology_file: Path) -> None:
    topology_file.write_text(
        "system driver=580.1 cuda=12080\n"
        + "".join(f"gpu {i} uuid=GPU-{i} pci=0000:0{i}:00.0 model=X mem=1G cc=9.0 numa=0\n" for i in range(4))
        + "topo 0 1 PIX\ntopo 0 2 PXB\ntopo 0 3 PHB\ntopo 1 2 SYS\nlink 0 1 nvlink=4\nswitch 2 18\nswitch 3 6\n"
    )

    links = {tuple(link["gpus"]): (link["ancestor"], link["nvlinks"]) for link in read()["links"]}

    assert links[("GPU-0", "GPU-1")] == ("single_switch", 4)
    assert links[("GPU-0", "GPU-2")] == ("multiple_switches", 0)
    assert links[("GPU-0", "GPU-3")] == ("host_bridge", 0)
    assert links[("GPU-1", "GPU-2")] == ("system", 0)
    assert links[("GPU-2", "GPU-3")] == ("node", 6)


def test_a_driver_that_is_not_the_hosts_is_found_below_its_root(
    read: Read, tmp_path: Path, topology_file: Path
) -> None:
    PROFILES["t4"]("n").save(topology_file)
    beyond = {"LD_LIBRARY_PATH": str(tmp_path / "none")}
    library = tmp_path / "lib"
    for directory in ("usr/lib", f"usr/lib/{platform.machine()}-linux-gnu", "usr/lib64"):
        assert "libnvidia-ml.so.1 cannot be loaded" in read(driver_root=str(tmp_path), environment=beyond)["reason"]
        (tmp_path / directory).mkdir(parents=True, exist_ok=True)
        library = (library / "libnvidia-ml.so.1").rename(tmp_path / directory / "libnvidia-ml.so.1").parent
        assert read(driver_root=str(tmp_path), environment=beyond)["available"]
        library = (library / "libnvidia-ml.so.1").rename(tmp_path / "libnvidia-ml.so.1").parent


def test_excluded_gpus_are_told_apart(read: Read, topology_file: Path) -> None:
    topology = PROFILES["8xh100"]("n")
    topology.gpus[7].model = "NVIDIA DGX Display"
    topology.save(topology_file)
    facts = read(excluded_gpus=["1", topology.gpus[2].uuid, topology.gpus[3].pci])
    assert [gpu["index"] for gpu in facts["gpus"]] == [0, 4, 5, 6]
    by = {gpu["index"]: gpu["by"] for gpu in facts["excluded"]}
    assert by == {1: "1", 2: topology.gpus[2].uuid, 3: topology.gpus[3].pci, 7: "display card"}
    left = {topology.gpus[index].uuid for index in by}
    assert not left & {uuid for link in facts["links"] for uuid in link["gpus"]}


def test_an_entry_that_names_no_gpu_is_refused(run_module: Read) -> None:
    said = run_module("nvml_facts", {"excluded_gpus": ["GPU-1"]}, check=False, environment={})
    assert "excluded_gpus: 'GPU-1' names no GPU" in said["msg"]


def test_check_mode_says_the_same(read: Read, topology_file: Path) -> None:
    PROFILES["mixed"]("n").save(topology_file)

    assert read(check=True) == read()


def test_no_gpu_is_an_empty_list(read: Read, topology_file: Path) -> None:
    topology_file.write_text("system driver=580.159.04 cuda=13000\n")

    facts = read()

    assert facts["available"]
    assert facts["gpus"] == []


def test_a_lost_gpu_is_unhealthy_and_the_others_are_not(read: Read, topology_file: Path) -> None:
    topology = PROFILES["8xh100"]("n")
    topology.gpus[3].health = "lost"
    topology.save(topology_file)

    gpus = read()["gpus"]

    assert [gpu["health"] for gpu in gpus] == ["healthy"] * 3 + ["unhealthy"] + ["healthy"] * 4
    assert "lost" in gpus[3]["reason"]


@pytest.mark.parametrize(("name", "value", "word"), [("recovery", 2, "recovery"), ("remap_failed", 1, "replace")])
def test_a_gpu_that_answers_may_still_be_unhealthy(
    read: Read, topology_file: Path, name: str, value: int, word: str
) -> None:
    topology = PROFILES["8xh100"]("n")
    setattr(topology.gpus[0], name, value)
    topology.save(topology_file)

    gpus = read()["gpus"]

    assert gpus[0]["health"] == "unhealthy"
    assert word in gpus[0]["reason"]
    assert gpus[1]["health"] == "healthy"


def nothing(facts: dict[str, Any]) -> bool:
    return not facts["available"] and facts["gpus"] == [] and facts["driver_version"] is None


def test_no_library_is_a_fact(read: Read) -> None:
    facts = read(library="libno-such-thing.so.1")

    assert nothing(facts)
    assert "libno-such-thing.so.1" in facts["reason"]
    assert "install the NVIDIA driver" in facts["reason"]


def test_a_driver_that_is_not_loaded_is_a_fact(read: Read, topology_file: Path) -> None:
    topology_file.write_text("system driver=none cuda=13000\n")

    facts = read()

    assert nothing(facts)
    assert "modprobe nvidia" in facts["reason"]


def test_an_unreadable_machine_is_a_fact(read: Read, topology_file: Path) -> None:
    topology_file.write_text("not a topology\n")

    facts = read()

    assert nothing(facts)
    assert facts["reason"]


@pytest.mark.parametrize("function", ["all", "nvmlDeviceGetMemoryInfo"])
def test_a_driver_that_hangs_is_a_fact_and_keeps_nobody_waiting(read: Read, topology_file: Path, function: str) -> None:
    topology = PROFILES["t4"]("n")
    topology.system.wedge = function
    topology.save(topology_file)

    facts = read(timeout=0.5)

    assert nothing(facts)
    assert "within 0.5 s" in facts["reason"]


def test_a_library_that_crashes_is_a_fact(read: Read, tmp_path: Path) -> None:
    source = tmp_path / "crash.c"
    source.write_text("#include <stdlib.h>\nint nvmlInit_v2(void) { abort(); }\n")
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", tmp_path / "crash.so", source], check=True)

    facts = read(library=str(tmp_path / "crash.so"))

    assert nothing(facts)
    assert "does not work" in facts["reason"]


def test_a_library_without_a_function_is_an_old_driver(read: Read, tmp_path: Path) -> None:
    source = tmp_path / "old.c"
    source.write_text("int nvmlInit_v2(void) { return 0; }\n")
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", tmp_path / "old.so", source], check=True)

    facts = read(library=str(tmp_path / "old.so"))

    assert nothing(facts)
    assert "is not in this driver" in facts["reason"]


@pytest.mark.parametrize("code", [2, 6])  # older drivers call an empty slot an invalid argument
def test_a_slot_without_a_mig_device_is_passed_over(code: int) -> None:
    class OneOfTwo:
        def number(self, _name: str, _gpu: object) -> int:
            return 2

        def call(self, name: str, _gpu: object, slot: ctypes.c_uint, _handle: object) -> None:
            if slot.value == 1:
                raise NvmlError(code, f"{name} failed")

        def text(self, name: str, _handle: object) -> str:
            return "NVIDIA H100 MIG 1g.10gb" if name == "nvmlDeviceGetName" else "MIG-1"

    devices = nvml._mig_devices(cast(Nvml, OneOfTwo()), ctypes.c_void_p())
    assert devices == [{"uuid": "MIG-1", "profile": "1g.10gb", "slot": 0}]
