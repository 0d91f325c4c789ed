# SPDX-License-Identifier: Apache-2.0
"""Cutting a GPU: what one process makes of it, every process sees."""

from __future__ import annotations

import subprocess
import sys
from ctypes import byref, c_uint
from pathlib import Path
from typing import Any

import pynvml
import pytest

from sim.nvml.conftest import Node
from sim.nvml.profiles import PROFILES, a100_80_mig
from sim.nvml.topology import Topology, edit

MIB = 1 << 20


def profiles(handle: Any) -> dict[str, Any]:
    found = {}
    for kind in range(pynvml.NVML_GPU_INSTANCE_PROFILE_COUNT):
        try:
            info = pynvml.nvmlDeviceGetGpuInstanceProfileInfo(handle, kind)
        # The second of kinds that are younger than the driver.
        except (pynvml.NVMLError_NotSupported, pynvml.NVMLError_InvalidArgument):
            continue
        found[info.name.removeprefix("MIG ")] = info
    return found


def placements(handle: Any, profile: int) -> list[tuple[int, int]]:
    count = c_uint(0)
    pynvml.nvmlDeviceGetGpuInstancePossiblePlacements(handle, profile, None, byref(count))
    room = (pynvml.c_nvmlGpuInstancePlacement_t * count.value)()
    pynvml.nvmlDeviceGetGpuInstancePossiblePlacements(handle, profile, room, byref(count))
    return [(place.start, place.size) for place in room]


def make(handle: Any, name: str, start: int) -> Any:
    """A GPU instance with one compute instance that takes all of it."""
    profile = profiles(handle)[name]
    size = placements(handle, profile.id)[0][1]
    place = pynvml.c_nvmlGpuInstancePlacement_t(start, size)
    instance = pynvml.nvmlDeviceCreateGpuInstanceWithPlacement(handle, profile.id, byref(place))
    for kind in range(pynvml.NVML_COMPUTE_INSTANCE_PROFILE_COUNT):
        try:
            whole = pynvml.nvmlGpuInstanceGetComputeInstanceProfileInfo(instance, kind, 0)
        except pynvml.NVMLError_NotSupported:
            continue
        if whole.sliceCount == profile.sliceCount:
            pynvml.nvmlGpuInstanceCreateComputeInstance(instance, whole.id)
    return instance


def compute_instances(instance: Any) -> list[Any]:
    room, count = (pynvml.c_nvmlComputeInstance_t * 8)(), c_uint(8)
    pynvml.nvmlGpuInstanceGetComputeInstances(instance, 0, room, byref(count))
    return [room[i] for i in range(count.value)]


def devices(handle: Any) -> list[tuple[str, str]]:
    found = []
    for slot in range(pynvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
        try:
            device = pynvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, slot)
        except pynvml.NVMLError_NotFound:
            continue
        found.append((pynvml.nvmlDeviceGetName(device).rpartition("MIG ")[2], pynvml.nvmlDeviceGetUUID(device)))
    return found


@pytest.fixture
def gpu(node: Node) -> Any:
    """GPU 0 of a node of H200s, in MIG mode."""
    handle = node.load(PROFILES["8xh200"]("n"))[0]
    assert pynvml.nvmlDeviceSetMigMode(handle, 1) == pynvml.NVML_SUCCESS
    return handle


def test_the_mode_of_an_idle_gpu_changes_at_once(node: Node) -> None:
    topology = PROFILES["8xh200"]("n")
    handles = node.load(topology)
    assert pynvml.nvmlDeviceSetMigMode(handles[3], 1) == pynvml.NVML_SUCCESS
    assert [pynvml.nvmlDeviceGetMigMode(handle) for handle in handles] == [[int(i == 3)] * 2 for i in range(8)]
    assert pynvml.nvmlDeviceSetMigMode(handles[3], 0) == pynvml.NVML_SUCCESS
    assert Topology.load(node.path) == topology


def test_the_mode_of_a_gpu_in_use_is_pending(node: Node) -> None:
    topology = PROFILES["8xh200"]("n")
    topology.add_process(0, 11, mem=0, type="-")
    handle = node.load(topology)[0]
    assert pynvml.nvmlDeviceSetMigMode(handle, 1) == pynvml.NVML_ERROR_IN_USE
    assert pynvml.nvmlDeviceGetMigMode(handle) == [0, 1]
    with edit(node.path) as live:
        live.remove_process(11)
    assert pynvml.nvmlDeviceSetMigMode(handle, 1) == pynvml.NVML_SUCCESS
    assert pynvml.nvmlDeviceGetMigMode(handle) == [1, 1]


