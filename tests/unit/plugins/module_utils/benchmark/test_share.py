# SPDX-License-Identifier: Apache-2.0
"""Which pods prove a share of a GPU, and what is told of what they print."""

from __future__ import annotations

import json
from fractions import Fraction
from typing import Any

import pytest
from ansible_collections.accel.kubernetes.plugins.module_utils.benchmark import share
from ansible_collections.accel.kubernetes.plugins.module_utils.benchmark.jobs import Place, job, printed
from ansible_collections.accel.kubernetes.plugins.module_utils.benchmark.rows import Row, Seen, spread
from ansible_collections.accel.kubernetes.plugins.module_utils.benchmark.share import ALONE, BESIDE, ShareWish, Size
from ansible_collections.accel.kubernetes.plugins.module_utils.gpu_plugins.delivery import ENFORCEMENT_LABEL

from kube_accel.model import Mode
from kube_accel.sharing.inventory_annotation import Holding
from unit.plugins.module_utils.benchmark.test_rows import READY, a_node
from unit.plugins.module_utils.shared.test_gpu_view import GIB, node

OFFERED: dict[Mode, dict[str, str]] = {
    Mode.VGPU: {"tencent.com/vcuda-core": "200", "tencent.com/vcuda-memory": "192"},
    Mode.MPS: {"nvidia.com/mps-core": "200", "nvidia.com/mps-memory": "48"},
    Mode.CGPU: {"aliyun.com/gpu-mem": "48"},
}


def a_sharing_node(mode: Mode = Mode.VGPU, enforced: str = "interposer") -> dict[str, Any]:
    """Node a with two GPUs of 24 GiB."""
    found = a_node(mode, OFFERED[mode], gpus=2)
    found["metadata"]["labels"][ENFORCEMENT_LABEL] = enforced
    return found


def planned(seen: dict[str, Any], sharers: int = 4) -> share.Plan:
    return share.plan(ShareWish("a"), Size(sharers), Seen(seen))


def said(rate: float = 20.0, ratio: float = 0.25, status: str = "ok") -> str:
    checks = [{"name": "last byte", "status": status, "detail": "6144 of 6144 MiB were given", "remedy": ""}]
    figures = {"got_bytes": 6 * GIB, "gpu_time_ratio": ratio, "launches_per_second": rate, "beyond_code": 2}
    return "CHECK  RESULT  FOUND\n" + json.dumps({"checks": checks, "share": figures}) + "\n"


@pytest.mark.parametrize(
    ("mode", "enforced", "memory", "cores"),
    [
        (Mode.VGPU, "interposer", 6 * GIB, 25),
        (Mode.VGPU, "none", 0, 0),
        (Mode.MPS, "mps-interposer", 6 * GIB, 0),
        (Mode.MPS, "mps", 0, 0),
        (Mode.CGPU, "interposer", 6 * GIB, 0),
    ],
)
def test_pods_are_told_the_limits_that_are_enforced(mode: Mode, enforced: str, memory: int, cores: int) -> None:
    found = planned(a_sharing_node(mode, enforced))
    assert found.wish.words == (
        *("kube-accel", "validate", "--share"),
        *(f"--memory={memory}", f"--cores={cores}", "--seconds=10"),
    )


def test_a_pod_runs_alone_and_then_two_on_the_same_gpu() -> None:
    found = planned(a_sharing_node())
    assert {name: row.pods for name, row in found.rows.items()} == {ALONE: 1, BESIDE: 2}
    (gpu,) = {row.gpu for row in found.rows.values()}
    assert {tuple(row.asks.items()) for row in found.rows.values()} == {
        (("tencent.com/vcuda-core", 25), ("tencent.com/vcuda-memory", 24))
    }
    made = job(found.wish, found.rows[BESIDE], {}, Place("kube-system", "i"))["spec"]["template"]
    assert made["metadata"]["annotations"] == {"kube-accel.io/use-gpu-uuid": gpu}
    assert made["spec"]["containers"][0]["command"] == list(found.wish.words)
    assert share.planned(found)[1].startswith("Would run beside a neighbor: 2 pod(s) with 25 tencent.com/vcuda-core, ")


@pytest.mark.parametrize(
    ("mode", "size", "asks"),
    [
        (Mode.VGPU, Size(cores=30, memory_mib=8192), {"tencent.com/vcuda-core": 30, "tencent.com/vcuda-memory": 32}),
        (Mode.VGPU, Size(cores=25), {"tencent.com/vcuda-core": 25, "tencent.com/vcuda-memory": 24}),
        (Mode.VGPU, Size(memory_mib=12288), {"tencent.com/vcuda-core": 50, "tencent.com/vcuda-memory": 48}),
        (Mode.MPS, Size(cores=10, memory_mib=4096), {"nvidia.com/mps-core": 10, "nvidia.com/mps-memory": 4}),
        (Mode.CGPU, Size(memory_mib=4096), {"aliyun.com/gpu-mem": 4}),
    ],
)
def test_a_share_may_have_amounts(mode: Mode, size: Size, asks: dict[str, int]) -> None:
    found = share.plan(ShareWish("a"), size, Seen(a_sharing_node(mode)))
    assert found.refusals == ()
    assert {name: dict(row.asks) for name, row in found.rows.items()} == {ALONE: asks, BESIDE: asks}


