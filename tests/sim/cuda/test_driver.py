# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import sim.cuda
import sim.nvml
from sim.cuda.conftest import Node

ASK_NVML = """
import pynvml
pynvml.nvmlInit()
gpu = pynvml.nvmlDeviceGetHandleByIndex(0)
for process in pynvml.nvmlDeviceGetComputeRunningProcesses(gpu):
    print(process.pid, process.usedGpuMemory)
print(pynvml.nvmlDeviceGetMemoryInfo(gpu, version=pynvml.nvmlMemory_v2).used)
"""


def ask_nvml(node: Node, directory: Path) -> list[list[int]]:
    """Pid and bytes of each process on GPU 0, then the bytes in use."""
    library = sim.nvml.build(directory)
    environment = {**os.environ, "LD_LIBRARY_PATH": str(library.parent), "GPUSIM_FILE": str(node.path)}
    asked = subprocess.run(
        [sys.executable, "-c", ASK_NVML], env=environment, check=True, capture_output=True, text=True
    )
    return [[int(word) for word in line.split()] for line in asked.stdout.splitlines()]


def test_exports_what_drivers_export(library: Path) -> None:
    nm = subprocess.run(["nm", "-D", "--defined-only", library], check=True, capture_output=True, text=True)
    functions, variables = sim.cuda.exports()
    assert sorted(line.split()[2] for line in nm.stdout.splitlines()) == sorted(functions + variables)


def test_every_request_gets_the_export_of_its_version(library: Path) -> None:
    driver = ctypes.CDLL(str(library))
    functions = sim.cuda.exports()[0]
    by_address = {ctypes.cast(getattr(driver, name), ctypes.c_void_p).value: name for name in functions}
    assert len(by_address) == len(functions)
    wrong = []
    for request in sim.cuda.requests():
        found, status = ctypes.c_void_p(), ctypes.c_int(-1)
        name = request.name.encode()
        flags = ctypes.c_uint64(request.flags)
        result = driver.cuGetProcAddress_v2(name, ctypes.byref(found), request.version, flags, ctypes.byref(status))
        if (result, status.value, by_address.get(found.value)) != (0, 0, request.export):
            wrong.append((request, by_address.get(found.value)))
    assert wrong == []


@pytest.mark.parametrize(
    ("name", "version", "status"), [(b"cuMemAlloc_v2", 13000, 1), (b"", 0, 1), (b"cuNever", 13000, 1)]
)
def test_what_is_no_base_name_is_not_found(library: Path, name: bytes, version: int, status: int) -> None:
    driver = ctypes.CDLL(str(library))
    found, said = ctypes.c_void_p(1), ctypes.c_int(-1)
    result = driver.cuGetProcAddress_v2(name, ctypes.byref(found), version, ctypes.c_uint64(0), ctypes.byref(said))
    assert (result, found.value, said.value) == (0, None, status)


def test_a_thread_without_context_has_none(node: Node) -> None:
    code = (
        "print(d('cuInit', 0), d('cuCtxGetDevice', byref(c_int())), d('cuMemAlloc_v2', byref(c_uint64()), c_size_t(4)))"
    )
    assert node.run(code) == ["0", "201", "201"]


def test_a_child_of_a_process_that_used_the_driver_cannot(node: Node) -> None:
    code = (
        "import os\nd.open()\npid = os.fork()\nif pid == 0: os._exit(d('cuInit', 0))\nprint(os.waitpid(pid, 0)[1] >> 8)"
    )
    assert node.run(code) == ["3"]


def test_the_version_is_the_nodes_before_cuinit_too(node: Node) -> None:
    node.topology = replace(node.topology, system=replace(node.topology.system, cuda=12040))
    node.save()
    ask = "print(d.value(c_int, 'cuDriverGetVersion'))"
    assert node.run(f"{ask}\nd.open()\n{ask}") == ["12040", "12040"]


def test_attributes_are_a_gpus(node: Node) -> None:
    code = """
d.ok('cuInit', 0)
told = lambda number, device: d('cuDeviceGetAttribute', byref(value), number, device) or value.value
value = c_int()
print(*[told(number, 2) for number in (33, 34, 50, 75, 10, 16, 120)], *[d('cuDeviceGetAttribute', byref(value), n, 0)
    for n in (0, 1, 161, 162)])
"""
    domain, bus, slot = (int(part, 16) for part in node.topology.gpus[2].pci.split(".")[0].split(":"))
    assert node.run(code) == [*map(str, (bus, slot, domain)), "9", "32", "132", "1", "1", "0", "0", "1"]


