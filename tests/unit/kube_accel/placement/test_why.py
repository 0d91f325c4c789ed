# SPDX-License-Identifier: Apache-2.0
"""Why this GPU: what people are told of a choice."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given

from kube_accel.model import Assignment, Mode, PodRequest
from kube_accel.placement.choose import GpuView, Refusal, place
from kube_accel.placement.topology import Connectivity
from kube_accel.placement.why import LONGEST, why
from unit.kube_accel.placement.test_choose import (
    BINPACK,
    LOST,
    SPREAD,
    UNKNOWN,
    board,
    gpu,
    pod,
    questions,
    share,
    topology,
    view,
    whole,
)


def told(request: PodRequest, gpus: Sequence[GpuView], connectivity: Connectivity | None = None) -> dict[str, str]:
    found = place(request, gpus, "a", connectivity)
    assert isinstance(found, Assignment), found
    return why(request, found, gpus, connectivity)


@pytest.mark.parametrize(
    ("request_", "gpus", "text"),
    [
        (pod(share(30, 8)), board((0, 0), (40, 20)), "binpack: the fullest of 2 with room; 60 % and 60 GiB were free"),
        (
            pod(share(70, 8)),
            board((0, 0), (40, 20), (0, 0)),
            "binpack: none in use had room; an untouched one of 2 with room, the first of 2 alike; "
            "100 % and 80 GiB were free",
        ),
        (pod(share(70, 8)), board((50, 8), (20, 8)), "the only GPU of 2 with room; 80 % and 72 GiB were free"),
        (
            pod(share(10, 8), policy=SPREAD),
            board((50, 8), (20, 8), (20, 8)),
            "spread: the emptiest of 3 with room, the first of 2 alike; 80 % and 72 GiB were free",
        ),
        (pod(share(0, 8), mode=Mode.CGPU), board((0, 70), (0, 73)), "the only GPU of 2 with room; 10 GiB were free"),
        (pod(share(30, 8)), [view(0, health=LOST), view(1)], "the only GPU of 1 with room; 100 % and 80 GiB were free"),
        (
            pod(share(30, 8)),
            [view(0, health=UNKNOWN)],
            "the only GPU of 1 with room; 100 % and 80 GiB were free; its health is not known",
        ),
        (pod(whole(2)), board((0, 0), (0, 0), (1, 1)), "the only 2 free of 3 GPUs"),
        (pod(whole(1)), board((0, 0), (0, 0), (1, 1)), "one of 2 free GPUs"),
    ],
)
def test_what_decided_is_told_with_what_was_free(request_: PodRequest, gpus: list[GpuView], text: str) -> None:
    assert told(request_, gpus) == {"main": text}


def test_gpus_that_nvlink_joins_are_told_of() -> None:
    gpus = board(*[(0, 0)] * 4)
    joined = told(pod(whole(2)), gpus, topology(gpus, [(1, 3)]))["main"]
    assert joined == "the best connected 2 of 4 free GPUs, all by NVLink"
    assert told(pod(whole(3)), gpus, topology(gpus, [(1, 3)]))["main"].endswith("of 4 free GPUs")


def test_the_least_connected_is_broken() -> None:
    gpus = board(*[(0, 0)] * 3)
    assert "the least connected of 3 alike" in told(pod(share(10, 1)), gpus, topology(gpus, [(0, 1)]))["main"]


def test_of_several_containers_each_is_told_of() -> None:
    found = told(pod(share(10, 1, name="a"), share(20, 2, name="b"), policy=BINPACK), [view(0, of=gpu(0))])
    assert found["a"] == "binpack, with the pod's other containers; 100 % and 80 GiB were free"
    assert found.keys() == {"a", "b"}


@given(questions)
def test_words_are_few_and_for_the_containers_there_are(
    question: tuple[PodRequest, list[GpuView], Connectivity | None],
) -> None:
    request, gpus, connectivity = question
    found = place(request, gpus, "a", connectivity)
    if not isinstance(found, Refusal):
        words = why(request, found, gpus, connectivity)
        assert words.keys() <= found.containers.keys()
        assert all(0 < len(text) <= LONGEST and text.isprintable() for text in words.values())
