# SPDX-License-Identifier: Apache-2.0
"""What dashboards made for other exporters find."""

from __future__ import annotations

from dataclasses import replace

from kube_accel.metrics.aliases import Use, dcgm, gpu_manager
from kube_accel.metrics.devices import Devices
from kube_accel.metrics.exposition import Writer
from kube_accel.metrics.sample import Busy, GpuSample, Profile, Rare
from kube_accel.metrics.tenancy import Container, Holding
from unit.kube_accel.metrics.page import Page
from unit.kube_accel.plugin.fakes import inventory, ready, uuid

GIB = 1 << 30
A, B, C = (Container("team", name, "main") for name in "abc")
HOLDINGS = {
    uuid(0): (Holding(A, uuid(0), 1.0, 1.0, 80 * GIB),),
    uuid(1): (Holding(B, uuid(1), 0.3, 0.3, 8 * GIB), Holding(C, uuid(1), 0.5, 0.5, 40 * GIB)),
}
USES = {(uuid(0), A): Use(5 * GIB, 0.5), (uuid(1), B): Use(2 * GIB, 0.25), (uuid(1), C): Use(None, None)}
SAMPLE = GpuSample(
    uuid(0),
    80 * GIB,
    5 * GIB,
    GIB,
    Busy(5.0, 10.0),
    Busy(1.0, 10.0),
    temperatures={"core": 41.0},
    power_watts=300.5,
    energy_joules=2.0,
    clocks={"sm": 1.5e9, "memory": 2.6e9},
    pcie_replays=3,
)
NOW = 1000.0


def told(*answered: int) -> Devices:
    samples = {uuid(index): SAMPLE for index in answered}
    rare = {uuid(index): Rare(700, {}, False, (2, 1)) for index in answered}
    return Devices("n", "vgpu", ready(3), samples, rare, {}, {(uuid(0), 79): (2, NOW - 10), (uuid(1), 31): (1, 1.0)})


def values(page: Page, name: str) -> dict[tuple[str, str], float]:
    """By GPU and pod."""
    return {(labels["gpu"], labels["pod"]): value for labels, value in page.families[name]}


def test_a_gpu_is_told_of_as_dcgm_exporter_does() -> None:
    page = Page(Writer().page(dcgm(told(0), HOLDINGS, USES, NOW)))
    (labels, value), *_ = page.families["DCGM_FI_DEV_GPU_UTIL"]
    assert (labels, value) == (
        {
            "gpu": "0",
            "UUID": uuid(0),
            "pci_bus_id": "00000000:10:00.0",
            "device": "nvidia2",
            "modelName": "NVIDIA H100",
            "Hostname": "n",
            "hostname": "n",
            "DCGM_FI_DRIVER_VERSION": "580.159.04",
            "container": "main",
            "namespace": "team",
            "pod": "a",
        },
        50,
    )
    expected = {
        "DEV_FB_USED": 5 * 1024,
        "DEV_FB_FREE": 74 * 1024,
        "DEV_FB_RESERVED": 1024,
        "DEV_MEM_COPY_UTIL": 10,
        "DEV_SM_CLOCK": 1500,
        "DEV_MEM_CLOCK": 2600,
        "DEV_GPU_TEMP": 41,
        "DEV_POWER_USAGE": 300.5,
        "DEV_TOTAL_ENERGY_CONSUMPTION": 2000,
        "DEV_PCIE_REPLAY_COUNTER": 3,
        "DEV_XID_ERRORS": 79,
        "DEV_CORRECTABLE_REMAPPED_ROWS": 2,
        "DEV_UNCORRECTABLE_REMAPPED_ROWS": 1,
        "DEV_ROW_REMAP_FAILURE": 0,
        "PROF_GR_ENGINE_ACTIVE": 0.5,
    }
    assert {name: values(page, f"DCGM_FI_{name}")["0", "a"] for name in expected} == expected
    assert "DCGM_FI_DEV_MEMORY_TEMP" not in page.families
    assert page.kinds["DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION"] == "counter"


def test_use_that_is_not_told_is_no_free_memory() -> None:
    sample = replace(SAMPLE, used_bytes=None, reserved_bytes=None)
    page = Page(Writer().page(dcgm(replace(told(0), samples={uuid(0): sample}), HOLDINGS, USES, NOW)))
    assert not {"DCGM_FI_DEV_FB_FREE", "DCGM_FI_DEV_FB_RESERVED"} & page.families.keys()
    assert "DCGM_FI_DEV_GPU_TEMP" in page.families