def test_memory_of_the_host_takes_nothing_of_the_card(node: Node) -> None:
    code = """
d.open()
free, place, flags = d.mem_info()[0], c_void_p(), c_uint()
d.ok('cuMemHostAlloc', byref(place), c_size_t(GIB), 2)
print(d.mem_info()[0] == free, d('cuMemHostGetFlags', byref(flags), place), flags.value)
print(d('cuMemHostUnregister', place), d('cuMemFreeHost', place), d('cuMemFreeHost', place))
mine = create_string_buffer(4096)
print(*[d('cuMemHostRegister_v2', mine, c_size_t(4096), 0) for _ in range(2)], d('cuMemHostUnregister', mine))
"""
    assert node.run(code) == ["True", "0", "2", "1", "0", "1", "0", "712", "0"]


def test_visible_devices(node: Node) -> None:
    wanted = ",".join(node.topology.gpus[index].uuid for index in (5, 2))
    shown = [node.topology.gpus[index].uuid.removeprefix("GPU-").replace("-", "") for index in (5, 2)]
    code = "d.ok('cuInit', 0)\nprint(d.value(c_int, 'cuDeviceGetCount'), *[d.uuid(i).hex() for i in range({})])"
    assert node.run(code.format(2), GPUSIM_VISIBLE=wanted) == ["2", *shown]
    assert node.run(code.format(1), GPUSIM_VISIBLE=wanted, CUDA_VISIBLE_DEVICES="1") == ["1", shown[1]]


def test_processes_share_a_cards_memory_and_nvml_sees_it(node: Node, tmp_path: Path) -> None:
    holder = node.start("d.open()\nd.alloc(60 * GIB)\nprint(d.mem_info()[0], flush=True)\ninput()")
    assert holder.stdout is not None
    free = int(holder.stdout.readline())
    try_again = "d.open()\nprint(d('cuMemAlloc_v2', byref(c_uint64()), c_size_t(GIB * 40)))"
    assert node.run(try_again) == ["2"]
    *processes, [used] = ask_nvml(node, tmp_path / "nvml")
    context = 256 << 20
    assert processes == [[holder.pid, (60 << 30) + context]]
    assert used == (60 << 30) + context
    assert free == node.topology.gpus[0].mem - node.topology.gpus[0].reserved - used
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    assert node.run(try_again) == ["0"]
    assert ask_nvml(node, tmp_path / "nvml") == [[0]]


def test_process_without_its_main_thread_keeps_memory(node: Node, tmp_path: Path) -> None:
    """As in the moment after a kill: its first thread is a zombie while others still run."""
    code = """
import os, threading
context = d.open()
def go_on():
    while open("/proc/self/stat").read().rsplit(")", 1)[1].split()[0] != "Z":
        pass
    d.ok('cuCtxSetCurrent', c_void_p(context))
    for _ in range(2):
        d.alloc(10 * GIB)
        print(flush=True)
        input()
    os._exit(0)
threading.Thread(target=go_on).start()
CDLL(None).pthread_exit(None)
"""
    ask = "d.open()\nprint(d.mem_info()[0] >> 30)"
    [whole] = map(int, node.run(ask))
    outliving = node.start(code)
    assert outliving.stdin is not None
    assert outliving.stdout is not None
    try:
        for taken in (10, 20):
            assert outliving.stdout.readline() == "\n"
            assert int(node.run(ask)[0]) in (whole - taken, whole - taken - 1)  # a context of its own
            assert ask_nvml(node, tmp_path / "nvml")[0] == [outliving.pid, (taken << 30) + (256 << 20)]
            outliving.stdin.write("\n")
            outliving.stdin.flush()
        outliving.wait(60)
    finally:
        outliving.kill()
        outliving.communicate()
    assert node.run(ask) == [str(whole)]


def test_a_pool_keeps_what_its_threshold_says(node: Node) -> None:
    code = """
d.open()
pool = d.value(c_void_p, 'cuDeviceGetDefaultMemPool', 0)
def attribute(which):
    value = c_uint64()
    d.ok('cuMemPoolGetAttribute', c_void_p(pool), which, byref(value))
    return value.value >> 20
address = d.value(c_uint64, 'cuMemAllocAsync', c_size_t(100 << 20), c_void_p(0))
print(attribute(5), attribute(7))
d.ok('cuMemFreeAsync', c_uint64(address), c_void_p(0))
print(attribute(5), attribute(7))
d.synchronize(0)
print(attribute(5))
d.ok('cuMemPoolSetAttribute', c_void_p(pool), 4, byref(c_uint64(1 << 40)))
address = d.value(c_uint64, 'cuMemAllocAsync', c_size_t(100 << 20), c_void_p(0))
d.free(address)
d.synchronize(0)
print(attribute(5))
d.ok('cuMemPoolTrimTo', c_void_p(pool), c_size_t(0))
print(attribute(5))
"""
    assert node.run(code) == ["100", "100", "100", "0", "0", "100", "0"]


