# SPDX-License-Identifier: Apache-2.0
"""What is read of a GPU for metrics: from the simulated driver, and from drivers that do not tell."""

from __future__ import annotations

import os
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kube_accel.metrics.sample import Busy, GpuSample, samples
from kube_accel.nvml.device import Device
from kube_accel.nvml.sampling import LONGEST_SAMPLE, each_mig_device, integral
from kube_accel.nvml.worker import Driver
from unit.kube_accel.nvml.conftest import PATIENCE, Host, Watch
from unit.kube_accel.nvml.test_usage import FakeNvml, fails, ready
from waiting import wait

GIB = 1 << 30
SECOND = 1_000_000


def test_the_sum_of_samples_is_the_time_busy() -> None:
    assert integral([(2 * SECOND, 50), (1 * SECOND, 100), (2_500_000, 0)], 0) == (1.5, 2.5, 2_500_000)


def test_samples_of_before_do_not_count_again() -> None:
    assert integral([(1 * SECOND, 100), (2 * SECOND, 100)], 2 * SECOND) == (0, 0, 2 * SECOND)


def test_a_gap_is_not_taken_for_a_sample() -> None:
    """The driver keeps some seconds of samples: what was before, nobody knows."""
    assert integral([(100 * SECOND, 100)], 0) == (LONGEST_SAMPLE, LONGEST_SAMPLE, 100 * SECOND)


def test_a_sample_of_more_than_all_is_unknown() -> None:
    assert integral([(1 * SECOND, 10**6), (2 * SECOND, 20)], 0) == (0.2, 1.0, 2 * SECOND)


@given(st.lists(st.tuples(st.integers(0, 10**9), st.integers(0, 2**32 - 1))), st.integers(0, 10**9))
@example([(1625, 100)], 0)
def test_nobody_is_busy_longer_than_the_time_that_passed(told: list[tuple[int, int]], since: int) -> None:
    busy, known, newest = integral(told, since)
    assert 0 <= busy <= known <= (newest - since) / SECOND + 1e-9
    assert newest == max([since, *(stamp for stamp, _ in told)])


def told(watching: Watch, slow: bool = False) -> dict[str, GpuSample]:
    answer = watching.monitor.samples(slow, False, PATIENCE)
    assert answer is not None
    return samples(answer)


def test_a_gpu_tells_what_it_does(host: Host, watch: Callable[..., Watch]) -> None:
    with host.change() as topology:
        topology.set_load(2, 40, memutil=25, used=GIB)
        topology.add_process(2, 4711, mem=2 * GIB, sm=40)
        topology.add_process(2, 4712, mem=3 * GIB, type="M")
        topology.gpus[2].energy, topology.gpus[2].thermal_throttle = 5000, 2 * 10**9
        topology.gpus[2].power, topology.gpus[2].mem_temp = 350_500, None
    watching = watch(host)
    uuids = ready(watching)
    first = told(watching, slow=True)[uuids[2]]
    assert (first.used_bytes, first.capacity_bytes) == (6 * GIB, topology.gpus[2].mem)
    assert first.reserved_bytes == topology.gpus[2].reserved
    assert first.processes == {4711: 2 * GIB, 4712: 3 * GIB}
    assert first.busy == Busy(0, 0)
    assert first.power_watts == pytest.approx(350.5)
    assert first.energy_joules == 5
    assert first.throttled == {"power": 0, "thermal": 2}
    assert first.temperatures == {"core": 32}
    assert first.clocks["memory"] == topology.gpus[2].mem_clock * 1e6
    assert first.rare is not None
    assert (first.rare.power_limit_watts, first.rare.ecc) == (700, {"corrected": 0, "uncorrected": 0})
    assert first.rare.remap_failed is False

    later: list[GpuSample] = []

    def known() -> bool:
        later.append(told(watching)[uuids[2]])
        return later[-1].busy is not None and later[-1].busy.known > 0 and bool(later[-1].process_time)

    wait(known)
    assert later[-1].busy is not None
    assert later[-1].memory_busy is not None
    assert later[-1].busy.ratio == pytest.approx(0.4)
    assert later[-1].memory_busy.ratio == pytest.approx(0.25)
    assert {(pid, percent) for pid, _, percent in later[-1].process_time or ()} == {(4711, 40)}
    assert later[-1].rare is None


