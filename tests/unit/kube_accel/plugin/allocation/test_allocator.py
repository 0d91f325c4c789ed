# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import threading
from typing import Any

import pytest

from kube_accel.model import Assignment, Mode, Share
from kube_accel.plugin.allocation.call_matcher import Call
from kube_accel.plugin.allocation.pods import NodePods
from kube_accel.plugin.allocation.share_service import Allocator
from kube_accel.plugin.kubelet.holdings import Holder
from kube_accel.sharing.assignment import ANNOTATION, encode
from kube_accel.sharing.fraction import Kind, device_ids, gpu_of
from kube_accel.sharing.profile import PROFILES
from unit.kube_accel.plugin.fakes import ready, uuid

PROFILE = PROFILES[Mode.VGPU]


def pod(name: str, gpu: int, cores: int, units: int) -> dict[str, Any]:
    """A pod the API server has bound to this node, with this GPU assigned."""
    limits = {"tencent.com/vcuda-core": str(cores), "tencent.com/vcuda-memory": str(units)}
    text = encode(Assignment("node", {"main": (Share(uuid(gpu), cores, 1),)}))
    return {
        "metadata": {"uid": name, "namespace": "ns", "name": name, "annotations": {ANNOTATION: text}},
        "spec": {"nodeName": "node", "containers": [{"name": "main", "resources": {"limits": limits}}]},
        "status": {"phase": "Pending"},
    }


class Listed:
    """An API server that knows of pods, and tells of them when asked."""

    reachable = True

    def __init__(self, pods: NodePods, *known: dict[str, Any]) -> None:
        self._pods, self._known = pods, known

    def list_now(self, timeout: float) -> None:
        for item in self._known:
            self._pods.keep(item)


def test_a_gpu_whose_mps_server_is_full_is_not_chosen() -> None:
    profile = PROFILES[Mode.MPS]
    allocator = Allocator(profile, NodePods(profile, "node"), lambda: None)
    snapshot = ready(2)
    assert snapshot.inventory is not None
    allocator.see(snapshot)
    allocator.use_api(None)
    rows = {gpu.uuid: frozenset(device_ids(gpu, Kind.CORES, profile)) for gpu in snapshot.inventory.gpus}

    def prefer(containers: int) -> set[str]:
        """The GPU chosen when so many containers have 1 % of GPU 0 each."""
        held = {
            Holder("ns", f"p{n}", "main"): {kind: frozenset({f"{uuid(0)}::{kind}{n}"}) for kind in Kind}
            for n in range(containers)
        }
        allocator.settle(held)
        free = frozenset().union(*rows.values()) - {f"{uuid(0)}::c{n}" for n in range(containers)}
        return {gpu_of(device) for device in allocator.prefer(Call.of(Kind.CORES, 2, rows, free))}

    assert prefer(47) == {uuid(0)}
    assert prefer(48) == {uuid(1)}


def test_a_call_waits_until_the_api_server_can_be_asked() -> None:
    pods = NodePods(PROFILE, "node")
    allocator = Allocator(PROFILE, pods, lambda: None)
    snapshot = ready(4)
    assert snapshot.inventory is not None
    allocator.see(snapshot)
    rows = {gpu.uuid: frozenset(device_ids(gpu, Kind.CORES, PROFILE)) for gpu in snapshot.inventory.gpus}
    loaded = threading.Timer(1, allocator.use_api, [Listed(pods, pod("p", gpu=2, cores=30, units=8))])
    loaded.start()
    found = allocator.prefer(Call.of(Kind.CORES, 30, rows, frozenset().union(*rows.values())))
    assert {gpu_of(device) for device in found} == {uuid(2)}
    loaded.join()


@pytest.mark.parametrize("first", Kind)
@pytest.mark.parametrize("cores", [30, 100])
def test_kubelet_is_asked_between_a_containers_two_resources(first: Kind, cores: int) -> None:
    """Pods like each other, each with a GPU of its own; the listing has half of a container."""
    sizes = {Kind.CORES: cores, Kind.MEMORY: 32}
    pods = NodePods(PROFILE, "node")
    allocator = Allocator(PROFILE, pods, lambda: None)
    snapshot = ready(4)
    assert snapshot.inventory is not None
    allocator.see(snapshot)
    allocator.use_api(None)
    for number in range(4):
        pods.keep(pod(f"p{number}", gpu=number, cores=cores, units=32))
    rows = {
        kind: {gpu.uuid: frozenset(device_ids(gpu, kind, PROFILE)) for gpu in snapshot.inventory.gpus} for kind in Kind
    }
    held: dict[Holder, dict[Kind, frozenset[str]]] = {}
    for number in range(4):
        for kind in (first, *(other for other in Kind if other is not first)):
            taken = frozenset().union(*(devices.get(kind, frozenset()) for devices in held.values()))
            free = frozenset().union(*rows[kind].values()) - taken
            found = frozenset(allocator.prefer(Call.of(kind, sizes[kind], rows[kind], free)))
            assert {gpu_of(device) for device in found} == {uuid(number)}, (number, kind)
            assert allocator.split_across_gpus(kind, found) == ""
            allocator.granted(kind, found)
            held.setdefault(Holder("ns", f"p{number}", "main"), {})[kind] = found
            allocator.settle(held)
