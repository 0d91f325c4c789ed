# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kube_accel.kube.podresources import PodDevices, PodResourcesError
from kube_accel.plugin.kubelet import device_exclusivity
from kube_accel.plugin.kubelet.device_exclusivity import Claims, DeviceExclusivity, StartRefused, each_device
from unit.kube_accel.plugin.fakes import Listed


class Kubelet(Listed):
    """Knows the plugin, hands out what it is told to, and lists it; ``on_list`` is called while it does."""

    def __init__(self, claims: Callable[[Collection[str]], Claims] = each_device) -> None:
        super().__init__()
        self.refused: list[str] = []
        self.exclusivity = DeviceExclusivity(self, self.refused.append, claims)
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
        self.exclusivity.allocated(devices)
        self.pods[pod] = set(devices)

    def start(self, *devices: str) -> str:
        """Why not; empty when it starts."""
        self.refused.clear()
        with suppress(StartRefused):
            self.exclusivity.admit(devices, lambda listed: None)
            return ""
        (why,) = self.refused
        return why


@pytest.fixture
def kubelet() -> Kubelet:
    kubelet = Kubelet()
    kubelet.exclusivity.forget()
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


def test_container_with_a_running_pods_gpu_waits_until_alone(kubelet: Kubelet) -> None:
    kubelet.admit("one", "GPU-0")
    assert kubelet.start("GPU-0") == ""
    kubelet.admit("two", "GPU-0")
    refused = (
        "kubelet gave GPU-0 to team/one and team/two, and a device is for one pod at a time; team/one has it: "
        "delete team/two, so that its replacement is placed again"
    )
    assert kubelet.start("GPU-0") == refused
    del kubelet.pods["one"]
    assert kubelet.start("GPU-0") == ""


def test_of_two_that_wait_the_first_starts_and_no_other(kubelet: Kubelet) -> None:
    kubelet.admit("one", "GPU-0")
    kubelet.admit("two", "GPU-0")
    assert kubelet.start("GPU-0") == ""
    for _ in range(2):
        assert kubelet.start("GPU-0").endswith("delete one that does not run, so that its replacement is placed again")
    del kubelet.pods["one"]
    assert kubelet.start("GPU-0") == ""
    kubelet.admit("three", "GPU-0")
    assert "team/two has it: delete team/three," in kubelet.start("GPU-0")


def test_container_with_distinct_devices_starts_again(kubelet: Kubelet) -> None:
    kubelet.admit("one", "GPU-0")
    assert kubelet.start("GPU-0") == ""
    kubelet.admit("two", "GPU-0", "GPU-1")
    assert "team/one has it: delete team/two" in kubelet.start("GPU-0", "GPU-1")
    assert kubelet.start("GPU-0") == ""
    kubelet.admit("three", "GPU-1")
    assert "GPU-0, GPU-1 to team/one and team/three and team/two" in kubelet.start("GPU-0", "GPU-1")
    assert kubelet.start("GPU-1") == "", "two never started with it"
    assert kubelet.start("GPU-0", "GPU-1")


def test_pods_from_before_registration_may_have_the_gpu(kubelet: Kubelet) -> None:
    kubelet.admit("one", "GPU-0")
    assert kubelet.start("GPU-0") == ""
    kubelet.exclusivity.forget()
    kubelet.admit("two", "GPU-0", "GPU-1")
    assert "delete one that does not run" in kubelet.start("GPU-0", "GPU-1")
    assert "delete one that does not run" in kubelet.start("GPU-0")
    del kubelet.pods["two"]
    assert kubelet.start("GPU-0") == ""


def test_nobody_of_before_starts_where_kubelet_told_of_them_late(kubelet: Kubelet) -> None:
    kubelet.exclusivity.forget()
    kubelet.pods |= {"one": {"GPU-0"}, "two": {"GPU-0"}}
    assert kubelet.start("GPU-0")


def test_pods_listed_after_a_silence_count_as_earlier(kubelet: Kubelet) -> None:
    kubelet.silent = True
    kubelet.exclusivity.forget()
    kubelet.silent = False
    kubelet.admit("one", "GPU-0")
    kubelet.admit("two", "GPU-0")
    assert kubelet.start("GPU-0")


def test_list_overtaken_by_an_admission_is_not_believed(kubelet: Kubelet) -> None:
    kubelet.admit("one", "GPU-0")

    def admitted_meanwhile() -> None:
        kubelet.admit("two", "GPU-0")
        assert kubelet.start("GPU-0") == ""

    kubelet.on_list = admitted_meanwhile
    assert kubelet.start("GPU-0"), "the list said that there was one pod"


def test_containers_of_a_pod_may_share_devices(kubelet: Kubelet) -> None:
    kubelet.exclusivity.allocated(["GPU-0", "GPU-1"])
    kubelet.admit("one", "GPU-0")
    assert kubelet.start("GPU-0", "GPU-1") == kubelet.start("GPU-0") == ""


