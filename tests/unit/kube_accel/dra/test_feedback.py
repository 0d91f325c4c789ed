# SPDX-License-Identifier: Apache-2.0
"""What containers with claims are told of memory and time that NVML has of them."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import pytest

from kube_accel.dra.feedback import ClaimFeedback
from kube_accel.enforce.containers import Containers, key_of
from kube_accel.enforce.policy import Feedback
from kube_accel.kube.cgroups import Place
from kube_accel.model import GpuUsage
from unit.kube_accel.dra.test_metering import Metered
from unit.kube_accel.plugin.fakes import inventory

GIB = 1 << 30
IDS = {"a": "a" * 64, "b": "b" * 64, "side": "c" * 64}


class Told(Metered):
    """Two claims of one GPU, each of a pod, and who looks after them."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.usage = GpuUsage({}, None)
        self.places: dict[int, Place] = {}
        containers = self.shares.containers
        assert containers is not None
        known = self.metering.seen, lambda: inventory(4).gpus
        processes = self._asked, self.places.get
        self.feedback = ClaimFeedback(self.shares, containers, *known, self.claim_pods, processes)
        for name in ("a", "b"):
            self.prepare(name, ("gpu", "gpu-00", 30, 8))
            self.kubelet.lists(name, f"{name}/main")
            self.pods.runs(name, f"uid-of-{name}", main=IDS[name])
        self.metering.look()

    def _asked(self, gpus: Collection[str], seconds: float) -> dict[str, GpuUsage]:
        return dict.fromkeys(gpus, self.usage)

    def process(self, pid: int, pod: str, container: str = "") -> None:
        self.places[pid] = Place(f"uid-of-{pod}", IDS[container or pod])

    def of(self, claim: str, request: str = "gpu") -> Feedback | None:
        policy = Containers(self.node.state, self.node.root / "sys").policy(key_of((f"uid-{claim}", request)))
        return policy.feedback[0] if policy is not None and policy.feedback else None


@pytest.fixture
def told(tmp_path: Path) -> Told:
    return Told(tmp_path)


def test_memory_that_no_allocation_shows_counts(told: Told) -> None:
    told.process(10, "a")
    told.process(20, "b")
    told.report("a", 3 * GIB, 0, 0)
    told.report("b", GIB, 0, 0)
    told.usage = GpuUsage({10: 4 * GIB, 20: GIB}, {10: 40, 20: 20})
    for _ in range(2):
        assert told.feedback.tick()
    assert told.of("a") == Feedback(GIB, 400, 200)
    assert told.of("b") == Feedback(0, 200, 400)


def test_all_containers_of_a_claim_are_one(told: Told) -> None:
    told.kubelet.lists("a", "a/side")
    told.pods.runs("a", "uid-of-a", main=IDS["a"], side=IDS["side"])
    told.claim_pods.owner(Place("uid-of-a", IDS["side"]))
    told.metering.look()
    told.process(10, "a")
    told.process(11, "a", "side")
    told.report("a", 3 * GIB, 0, 0)
    told.usage = GpuUsage({10: 2 * GIB, 11: 2 * GIB}, None)
    for _ in range(2):
        told.feedback.tick()
    feedback = told.of("a")
    assert feedback is not None
    assert feedback[0] == GIB


@pytest.mark.parametrize("why", ["several requests", "unknown pod"])
def test_claim_whose_processes_are_not_known_is_left_alone(told: Told, why: str) -> None:
    if why == "several requests":
        told.prepare("c", ("gpu", "gpu-01", 30, 8), ("other", "gpu-01", 30, 8))
        told.pods.runs("c", "uid-of-c", main="d" * 64)
    else:
        told.prepare("c", ("gpu", "gpu-01", 30, 8))
    told.kubelet.lists("c", "c/main")
    told.metering.look()
    told.usage = GpuUsage({30: GIB}, {30: 50})
    for _ in range(2):
        told.feedback.tick()
    assert told.of("c") is None


def test_resting_gpu_is_not_written_about(told: Told) -> None:
    for _ in range(3):
        written = told.feedback.tick()
    assert not written
    assert told.of("a") == told.of("b")
    told.preparer.release("uid-a")
    told.preparer.release("uid-b")
    told.metering.look()
    assert not told.feedback.tick()
