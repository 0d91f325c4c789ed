# SPDX-License-Identifier: Apache-2.0
"""The file changes while NVML is in use."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pynvml
import pytest

from sim.nvml.conftest import Node
from sim.nvml.profiles import PROFILES
from sim.nvml.topology import edit

MIB = 1 << 20
LONG_MS = 60_000
DEADLINE = 20.0


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as pool:
        yield pool


def start(threads: ThreadPoolExecutor, function: Callable[..., Any], *arguments: Any) -> Future[Any]:
    """Calls in a thread, and returns once that thread runs."""
    running = threading.Event()

    def run() -> Any:
        running.set()
        return function(*arguments)

    future = threads.submit(run)
    assert running.wait(DEADLINE)
    return future


def watch(handles: list[object]) -> Any:
    events = pynvml.nvmlEventSetCreate()
    for handle in handles:
        pynvml.nvmlDeviceRegisterEvents(handle, pynvml.nvmlEventTypeXidCriticalError, events)
    return events


def test_a_gpu_is_lost_and_comes_back(node: Node) -> None:
    topology = PROFILES["8xh100"]("n")
    handles = node.load(topology)
    events = watch(handles)
    with edit(node.path) as live:
        live.set_health(3, "lost")
    asks: list[Callable[[], object]] = [
        lambda: pynvml.nvmlDeviceGetUUID(handles[3]),
        lambda: pynvml.nvmlDeviceGetMemoryInfo(handles[3]),
        lambda: pynvml.nvmlDeviceGetHandleByIndex(3),
        lambda: pynvml.nvmlDeviceGetHandleByUUID(topology.gpus[3].uuid),
        lambda: pynvml.nvmlDeviceGetTopologyCommonAncestor(handles[0], handles[3]),
        lambda: pynvml.nvmlDeviceRegisterEvents(handles[3], pynvml.nvmlEventTypeXidCriticalError, events),
        lambda: pynvml.nvmlEventSetWait_v2(events, LONG_MS),
    ]
    for ask in asks:
        with pytest.raises(pynvml.NVMLError_GpuIsLost):
            ask()
    assert pynvml.nvmlDeviceGetCount() == 8
    assert pynvml.nvmlDeviceGetMemoryInfo(handles[2]).total == topology.gpus[2].mem
    with edit(node.path) as live:
        live.set_health(3, "ok")
    assert pynvml.nvmlDeviceGetUUID(handles[3]) == topology.gpus[3].uuid


def test_an_xid_wakes_who_waits_once(node: Node, threads: ThreadPoolExecutor) -> None:
    handles = node.load(PROFILES["8xh100"]("n"))
    events = watch(handles)
    waiting = start(threads, pynvml.nvmlEventSetWait_v2, events, LONG_MS)
    with edit(node.path) as live:
        live.raise_xid(5, 79)
    event = waiting.result(DEADLINE)
    assert (event.eventType, event.eventData) == (pynvml.nvmlEventTypeXidCriticalError, 79)
    assert pynvml.nvmlDeviceGetIndex(event.device) == 5
    assert (event.gpuInstanceId, event.computeInstanceId) == (0xFFFFFFFF, 0xFFFFFFFF)
    with pytest.raises(pynvml.NVMLError_Timeout):
        pynvml.nvmlEventSetWait_v2(events, 0)


def test_xids_arrive_in_order_at_every_earlier_event_set(node: Node) -> None:
    topology = PROFILES["8xh100"]("n")
    topology.raise_xid(0, 31)
    handles = node.load(topology)
    every, second = watch(handles), watch(handles[1:2])
    with edit(node.path) as live:
        live.raise_xid(1, 48)
        live.raise_xid(0, 79)
        live.raise_xid(1, 63)
    late = watch(handles)
    assert [pynvml.nvmlEventSetWait_v2(every, 0).eventData for _ in range(3)] == [48, 79, 63]
    assert [pynvml.nvmlEventSetWait_v2(second, 0).eventData for _ in range(2)] == [48, 63]
    for drained in (every, second, late):
        with pytest.raises(pynvml.NVMLError_Timeout):
            pynvml.nvmlEventSetWait_v2(drained, 0)


def test_the_xid_of_a_gpu_that_is_gone_comes_before_its_loss(node: Node) -> None:
    handles = node.load(PROFILES["8xh100"]("n"))
    events = watch(handles)
    with edit(node.path) as live:
        live.raise_xid(2, 79)
        live.set_health(2, "lost")
    assert pynvml.nvmlEventSetWait_v2(events, LONG_MS).eventData == 79
    with pytest.raises(pynvml.NVMLError_GpuIsLost):
        pynvml.nvmlEventSetWait_v2(events, LONG_MS)


def test_load_and_processes_come_and_go(node: Node) -> None:
    topology = PROFILES["8xh200"]("n")
    handle = node.load(topology)[0]
    free = pynvml.nvmlDeviceGetMemoryInfo(handle).free
    with edit(node.path) as live:
        live.set_load(0, 87, memutil=40, used=500 * MIB)
        live.add_process(0, 4711, mem=2048 * MIB, sm=60)
    rates = pynvml.nvmlDeviceGetUtilizationRates(handle)
    assert (rates.gpu, rates.memory) == (87, 40)
    assert free - pynvml.nvmlDeviceGetMemoryInfo(handle).free == 2548 * MIB
    assert pynvml.nvmlDeviceGetComputeRunningProcesses(handle)[0].pid == 4711
    with edit(node.path) as live:
        live.remove_process(4711)
        live.set_load(0, 0, used=0)
    assert pynvml.nvmlDeviceGetComputeRunningProcesses(handle) == []
    assert pynvml.nvmlDeviceGetMemoryInfo(handle).free == free


@pytest.mark.parametrize("function", ["nvmlDeviceGetMemoryInfo", "nvmlDeviceGetMemoryInfo_v2"])
def test_a_wedged_call_blocks_alone_until_it_is_let_go(node: Node, threads: ThreadPoolExecutor, function: str) -> None:
    topology = PROFILES["8xh100"]("n")
    handle = node.load(topology)[0]
    with edit(node.path) as live:
        live.wedge(function)
    wedged = start(threads, pynvml.nvmlDeviceGetMemoryInfo, handle, pynvml.nvmlMemory_v2)
    with pytest.raises(pynvml.NVMLError_Timeout):
        pynvml.nvmlEventSetWait_v2(watch([handle]), 100)
    assert pynvml.nvmlDeviceGetUUID(handle) == topology.gpus[0].uuid
    with edit(node.path) as live:
        live.set_load(0, 10)
    assert not wedged.done()
    with edit(node.path) as live:
        live.wedge(None)
    assert wedged.result(DEADLINE).total == topology.gpus[0].mem


def test_a_driver_wedged_altogether(node: Node, threads: ThreadPoolExecutor) -> None:
    handle = node.load(PROFILES["t4"]("n"))[0]
    with edit(node.path) as live:
        live.wedge("all")
    calls = [
        start(threads, pynvml.nvmlInit),
        start(threads, pynvml.nvmlDeviceGetCount),
        start(threads, pynvml.nvmlDeviceGetName, handle),
    ]
    assert not any(call.done() for call in calls)
    with edit(node.path) as live:
        live.wedge(None)
    assert [call.result(DEADLINE) for call in calls] == [None, 1, "Tesla T4"]


def test_a_driver_unloaded_under_its_user(node: Node) -> None:
    handle = node.load(PROFILES["t4"]("n"))[0]
    with edit(node.path) as live:
        live.system.driver = "none"
    for ask in (lambda: pynvml.nvmlDeviceGetName(handle), pynvml.nvmlInit):
        with pytest.raises(pynvml.NVMLError_DriverNotLoaded):
            ask()


def test_a_gpu_taken_out_is_lost_to_who_holds_it(node: Node) -> None:
    handles = node.load(PROFILES["8xh100"]("n"))
    with edit(node.path) as live:
        live.gpus.pop()
        live.switch_links.pop()
    with pytest.raises(pynvml.NVMLError_GpuIsLost):
        pynvml.nvmlDeviceGetUUID(handles[7])
    assert pynvml.nvmlDeviceGetCount() == 7


def test_unreadable_edit_leaves_the_state_and_is_reported_once(node: Node, capfd: pytest.CaptureFixture[str]) -> None:
    topology = PROFILES["t4"]("n")
    handle = node.load(topology)[0]
    node.path.write_text("system driver=580.1 cuda=13000\ngpu 0 uuid=?\n")
    assert [pynvml.nvmlDeviceGetUUID(handle) for _ in range(3)] == [topology.gpus[0].uuid] * 3
    assert len(capfd.readouterr().err.splitlines()) == 1
    with pytest.raises(pynvml.NVMLError_Unknown):
        pynvml.nvmlInit()


def test_shutdown_ends_a_wait(node: Node, threads: ThreadPoolExecutor) -> None:
    events = watch(node.load(PROFILES["t4"]("n")))
    waiting = start(threads, pynvml.nvmlEventSetWait_v2, events, LONG_MS)
    pynvml.nvmlShutdown()
    with pytest.raises(pynvml.NVMLError_Uninitialized):
        waiting.result(DEADLINE)


def test_many_threads_while_the_file_changes(node: Node, threads: ThreadPoolExecutor) -> None:
    topology = PROFILES["8xh100"]("n")
    handles = node.load(topology)
    stop = threading.Event()

    def ask() -> int:
        rounds = 0
        while not stop.is_set():
            for gpu, handle in zip(topology.gpus, handles, strict=True):
                assert pynvml.nvmlDeviceGetUUID(handle) == gpu.uuid
                assert pynvml.nvmlDeviceGetUtilizationRates(handle).gpu in range(101)
            rounds += 1
        return rounds

    askers = [start(threads, ask) for _ in range(4)]
    for load in range(100):
        with edit(node.path) as live:
            live.set_load(load % 8, load)
    stop.set()
    assert all(asker.result(DEADLINE) > 0 for asker in askers)