def test_physical_memory_lives_while_anything_refers_to_it(node: Node) -> None:
    code = """
d.open()
def free(): return d.mem_info()[0] >> 20
properties = (c_int * 8)(1, 1, 1, 0)
whole = free()
size = c_size_t(64 << 20)
handle = d.value(c_uint64, 'cuMemCreate', size, properties, c_uint64(0))
address = d.value(c_uint64, 'cuMemAddressReserve', size, c_size_t(0), c_uint64(0), c_uint64(0))
d.ok('cuMemMap', c_uint64(address), size, c_size_t(0), c_uint64(handle), c_uint64(0))
d.ok('cuMemRelease', c_uint64(handle))
print(whole - free())
again = d.value(c_uint64, 'cuMemRetainAllocationHandle', c_void_p(address))
fd = c_int()
d.ok('cuMemExportToShareableHandle', byref(fd), c_uint64(again), 1, c_uint64(0))
copy = d.value(c_uint64, 'cuMemImportFromShareableHandle', c_void_p(fd.value), 1)
d.ok('cuMemUnmap', c_uint64(address), size)
print(whole - free(), d('cuMemRelease', c_uint64(copy)))
d.ok('cuMemRelease', c_uint64(again))
print(whole - free(), d('cuMemRelease', c_uint64(again)))
"""
    assert node.run(code) == ["64", "64", "0", "0", "1"]


def test_a_context_takes_its_memory_along(node: Node) -> None:
    code = """
d.open()
d.alloc(GIB)
context = d.value(c_void_p, 'cuCtxCreate_v2', 0, 0)
free = d.mem_info()[0]
d.alloc(GIB)
d.ok('cuCtxDestroy_v2', c_void_p(context))
print((d.mem_info()[0] - free) >> 20)
"""
    assert node.run(code) == ["256"]


def test_kernels_take_gpu_time_and_streams_overlap(node: Node) -> None:
    code = """
d.open()
kernel, streams = d.spinner(), [d.stream() for _ in range(4)]
start, end = d.event(), d.event()
d.record(start, streams[0])
print(*[d.launch(kernel, 300000, 0, stream) for stream in streams * 2], d('cuStreamQuery', c_void_p(streams[3])))
d.record(end, streams[0])
print(d('cuEventQuery', c_void_p(end)))
d.synchronize()
print(d('cuEventQuery', c_void_p(end)), 600 <= d.elapsed_ms(start, end))
whole = d.event()
d.record(whole, streams[3])
print(d.elapsed_ms(start, whole) < 1800)
"""
    assert node.run(code) == ["0"] * 8 + ["600", "600", "0", "True", "True"]


def test_captured_work_does_not_run_until_its_graph_does(node: Node) -> None:
    code = """
d.open()
kernel, stream, other = d.spinner(), d.stream(), d.event()
d.record(other)
d.ok('cuStreamBeginCapture_v2', c_void_p(stream), 0)
print(d('cuEventQuery', c_void_p(other)), d('cuStreamEndCapture', c_void_p(stream), byref(c_void_p())))
d.ok('cuStreamBeginCapture_v2', c_void_p(stream), 0)
print(*[d.launch(kernel, 2000, 0, stream) for _ in range(5)])
print(d('cuThreadExchangeStreamCaptureMode', byref(c_int(2))), d('cuEventQuery', c_void_p(other)))
captured = d.event()
d.record(captured, stream)
print(d('cuEventQuery', c_void_p(captured)))
graph = c_void_p()
d.ok('cuStreamEndCapture', c_void_p(stream), byref(graph))
nodes = c_size_t()
d.ok('cuGraphGetNodes', graph, None, byref(nodes))
run = d.value(c_void_p, 'cuGraphInstantiateWithFlags', graph, c_uint64(0))
start, end = d.event(), d.event()
d.record(start, stream)
d.ok('cuGraphLaunch', c_void_p(run), c_void_p(stream))
d.record(end, stream)
d.synchronize(stream)
print(nodes.value, d.elapsed_ms(start, end) >= 10)
d.ok('cuStreamBeginCapture_v2', c_void_p(stream), 1)
d('cuStreamSynchronize', c_void_p(stream))
print(d('cuStreamEndCapture', c_void_p(stream), byref(graph)), graph.value)
"""
    assert node.run(code) == ["900", "901"] + ["0"] * 7 + ["907", "5", "True", "901", "None"]


