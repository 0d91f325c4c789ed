# SPDX-License-Identifier: Apache-2.0
"""What a real GPU answers: an H200 with driver 580.159.04, and two programs that hold 1 GiB each and launch at will.

``h200.json`` has the worker's answers as they came, but for the UUID.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kube_accel.metrics.attribute import Outcome, Owner, attribute
from kube_accel.metrics.sample import samples
from kube_accel.metrics.tenancy import Container, Holding
from kube_accel.nvml import translate

UUID = "GPU-00000000-1111-2222-3333-444444444444"
MIB = 1 << 20
HOLDERS = {1361: Container("team", "a", "main"), 1362: Container("team", "b", "main")}


@pytest.fixture
def answers() -> dict[str, Any]:
    return dict(json.loads(Path(__file__).with_name("h200.json").read_text()))


def test_it_is_known_and_healthy(answers: dict[str, Any]) -> None:
    inventory = translate.inventory(answers["inventory"], None)
    (gpu,) = inventory.gpus
    assert (gpu.uuid, gpu.model, gpu.memory_bytes, gpu.numa_node) == (UUID, "NVIDIA H200", 143771 * MIB, None)
    assert gpu.compute_capability == (9, 0)
    assert (inventory.driver_version, inventory.cuda_version) == ("580.159.04", (13, 0))
    poll = translate.polls(answers["poll"]["gpus"], inventory)[UUID]
    assert (poll.complaint, poll.advice, poll.lost, poll.answered) == ("", "", False, True)


def test_programs_are_seen_with_their_contexts(answers: dict[str, Any]) -> None:
    use = translate.usage(answers["usage"])[UUID]
    assert use.memory == dict.fromkeys(HOLDERS, (1024 + 518) * MIB)
    assert use.time is not None
    assert sum(use.time.values()) == 100


def test_use_is_divided_among_containers_and_none_is_lost(answers: dict[str, Any]) -> None:
    sample = samples(answers["samples"])[UUID]
    assert sample.used_bytes is not None
    assert sample.busy is not None
    holdings = [Holding(container, UUID, 0.3) for container in HOLDERS.values()]
    owners = {pid: Owner(Outcome.CONTAINER, container) for pid, container in HOLDERS.items()}
    found = attribute(sample, holdings, owners, {})
    memory = {container: figures.memory_bytes for container, figures in found.containers.items()}
    assert memory == dict.fromkeys(HOLDERS.values(), (1024 + 518) * MIB)
    assert sum(found.unattributed.values()) == sample.used_bytes - sum(amount or 0 for amount in memory.values())
    time = {container: figures.busy_seconds for container, figures in found.containers.items()}
    assert sum(seconds or 0 for seconds in time.values()) == pytest.approx(sample.busy.seconds)
    assert all(time.values())
