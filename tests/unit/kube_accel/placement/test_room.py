# SPDX-License-Identifier: Apache-2.0
"""What a node has left in a few numbers: never at odds with looking at every GPU."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given

from kube_accel.model import Assignment, GpuConstraints, Mode, PodRequest
from kube_accel.placement.choose import GpuView, place
from kube_accel.placement.demand import Demand, demand
from kube_accel.placement.room import Room
from unit.kube_accel.placement.test_choose import (
    APP,
    GIB,
    INIT,
    LOST,
    SIDECAR,
    board,
    gpu,
    pod,
    pods,
    share,
    view,
    views_of,
    whole,
)

ROOM = Room.of([*board((40, 40), (90, 8), (0, 0)), view(3, health=LOST), view(4, of=gpu(4, mig=True))], Mode.VGPU)


def test_the_room_of_a_node() -> None:
    expected = Room(
        shares=((100, 80 * GIB),),
        partial=((10, 72 * GIB, 80 * GIB), (60, 40 * GIB, 80 * GIB)),
        whole=1,
        gpus=3,
        memory_bytes=240 * GIB,
        free_cores=170,
        free_memory=(40 + 72 + 80) * GIB,
    )
    assert expected == ROOM
    assert Room.of(board((40, 40), (90, 8), (60, 50)), Mode.VGPU).shares == ((60, 40 * GIB), (10, 72 * GIB))
    assert Room.of(board((40, 40), (60, 40)), Mode.VGPU).shares == ((60, 40 * GIB),)


@pytest.mark.parametrize(
    ("request_", "answer"),
    [
        (pod(share(60, 40)), True),
        (pod(share(10, 72)), True),
        (pod(share(11, 41)), False),
        (pod(share(61, 1)), False),
        (pod(whole(1)), False),
        (pod(share(10, 72, name="a"), share(60, 40, name="b")), None),
        (pod(share(10, 72, name="a"), share(61, 1, name="b")), False),
        (replace(pod(share(60, 40)), constraints=GpuConstraints(min_cuda=(13, 0))), None),
        (replace(pod(share(61, 1)), constraints=GpuConstraints(min_cuda=(13, 0))), False),
    ],
)
def test_a_quick_answer(request_: PodRequest, answer: bool | None) -> None:
    assert Room.of(board((40, 40), (90, 8), (100, 80)), Mode.VGPU).fits(request_) is answer


def test_a_quick_answer_for_whole_gpus() -> None:
    assert ROOM.fits(pod(whole(1))) is True
    assert ROOM.fits(pod(whole(2))) is False
    assert ROOM.fits(pod(whole(1, memory=80))) is None, "which of the GPUs it is decides"


@given(views_of(), pods())
def test_a_quick_answer_is_the_right_one(views: list[GpuView], request: PodRequest) -> None:
    answer = Room.of(views, request.mode).fits(request)
    if answer is not None:
        assert answer == isinstance(place(request, views, "n"), Assignment)


def test_demand_at_its_peak() -> None:
    request = pod(
        share(20, 8, SIDECAR, "proxy"),
        share(90, 4, INIT, "fetch"),
        share(30, 10, APP, "main"),
    )
    assert demand(request, 80 * GIB) == Demand(cores=110, memory_bytes=18 * GIB, cards=0)
    assert demand(pod(whole(2, INIT, "a"), whole(1, APP, "b")), 80 * GIB) == Demand(200, 160 * GIB, 2)
    assert demand(pod(whole(1, APP, "a"), whole(1, APP, "b"), mode=Mode.PGPU), 16 * GIB) == Demand(200, 32 * GIB, 2)