def test_busy_processes_share_a_cards_time(node: Node) -> None:
    """Alone 300 ms of work take 300 ms of the card's clock; beside another busy process they take nearly 600."""
    code = """
d.open()
kernel, stream, start, end = d.spinner(), d.stream(), d.event(), d.event()
print(flush=True)
input()
d.record(start, stream)
d.launch(kernel, 300000, 0, stream)
d.record(end, stream)
d.synchronize(stream)
print(d.elapsed_ms(start, end))
"""
    both = [node.start(code), node.start(code)]
    for process in both:
        assert process.stdout is not None
        process.stdout.readline()
    for process in both:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    took = sorted(float(process.communicate()[0]) for process in both)
    assert took[1] > 450


def test_graph_memory_stays_reserved_until_trimmed(node: Node) -> None:
    code = """
d.open()
graph = d.value(c_void_p, 'cuGraphCreate', 0)
class Allocation(Structure):
    _fields_ = [('allocation', c_int), ('handles', c_int), ('type', c_int), ('id', c_int), ('rest', c_char * 72),
                ('accesses', c_void_p), ('count', c_size_t), ('bytes', c_size_t), ('address', c_uint64)]
wanted = Allocation(allocation=1, type=1, bytes=64 << 20)
node = d.value(c_void_p, 'cuGraphAddMemAllocNode', c_void_p(graph), None, c_size_t(0), byref(wanted))
d.value(c_void_p, 'cuGraphAddMemFreeNode', c_void_p(graph), None, c_size_t(0), c_uint64(wanted.address))
run = d.value(c_void_p, 'cuGraphInstantiateWithFlags', c_void_p(graph), c_uint64(0))
whole = d.mem_info()[0]
def taken():
    reserved = c_uint64()
    d.ok('cuDeviceGetGraphMemAttribute', 0, 2, byref(reserved))
    return (whole - d.mem_info()[0]) >> 20, reserved.value >> 20
print(*taken())
d.ok('cuGraphLaunch', c_void_p(run), c_void_p(0))
print(*taken())
d.ok('cuDeviceGraphMemTrim', 0)
print(*taken())
"""
    assert node.run(code) == ["0", "0", "64", "64", "0", "0"]


def test_nvml_sees_what_time_a_process_gets(node: Node, tmp_path: Path) -> None:
    busy = node.start("d.open()\nkernel = d.spinner()\nwhile True:\n    d.launch(kernel, 5000)\n    d.synchronize()")
    library = sim.nvml.build(tmp_path / "nvml")
    code = """
import pynvml
pynvml.nvmlInit()
gpu = pynvml.nvmlDeviceGetHandleByIndex(0)
while True:
    try:
        print(*[s.pid for s in pynvml.nvmlDeviceGetProcessUtilization(gpu, 0) if 0 < s.smUtil <= 100])
        break
    except pynvml.NVMLError_NotFound:
        pass
"""
    environment = {**os.environ, "LD_LIBRARY_PATH": str(library.parent), "GPUSIM_FILE": str(node.path)}
    try:
        command = [sys.executable, "-c", code]
        asked = subprocess.run(command, env=environment, check=True, capture_output=True, text=True, timeout=60)
    finally:
        busy.kill()
        busy.communicate()
    assert asked.stdout.split() == [str(busy.pid)]


def test_nvml_sees_how_long_a_gpu_was_busy(node: Node, tmp_path: Path) -> None:
    """One kernel of half a second, on a GPU of which the file says that it is idle."""
    launch = "d.open()\nd.launch(d.spinner(), 500_000)\nprint('launched', flush=True)\ninput()"
    library = sim.nvml.build(tmp_path / "nvml")
    code = """
import pynvml, sys
pynvml.nvmlInit()
gpu = pynvml.nvmlDeviceGetHandleByIndex(0)
def rate():
    return pynvml.nvmlDeviceGetUtilizationRates(gpu).gpu
print(rate(), flush=True)
input()
while rate() == 0:
    pass
while rate() > 0:
    pass
kind, samples = pynvml.nvmlDeviceGetSamples(gpu, pynvml.NVML_GPU_UTILIZATION_SAMPLES, 0)
percent = sum(sample.sampleValue.uiVal for sample in samples)
print(400 < percent <= 500 or percent, *{sample.pid for sample in pynvml.nvmlDeviceGetProcessUtilization(gpu, 0)})
"""
    environment = {**os.environ, "LD_LIBRARY_PATH": str(library.parent), "GPUSIM_FILE": str(node.path)}
    node.run("d.open()")  # so that there are processes to look at from the start
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", code], env=environment, text=True, **pipes) as asks:
        assert asks.stdout is not None
        assert asks.stdout.readline() == "0\n"
        busy = node.start(launch)
        try:
            assert busy.stdout is not None
            assert busy.stdout.readline() == "launched\n"
            out, _ = asks.communicate("\n", timeout=60)
        finally:
            for process in (asks, busy):
                process.kill()
            busy.communicate()
    assert out.split() == ["True", str(busy.pid)]