def test_a_guest_cannot_reset_its_gpu(node: Node) -> None:
    topology = PROFILES["8xh200"]("n")
    topology.gpus[0].mig_reset = 1
    handle = node.load(topology)[0]
    assert pynvml.nvmlDeviceSetMigMode(handle, 1) == pynvml.NVML_ERROR_RESET_REQUIRED
    assert pynvml.nvmlDeviceGetMigMode(handle) == [0, 1]


def test_profiles_are_those_of_the_card(node: Node, gpu: Any) -> None:
    found = profiles(gpu)
    assert {name: (info.id, info.instanceCount) for name, info in found.items()} == {
        "1g.18gb": (19, 7),
        "1g.18gb+me": (20, 1),
        "1g.35gb": (15, 4),
        "2g.35gb": (14, 3),
        "3g.71gb": (9, 2),
        "4g.71gb": (5, 1),
        "7g.141gb": (0, 1),
    }
    assert placements(gpu, 14) == [(0, 2), (2, 2), (4, 2)]
    assert found["3g.71gb"].memorySizeMB == 71168
    assert [profile.name for profile in a100_80_mig("A100")][-1] == "7g.80gb"


def test_a_card_without_mig_has_none(node: Node) -> None:
    t4, a100 = node.load(PROFILES["mixed"]("n"))
    assert profiles(t4) == {}
    assert "7g.40gb" in profiles(a100)
    with pytest.raises(pynvml.NVMLError_NotSupported):
        pynvml.nvmlDeviceSetMigMode(t4, 1)
    with pytest.raises(pynvml.NVMLError_NotSupported):
        placements(a100, 19)


def test_a_gpu_is_cut_and_made_whole(node: Node, gpu: Any) -> None:
    instance = make(gpu, "3g.71gb", 4)
    make(gpu, "1g.18gb", 0)
    info = pynvml.nvmlGpuInstanceGetInfo(instance)
    assert (info.profileId, info.placement.start, info.placement.size) == (9, 4, 4)
    names = [name for name, _uuid in devices(gpu)]
    assert names == ["3g.71gb", "1g.18gb"]
    with pytest.raises(pynvml.NVMLError_InUse):
        pynvml.nvmlGpuInstanceDestroy(instance)
    for compute in compute_instances(instance):
        pynvml.nvmlComputeInstanceDestroy(compute)
    pynvml.nvmlGpuInstanceDestroy(instance)
    assert [name for name, _uuid in devices(gpu)] == ["1g.18gb"]
    assert pynvml.nvmlDeviceSetMigMode(gpu, 0) == pynvml.NVML_ERROR_IN_USE


def test_a_device_made_again_has_its_name_again(node: Node, gpu: Any) -> None:
    instance = make(gpu, "7g.141gb", 0)
    before = devices(gpu)
    for compute in compute_instances(instance):
        pynvml.nvmlComputeInstanceDestroy(compute)
    pynvml.nvmlGpuInstanceDestroy(instance)
    make(gpu, "7g.141gb", 0)
    assert devices(gpu) == before


def test_what_does_not_fit_is_refused(node: Node, gpu: Any) -> None:
    make(gpu, "4g.71gb", 0)
    with pytest.raises(pynvml.NVMLError_InsufficientResources):
        make(gpu, "1g.18gb", 3)
    make(gpu, "3g.71gb", 4)
    with pytest.raises(pynvml.NVMLError_InvalidArgument):
        make(gpu, "2g.35gb", 1)


def test_an_instance_in_use_stays(node: Node, gpu: Any) -> None:
    instance = make(gpu, "1g.18gb", 2)
    with edit(node.path) as live:
        live.add_process(0, 11, mem=MIB)
        live.processes[0].gi, live.processes[0].ci = live.migs[0].gi, 0
    for compute in compute_instances(instance):
        with pytest.raises(pynvml.NVMLError_InUse):
            pynvml.nvmlComputeInstanceDestroy(compute)


def test_what_one_process_makes_another_sees(node: Node, gpu: Any, library: Path) -> None:
    make(gpu, "1g.18gb", 0)
    script = "import sys; from sim.nvml.nvidia_smi import main; sys.exit(main(['-L']))"
    environment = {
        "GPUSIM_FILE": str(node.path),
        "LD_LIBRARY_PATH": str(library.parent),
        "PYTHONPATH": ":".join(sys.path),
    }
    result = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True)
    assert devices(gpu)[0][1] in result.stdout, result.stderr
    make(gpu, "1g.18gb", 1)
    assert len(Topology.load(node.path).migs) == 2
