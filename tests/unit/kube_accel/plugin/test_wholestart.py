# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import pytest

from kube_accel.kube.podresources import PodDevices, PodResourcesError
from kube_accel.plugin.prestart import StartRefused
from kube_accel.plugin.wholestart import WholeStarts
from unit.kube_accel.plugin.fakes import Listed


class Kubelet(Listed):
    """Knows the plugin, hands out what it is told to, and lists it; ``on_list`` is called while it does."""

    def __init__(self) -> None:
        super().__init__()
        self.refused: list[str] = []
        self.starts = WholeStarts(self, self.refused.append)
        self.on_list: Callable[[], None] = lambda: None
        self.silent = False

    def list(self, timeout: float) -> tuple[PodDevices, ...]:
        if self.silent:
            raise PodResourcesError("nobody listens")
        listed = super().list(timeout)
        on_list, self.on_list = self.on_list, lambda: None
        on_list()
        return listed

    def admit(self, pod: str, *devices: str) -> None:
        self.starts.allocated(devices)
        self.pods[pod] = set(devices)

    def start(self, *devices: str) -> str:
        """Why not; empty when it starts."""
        self.refused.clear()
        with suppress(StartRefused):
            self.starts.begin(devices)
            return ""
        (why,) = self.refused
        return why


@pytest.fixture
def kubelet() -> Kubelet:
    kubelet = Kubelet()
    kubelet.starts.forget()
    return kubelet


def test_pods_with_gpus_of_their_own_start_and_start_again(kubelet: Kubelet) -> None:
    kubelet.admit("one", "GPU-0")
    kubelet.admit("two", "GPU-1", "GPU-2")
    for devices in (["GPU-0"], ["GPU-2", "GPU-1"]) * 2:
        assert kubelet.start(*devices) == ""


def test_replicas_of_a_gpu_are_apart(kubelet: Kubelet) -> None:
    kubelet.admit("one", "GPU-0::0")
    kubelet.admit("two", "GPU-0::1")
    assert kubelet.start("GPU-0::0") == kubelet.start("GPU-0::1") == ""
    kubelet.admit("three", "GPU-0::1")
    assert "kubelet gave GPU-0::1 to team/three and team/two" in kubelet.start("GPU-0::1")


def test_a_gpu_that_a_pod_has_just_left_is_had_at_once(kubelet: Kubelet) -> None:
    kubelet.admit("one", "GPU-0")
    assert kubelet.start("GPU-0") == ""
    del kubelet.pods["one"]
    kubelet.admit("two", "GPU-0")
    assert kubelet.start("GPU-0") == ""


def test_who_gets_a_gpu_that_a_running_pod_has_does_not_start_until_it_is_alone(kubelet: Kubelet) -> None:
    kubelet.admit("one", "GPU-0")
    assert kubelet.start("GPU-0") == ""
    kubelet.admit("two", "GPU-0")
    refused = (
        "kubelet gave GPU-0 to team/one and team/two, and a device is for one pod at a time; team/one has it: "
        "delete team/two, so that it is placed anew"
    )
    assert kubelet.start("GPU-0") == refused
    del kubelet.pods["one"]
    assert kubelet.start("GPU-0") == ""


def test_of_two_that_wait_the_first_starts_and_no_other(kubelet: Kubelet) -> None:
    kubelet.admit("one", "GPU-0")
    kubelet.admit("two", "GPU-0")
    assert kubelet.start("GPU-0") == ""
    for _ in range(2):
        assert kubelet.start("GPU-0").endswith("; delete one that does not run, so that it is placed anew")
    del kubelet.pods["one"]
    assert kubelet.start("GPU-0") == ""
    kubelet.admit("three", "GPU-0")
    assert "team/two has it: delete team/three," in kubelet.start("GPU-0")


def test_a_container_that_its_devices_tell_apart_starts_again_and_the_other_does_not(kubelet: Kubelet) -> None:
    kubelet.admit("one", "GPU-0")
    assert kubelet.start("GPU-0") == ""
    kubelet.admit("two", "GPU-0", "GPU-1")
    assert "team/one has it: delete team/two" in kubelet.start("GPU-0", "GPU-1")
    assert kubelet.start("GPU-0") == ""
    kubelet.admit("three", "GPU-1")
    assert "GPU-0, GPU-1 to team/one and team/three and team/two" in kubelet.start("GPU-0", "GPU-1")
    assert kubelet.start("GPU-1") == "", "two never started with it"
    assert kubelet.start("GPU-0", "GPU-1")


def test_what_ran_before_kubelet_knew_the_plugin_may_have_the_gpu(kubelet: Kubelet) -> None:
    kubelet.admit("one", "GPU-0")
    assert kubelet.start("GPU-0") == ""
    kubelet.starts.forget()
    kubelet.admit("two", "GPU-0", "GPU-1")
    assert "delete one that does not run" in kubelet.start("GPU-0", "GPU-1")
    assert "delete one that does not run" in kubelet.start("GPU-0")
    del kubelet.pods["two"]
    assert kubelet.start("GPU-0") == ""


def test_nobody_of_before_starts_where_kubelet_told_of_them_late(kubelet: Kubelet) -> None:
    kubelet.starts.forget()
    kubelet.pods |= {"one": {"GPU-0"}, "two": {"GPU-0"}}
    assert kubelet.start("GPU-0")


def test_whom_kubelet_lists_at_the_first_look_after_it_was_silent_counts_as_of_before(kubelet: Kubelet) -> None:
    kubelet.silent = True
    kubelet.starts.forget()
    kubelet.silent = False
    kubelet.admit("one", "GPU-0")
    kubelet.admit("two", "GPU-0")
    assert kubelet.start("GPU-0")


def test_a_list_that_was_overtaken_by_an_admission_is_not_believed(kubelet: Kubelet) -> None:
    kubelet.admit("one", "GPU-0")

    def admitted_meanwhile() -> None:
        kubelet.admit("two", "GPU-0")
        assert kubelet.start("GPU-0") == ""

    kubelet.on_list = admitted_meanwhile
    assert kubelet.start("GPU-0"), "the list said that there was one pod"


def test_containers_of_a_pod_may_have_the_same_devices_and_an_init_container_more(kubelet: Kubelet) -> None:
    kubelet.starts.allocated(["GPU-0", "GPU-1"])
    kubelet.admit("one", "GPU-0")
    assert kubelet.start("GPU-0", "GPU-1") == kubelet.start("GPU-0") == ""


def test_an_init_container_that_has_a_gpu_of_another_pod_does_not_start(kubelet: Kubelet) -> None:
    kubelet.admit("one", "GPU-0")
    kubelet.starts.allocated(["GPU-0", "GPU-1"])
    kubelet.admit("two", "GPU-1")
    assert "kubelet gave GPU-0, GPU-1 to team/one and team/two" in kubelet.start("GPU-0", "GPU-1")


def test_while_kubelet_does_not_list_nothing_starts(kubelet: Kubelet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kube_accel.plugin.prestart._PATIENCE", 0.0)
    kubelet.admit("one", "GPU-0")
    kubelet.silent = True
    with pytest.raises(StartRefused, match="nobody knows who has GPU-0: nobody listens"):
        kubelet.starts.begin(["GPU-0"])
    assert kubelet.refused == []
