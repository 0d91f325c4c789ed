# SPDX-License-Identifier: Apache-2.0
"""Counters of GPUs' parts: from the simulated driver, and from drivers and GPUs that do not have them."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest

from kube_accel.metrics.sample import GpuSample, samples
from kube_accel.nvml.profiling import Profiler
from unit.kube_accel.nvml.conftest import PATIENCE, Host, Watch
from unit.kube_accel.nvml.test_usage import FakeNvml, fails, ready

MIB = 1 << 20


def told(watching: Watch, profile: bool = True) -> dict[str, GpuSample]:
    answer = watching.monitor.samples(False, profile, PATIENCE)
    assert answer is not None
    return samples(answer)


def test_figures_are_of_the_time_between_two_collections(host: Host, watch: Callable[..., Watch]) -> None:
    with host.change() as topology:
        topology.gpus[2].gpm = 20
    watching = watch(host)
    uuids = ready(watching)
    first = told(watching)
    assert first[uuids[2]].profile is not None
    assert not first[uuids[2]].profile.ratios
    assert first[uuids[0]].profile is None
    with host.change() as topology:
        topology.gpus[2].gpm = 40
    found = told(watching)[uuids[2]].profile
    assert found is not None
    ids = {"engine": 1, "sm": 2, "occupancy": 3, "tensor": 5, "dram": 10, "fp64": 11, "fp32": 12, "fp16": 13}
    assert found.ratios == pytest.approx({name: 0.3 + metric / 10_000 for name, metric in ids.items()})
    links = {"pcie_tx": 20, "pcie_rx": 21, "nvlink_rx": 60, "nvlink_tx": 61}
    assert found.rates == pytest.approx({name: (30 + metric / 100) * MIB for name, metric in links.items()})
    again = told(watching)[uuids[2]].profile
    assert again is not None
    assert again.ratios["sm"] == pytest.approx(0.4002)
    assert told(watching, profile=False)[uuids[2]].profile is None


def test_mig_devices_have_counters_of_their_own(make_host: Callable[[str], Host], watch: Callable[..., Watch]) -> None:
    host = make_host("4xa100-mig")
    with host.change() as topology:
        topology.gpus[0].gpm = 20
    watching = watch(host)
    uuids = ready(watching)
    told(watching)
    found = told(watching)[uuids[0]]
    parts = {part.uuid: part.gi for part in topology.migs if part.gpu == 0}
    assert len(parts) > 1
    assert {name: profile.ratios["sm"] for name, profile in found.mig_profiles.items()} == pytest.approx(
        {name: (20.02 + instance) / 100 for name, instance in parts.items()}
    )


def counting(**functions: Any) -> Profiler:
    """A driver that tells 50 of everything, but for these functions."""

    def get(wanted: Any) -> None:
        for entry in wanted.metrics[: wanted.numMetrics]:
            entry.value, entry.nvmlReturn = 50.0, 0

    working = {
        "nvmlGpmQueryDeviceSupport": lambda handle: SimpleNamespace(isSupportedDevice=1),
        "nvmlGpmSampleAlloc": pynvml.c_nvmlGpmSample_t,
        "nvmlGpmSampleGet": lambda handle, sample: None,
        "nvmlGpmMetricsGet": get,
    }
    return Profiler(FakeNvml(**(working | functions)))


@pytest.mark.parametrize(
    "call", ["nvmlGpmQueryDeviceSupport", "nvmlGpmSampleAlloc", "nvmlGpmSampleGet", "nvmlGpmMetricsGet"]
)
@pytest.mark.parametrize(
    "code",
    [
        pynvml.NVML_ERROR_FUNCTION_NOT_FOUND,
        pynvml.NVML_ERROR_NO_PERMISSION,
        pynvml.NVML_ERROR_IN_USE,
        pynvml.NVML_ERROR_UNKNOWN,
    ],
)
def test_whatever_a_driver_says_instead_is_no_figure(call: str, code: int) -> None:
    profiler = counting(**{call: fails(code)})
    for _ in range(2):
        found = profiler.read("handle", "GPU-0")
    assert found is None


def test_a_driver_without_the_calls_is_asked_once() -> None:
    asked = []

    def missing(handle: object) -> None:
        asked.append(handle)
        raise pynvml.NVMLError(pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)

    profiler = counting(nvmlGpmQueryDeviceSupport=missing)
    assert [profiler.read("handle", "GPU-0") for _ in range(3)] == [None, None, None]
    assert len(asked) == 1


def test_a_sample_that_failed_begins_anew() -> None:
    errors = [None, None, pynvml.NVML_ERROR_UNKNOWN, None, None]

    def sample(handle: object, into: object) -> None:
        if (code := errors.pop(0)) is not None:
            raise pynvml.NVMLError(code)

    profiler = counting(nvmlGpmSampleGet=sample)
    told = [profiler.read("handle", "GPU-0") for _ in range(5)]
    assert [found if found is None else found.get("sm") for found in told] == [None, 50.0, None, None, 50.0]
    assert (told[0], told[2], told[3]) == ({}, None, {})


def test_invalid_and_refused_figures_are_absent() -> None:
    def get(wanted: Any) -> None:
        for entry in wanted.metrics[: wanted.numMetrics]:
            entry.value = float("nan") if entry.metricId == 2 else 50.0
            entry.nvmlReturn = 3 if entry.metricId == 5 else 0

    profiler = counting(nvmlGpmMetricsGet=get)
    profiler.read("handle", "GPU-0")
    found = profiler.read("handle", "GPU-0")
    assert found is not None
    assert {"sm", "tensor"} & found.keys() == set()
    assert found["dram"] == 50.0


def test_samples_are_allocated_once() -> None:
    made: list[object] = []

    def allocate() -> object:
        made.append(pynvml.c_nvmlGpmSample_t())
        return made[-1]

    profiler = counting(nvmlGpmSampleAlloc=allocate)
    for _ in range(5):
        profiler.read("handle", "GPU-0")
    assert len(made) == 2
