# SPDX-License-Identifier: Apache-2.0
import time
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest

from kube_accel.model import DriverState, GpuUsage
from kube_accel.nvml.device import Device
from kube_accel.nvml.translate import usage
from kube_accel.nvml.worker import Driver
from unit.kube_accel.nvml.conftest import PATIENCE, QUICK, Host, Watch

GIB = 1 << 30


def ready(watch: Watch) -> list[str]:
    inventory = watch.until(lambda snapshot: snapshot.driver_state is DriverState.READY).inventory
    assert inventory is not None
    return [gpu.uuid for gpu in inventory.gpus]


def test_processes_are_told_by_gpu(host: Host, watch: Callable[..., Watch]) -> None:
    with host.change() as topology:
        topology.add_process(2, 4711, mem=2 * GIB, sm=40)
        topology.add_process(2, 4712, mem=3 * GIB)
        topology.add_process(5, 4713, mem=1 * GIB, sm=7)
    watching = watch(host)
    uuids = ready(watching)
    found = watching.monitor.usage((uuids[2], uuids[3]), PATIENCE)
    assert found is not None
    assert found.keys() == {uuids[2], uuids[3]}
    assert found[uuids[2]] == GpuUsage({4711: 2 * GIB, 4712: 3 * GIB}, {4711: 40})
    assert found[uuids[3]] == GpuUsage({}, {})


def test_a_driver_that_was_let_go_of_tells_nothing_and_then_does(host: Host, watch: Callable[..., Watch]) -> None:
    watching = watch(host)
    uuids = ready(watching)
    watching.monitor.quiesce(PATIENCE)
    assert watching.monitor.usage(uuids, 0.05) is None
    watching.monitor.resume()
    assert watching.monitor.usage(uuids, PATIENCE) is not None


def test_gpus_are_polled_while_processes_are_asked_about(host: Host, watch: Callable[..., Watch]) -> None:
    watching = watch(host, replace(QUICK, poll_interval=0.01))
    uuids = ready(watching)
    polls = watching.workers[-1].polls
    for _ in range(20):
        assert watching.monitor.usage(uuids, PATIENCE) is not None
    watching.polls(1)
    assert watching.workers[-1].polls > polls


class FakeNvml(SimpleNamespace):
    NVMLError = pynvml.NVMLError

    def __getattr__(self, name: str) -> Any:
        return getattr(pynvml, name)


def fails(code: int) -> Callable[..., Any]:
    def call(*_: object) -> None:
        raise pynvml.NVMLError(code)

    return call


def driver(clock: Callable[[], float] = time.time, **functions: Any) -> Driver:
    processes = [SimpleNamespace(pid=1, usedGpuMemory=None), SimpleNamespace(pid=2, usedGpuMemory=GIB)]
    defaults = {
        "nvmlDeviceGetComputeRunningProcesses_v3": lambda handle: processes,
        "nvmlDeviceGetMPSComputeRunningProcesses_v3": fails(pynvml.NVML_ERROR_NOT_SUPPORTED),
        "nvmlDeviceGetProcessUtilization": lambda handle, since: [],
    }
    made = Driver(FakeNvml(**(defaults | functions)), "/nowhere", clock=clock)
    made.devices = [Device("handle", {"uuid": "GPU-0", "index": 0})]
    return made


def ask(made: Driver) -> dict[str, GpuUsage]:
    return usage(made.usage(["GPU-0"]))


def test_process_of_unknown_memory_is_known() -> None:
    assert ask(driver())["GPU-0"].memory == {1: None, 2: GIB}


@pytest.mark.parametrize(
    ("code", "expected"),
    [(pynvml.NVML_SUCCESS, {}), (pynvml.NVML_ERROR_NOT_FOUND, {}), (pynvml.NVML_ERROR_NOT_SUPPORTED, None)],
)
def test_no_samples_are_not_the_same_as_no_answer(code: int, expected: dict[int, int] | None) -> None:
    assert ask(driver(nvmlDeviceGetProcessUtilization=fails(code)))["GPU-0"].time == expected


def test_a_gpu_that_does_not_answer_is_left_out() -> None:
    assert ask(driver(nvmlDeviceGetComputeRunningProcesses_v3=fails(pynvml.NVML_ERROR_GPU_IS_LOST))) == {}


def test_old_samples_count_once_and_nonsense_is_cut_off() -> None:
    now = int(time.time() * 1e6)
    samples = [SimpleNamespace(pid=1, timeStamp=now, smUtil=100000), SimpleNamespace(pid=2, timeStamp=5, smUtil=3)]
    made = driver(nvmlDeviceGetProcessUtilization=lambda handle, since: samples)
    assert ask(made)["GPU-0"].time == {1: 100}
    assert ask(made)["GPU-0"].time == {}


class Processes:
    """A GPU on which a process is 40 % busy, by NVML's samples: one a second, all of them kept."""

    def __init__(self) -> None:
        self.now = 10_000.0
        self.rows: list[SimpleNamespace] = []

    def sample(self) -> None:
        self.now += 1
        self.rows.append(SimpleNamespace(pid=1, timeStamp=int(self.now * 1e6), smUtil=40))

    def utilization(self, handle: object, since: int) -> list[SimpleNamespace]:
        if not (found := [row for row in self.rows if row.timeStamp > since]):
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)
        return found


def test_clock_set_back_hides_and_repeats_no_process() -> None:
    gpu = Processes()
    made = driver(lambda: gpu.now, nvmlDeviceGetProcessUtilization=gpu.utilization)
    for _ in range(2):
        gpu.sample()
        assert ask(made)["GPU-0"].time == {1: 40}
    gpu.now -= 3600
    assert ask(made)["GPU-0"].time == {}
    for _ in range(2):
        gpu.sample()
        assert ask(made)["GPU-0"].time == {1: 40}
    assert ask(made)["GPU-0"].time == {}


def test_a_driver_without_memory_limits_says_so(host: Host, watch: Callable[..., Watch]) -> None:
    watching = watch(host)
    uuids = ready(watching)
    assert watching.monitor.limit_memory(uuids[0], "/kubepods", GIB, PATIENCE) == "Function Not Found"
    assert watching.monitor.usage(uuids, PATIENCE) is not None
    assert watching.monitor.limit_memory("GPU-unknown", "/kubepods", GIB, PATIENCE) == "there is no GPU GPU-unknown"


def test_memory_limits_are_nvmls() -> None:
    given: list[tuple[object, str, int, int]] = []

    def limit(handle: object, limits: Any) -> None:
        given.append((handle, limits.nameSpace, limits.softLimit, limits.hardLimit))

    assert driver(nvmlDeviceSetMemoryLimits_v1=limit).limit("GPU-0", "/sys/fs/cgroup/pod", 4 * GIB) == {}
    assert given == [("handle", "/sys/fs/cgroup/pod", 0, 4 * GIB)]