@pytest.mark.parametrize(
    ("mode", "size", "told"),
    [
        (Mode.CGPU, Size(cores=30), "a share has no cores of its own; leave out cores"),
        (Mode.VGPU, Size(memory_mib=12289 + 256), "two shares have to fit on one GPU; give 256 to 12288, in steps of"),
        (Mode.MPS, Size(memory_mib=1000), "memory_mib is 1000, and two shares have to fit on one GPU; give 1024 to"),
    ],
)
def test_amounts_that_a_node_cannot_give_are_refused(mode: Mode, size: Size, told: str) -> None:
    (refused,) = share.plan(ShareWish("a"), size, Seen(a_sharing_node(mode))).refusals
    assert told in refused


def test_pods_on_several_gpus_are_no_neighbors() -> None:
    def held(*gpus: int) -> dict[str, Any]:
        holdings = {
            index: tuple(Holding("n", f"p{index}", "c", 25, GIB) for each in gpus if each == index) for index in (0, 1)
        }
        return node("a", holdings, (24 * GIB,) * 2, Mode.VGPU, allocatable=OFFERED[Mode.VGPU], **READY)

    row = planned(a_sharing_node()).rows[BESIDE]
    names = ["p0", "p1"]
    assert "its pods are not all on GPU 0, so they are no neighbors" in spread(held(0, 1), row, names)
    alone = planned(a_sharing_node()).rows[ALONE]
    assert spread(held(0), alone, names) == ""
    assert spread(held(), row, names) == "", "the node has not told yet"


@pytest.mark.parametrize(
    ("wish", "sharers", "told"),
    [
        (ShareWish(""), 4, "node is empty; name the node"),
        (ShareWish("a"), 1, "sharers is 1; give a number from 2 to 50"),
        (ShareWish("a", seconds=0), 4, "seconds is 0; give a number from 1 to 600"),
        (ShareWish("a", start_timeout=0), 4, "start_timeout is 0"),
    ],
)
def test_options_without_a_sense_are_refused(wish: ShareWish, sharers: int, told: str) -> None:
    assert told in share.refusals(wish, Size(sharers))[0]
    assert share.refusals(ShareWish("a"), Size()) == []


def test_a_node_without_shares_or_room_is_refused() -> None:
    assert (
        "serves mode pgpu, in which pods have no share that is limited; name a node in mode vgpu"
        in (planned(a_node()).refusals[0])
    )
    assert "no more can share it" in planned(a_sharing_node(Mode.CGPU), 40).refusals[0]


def test_time_beside_a_neighbor_is_told_by_the_work_that_is_done() -> None:
    outcomes = {
        ALONE: share.outcome([said(20, 0.25)], ""),
        BESIDE: share.outcome([said(19, 0.4), said(18, 0.4)], ""),
    }
    told = share.document(planned(a_sharing_node()), outcomes)
    assert told["problems"] == []
    assert [(row["setting"], row["pod"]) for row in told["rows"]] == [(ALONE, 1), (BESIDE, 1), (BESIDE, 2)]
    assert [row["figures"]["gpu_time_ratio"] for row in told["rows"]] == [0.25, 0.2375, 0.225]
    assert told["rows"][1]["figures"]["kept_ratio"] == 0.95
    table = share.table(told)
    assert table[0] == "A share of " + told["gpu"] + " on node a, mode vgpu: 6 GiB, 25 % of the time"
    assert " ".join(table[-1].split()) == "beside a neighbor 2 neighbor ok 90% of the work that it did alone"


def test_a_share_that_a_neighbor_takes_time_from_is_named() -> None:
    outcomes = {ALONE: share.outcome([said(20)], ""), BESIDE: share.outcome([said(10)], "")}
    assert share.document(planned(a_sharing_node()), outcomes)["problems"] == [
        "beside a neighbor: neighbor: 50% of the work that it did alone; see docs/explanation/gpu-time.md, "
        "Neighbors on the same GPU"
    ]
    # Nothing divides the time of mode cgpu.
    assert share.document(planned(a_sharing_node(Mode.CGPU)), outcomes)["problems"] == []


def test_a_pod_whose_checks_fail_tells_them_alone() -> None:
    outcomes = {ALONE: share.outcome([said(status="fail")], "a pod failed with exit code 1")}
    told = share.document(planned(a_sharing_node()), outcomes)
    assert told["problems"] == ["alone: last byte: 6144 of 6144 MiB were given"]
    assert share.table(told)[-1].startswith("NOT WELL: alone: last byte")


@pytest.mark.parametrize("log", ["", "Traceback", "{}", '{"checks": 7}', '{"checks": [], "share": {"got_bytes": NaN}}'])
def test_a_pod_that_tells_nothing_is_a_problem(log: str) -> None:
    outcomes = {ALONE: share.outcome([log], "a pod failed with exit code 137"), BESIDE: share.outcome([], "")}
    told = share.document(planned(a_sharing_node()), outcomes)
    assert told["rows"] == []
    assert told["problems"] == ["alone: a pod failed with exit code 137", "beside a neighbor: no pod told a check"]


@pytest.mark.parametrize("figures", [{}, {"launches_per_second": "x"}, {"launches_per_second": None}, [], 7])
def test_odd_figures_are_not_known(figures: object) -> None:
    log = json.dumps({"checks": [{"name": "x", "status": "ok"}], "share": figures})
    outcomes = {ALONE: share.outcome([log], ""), BESIDE: share.outcome([log], "")}
    told = share.document(planned(a_sharing_node()), outcomes)
    assert {row["figures"]["launches_per_second"] for row in told["rows"]} == {None}
    assert told["problems"] == []
    assert json.loads(json.dumps(told)) == told


def test_the_figure_of_a_pod_is_found_in_its_log() -> None:
    assert printed(ShareWish("a").prints, said(rate=12.5)) == 12.5
    assert Row("vGPU", 4, 1, Fraction(1, 4), {}).gpu == ""