def test_two_readers_do_not_take_each_others_samples(host: Host, watch: Callable[..., Watch]) -> None:
    with host.change() as topology:
        topology.add_process(0, 4711, mem=GIB, sm=40)
    watching = watch(host)
    uuids = ready(watching)
    told(watching)
    seen: set[int] = set()

    def both() -> bool:
        usage = watching.monitor.usage(uuids, PATIENCE)
        assert usage is not None
        seen.update(usage[uuids[0]].time or ())
        return bool(told(watching)[uuids[0]].process_time) and 4711 in seen

    wait(both)


def test_a_gpu_that_is_lost_has_no_sample(host: Host, watch: Callable[..., Watch]) -> None:
    """It is silent, or not told of at all once the worker was replaced because of it."""
    watching = watch(host)
    uuids = ready(watching)
    with host.change() as topology:
        topology.set_health(1, "lost")
    assert set(told(watching)) == set(uuids) - {uuids[1]}


def test_a_gpu_that_fails_says_why() -> None:
    made = Driver(FakeNvml(nvmlDeviceGetMemoryInfo=fails(pynvml.NVML_ERROR_GPU_IS_LOST)), "/nowhere")
    made.devices = [Device("handle", {"uuid": "GPU-0", "index": 0})]
    answer = made.samples(False)
    error = {"code": 15, "text": "GPU is lost", "function": "nvmlDeviceGetMemoryInfo"}
    assert answer == {"gpus": [{"uuid": "GPU-0", "error": error}]}
    assert samples(answer) == {}


@pytest.mark.parametrize("code", [pynvml.NVML_ERROR_NOT_FOUND, pynvml.NVML_ERROR_INVALID_ARGUMENT])
def test_empty_mig_slot_is_empty_under_any_error(code: int) -> None:
    def at(_: object, slot: int) -> str:
        if slot != 2:
            raise pynvml.NVMLError(code)
        return "device"

    fake: Any = FakeNvml(nvmlDeviceGetMaxMigDeviceCount=lambda _: 7, nvmlDeviceGetMigDeviceHandleByIndex=at)
    assert each_mig_device(fake, "gpu", lambda device, slot: (device, slot)) == [("device", 2)]


def test_mig_devices_tell_their_memory_and_their_gpu_no_time(
    make_host: Callable[[str], Host], watch: Callable[..., Watch]
) -> None:
    host = make_host("4xa100-mig")
    with host.change() as topology:
        cut = topology.migs[0]
        topology.add_process(cut.gpu, 4711, mem=GIB)
        topology.processes[-1].gi, topology.processes[-1].ci = cut.gi, cut.ci
    watching = watch(host)
    uuids = ready(watching)
    found = told(watching)
    memory = found[uuids[cut.gpu]].mig_memory
    assert memory is not None
    assert memory[cut.uuid] == GIB
    assert sum(memory.values()) == GIB
    assert found[uuids[cut.gpu]].busy is None
    assert found[uuids[cut.gpu]].process_time is None
    assert [gpu.mig_memory is None for gpu in found.values()] == [gpu.mig != 1 for gpu in topology.gpus]


def gpu(**functions: Any) -> GpuSample:
    """What is made of a driver that has these functions and no others."""
    memory = SimpleNamespace(total=8 * GIB, used=3 * GIB, free=5 * GIB)

    def first_version(handle: object, version: int | None = None) -> object:
        if version is not None:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)
        return memory

    names = [name for name in vars(pynvml) if name.startswith("nvmlDeviceGet")]
    absent = dict.fromkeys(names, fails(pynvml.NVML_ERROR_NOT_SUPPORTED))
    made = Driver(FakeNvml(**(absent | {"nvmlDeviceGetMemoryInfo": first_version} | functions)), "/nowhere")
    made.devices = [Device("handle", {"uuid": "GPU-0", "index": 0})]
    return samples(made.samples(True))["GPU-0"]


def test_what_a_driver_does_not_tell_is_absent() -> None:
    found = gpu()
    assert (found.capacity_bytes, found.used_bytes, found.reserved_bytes) == (8 * GIB, 3 * GIB, None)
    assert (found.busy, found.power_watts, found.energy_joules, found.processes) == (None, None, None, None)
    assert found.process_time is None
    assert (found.temperatures, found.clocks, found.throttled) == ({}, {}, {})
    assert found.rare is not None
    assert (found.rare.power_limit_watts, found.rare.ecc, found.rare.remap_failed) == (None, {}, None)


