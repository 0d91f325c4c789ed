# SPDX-License-Identifier: Apache-2.0
"""The slices of a node against an API server in memory."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import pytest

from kube_accel.dra.node_devices import NodeDevices
from kube_accel.dra.offering import Offering
from kube_accel.dra.partitions import Divided, divided
from kube_accel.dra.publisher import Publisher
from kube_accel.kube.client import KubeClient
from kube_accel.shared.mig_geometry import Card, Profile
from unit.kube_accel.dra.api import FakeApi
from unit.kube_accel.plugin.fakes import LOST, ready, uuid
from waiting import wait


class Node:
    """Its GPUs, and who publishes them."""

    def __init__(self, api: FakeApi, state: Path) -> None:
        self.api = api
        self.devices = NodeDevices(state / "sys")
        self.devices.see(ready(3))
        self.prepared: set[str] = set()
        self.divided: dict[str, Divided] = {}
        self.publisher = Publisher(cast(KubeClient, api), "node-1", state, self._wanted)

    def _wanted(self, keeps_taints: bool, keeps_counters: bool, withheld: bool, fixed: int) -> Any:
        offering = Offering(self.divided if keeps_counters else {})
        return self.devices.wanted(keeps_taints, withheld, self.prepared, fixed=fixed, offering=offering)

    def see(self, *lost: int) -> None:
        self.devices.see(ready(3, dict.fromkeys(lost, LOST)))
        self.publisher.wake()

    @contextmanager
    def running(self) -> Iterator[Callable[[], None]]:
        """Published, until the function that ends it is called."""
        stop = threading.Event()
        self.api.deliver(self.publisher)
        self.publisher.watch.synced.set()
        thread = threading.Thread(target=self.publisher.run, args=(stop,))
        thread.start()

        def end() -> None:
            stop.set()
            self.publisher.stop()
            thread.join()

        try:
            yield end
        finally:
            end()

    def wait(self, *names: str, tainted: str = "") -> None:
        """Until these devices are offered, and this one tainted."""

        def offered() -> bool:
            found = self.api.devices()
            sick = [name for name, device in found.items() if "taints" in device]
            return [*found] == list(names) and sick == ([tainted] if tainted else [])

        wait(offered, f"{names} to be offered")


ALL = ("gpu-00", "gpu-01", "gpu-02")


def test_slices_are_written_once_and_owned_by_the_node(tmp_path: Path) -> None:
    node = Node(FakeApi(), tmp_path)
    with node.running():
        node.wait(*ALL)
        (stored,) = node.api.slices.values()
        assert stored["metadata"]["ownerReferences"] == [
            {"apiVersion": "v1", "kind": "Node", "name": "node-1", "uid": "node-uid", "controller": True}
        ]
        node.api.deliver(node.publisher)
        wait(lambda: node.publisher.problem == "")
    # A successor finds them as they should be.
    with Node(node.api, tmp_path).running():
        pass
    assert node.api.writes == ["POST"]


def test_wiped_slices_are_put_back(tmp_path: Path) -> None:
    node = Node(FakeApi(), tmp_path)
    with node.running():
        node.wait(*ALL)
        node.api.wipe()
        node.api.deliver(node.publisher)
        node.wait(*ALL)


def test_slices_wiped_before_the_answer_are_put_back(tmp_path: Path) -> None:
    node = Node(FakeApi(), tmp_path)

    def wipe() -> None:
        node.api.before_answer = lambda: None
        node.api.wipe()
        node.api.deliver(node.publisher)

    node.api.before_answer = wipe
    with node.running():
        wait(lambda: node.api.writes == ["POST", "POST"], "a second write")
        node.wait(*ALL)


def test_slices_are_written_after_the_api_server_was_restored(tmp_path: Path) -> None:
    node = Node(FakeApi(), tmp_path)
    with node.running():
        node.wait(*ALL)
        for lost in (1, 2, 1):  # versions have gone up
            node.see(lost)
            node.wait(*ALL, tainted=f"gpu-0{lost}")
        node.api.restore(0)
        node.api.deliver(node.publisher)
        node.see(0)
        node.wait(*ALL, tainted="gpu-00")


def test_state_that_cannot_be_read_is_a_problem_and_no_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    node = Node(FakeApi(), tmp_path)
    right = node.devices.wanted

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(node.devices, "wanted", full)
    with node.running():
        wait(lambda: "No space left" in node.publisher.problem)
        monkeypatch.setattr(node.devices, "wanted", right)
        node.publisher.wake()
        node.wait(*ALL)


def test_instance_that_waits_for_its_turn_sees_other_givers(tmp_path: Path) -> None:
    node = Node(FakeApi(), tmp_path)
    waiting = Node(node.api, tmp_path)
    with node.running():
        node.wait(*ALL)
        node.api.node["status"]["allocatable"] = {"nvidia.com/gpu": "3"}
        with waiting.running():
            wait(lambda: "a device plugin offers nvidia.com/gpu" in waiting.publisher.obstacle)


def test_late_event_of_the_watch_does_not_undo_what_was_written(tmp_path: Path) -> None:
    node = Node(FakeApi(), tmp_path)
    with node.running():
        node.wait(*ALL)
        late = copy.deepcopy([*node.api.slices.values()])
        node.see(1)
        node.wait(*ALL, tainted="gpu-01")
        for each in late:
            node.publisher.slices.keep(each)
        node.see()
        node.wait(*ALL)
    assert node.api.writes == ["POST", "PUT dry", "PUT", "PUT"]


def test_sick_gpu_is_tainted_until_it_is_well(tmp_path: Path) -> None:
    node = Node(FakeApi(), tmp_path)
    with node.running():
        node.wait(*ALL)
        node.see(1)
        node.wait(*ALL, tainted="gpu-01")
        node.see()
        node.wait(*ALL)
    assert node.api.writes == ["POST", "PUT dry", "PUT", "PUT"]


def test_sick_gpu_is_left_out_where_taints_are_not_kept(tmp_path: Path) -> None:
    node = Node(FakeApi(unknown=["taints"]), tmp_path)
    node.prepared = {"gpu-02"}
    with node.running():
        node.wait(*ALL)
        node.see(1, 2)
        node.wait("gpu-00", "gpu-02")
        assert node.publisher.dropped == {"taints"}
        node.prepared = set()
        node.publisher.holdings_changed()
        node.wait("gpu-00")


def test_fields_that_are_not_kept_are_told_and_not_sent_again(tmp_path: Path) -> None:
    node = Node(FakeApi(unknown=["capacity"]), tmp_path)
    with node.running():
        node.wait(*ALL)
        node.api.deliver(node.publisher)
        wait(lambda: node.publisher.dropped == {"capacity"})
        node.publisher.wake()
    assert node.api.writes == ["POST"]


def divide(node: Node) -> list[str]:
    """Have MIG devices be made of the last GPU; the devices of all."""
    profiles = (Profile("1g.10gb", 19, 1, 1, (0, 1), 2),)
    card = Card(2, uuid(2), "NVIDIA H100", 0, enabled=False, profiles=profiles)
    node.divided = {card.uuid: divided(card, ["1g.10gb"], (), whole=True)}
    return [*ALL, "gpu-02-mig-1g10gb-at-0", "gpu-02-mig-1g10gb-at-1"]


def test_counters_are_tried_and_then_in_a_slice_before_devices(tmp_path: Path) -> None:
    node = Node(FakeApi(), tmp_path)
    names = divide(node)
    with node.running():
        node.wait(*names)
        node.api.deliver(node.publisher)
        node.see(1)
        node.wait(*names, tainted="gpu-01")
        counters, devices = sorted(node.api.slices.values(), key=lambda each: str(each["metadata"]["name"]))
        assert [each["name"] for each in counters["spec"]["sharedCounters"]] == ["gpu-02"]
        assert "devices" not in counters["spec"]
        pools = [each["spec"]["pool"] for each in (counters, devices)]
        assert pools == [{"name": "node-1/kube-accel", "generation": 1, "resourceSliceCount": 2}] * 2
        node.divided = {}
        node.see()
        node.wait(*ALL)
        (left,) = node.api.slices.values()
        assert left["spec"]["pool"]["resourceSliceCount"] == 1
        assert "sharedCounters" not in left["spec"]
    assert node.api.writes[:4] == ["POST dry", "POST dry", "POST", "POST"]


@pytest.mark.parametrize("unknown", [["sharedCounters", "consumesCounters"], ["sharedCounters"], ["consumesCounters"]])
def test_nothing_is_offered_twice_where_counters_are_lost(tmp_path: Path, unknown: list[str]) -> None:
    """No moment has devices without the counters by which they exclude each other."""
    node = Node(FakeApi(unknown), tmp_path)
    divide(node)
    with node.running():
        node.wait(*ALL)
        assert node.publisher.dropped <= set(unknown)
        assert node.publisher.dropped
    assert [each for each in node.api.writes if "dry" not in each] == ["POST"]


def test_older_server_that_refuses_counters_gets_none(tmp_path: Path) -> None:
    api = FakeApi()
    api.refused = "sharedCounters"
    node = Node(api, tmp_path)
    divide(node)
    with node.running():
        node.wait(*ALL)
        assert node.publisher.dropped == {"sharedCounters"}


def test_node_that_a_device_plugin_serves_is_refused(tmp_path: Path) -> None:
    node = Node(FakeApi(), tmp_path)
    node.api.node["status"]["allocatable"] = {"nvidia.com/gpu": "8", "cpu": "4"}
    with node.running():
        wait(lambda: "device plugin offers nvidia.com/gpu" in node.publisher.problem)
        assert not node.api.slices
        node.api.node["status"]["allocatable"] = {"nvidia.com/gpu": "0", "nvidia.com/hostdev": "8"}
        node.publisher.wake()
        node.wait(*ALL)


def test_gpus_are_withheld_from_another_driver_that_comes(tmp_path: Path) -> None:
    node = Node(FakeApi(), tmp_path)
    with node.running():
        node.wait(*ALL)
        other = {
            "metadata": {"name": "other", "uid": "o", "resourceVersion": "1"},
            "spec": {
                "driver": "gpu.nvidia.com",
                "pool": {"name": "node-1", "generation": 1},
                "devices": [{"name": "x"}],
            },
        }
        node.publisher.slices.keep(other)
        wait(lambda: all("taints" in device for device in node.api.devices().values()))
        wait(lambda: "gpu.nvidia.com" in node.publisher.problem)
        node.publisher.slices.lose("other")
        node.wait(*ALL)


def test_second_instance_publishes_when_the_first_has_ended(tmp_path: Path) -> None:
    api = FakeApi()
    first, second = Node(api, tmp_path), Node(api, tmp_path)
    second.devices.see(ready(2))
    with first.running() as end:
        first.wait(*ALL)
        with second.running():
            wait(lambda: second.publisher.problem == "", "the second to leave it to the first")
            assert [*api.devices()] == list(ALL)
            end()
            second.wait(*ALL[:2])


def test_api_server_that_comes_back_gets_the_slices(tmp_path: Path) -> None:
    node = Node(FakeApi(), tmp_path)
    node.api.away = True
    with node.running():
        wait(lambda: "not reached" in node.publisher.problem)
        node.api.away = False
        node.wait(*ALL)
