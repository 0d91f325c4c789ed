# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from kube_accel.nvml.expected_gpus import EXPECTED_SECONDS, Seen, follow
from unit.kube_accel.plugin.fakes import inventory, uuid

NOW = 1e9
GPUS = inventory(2).gpus
FIRST, SECOND = GPUS
BOTH = {gpu.uuid: Seen(gpu.pci_address, NOW - 60, NOW - 90) for gpu in GPUS}


def test_who_answers_is_seen_and_who_is_healthy_is_seen_healthy() -> None:
    found = follow(BOTH, GPUS, {uuid(0), uuid(1)}, {uuid(0)}, NOW)
    assert found == {
        uuid(0): Seen(FIRST.pci_address, NOW, NOW),
        uuid(1): Seen(SECOND.pci_address, NOW, NOW - 90),
    }
    assert follow({}, GPUS, {uuid(1)}, (), NOW) == {uuid(1): Seen(SECOND.pci_address, NOW, None)}


def test_who_does_not_answer_is_missed_for_a_week() -> None:
    lost = follow(BOTH, [FIRST], {uuid(0)}, {uuid(0)}, NOW)
    assert lost[uuid(1)] == BOTH[uuid(1)]
    assert follow(BOTH, GPUS, {uuid(0)}, {uuid(0)}, NOW) == lost
    assert set(follow(lost, [FIRST], {uuid(0)}, (), NOW - 60 + EXPECTED_SECONDS)) == {uuid(0)}


def test_who_was_replaced_is_not_missed() -> None:
    before = {"GPU-old": Seen(FIRST.pci_address, NOW - 60, NOW - 60)}
    assert set(follow(before, [FIRST], {uuid(0)}, (), NOW)) == {uuid(0)}


def test_a_clock_that_is_set_back_makes_nobody_forgotten() -> None:
    assert follow(BOTH, [FIRST], {uuid(0)}, (), NOW - 3600)[uuid(1)] == BOTH[uuid(1)]
