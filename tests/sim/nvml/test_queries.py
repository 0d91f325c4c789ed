# SPDX-License-Identifier: Apache-2.0
"""What pynvml, the real binding, is told of each profile."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import pynvml
import pytest

from sim.nvml.conftest import Node
from sim.nvml.profiles import PROFILES
from sim.nvml.topology import Topology, edit

MIB = 1 << 20
PIX, PXB, NODE, SYS = 10, 20, 40, 50
P2P_READ = 0  # pynvml's NVML_P2P_CAPS_INDEX_READ is a tuple


@pytest.fixture(params=PROFILES)
def profile(request: pytest.FixtureRequest) -> Topology:
    return PROFILES[request.param]("node-1")


def supported(read: Callable[..., object], *arguments: object) -> object:
    """What a call answers, None for NOT_SUPPORTED: how a card without a sensor is written in a profile."""
    try:
        return read(*arguments)
    except pynvml.NVMLError_NotSupported:
        return None


def test_every_card_is_what_the_profile_says(node: Node, profile: Topology) -> None:
    handles = node.load(profile)
    assert len(handles) == len(profile.gpus)
    assert pynvml.nvmlSystemGetDriverVersion() == profile.system.driver
    assert pynvml.nvmlSystemGetCudaDriverVersion_v2() == pynvml.nvmlSystemGetCudaDriverVersion() == 13000
    for gpu, handle in zip(profile.gpus, handles, strict=True):
        domain, rest = gpu.pci.split(":", 1)
        pci = pynvml.nvmlDeviceGetPciInfo(handle)
        memory = supported(pynvml.nvmlDeviceGetMemoryInfo, handle, pynvml.nvmlMemory_v2)
        assert pynvml.nvmlDeviceGetName(handle) == gpu.model
        assert pynvml.nvmlDeviceGetUUID(handle) == gpu.uuid
        assert pynvml.nvmlDeviceGetSerial(handle) == gpu.serial
        assert pynvml.nvmlDeviceGetIndex(handle) == gpu.index
        assert pynvml.nvmlDeviceGetMinorNumber(handle) == gpu.minor
        assert pci.busId == f"0000{domain}:{rest}".upper()
        assert pci.busIdLegacy == gpu.pci.upper()
        assert (pci.domain, pci.pciDeviceId, pci.pciSubSystemId) == (int(domain, 16), gpu.pciid, gpu.subsys)
        assert ".".join(map(str, pynvml.nvmlDeviceGetCudaComputeCapability(handle))) == gpu.cc
        if gpu.unified:
            assert memory is supported(pynvml.nvmlDeviceGetMemoryInfo, handle) is None
        else:
            assert (memory.total, memory.reserved, memory.used) == (gpu.mem, gpu.reserved, 0)
            assert memory.free == gpu.mem - gpu.reserved
        assert supported(pynvml.nvmlDeviceGetMigMode, handle) == (None if gpu.mig is None else [gpu.mig] * 2)
        assert pynvml.nvmlDeviceGetMaxMigDeviceCount(handle) == (0 if gpu.mig is None else 7)
        assert pynvml.nvmlDeviceGetTemperature(handle, pynvml.NVML_TEMPERATURE_GPU) == gpu.temp
        assert pynvml.nvmlDeviceGetPowerUsage(handle) == gpu.power
        assert supported(pynvml.nvmlDeviceGetEnforcedPowerLimit, handle) == gpu.power_limit
        assert pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM) == gpu.sm_clock
        assert supported(pynvml.nvmlDeviceGetClockInfo, handle, pynvml.NVML_CLOCK_MEM) == gpu.mem_clock
        assert supported(pynvml.nvmlDeviceGetEccMode, handle) == (None if gpu.ecc is None else [1, 1])
        assert supported(pynvml.nvmlDeviceGetTotalEccErrors, handle, 1, 0) == (None if gpu.ecc is None else 0)
        assert supported(pynvml.nvmlDeviceGetRemappedRows, handle) == (
            None if gpu.remap_corrected is None else (0, 0, 0, 0)
        )
        assert pynvml.nvmlDeviceGetComputeMode(handle) == pynvml.NVML_COMPUTEMODE_DEFAULT
        assert pynvml.nvmlDeviceGetPersistenceMode(handle) == 0
        assert supported(pynvml.nvmlDeviceGetC2cModeInfoV, handle) is None


def address_of(handle: Any) -> int | None:
    return ctypes.cast(handle, ctypes.c_void_p).value


def test_a_handle_by_any_name_is_the_same_gpu(node: Node, profile: Topology) -> None:
    handles = node.load(profile)
    for gpu, handle in zip(profile.gpus, handles, strict=True):
        long_form = f"0000{gpu.pci}".upper()
        found = [
            pynvml.nvmlDeviceGetHandleByUUID(gpu.uuid),
            pynvml.nvmlDeviceGetHandleByPciBusId(gpu.pci.encode()),
            pynvml.nvmlDeviceGetHandleByPciBusId(long_form.encode()),
        ]
        assert [address_of(other) for other in found] == [address_of(handle)] * 3


def test_a_container_sees_its_gpus_in_its_order(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    topology = PROFILES["8xh100"]("n")
    monkeypatch.setenv("GPUSIM_VISIBLE", f"{topology.gpus[5].uuid},{topology.gpus[1].uuid}")
    five, one = node.load(topology)
    assert [pynvml.nvmlDeviceGetMinorNumber(h) for h in (five, one)] == [5, 1]
    assert [pynvml.nvmlDeviceGetIndex(h) for h in (five, one)] == [0, 1]
    assert pynvml.nvmlDeviceGetTopologyCommonAncestor(five, one) == SYS
    with pytest.raises(pynvml.NVMLError_NotFound):
        pynvml.nvmlDeviceGetHandleByUUID(topology.gpus[0].uuid)
    with pytest.raises(pynvml.NVMLError_NotFound):
        pynvml.nvmlDeviceGetHandleByPciBusId(topology.gpus[0].pci.encode())


def test_a_container_given_nothing_sees_nothing(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUSIM_VISIBLE", "")
    assert node.load(PROFILES["t4"]("n")) == []


def test_container_with_an_absent_gpu_does_not_start(
    node: Node, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("GPUSIM_VISIBLE", "GPU-of-another-node")
    with pytest.raises(pynvml.NVMLError_Unknown):
        node.load(PROFILES["t4"]("n"))
    assert "GPU-of-another-node" in capfd.readouterr().err


def nvlinks(handle: object) -> list[tuple[int, str]]:
    """Type and PCI address of the far end of each link, up to the first the card does not have."""
    ends: list[tuple[int, str]] = []
    while True:
        try:
            assert pynvml.nvmlDeviceGetNvLinkState(handle, len(ends)) == 1
        except (pynvml.NVMLError_InvalidArgument, pynvml.NVMLError_NotSupported):
            return ends
        kind = pynvml.nvmlDeviceGetNvLinkRemoteDeviceType(handle, len(ends))
        ends.append((kind, pynvml.nvmlDeviceGetNvLinkRemotePciInfo(handle, len(ends)).busId))


@pytest.mark.parametrize("name", ["8xh100", "8xh200"])
def test_cards_on_nvswitch_have_all_links_to_the_switches(node: Node, name: str) -> None:
    topology = PROFILES[name]("n")
    handles = node.load(topology)
    switches = {f"0000{switch.pci}".upper() for switch in topology.nvswitches}
    for handle in handles:
        ends = nvlinks(handle)
        assert [kind for kind, _ in ends] == [pynvml.NVML_NVLINK_DEVICE_TYPE_SWITCH] * 18
        assert {address for _, address in ends} == switches
    assert pynvml.nvmlDeviceGetP2PStatus(handles[0], handles[7], pynvml.NVML_P2P_CAPS_INDEX_NVLINK) == 0
    ancestors = [pynvml.nvmlDeviceGetTopologyCommonAncestor(handles[0], other) for other in handles]
    assert ancestors == [0, NODE, NODE, NODE, SYS, SYS, SYS, SYS]


def test_a_guest_that_does_not_see_the_switches(node: Node) -> None:
    topology = PROFILES["8xh200"]("n")
    topology.nvswitches.clear()
    assert nvlinks(node.load(topology)[0])[0] == (2, "FFFFFFFF:FF:FF.0")


def test_cards_linked_to_each_other(node: Node) -> None:
    topology = PROFILES["4xa100-mig"]("n")
    handles = node.load(topology)
    for gpu, handle in zip(topology.gpus, handles, strict=True):
        ends = nvlinks(handle)
        peers = [f"0000{peer.pci}".upper() for peer in topology.gpus if peer is not gpu]
        assert sorted(ends) == sorted((pynvml.NVML_NVLINK_DEVICE_TYPE_GPU, peer) for peer in peers * 4)


def test_cards_on_pcie_switches(node: Node) -> None:
    handles = node.load(PROFILES["16xpcie"]("n"))
    ancestors = [pynvml.nvmlDeviceGetTopologyCommonAncestor(handles[0], other) for other in handles]
    assert ancestors == [0] + [PIX] * 3 + [PXB] * 4 + [SYS] * 8
    assert nvlinks(handles[0]) == []
    status = [pynvml.nvmlDeviceGetP2PStatus(handles[0], other, P2P_READ) for other in handles[1:]]
    assert [code == 0 for code in status] == [True] * 7 + [False] * 8
    assert pynvml.nvmlDeviceGetP2PStatus(handles[0], handles[1], pynvml.NVML_P2P_CAPS_INDEX_NVLINK) != 0


def test_affinity(node: Node) -> None:
    handles = node.load(PROFILES["8xh100"]("n"))
    assert list(pynvml.nvmlDeviceGetMemoryAffinity(handles[7], 1, pynvml.NVML_AFFINITY_SCOPE_NODE)) == [1 << 1]
    assert list(pynvml.nvmlDeviceGetCpuAffinity(handles[0], 2)) == [0xFFFFFFFF, 0xFFFFFFFF]
    assert list(pynvml.nvmlDeviceGetCpuAffinity(handles[7], 2)) == [0xFFFFFFFF << 32, 0xFFFFFFFF << 32]
    with pytest.raises(pynvml.NVMLError_InsufficientSize):
        pynvml.nvmlDeviceGetCpuAffinity(handles[0], 1)


def test_firmware_that_tells_no_numa_node(node: Node) -> None:
    handle = node.load(PROFILES["mixed"]("n"))[0]
    with pytest.raises(pynvml.NVMLError_NotSupported):
        pynvml.nvmlDeviceGetMemoryAffinity(handle, 1, pynvml.NVML_AFFINITY_SCOPE_NODE)


def test_mig_devices_and_the_holes_between_them(node: Node) -> None:
    topology = PROFILES["4xa100-mig"]("n")
    handle = node.load(topology)[1]
    found = {}
    for slot in range(pynvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
        try:
            found[slot] = pynvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, slot)
        except pynvml.NVMLError_NotFound:
            continue
    devices = [mig for mig in topology.migs if mig.gpu == 1]
    assert list(found) == [mig.slot for mig in devices] == [0, 2, 3]
    for mig, device in zip(devices, found.values(), strict=True):
        attributes = pynvml.nvmlDeviceGetAttributes_v2(device)
        assert pynvml.nvmlDeviceGetUUID(device) == mig.uuid
        assert pynvml.nvmlDeviceGetName(device) == f"NVIDIA A100-SXM4-40GB MIG {mig.profile}"
        assert pynvml.nvmlDeviceGetGpuInstanceId(device) == mig.gi
        assert pynvml.nvmlDeviceGetComputeInstanceId(device) == mig.ci
        assert pynvml.nvmlDeviceGetMemoryInfo(device).total == mig.mem
        assert f"{attributes.gpuInstanceSliceCount}g" == mig.profile.split(".")[0]
        assert attributes.memorySizeMB * MIB == mig.mem
        assert attributes.multiprocessorCount == mig.sms
        assert pynvml.nvmlDeviceIsMigDeviceHandle(device)
        parent = pynvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(device)
        assert pynvml.nvmlDeviceGetUUID(parent) == topology.gpus[1].uuid
        assert pynvml.nvmlDeviceGetUUID(pynvml.nvmlDeviceGetHandleByUUID(mig.uuid)) == mig.uuid
        with pytest.raises(pynvml.NVMLError_NotSupported):
            pynvml.nvmlDeviceGetPowerUsage(device)


def test_a_card_without_mig_devices(node: Node) -> None:
    topology = PROFILES["mixed"]("n")
    t4, a100 = node.load(topology)
    with pytest.raises(pynvml.NVMLError_NotSupported):
        pynvml.nvmlDeviceGetMigDeviceHandleByIndex(t4, 0)
    with pytest.raises(pynvml.NVMLError_NotFound):
        pynvml.nvmlDeviceGetMigDeviceHandleByIndex(a100, 0)


def test_a_mig_device_has_its_own_processes_and_memory(node: Node) -> None:
    topology = PROFILES["4xa100-mig"]("n")
    topology.add_process(0, 11, mem=100 * MIB)
    topology.add_process(0, 12, mem=200 * MIB)
    for process, gi in zip(topology.processes, (7, 8), strict=True):
        process.gi, process.ci = gi, 0
    handle = node.load(topology)[0]
    mig = pynvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, 1)
    assert [p.pid for p in pynvml.nvmlDeviceGetComputeRunningProcesses(mig)] == [12]
    assert [(p.pid, p.gpuInstanceId) for p in pynvml.nvmlDeviceGetComputeRunningProcesses(handle)] == [(11, 7), (12, 8)]
    assert pynvml.nvmlDeviceGetMemoryInfo(mig).used == 200 * MIB
    for read in (pynvml.nvmlDeviceGetUtilizationRates, lambda h: pynvml.nvmlDeviceGetProcessUtilization(h, 0)):
        with pytest.raises(pynvml.NVMLError_NotSupported):
            read(handle)


def test_ecc_remapping_and_recovery(node: Node) -> None:
    topology = PROFILES["8xh200"]("n")
    gpu = topology.gpus[2]
    gpu.ecc_corrected, gpu.ecc_uncorrected, gpu.recovery = 7, 3, pynvml.NVML_GPU_RECOVERY_ACTION_GPU_RESET
    gpu.remap_corrected, gpu.remap_uncorrected, gpu.remap_pending, gpu.remap_failed = 4, 2, 1, 1
    handle = node.load(topology)[2]
    assert pynvml.nvmlDeviceGetTotalEccErrors(handle, pynvml.NVML_MEMORY_ERROR_TYPE_CORRECTED, 0) == 7
    assert pynvml.nvmlDeviceGetTotalEccErrors(handle, pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, 1) == 3
    assert pynvml.nvmlDeviceGetRemappedRows(handle) == (4, 2, 1, 1)
    fields = pynvml.nvmlDeviceGetFieldValues(handle, [pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION, 1])
    assert (fields[0].nvmlReturn, fields[0].value.uiVal) == (0, 1)
    assert fields[1].nvmlReturn == pynvml.NVML_ERROR_NOT_SUPPORTED


def test_fields_are_as_wide_as_their_values(node: Node) -> None:
    topology = PROFILES["8xh200"]("n")
    gpu = topology.gpus[0]
    gpu.energy, gpu.mem_temp, gpu.power_throttle, gpu.thermal_throttle = 1 << 40, 61, 5, None
    handle = node.load(topology)[0]
    energy, warm, power, thermal = pynvml.nvmlDeviceGetFieldValues(handle, [83, 82, 74, 75])
    assert (energy.valueType, energy.value.ullVal) == (pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG, 1 << 40)
    assert (warm.valueType, warm.value.uiVal, power.value.uiVal) == (pynvml.NVML_VALUE_TYPE_UNSIGNED_INT, 61, 5)
    assert thermal.nvmlReturn == pynvml.NVML_ERROR_NOT_SUPPORTED


def gpm(older: Any, newer: Any, *metrics: int) -> dict[int, tuple[int, float]]:
    wanted = pynvml.c_nvmlGpmMetricsGet_t(version=1, numMetrics=len(metrics), sample1=older, sample2=newer)
    for entry, metric in zip(wanted.metrics, metrics, strict=False):
        entry.metricId = metric
    pynvml.nvmlGpmMetricsGet(wanted)
    return {entry.metricId: (entry.nvmlReturn, entry.value) for entry in wanted.metrics[: len(metrics)]}


def test_two_samples_of_counters_make_a_figure(node: Node) -> None:
    topology = PROFILES["8xh200"]("n")
    topology.gpus[1].gpm = 20
    plain, counting, *_ = node.load(topology)
    assert not pynvml.nvmlGpmQueryDeviceSupport(plain).isSupportedDevice
    assert pynvml.nvmlGpmQueryDeviceSupport(counting).isSupportedDevice
    older, newer = pynvml.nvmlGpmSampleAlloc(), pynvml.nvmlGpmSampleAlloc()
    with pytest.raises(pynvml.NVMLError_NotSupported):
        pynvml.nvmlGpmSampleGet(plain, older)
    pynvml.nvmlGpmSampleGet(counting, older)
    with edit(node.path) as changed:
        changed.gpus[1].gpm = 40
    pynvml.nvmlGpmSampleGet(counting, newer)
    found = gpm(older, newer, pynvml.NVML_GPM_METRIC_SM_UTIL, pynvml.NVML_GPM_METRIC_NVLINK_TOTAL_TX_PER_SEC, 999)
    assert found[2] == (pynvml.NVML_SUCCESS, pytest.approx(30.02))
    assert found[61] == (pynvml.NVML_SUCCESS, pytest.approx(30.61))
    assert found[999][0] == pynvml.NVML_ERROR_INVALID_ARGUMENT
    with pytest.raises(pynvml.NVMLError_InvalidArgument):
        gpm(newer, older, 2)
    for sample in (older, newer):
        pynvml.nvmlGpmSampleFree(sample)


def test_a_gpu_instance_has_samples_of_its_own(node: Node) -> None:
    topology = PROFILES["4xa100-mig"]("n")
    topology.gpus[0].gpm = 20
    handle = node.load(topology)[0]
    instance = next(part.gi for part in topology.migs if part.gpu == 0)
    samples = [pynvml.nvmlGpmSampleAlloc() for _ in range(3)]
    for sample in samples[:2]:
        pynvml.nvmlGpmMigSampleGet(handle, instance, sample)
    assert gpm(samples[0], samples[1], 2)[2][1] == pytest.approx(20.02 + instance)
    pynvml.nvmlGpmSampleGet(handle, samples[2])
    with pytest.raises(pynvml.NVMLError_InvalidArgument):
        gpm(samples[0], samples[2], 2)
    with pytest.raises(pynvml.NVMLError_InvalidArgument):
        pynvml.nvmlGpmMigSampleGet(handle, 0, samples[2])
    for sample in samples:
        pynvml.nvmlGpmSampleFree(sample)


def test_samples_come_since_the_last_one_seen(node: Node) -> None:
    topology = PROFILES["8xh200"]("n")
    topology.gpus[0].util, topology.gpus[0].memutil, topology.gpus[1].util = 70, 20, None
    handles = node.load(topology)
    kind, samples = pynvml.nvmlDeviceGetSamples(handles[0], pynvml.NVML_GPU_UTILIZATION_SAMPLES, 0)
    assert kind == pynvml.NVML_VALUE_TYPE_UNSIGNED_INT
    stamps = [sample.timeStamp for sample in samples]
    assert stamps == sorted(set(stamps))
    assert {sample.sampleValue.uiVal for sample in samples} == {70}
    _, newer = pynvml.nvmlDeviceGetSamples(handles[0], pynvml.NVML_MEMORY_UTILIZATION_SAMPLES, stamps[-3])
    assert [sample.timeStamp for sample in newer][:2] == stamps[-2:]
    assert {sample.sampleValue.uiVal for sample in newer} == {20}
    with pytest.raises(pynvml.NVMLError_NotFound):
        pynvml.nvmlDeviceGetSamples(handles[0], pynvml.NVML_GPU_UTILIZATION_SAMPLES, 2**63)
    with pytest.raises(pynvml.NVMLError_NotSupported):
        pynvml.nvmlDeviceGetSamples(handles[1], pynvml.NVML_GPU_UTILIZATION_SAMPLES, 0)