def test_init_container_with_another_pods_gpu_does_not_start(kubelet: Kubelet) -> None:
    kubelet.admit("one", "GPU-0")
    kubelet.exclusivity.allocated(["GPU-0", "GPU-1"])
    kubelet.admit("two", "GPU-1")
    assert "kubelet gave GPU-0, GPU-1 to team/one and team/two" in kubelet.start("GPU-0", "GPU-1")


def test_while_kubelet_does_not_list_nothing_starts(kubelet: Kubelet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kube_accel.plugin.kubelet.device_exclusivity._PATIENCE", 0.0)
    kubelet.admit("one", "GPU-0")
    kubelet.silent = True
    with pytest.raises(StartRefused, match="the holder of GPU-0 is not known: nobody listens"):
        kubelet.exclusivity.admit(["GPU-0"], lambda listed: None)
    assert kubelet.refused == []


def all_together(ids: Collection[str]) -> Claims:
    """A share: only who has exactly the same is in the way."""
    return {",".join(sorted(ids)): f"{len(ids)} of GPU-0"}


def nothing(ids: Collection[str]) -> Claims:
    return {}


def test_shares_with_common_ids_start_equal_ones_once() -> None:
    kubelet = Kubelet(all_together)
    kubelet.exclusivity.forget()
    kubelet.admit("one", "m0", "m1")
    kubelet.admit("two", "m1", "m0")
    kubelet.admit("three", "m1", "m2")
    assert kubelet.start("m0", "m1") == kubelet.start("m1", "m2") == ""
    assert kubelet.start("m0", "m1") == (
        "kubelet gave 2 of GPU-0 to team/one and team/two, and a device is for one pod at a time; "
        "delete one that does not run, so that its replacement is placed again"
    )
    del kubelet.pods["one"]
    assert kubelet.start("m0", "m1") == ""
    kubelet.admit("four", "m0", "m1")
    assert "team/two has it: delete team/four" in kubelet.start("m0", "m1")


def test_what_is_nobodys_alone_starts_at_any_time() -> None:
    kubelet = Kubelet(nothing)
    kubelet.admit("one", "c0")
    kubelet.admit("two", "c0")
    for _ in range(3):
        assert kubelet.start("c0") == ""


def test_a_container_that_the_check_refuses_has_not_started() -> None:
    kubelet = Kubelet(all_together)
    kubelet.exclusivity.forget()
    kubelet.admit("one", "m0")
    kubelet.admit("two", "m0")

    def refuse(listed: tuple[PodDevices, ...]) -> None:
        assert len(listed) == 2
        raise StartRefused("too much")

    with pytest.raises(StartRefused, match="too much"):
        kubelet.exclusivity.admit(["m0"], refuse)
    assert kubelet.refused == ["too much"], "nobody else can tell whose it is"
    assert kubelet.start("m0") == ""
    assert kubelet.start("m0") != ""


def test_of_what_nobody_has_any_more_nothing_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_exclusivity, "_MOST_USES", 3)
    kubelet = Kubelet(all_together)
    kubelet.exclusivity.forget()
    kubelet.admit("stays", "m0")
    assert kubelet.start("m0") == ""
    for number in range(1, 20):
        kubelet.admit("passes", f"m{number}")
        assert kubelet.start(f"m{number}") == ""
        assert len(kubelet.exclusivity._uses) <= 4
    kubelet.admit("late", "m0")
    assert "team/stays has it" in kubelet.start("m0")


PODS = st.sampled_from("abcd")
DEVICES = st.sampled_from([("0",), ("1",), ("0", "1"), ("1", "2"), ("2",)])
STEPS = st.one_of(
    st.tuples(st.just("admit"), PODS, DEVICES),
    st.tuples(st.sampled_from(["start", "crash", "end"]), PODS, st.just(())),
    st.tuples(st.just("forget"), st.just(""), st.just(())),
)


@pytest.mark.parametrize("claims", [each_device, all_together])
@given(st.lists(STEPS, max_size=40))
def test_two_never_run_with_equal_ids_and_one_alone_starts(
    claims: Callable[[Collection[str]], Claims], steps: list[tuple[str, str, tuple[str, ...]]]
) -> None:
    """Whatever kubelet gives to whom, whenever containers start, end and start again, and the plugin is made anew."""
    kubelet = Kubelet(claims)
    kubelet.exclusivity.forget()
    running: dict[str, Claims] = {}
    for step, pod, devices in steps:
        if step == "admit" and pod not in kubelet.pods:
            kubelet.admit(pod, *devices)
        elif step == "start" and pod in kubelet.pods and pod not in running:
            own = claims(kubelet.pods[pod])
            others = [claims(found) for other, found in kubelet.pods.items() if other != pod]
            if not kubelet.start(*kubelet.pods[pod]):
                assert all(own.keys().isdisjoint(others) for others in running.values())
                running[pod] = own
            else:
                assert any(not own.keys().isdisjoint(other) for other in others)
        elif step == "crash":
            running.pop(pod, None)
        elif step == "end":
            running.pop(pod, None)
            kubelet.pods.pop(pod, None)
        elif step == "forget":
            kubelet.exclusivity.forget()
