# SPDX-License-Identifier: Apache-2.0
"""What a watch of pods tells of those that the extender does not place."""

from __future__ import annotations

import json
from typing import Any

import pytest

from bench.api_stub import shares
from kube_accel.extender.cache import Cluster
from kube_accel.extender.pods import PodReader
from kube_accel.extender.sinks import PodSink

WHOLE = {"nvidia.com/gpu": "1"}
MIG = {"nvidia.com/mig-1g.5gb": "1"}


def pod(uid: str, limits: dict[str, str], node: str = "") -> dict[str, Any]:
    metadata = {"uid": uid, "namespace": "team", "name": uid}
    return {
        "metadata": metadata,
        "spec": {"nodeName": node, "containers": [{"name": "c", "resources": {"limits": limits}}]},
    }


def sink(whole_gpus: bool = False) -> PodSink:
    return PodSink(Cluster(PodReader(whole_gpus=whole_gpus)))


@pytest.mark.parametrize("limits", [WHOLE, MIG, {"nvidia.com/gpu.shared": "2"}])
def test_pods_that_it_does_not_place_are_known_until_placed(limits: dict[str, str]) -> None:
    found = sink()
    assert PodReader().interesting.search(json.dumps(pod("a", limits)).encode())
    assert found.keep(pod("a", limits)) == "a"
    assert found.unmanaged == {"a": ("team", "pgpu")}
    assert found.keys() == {"a"}
    assert found.keep(pod("a", limits, "gpu-1")) is None
    assert not found.unmanaged


def test_pods_that_are_gone_are_forgotten() -> None:
    found = sink()
    for uid in ("dropped", "lost", "stays"):
        found.keep(pod(uid, WHOLE))
    found.drop(pod("dropped", WHOLE))
    found.lose("lost")
    assert found.keys() == found.unmanaged.keys() == {"stays"}


def test_pods_that_it_places_are_not_counted_again() -> None:
    found = sink(whole_gpus=True)
    for uid, limits in (("share", shares(50, 80)), ("whole", WHOLE), ("web", {"cpu": "1"})):
        found.keep(pod(uid, limits))
    assert not found.unmanaged
    assert found.keys() == {"share", "whole"}
