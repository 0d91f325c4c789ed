# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from kube_accel.metrics import families
from kube_accel.metrics.devices import Devices, device_families
from kube_accel.metrics.exposition import Series
from kube_accel.metrics.sample import Busy, GpuSample, Profile, Rare
from kube_accel.model import DriverState, MigDevice, Snapshot, UnreadableGpu
from kube_accel.nvml.expected_gpus import Seen
from unit.kube_accel.plugin.fakes import LOST, STARTING, UNAVAILABLE, UNKNOWN, inventory, ready, uuid

GIB = 1 << 30


def told(snapshot: Snapshot, *answered: int, seen: Mapping[str, Seen] | None = None) -> dict[str, Series]:
    found = {
        uuid(index): GpuSample(uuid(index), 80 * GIB, GIB, None, Busy(1.0, 4.0), None, {"core": 30.0})
        for index in answered
    }
    ready = snapshot.driver_state is DriverState.READY
    rare = {uuid(0): Rare(None, {"corrected": 3}, None)} if ready else {}
    busy, xids = {uuid(0): 12.5}, {(uuid(0), 79): (2, 5.0)}
    devices = Devices("n", "pgpu", snapshot, found if ready else None, rare, busy, xids, seen or {})
    return {family.name: series for family, series in device_families(devices) if series}


def test_what_a_gpu_tells_is_shown_and_nothing_else() -> None:
    found = told(ready(2), 0, 1)
    assert found["accel_gpu_utilization_ratio"] == {("n", uuid(0)): 0.25, ("n", uuid(1)): 0.25}
    assert found["accel_gpu_busy_seconds_total"] == {("n", uuid(0)): 12.5}
    assert found["accel_gpu_ecc_errors_total"] == {("n", uuid(0), "corrected"): 3}
    assert found["accel_gpu_xid_errors_total"] == {("n", uuid(0), "79"): 2}
    assert found["accel_gpu_xid_last_timestamp_seconds"] == {("n", uuid(0), "79"): 5.0}
    for family in (families.GPU_POWER, families.GPU_RESERVED, families.GPU_BANDWIDTH, families.GPU_REMAP_FAILURE):
        assert family.name not in found


def test_a_gpu_that_does_not_answer_keeps_what_is_known_of_it() -> None:
    found = told(ready(2, {1: LOST}), 0)
    assert found["accel_gpu_healthy"] == {("n", uuid(0)): 1, ("n", uuid(1)): 0}
    assert len(found["accel_gpu_info"]) == len(found["accel_gpu_memory_capacity_bytes"]) == 2
    assert set(found["accel_gpu_memory_used_bytes"]) == {("n", uuid(0))}
    assert found["accel_node_gpus"] == {("n", "expected"): 2, ("n", "visible"): 1, ("n", "healthy"): 1}


def test_mig_devices_have_counters_apart_from_their_gpus() -> None:
    part = Profile({"engine": 0.9, "sm": 0.5, "fp32": 0.25}, {})
    sample = GpuSample(uuid(0), 80 * GIB, GIB, None, None, None, mig_profiles={"MIG-1": part})
    devices = Devices("n", "pgpu", ready(1), {uuid(0): sample})
    found = {family.name: series for family, series in device_families(devices) if series}
    assert found["accel_mig_engine_active_ratio"] == {("n", uuid(0), "MIG-1"): 0.9}
    assert found["accel_mig_sm_active_ratio"] == {("n", uuid(0), "MIG-1"): 0.5}
    assert found["accel_mig_pipe_active_ratio"] == {("n", uuid(0), "MIG-1", "fp32"): 0.25}
    assert "accel_gpu_sm_active_ratio" not in found


