# SPDX-License-Identifier: Apache-2.0
"""Annotations of ours that nobody heeds are told of, once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bench.api_stub import shares
from kube_accel.extender.cache import Cluster
from kube_accel.extender.pods import PodReader
from kube_accel.extender.sinks import PodSink
from kube_accel.extender.unheeded import REASON, unheeded
from kube_accel.shared.wishes import WISHES
from unit.kube_accel.extender.outside import Outside
from waiting import wait

WHOLE = {"nvidia.com/gpu": "1"}
MIN = "kube-accel.io/min-compute-capability"


def pod(annotations: dict[str, str], limits: dict[str, str], **spec: Any) -> dict[str, Any]:
    containers = [{"name": "main", "resources": {"limits": limits}}]
    metadata = {"uid": "u-1", "namespace": "team", "name": "bf16", "annotations": annotations}
    return {"metadata": metadata, "spec": {"containers": containers, **spec}}


@pytest.mark.parametrize("wish", sorted(WISHES))
@pytest.mark.parametrize("resource", ["nvidia.com/gpu", "nvidia.com/gpu.shared", "nvidia.com/mig-1g.5gb"])
def test_every_wish_of_a_pod_nobody_manages_is_told(wish: str, resource: str) -> None:
    said = unheeded(pod({wish: "8.0"}, {resource: "1"}), managed=False)
    assert f"{wish} of this pod has no effect" in said
    assert resource in said
    assert "scheduler_manage_whole_gpus" in said


@pytest.mark.parametrize(
    ("item", "managed"),
    [
        (pod({MIN: "8.0"}, WHOLE), True),
        (pod({MIN: "8.0"}, WHOLE, nodeName="a"), False),
        (pod({MIN: "8.0"}, {"cpu": "1"}), False),
        (pod({"example.com/a": "b", "kube-accel.io/other": "c"}, WHOLE), False),
        (pod({"kube-accel.io/assignment": "{}", "kube-accel.io/room-found": "1"}, {}), True),
        ({"metadata": {"annotations": None}, "spec": {}}, False),
        ({"metadata": {"annotations": []}, "spec": None}, False),
    ],
)
def test_nothing_is_said_where_somebody_heeds(item: dict[str, Any], managed: bool) -> None:
    assert unheeded(item, managed) == ""


def test_misspelled_annotation_is_told_with_known_ones() -> None:
    said = unheeded(pod({"kube-accel.io/min-compute-capabilty": "8.0", MIN: "8.0"}, WHOLE), managed=True)
    assert said.startswith("no annotation of this name is known: kube-accel.io/min-compute-capabilty; there are ")
    assert all(wish in said for wish in WISHES)


@pytest.mark.parametrize(("whole_gpus", "count"), [(False, 1), (True, 0)])
def test_a_pod_is_told_of_once(whole_gpus: bool, count: int) -> None:
    said: list[str] = []
    reader = PodReader(whole_gpus=whole_gpus)
    sink = PodSink(Cluster(reader, lambda _uid: None), lambda _item, words: said.append(words))
    for _turn in range(3):
        sink.keep(pod({MIN: "8.0"}, WHOLE))
    assert len(said) == count
    assert reader.interesting.search(b'{"annotations":{"kube-accel.io/min-compute-capability":"8.0"}}')


@pytest.fixture
def outside(tmp_path: Path) -> Iterator[Outside]:
    found = Outside(tmp_path, nodes=1)
    yield found
    found.api.stop()


@pytest.mark.ci
def test_the_extender_sends_an_event_about_the_pod(outside: Outside) -> None:
    with outside.extender() as extender:
        outside.create("share", shares(50, 80))
        whole = outside.create("whole", WHOLE, annotations={MIN: "8.0"})
        event = wait(lambda: outside.stub.events, "an event")[0]
        assert (event["reason"], event["type"]) == (REASON, "Warning")
        assert event["involvedObject"]["uid"] == whole["metadata"]["uid"]
        assert event["metadata"]["name"] == f"whole.unheeded.{whole['metadata']['uid']}"
        assert MIN in event["message"]
        wait(lambda: extender.metric("accel_extender_pods") == 1, "the share alone is known")
