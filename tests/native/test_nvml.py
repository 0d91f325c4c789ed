# SPDX-License-Identifier: Apache-2.0
"""NVML in a container with a share: the numbers CUDA gives there, and nobody else's processes."""

from __future__ import annotations

import subprocess
import sys

import pytest

from kube_accel.enforce.policy import Limit
from native.conftest import GIB, MIB, Container
from native.test_processes import holding

ASK = """
import os, sys
import pynvml as n
n.nvmlInit()
gpu = n.nvmlDeviceGetHandleByIndex(int(os.environ.get("GPU", "0")))
def show(*values):
    print(*(value // (1 << 20) for value in values))
"""
MEMORY = """
m = n.nvmlDeviceGetMemoryInfo(gpu)
show(m.total, m.free, m.used)
m = n.nvmlDeviceGetMemoryInfo(gpu, version=n.nvmlMemory_v2)
show(m.total, m.free, m.used, m.reserved)
"""
PROCESSES = "for p in n.nvmlDeviceGetComputeRunningProcesses(gpu): print(p.pid, p.usedGpuMemory // (1 << 20))"


def ask(container: Container, code: str, **environment: str) -> list[str]:
    shown = subprocess.run(
        [sys.executable, "-c", ASK + code], env={**container.environment, **environment}, capture_output=True, text=True
    )
    assert shown.stderr == ""
    return shown.stdout.splitlines()


def test_memory_is_the_share_as_cuda_has_it(container: Container) -> None:
    with holding(container, 1024):
        assert ask(container, MEMORY) == ["4096 3072 1024", "4096 3072 1024 0"]
        assert container.words("d.open()\nprint(*(size // MIB for size in d.mem_info()))") == ["3072", "4096"]


def test_memory_of_the_dead_is_free(container: Container) -> None:
    with holding(container, 1024) as process:
        process.kill()
        process.wait()
        assert ask(container, MEMORY)[0] == "4096 4096 0"


def test_use_beyond_a_limit_that_was_cut_shows_as_all_of_it(container: Container) -> None:
    with holding(container, 3072):
        container.tell(Limit(container.topology.gpus[0].uuid, GIB, 30))
        assert ask(container, MEMORY)[0] == "1024 0 1024"


def test_processes_are_the_containers_own(container: Container) -> None:
    neighbour = Container(
        container.root.parent / "neighbour",
        container.libraries,
        container.topology,
        [Limit(container.topology.gpus[0].uuid, 8 * GIB, 30)],
    )
    neighbour.gpus = container.gpus
    with holding(container, 1024) as one, holding(container, 64) as two, holding(neighbour, 2048) as other:
        assert sorted(ask(container, PROCESSES)) == sorted([f"{one.pid} 1024", f"{two.pid} 64"])
        assert ask(neighbour, PROCESSES) == [f"{other.pid} 2048"]
    assert ask(container, PROCESSES) == []


@pytest.mark.parametrize(("call", "size"), [("", 16), ("_v2", 24), ("_v3", 24)])
def test_processes_follow_the_two_call_convention(container: Container, call: str, size: int) -> None:
    code = f"""
import ctypes
get = ctypes.CDLL("libnvidia-ml.so.1").nvmlDeviceGetComputeRunningProcesses{call}
count, room = ctypes.c_uint(0), (ctypes.c_uint64 * 12)()
print(get(gpu, ctypes.byref(count), None), count.value)
count = ctypes.c_uint(1)
print(get(gpu, ctypes.byref(count), room), count.value)
count = ctypes.c_uint(4)
print(get(gpu, ctypes.byref(count), room), count.value, room[1] >> 20, room[{size // 8} + 1] >> 20)
"""
    assert ask(container, code.partition("count = ctypes.c_uint(1)")[0]) == ["0 0"]
    with holding(container, 1024), holding(container, 64):
        assert ask(container, code) == ["7 2", "7 2", "0 2 1024 64"]


@pytest.mark.parametrize("gpu", [0, 1], ids=["without limit", "outside the policy"])
def test_without_a_limit_everything_is_as_the_driver_says(container: Container, gpu: int) -> None:
    container.tell(Limit(container.topology.gpus[0].uuid, 0, 100))
    total = container.topology.gpus[gpu].mem // MIB
    assert ask(container, "show(n.nvmlDeviceGetMemoryInfo(gpu).total)", GPU=str(gpu)) == [str(total)]


def test_what_is_not_looked_at_passes(container: Container) -> None:
    code = "print(n.nvmlDeviceGetName(gpu), n.nvmlSystemGetDriverVersion(), n.nvmlDeviceGetUUID(gpu))"
    gpu = container.topology.gpus[0]
    assert ask(container, code) == [f"{gpu.model} {container.topology.system.driver} {gpu.uuid}"]


def test_a_function_the_driver_lacks_is_not_found(container: Container) -> None:
    code = """
print(n._nvmlGetFunctionPointer("nvmlSystemGetCPER_v1")())
"""
    assert ask(container, code) == ["13"]


def test_both_libraries_in_one_process_leave_each_other_alone(container: Container) -> None:
    code = """
d.open()
d.alloc(GIB)
nvml = CDLL("libnvidia-ml.so.1")
gpu, memory = c_void_p(), (c_uint64 * 3)()
nvml.nvmlInit_v2()
nvml.nvmlDeviceGetHandleByIndex_v2(0, byref(gpu))
for _ in range(3):
    print(nvml.nvmlDeviceGetMemoryInfo(gpu, memory), memory[2] // MIB)
print(os.getpid(), flush=True)
input()
"""
    process = container.start(code)
    assert process.stdout is not None
    assert [process.stdout.readline() for _ in range(3)] == ["0 1024\n"] * 3
    process.stdout.readline()
    assert container.words("d.open()\nprint(take(4 * GIB), used())") == ["2", "1024"]
    process.communicate("\n", timeout=60)