def test_use_of_the_hosts_memory_is_not_told() -> None:
    found = gpu(nvmlDeviceGetMemoryInfo=fails(pynvml.NVML_ERROR_NOT_SUPPORTED))
    assert found.capacity_bytes == os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert (found.used_bytes, found.reserved_bytes) == (None, None)


def test_an_idle_gpu_is_known_to_be_idle() -> None:
    nothing = fails(pynvml.NVML_ERROR_NOT_FOUND)
    found = gpu(
        nvmlDeviceGetProcessUtilization=nothing,
        nvmlDeviceGetComputeRunningProcesses_v3=lambda handle: [],
        nvmlDeviceGetSamples=nothing,
    )
    assert (found.process_time, found.processes, found.busy) == ((), {}, Busy(0, 0))


def test_numbers_that_are_no_process_are_dropped() -> None:
    """An older library told these of a newer driver's processes."""
    listed = [SimpleNamespace(pid=pid, usedGpuMemory=GIB) for pid in (0, 17, 2**32 - 1)]
    assert gpu(nvmlDeviceGetComputeRunningProcesses_v3=lambda handle: listed).processes == {17: GIB}


def test_a_client_of_mps_that_both_lists_have_counts_once() -> None:
    """Before Volta the server alone is listed, and its clients elsewhere; later ones may be in both."""

    def listed(*pids: int) -> Callable[[object], list[SimpleNamespace]]:
        return lambda handle: [SimpleNamespace(pid=pid, usedGpuMemory=pid * GIB) for pid in pids]

    found = gpu(
        nvmlDeviceGetComputeRunningProcesses_v3=listed(1, 2),
        nvmlDeviceGetMPSComputeRunningProcesses_v3=listed(2, 3),
    )
    assert found.processes == {1: GIB, 2: 2 * GIB, 3: 3 * GIB}


def test_samples_of_dead_processes_and_nonsense_are_dropped() -> None:
    rows = [
        SimpleNamespace(pid=1, timeStamp=5 * SECOND, smUtil=40),
        SimpleNamespace(pid=2, timeStamp=9 * SECOND, smUtil=100_000),
        SimpleNamespace(pid=3, timeStamp=9 * SECOND, smUtil=7),
    ]
    made = Driver(FakeNvml(nvmlDeviceGetProcessUtilization=lambda handle, since: rows), "/nowhere")
    first = made._sampler._process_time("handle", "GPU-0")
    rows.append(SimpleNamespace(pid=3, timeStamp=10 * SECOND, smUtil=9))
    rows.append(SimpleNamespace(pid=4, timeStamp=10 * SECOND, smUtil=101))
    assert (first, made._sampler._process_time("handle", "GPU-0")) == ([], [(3, 10 * SECOND, 9)])


def test_clock_set_back_stops_no_count_and_adds_nothing() -> None:
    now = 10_000.0
    stamps: list[int] = []

    def told(since: int, make: Callable[[int], SimpleNamespace]) -> list[SimpleNamespace]:
        if not (found := [make(stamp) for stamp in stamps if stamp > since]):
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)
        return found

    def busy(handle: object, kind: int, since: int) -> tuple[int, list[SimpleNamespace]]:
        return 0, told(since, lambda stamp: SimpleNamespace(timeStamp=stamp, sampleValue=SimpleNamespace(uiVal=50)))

    def processes(handle: object, since: int) -> list[SimpleNamespace]:
        return told(since, lambda stamp: SimpleNamespace(pid=1, timeStamp=stamp, smUtil=40))

    fake = FakeNvml(nvmlDeviceGetSamples=busy, nvmlDeviceGetProcessUtilization=processes)
    sampler = Driver(fake, "/nowhere", clock=lambda: now)._sampler

    def read() -> tuple[list[float] | None, int]:
        time = sampler._process_time("handle", "GPU-0")
        return sampler._busy("handle", "GPU-0", 0), len(time or ())

    found = []
    for step in (0, 0, -3600, 0, 0):
        now += step
        for _ in range(4):
            now += 0.5
            stamps.append(int(now * SECOND))
        found.append(read())
    two_seconds = [1.0, 2.0], 4
    assert [found[1], *found[3:]] == [two_seconds] * 3
    assert read() == ([0.0, 0.0], 0)