def test_mig_devices_are_told_of_with_their_memory() -> None:
    found = ready(1)
    assert found.inventory is not None
    parts = (MigDevice("MIG-1", 0, "1g.10gb", 9 * GIB), MigDevice("MIG-2", 3, "3g.40gb", 39 * GIB))
    (gpu,) = found.inventory.gpus
    cut = replace(found, inventory=replace(found.inventory, gpus=(replace(gpu, mig_devices=parts),)))
    sample = GpuSample(gpu.uuid, 80 * GIB, GIB, None, None, None, mig_memory={"MIG-1": GIB, "MIG-2": 0})
    told = {family.name: series for family, series in device_families(Devices("n", "pgpu", cut, {gpu.uuid: sample}))}
    assert told["accel_mig_info"] == {
        ("n", gpu.uuid, "MIG-1", "0", "0", "1g.10gb"): 1,
        ("n", gpu.uuid, "MIG-2", "0", "3", "3g.40gb"): 1,
    }
    assert told["accel_mig_memory_capacity_bytes"] == {("n", gpu.uuid, part.uuid): part.memory_bytes for part in parts}
    assert told["accel_mig_memory_used_bytes"] == {("n", gpu.uuid, "MIG-1"): GIB, ("n", gpu.uuid, "MIG-2"): 0}


def test_all_gpus_gone_is_none_visible() -> None:
    gone = replace(UNAVAILABLE, inventory=inventory(2), health={uuid(0): LOST, uuid(1): LOST})
    assert told(gone)["accel_node_gpus"] == {("n", "expected"): 2, ("n", "visible"): 0, ("n", "healthy"): 0}


@pytest.mark.parametrize("state", [DriverState.WEDGED, DriverState.QUIESCED])
def test_a_driver_that_says_nothing_leaves_it_unknown(state: DriverState) -> None:
    unknown = Snapshot(3, state, "hangs", inventory(1), {uuid(0): UNKNOWN})
    found = told(unknown)
    assert found["accel_node_gpus"] == {("n", "expected"): 1}
    assert "accel_gpu_healthy" not in found
    assert "accel_gpu_utilization_ratio" not in found


def test_before_the_first_answer_nothing_is_said_of_gpus() -> None:
    assert set(told(STARTING)) <= {
        "accel_gpu_busy_seconds_total",
        "accel_gpu_xid_errors_total",
        "accel_gpu_xid_last_timestamp_seconds",
    }


def test_a_gpu_that_was_never_read_is_expected() -> None:
    found = ready(1)
    assert found.inventory is not None
    broken = replace(found, inventory=replace(found.inventory, unreadable=(UnreadableGpu(1, None, "why"),)))
    assert told(broken, 0)["accel_node_gpus"] == {("n", "expected"): 2, ("n", "visible"): 1, ("n", "healthy"): 1}


SEEN = {uuid(index): Seen(f"slot {index}", 50.0, 40.0 + index) for index in (0, 1)}


def test_a_gpu_that_was_lost_while_nobody_looked_is_expected() -> None:
    found = told(ready(1), 0, seen=SEEN)
    assert found["accel_node_gpus"] == {("n", "expected"): 2, ("n", "visible"): 1, ("n", "healthy"): 1}
    assert found["accel_gpu_last_healthy_timestamp_seconds"] == {("n", uuid(0)): 40, ("n", uuid(1)): 41}


def test_one_that_cannot_be_read_may_be_one_that_was_seen() -> None:
    found = ready(1)
    assert found.inventory is not None
    broken = replace(found, inventory=replace(found.inventory, unreadable=(UnreadableGpu(1, None, "why"),)))
    assert told(broken, 0, seen=SEEN)["accel_node_gpus"]["n", "expected"] == 2


def test_all_gpus_gone_before_the_start_is_none_visible() -> None:
    assert told(UNAVAILABLE, seen=SEEN)["accel_node_gpus"] == {
        ("n", "expected"): 2,
        ("n", "visible"): 0,
        ("n", "healthy"): 0,
    }
    assert told(STARTING, seen=SEEN)["accel_node_gpus"] == {("n", "expected"): 2}