def test_counters_of_a_gpus_parts_have_their_names() -> None:
    ratios = {"sm": 0.1, "occupancy": 0.2, "tensor": 0.3, "fp64": 0.4, "fp32": 0.5, "fp16": 0.6, "dram": 0.7}
    rates = {"pcie_tx": 1.0, "pcie_rx": 2.0, "nvlink_tx": 3.0, "nvlink_rx": 4.0}
    sample = replace(SAMPLE, profile=Profile(ratios | {"engine": 0.9}, rates))
    page = Page(Writer().page(dcgm(replace(told(0), samples={uuid(0): sample}), HOLDINGS, USES, NOW)))
    expected = {
        "SM_ACTIVE": 0.1,
        "SM_OCCUPANCY": 0.2,
        "PIPE_TENSOR_ACTIVE": 0.3,
        "PIPE_FP64_ACTIVE": 0.4,
        "PIPE_FP32_ACTIVE": 0.5,
        "PIPE_FP16_ACTIVE": 0.6,
        "DRAM_ACTIVE": 0.7,
        "PCIE_TX_BYTES": 1,
        "PCIE_RX_BYTES": 2,
        "NVLINK_TX_BYTES": 3,
        "NVLINK_RX_BYTES": 4,
        "GR_ENGINE_ACTIVE": 0.5,
    }
    profiled = {name for name in page.families if name.startswith("DCGM_FI_PROF_")}
    assert profiled == {f"DCGM_FI_PROF_{name}" for name in expected}
    assert {name: values(page, f"DCGM_FI_PROF_{name}")["0", "a"] for name in expected} == expected


def test_shared_gpu_has_its_own_row_and_one_a_known_pod() -> None:
    page = Page(Writer().page(dcgm(told(1, 2), HOLDINGS, USES, NOW)))
    assert values(page, "DCGM_FI_DEV_GPU_UTIL") == {("1", ""): 50, ("1", "b"): 25, ("2", ""): 50}
    assert values(page, "DCGM_FI_DEV_FB_USED") == {("1", ""): 5120, ("1", "b"): 2048, ("2", ""): 5120}
    assert values(page, "DCGM_FI_DEV_POWER_USAGE") == {("1", ""): 300.5, ("2", ""): 300.5}
    assert values(page, "DCGM_FI_DEV_XID_ERRORS") == {("1", ""): 0, ("2", ""): 0}


def test_a_gpu_that_does_not_answer_has_no_rows() -> None:
    assert Writer().page(dcgm(told(), {}, {}, NOW)) == b""


def test_containers_are_told_of_as_gpu_manager_does() -> None:
    page = Page(Writer().page(gpu_manager("n", inventory(2).gpus, HOLDINGS, USES)))

    def found(name: str, label: str) -> dict[tuple[str, str], float]:
        return {(labels["pod_name"], labels[label]): value for labels, value in page.families[name]}

    assert found("container_gpu_utilization", "gpu") == {
        ("a", "gpu0"): 50,
        ("a", "total"): 50,
        ("b", "gpu1"): 25,
        ("b", "total"): 25,
    }
    assert found("container_gpu_memory_total", "gpu_memory")["b", "gpu1"] == 2048
    assert found("container_request_gpu_utilization", "req_of_gpu") == {
        ("a", "total"): 1,
        ("b", "total"): 0.3,
        ("c", "total"): 0.5,
    }
    assert found("container_request_gpu_memory", "req_of_gpu_memory")["c", "total"] == 40 * 1024
    (labels, _), *_ = page.families["container_gpu_utilization"]
    assert set(labels) == {"pod_name", "namespace", "node", "container_name", "gpu"}


def test_a_total_of_which_a_part_is_unknown_is_unknown() -> None:
    both = {uuid(index): (Holding(A, uuid(index), 1.0, 1.0, 80 * GIB),) for index in (0, 1)}
    page = Page(Writer().page(gpu_manager("n", inventory(2).gpus, both, {(uuid(0), A): Use(GIB, 0.5)})))
    assert [labels["gpu"] for labels, _ in page.families["container_gpu_utilization"]] == ["gpu0"]
    ((labels, value),) = page.families["container_request_gpu_utilization"]
    assert (labels["req_of_gpu"], value) == ("total", 2)
