# SPDX-License-Identifier: Apache-2.0
"""Which rows a benchmark has of a node, and what it refuses before it starts anything."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import Any

import pytest
from ansible_collections.accel.kubernetes.plugins.module_utils.benchmark.rows import (
    INSTANCE,
    OwnJob,
    Plan,
    Row,
    Seen,
    others,
    plan,
    slices,
    spread,
    tolerations,
)
from ansible_collections.accel.kubernetes.plugins.module_utils.benchmark.wish import Wish, refusals
from hypothesis import given
from hypothesis import strategies as st

from kube_accel.model import Mode
from kube_accel.sharing.inventory_annotation import Holding
from odd_values import Path, cases, fields_read, with_value
from unit.plugins.module_utils.shared.test_gpu_view import GIB, node, pod

READY = {"conditions": [{"type": "Ready", "status": "True"}]}
VGPU = {"tencent.com/vcuda-core": "100", "tencent.com/vcuda-memory": "96"}


def a_node(
    mode: Mode = Mode.PGPU, allocatable: Mapping[str, str] | None = None, gpus: int = 1, **labels: str
) -> dict[str, Any]:
    """Node a with GPUs of 24 GiB."""
    offered = {"cpu": "8", **({"nvidia.com/gpu": str(gpus)} if allocatable is None else allocatable)}
    found = node("a", {}, (24 * GIB,) * gpus, mode, allocatable=offered, **READY)
    found["metadata"]["labels"].update({f"nvidia.com/{name}": value for name, value in labels.items()})
    return found


def planned(seen: Mapping[str, Any], *pods: Mapping[str, Any], **wish: Any) -> Plan:
    return plan(Wish("a", **wish), Seen(seen, pods, OwnJob("team", "mine")))


def rows(found: Plan) -> dict[str, Row]:
    assert found.refusals == ()
    return {row.name: row for row in found.rows}


def test_whole_gpus_have_one_row_with_all_of_them_busy() -> None:
    found = rows(planned(a_node(gpus=2)))
    assert found == {"whole": Row("whole", 1, 2, Fraction(1), {"nvidia.com/gpu": 1})}


def test_time_slices_have_a_row_for_each_number_of_sharers() -> None:
    sliced = a_node(allocatable={"nvidia.com/gpu.shared": "8"}, gpus=2)
    found = planned(sliced)
    assert list(rows(found)) == ["time-slices x1", "time-slices x2", "time-slices x4"]
    assert [row.pods for row in found.rows] == [2, 4, 8]
    assert found.rows[2].share == Fraction(1, 4)
    assert found.left_out == ("x8: nvidia.com/gpu.shared has 4 replicas of a GPU, and no more can share it",)


def test_replicas_of_mps_are_told_from_time_slices() -> None:
    labels = {"gpu.sharing-strategy": "mps"}
    assert list(rows(planned(a_node(allocatable={"nvidia.com/gpu": "2"}, **labels)))) == [
        "MPS replicas x1",
        "MPS replicas x2",
    ]


@pytest.mark.parametrize(
    ("allocatable", "labels", "names"),
    [
        ({"nvidia.com/mig-1g.5gb": "4", "nvidia.com/mig-3g.20gb": "1"}, {}, ["MIG 1g.5gb", "MIG 3g.20gb"]),
        ({"nvidia.com/mig-1g.10gb.me": "1"}, {}, ["MIG 1g.10gb+me"]),
        (
            {"nvidia.com/gpu": "7"},
            {"mig.strategy": "single", "gpu.product": "NVIDIA-A100-MIG-1g.5gb"},
            ["MIG 1g.5gb"],
        ),
    ],
)
def test_mig_devices_have_a_row_by_profile(
    allocatable: dict[str, str], labels: dict[str, str], names: list[str]
) -> None:
    found = rows(planned(a_node(allocatable=allocatable, **labels)))
    assert list(found) == names
    assert [row.pods for row in found.values()] == [int(amount) for amount in allocatable.values()]


def test_mig_devices_that_are_shared_in_time_are_not_measured() -> None:
    labels = {"mig-1g.5gb.replicas": "2"}
    found = planned(a_node(allocatable={"nvidia.com/mig-1g.5gb": "8"}, **labels))
    assert found.rows == ()
    assert "its MIG devices are time-sliced" in found.refusals[0]


@pytest.mark.parametrize(
    ("profile", "model", "share"),
    [
        ("1g.5gb", "NVIDIA A100-SXM4-40GB", Fraction(1, 7)),
        ("7g.40gb", "NVIDIA A100-SXM4-40GB", Fraction(1)),
        ("1c.3g.20gb", "NVIDIA A100-SXM4-40GB", Fraction(1, 7)),
        ("2g.12gb", "NVIDIA A30", Fraction(1, 2)),
        ("8g.80gb", "NVIDIA A100-SXM4-40GB", None),
        ("large", "NVIDIA A30", None),
    ],
)
def test_share_of_a_profile_is_by_its_slices(profile: str, model: str, share: Fraction | None) -> None:
    assert slices(profile, model) == share


def test_shares_divide_cores_and_memory_of_each_gpu() -> None:
    twice = {name: str(2 * int(amount)) for name, amount in VGPU.items()}
    found = rows(planned(a_node(Mode.VGPU, twice, gpus=2), sharers=(1, 3)))
    assert found["vGPU x1"].asks == {"tencent.com/vcuda-core": 100}
    assert found["vGPU x3"].asks == {"tencent.com/vcuda-core": 33, "tencent.com/vcuda-memory": 32}
    assert (found["vGPU x3"].pods, found["vGPU x3"].share) == (6, Fraction(33, 100))


def test_cgpu_divides_memory_and_nothing_else() -> None:
    found = rows(planned(a_node(Mode.CGPU, {"aliyun.com/gpu-mem": "24"})))
    assert list(found) == ["cGPU x1", "cGPU x2", "cGPU x4", "cGPU x8"]
    assert (found["cGPU x8"].asks, found["cGPU x8"].share) == ({"aliyun.com/gpu-mem": 3}, Fraction(1, 8))


@given(
    st.sampled_from([Mode.VGPU, Mode.MPS, Mode.CGPU]),
    st.integers(1, 8),
    st.integers(1, 600),
    st.sets(st.integers(1, 100), min_size=1),
)
def test_no_row_asks_for_more_than_the_node_has(mode: Mode, gpus: int, memory: int, sharers: set[int]) -> None:
    names = {
        Mode.VGPU: ("tencent.com/vcuda-core", "tencent.com/vcuda-memory"),
        Mode.MPS: ("nvidia.com/mps-core", "nvidia.com/mps-memory"),
        Mode.CGPU: ("aliyun.com/gpu-mem",),
    }[mode]
    amounts = dict(zip(names, (100 * gpus, memory * gpus) if len(names) > 1 else (memory * gpus,), strict=True))
    found = planned(a_node(mode, {name: str(each) for name, each in amounts.items()}, gpus), sharers=tuple(sharers))
    assert bool(found.refusals) == (max(sharers) > min(memory, 100))
    for row in found.rows:
        assert row.pods == row.sharers * gpus
        assert row.share * row.sharers <= 1
        for name, amount in row.asks.items():
            assert 0 < amount * row.pods <= amounts[name]


def refused(seen: Mapping[str, Any], *pods: Mapping[str, Any], **wish: Any) -> str:
    found = planned(seen, *pods, **wish)
    assert found.rows == ()
    return "; ".join(found.refusals)


def test_what_asks_for_more_than_there_is_is_refused() -> None:
    assert "x8: nvidia.com/gpu has 4 replicas of a GPU" in refused(
        a_node(allocatable={"nvidia.com/gpu": "4"}), sharers=(2, 8)
    )


def test_what_there_is_no_room_for_is_left_out_if_told() -> None:
    found = planned(a_node(allocatable={"nvidia.com/gpu": "4"}), sharers=(2, 8), leave_out=True)
    assert list(rows(found)) == ["time-slices x2"]
    assert found.left_out[0].startswith("x8: ")


def test_gpus_that_somebody_holds_are_refused_and_pods_are_named() -> None:
    holding = [pod(f"p{number}", {"nvidia.com/gpu": "1"}, "a") for number in range(5)]
    assert "team/p0, team/p1, team/p2 and 2 more use its GPUs" in refused(a_node(), *holding)
    over = pod("p", {"nvidia.com/gpu": "1"}, "a", phase="Succeeded")
    own = pod("own", {"nvidia.com/gpu": "1"}, "a")
    own["metadata"]["labels"] = {INSTANCE: "mine"}
    assert "whole" in rows(planned(a_node(), over, own, pod("web", {"cpu": "1"}, "a")))
    assert others([own], None) == ["team/own"]


def test_a_tenant_with_the_label_of_our_pods_is_busy() -> None:
    tenant = pod("p", {"nvidia.com/gpu": "1"}, "a")
    tenant["metadata"].update(namespace="tenants", labels={INSTANCE: "mine"})
    assert "tenants/p use its GPUs" in refused(a_node(), tenant)


@pytest.mark.parametrize(
    ("seen", "told"),
    [
        (
            {"metadata": {"name": "a"}, "status": READY},
            "node a has no GPUs that a device plugin of this collection serves",
        ),
        (a_node() | {"spec": {"unschedulable": True}}, "node a is cordoned, so no pod would start; run kubectl"),
        (node("a", {}, bad="fell off the bus", allocatable={"nvidia.com/gpu": "1"}), "GPU 0 is unhealthy"),
        (
            node("a", {}, mode=Mode.PGPU, allocatable={"nvidia.com/gpu": "2"}),
            "GPUs of several models (Card 24, Card 80)",
        ),
        (a_node(allocatable={}), "node a has nothing to measure: it offers nothing in mode pgpu"),
        (a_node(Mode.VGPU, {"tencent.com/vcuda-core": "100"}), "it offers no tencent.com/vcuda-memory; see its plugin"),
        (a_node(allocatable={"nvidia.com/gpu": "3"}, gpus=2), "3 for 2 GPUs are not the same number for each"),
    ],
)
def test_a_node_that_cannot_be_measured_is_refused(seen: dict[str, Any], told: str) -> None:
    assert told in refused(seen)


def test_environment_is_that_of_the_node() -> None:
    seen = a_node(**{"device-plugin.config": "sliced"})
    seen["status"]["nodeInfo"] = {"kubeletVersion": "v1.34.1", "osImage": "Ubuntu", "kernelVersion": "6.8"}
    found = planned(seen).environment
    assert (found.gpu, found.gpus, found.memory_mib, found.driver) == ("Card 24", 1, 24 << 10, "580.1")
    assert (found.mode, found.config, found.kubernetes, found.os) == ("pgpu", "sliced", "v1.34.1", "Ubuntu")


def test_pods_that_lie_unevenly_are_told() -> None:
    row = Row("time-slices", 2, 4, Fraction(1, 2), {"nvidia.com/gpu": 1})
    names = ["p0", "p1", "p2", "p3"]

    def lying(*where: int) -> dict[str, Any]:
        held = {
            gpu: tuple(Holding("team", names[number], "main", 100, GIB) for number, at in enumerate(where) if at == gpu)
            for gpu in (0, 1)
        }
        return node("a", held, (24 * GIB,) * 2, Mode.PGPU)

    assert spread(lying(0, 0, 1, 1), row, names) == ""
    assert "(3 on GPU 0, 1 on GPU 1)" in spread(lying(0, 0, 0, 1), row, names)
    # Kubelet has not told of all of them.
    assert spread(lying(0, 0, 0), row, names) == ""


def test_taints_of_people_are_tolerated_and_troubles_are_not() -> None:
    taints = [{"key": "dedicated", "value": "x"}, {"key": "node.kubernetes.io/unreachable"}, {}]
    assert tolerations({"spec": {"taints": taints}}) == [{"key": "dedicated", "operator": "Exists"}]


@pytest.mark.parametrize(("path", "values"), cases(fields_read(a_node(), lambda item: plan(Wish("a"), Seen(item)))))
def test_an_odd_node_is_planned_or_refused(path: Path, values: Mapping[str, Any]) -> None:
    for name, value in values.items():
        found = plan(Wish("a"), Seen(with_value(a_node(), path, value)))
        assert bool(found.rows) != bool(found.refusals), name


@pytest.mark.parametrize(
    ("wish", "told"),
    [
        (Wish(""), "node is empty; name the node"),
        (Wish("a", sharers=(2, 0)), "sharers has 0; give numbers of pods on a GPU, from 1 to 100"),
        (Wish("a", sharers=()), "sharers is an empty list"),
        (Wish("a", repeats=0), "repeats is 0; give a number from 1 to 100"),
        (Wish("a", launches=-1), "launches is -1; give a number from 1 to"),
        (Wish("a", timeout=0), "timeout is 0;"),
        (Wish("a", command=("x",), figure="(x)"), "command and figure would be for the plugins' image"),
        (Wish("a", image="i", launches=7), "launches is 7, but image i has a workload of its own"),
        (Wish("a", image="a b"), "image is 'a b', which has a space in it"),
        (Wish("a", image="i", figure="("), "figure is '(', which is no regular expression"),
        (Wish("a", image="i", figure="x"), "figure is 'x', which has 0 groups; write"),
    ],
)
def test_a_wish_that_makes_no_sense_is_refused_in_one_sentence(wish: Wish, told: str) -> None:
    (sentence,) = refusals(wish)
    assert told in sentence


def test_the_plugins_image_brings_its_own_workload() -> None:
    assert refusals(Wish("a")) == []
    assert Wish("a", launches=7).words == ("kube-accel", "benchmark", "--launches=7")
    own = Wish("a", image="i", command=("train",), figure="([0-9]+)")
    assert (refusals(own), own.words, own.prints) == ([], ("train",), "([0-9]+)")
