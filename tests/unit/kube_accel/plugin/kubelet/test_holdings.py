# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import threading

import pytest

from kube_accel.kube.podresources import PodDevices, PodResourcesError
from kube_accel.plugin.kubelet import holdings as module
from kube_accel.plugin.kubelet.holdings import Holder, HoldingsReader, holders

RESOURCE = "nvidia.com/gpu"


def test_holders_are_those_of_our_resource_by_device() -> None:
    listed = (
        PodDevices("b", "two", "c", RESOURCE, ("GPU-1", "GPU-2")),
        PodDevices("a", "one", "c", RESOURCE, ("GPU-1",)),
        PodDevices("a", "nic", "c", "example.com/nic", ("GPU-1",)),
    )
    first, second = Holder("a", "one", "c"), Holder("b", "two", "c")
    assert holders(listed, RESOURCE.__eq__) == {"GPU-1": (first, second), "GPU-2": (second,)}


class Kubelet:
    """Answers ``listed``, or an error while that is None; ``asked`` counts."""

    def __init__(self) -> None:
        self.listed: tuple[PodDevices, ...] | None = None
        self.asked = threading.Semaphore(0)

    def list(self, timeout: float) -> tuple[PodDevices, ...]:
        self.asked.release()
        if self.listed is None:
            raise PodResourcesError("rejected by rate limit")
        return self.listed


def test_allocation_is_followed_by_a_look_that_may_fail() -> None:
    kubelet, changed = Kubelet(), threading.Semaphore(0)
    reader = HoldingsReader(kubelet, RESOURCE.__eq__, changed.release)
    assert reader.held is None
    threading.Thread(target=reader.run, daemon=True).start()
    assert changed.acquire(timeout=5), "the first look is reported even when it failed"
    assert reader.held is None

    kubelet.listed = (PodDevices("ns", "pod", "c", RESOURCE, ("GPU-1",)),)
    reader.allocated(("GPU-1",))
    assert changed.acquire(timeout=5)
    held = {"GPU-1": (Holder("ns", "pod", "c"),)}
    assert reader.held == held

    kubelet.listed = None
    while kubelet.asked.acquire(blocking=False):
        pass
    reader.allocated(("GPU-2",))
    assert kubelet.asked.acquire(timeout=5)
    kubelet.listed = ()
    reader.allocated(("GPU-3",))
    assert kubelet.asked.acquire(timeout=5)
    assert changed.acquire(timeout=5)
    assert reader.held == {}


def test_the_end_of_a_pod_that_came_just_now_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_INTERVALS", (0.5, 3600.0))
    kubelet, changed = Kubelet(), threading.Semaphore(0)
    reader = HoldingsReader(kubelet, RESOURCE.__eq__, changed.release)
    kubelet.listed = ()
    threading.Thread(target=reader.run, daemon=True).start()
    assert changed.acquire(timeout=30)
    kubelet.listed = (PodDevices("ns", "pod", "c", RESOURCE, ("GPU-1",)),)
    reader.allocated(("GPU-1",))
    assert changed.acquire(timeout=30)
    kubelet.listed = ()
    assert changed.acquire(timeout=30)
    assert reader.held == {}
