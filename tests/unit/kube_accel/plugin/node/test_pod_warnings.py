# SPDX-License-Identifier: Apache-2.0
"""Owners of a node's pods are told once what their pods lack."""

from __future__ import annotations

import json
from typing import Any

import pytest

from kube_accel.kube.api import ApiRefusedError
from kube_accel.plugin.node.pod_warnings import NO_CLASS, PodWarnings, lacking
from kube_accel.shared.wishes import UNHEEDED, WISHES

WHOLE = {"nvidia.com/gpu": "1"}
MIN = "kube-accel.io/min-compute-capability"
PATH = "/api/v1/pods"


def pod(limits: dict[str, str], *wishes: str, phase: str = "Running", **spec: Any) -> dict[str, Any]:
    metadata = {"name": "a", "namespace": "team", "uid": "u", "annotations": dict.fromkeys(wishes, "8.0")}
    containers = [{"name": "main", "resources": {"limits": limits}}]
    return {"metadata": metadata, "spec": {"containers": containers, **spec}, "status": {"phase": phase}}


CLASS = {"runtimeClassName": "nvidia"}


@pytest.mark.parametrize(
    ("item", "reasons"),
    [
        (pod(WHOLE), [NO_CLASS]),
        (pod(WHOLE, MIN), [UNHEEDED, NO_CLASS]),
        (pod(WHOLE, MIN, **CLASS), [UNHEEDED]),
        (pod({"nvidia.com/mig-1g.5gb": "1"}), [NO_CLASS]),
        (pod({"tencent.com/vcuda-core": "10"}, MIN), [UNHEEDED]),
        (pod({"nvidia.com/mps-core": "10"}), []),
        (pod(WHOLE, **CLASS), []),
        (pod({"cpu": "1"}, MIN), []),
        (pod(WHOLE, "kube-accel.io/other", **CLASS), []),
        (pod(WHOLE, MIN, phase="Failed"), []),
        (pod(WHOLE, MIN, phase="Succeeded"), []),
    ],
)
def test_a_pod_is_told_of_for_what_it_lacks(item: dict[str, Any], reasons: list[str]) -> None:
    assert [reason for reason, _ in lacking(item, "nvidia")] == reasons


def test_messages_name_the_annotations_and_the_runtime_class() -> None:
    said = dict(lacking(pod(WHOLE, *WISHES), "gpu-runtime"))
    assert all(wish in said[UNHEEDED] for wish in WISHES)
    assert "set spec.runtimeClassName to gpu-runtime" in said[NO_CLASS]


def test_no_class_is_missed_where_none_is_needed() -> None:
    assert list(lacking(pod(WHOLE), "")) == []


class Api:
    """As much of a client as the warnings need: one list, and refusals of events."""

    def __init__(self, *items: object) -> None:
        self.items = list(items)
        self.query: dict[str, str] = {}
        self.events: list[dict[str, Any]] = []
        self.refusal: ApiRefusedError | None = None

    def send(self, method: str, path: str, *, query: dict[str, str]) -> bytes:
        assert (method, path) == ("GET", PATH)
        self.query = query
        return json.dumps({"kind": "PodList", "metadata": {"resourceVersion": "1"}, "items": self.items}).encode()

    def post(self, path: str, event: dict[str, Any]) -> None:
        assert path == "/api/v1/namespaces/team/events"
        self.events.append(event)
        if self.refusal is not None:
            raise self.refusal


def test_each_pod_of_the_node_is_told_of_once() -> None:
    api, warnings = Api(pod(WHOLE, MIN)), PodWarnings("node-1", "nvidia")
    for _turn in range(3):
        warnings.look(api)  # type: ignore[arg-type]
    assert api.query["fieldSelector"] == "spec.nodeName=node-1"
    assert [event["reason"] for event in api.events] == [UNHEEDED, NO_CLASS]
    for event in api.events:
        assert event["involvedObject"]["uid"] == "u"
        assert event["source"]["host"] == "node-1"
        assert event["type"] == "Warning"
    assert api.events[0]["metadata"]["name"] == "a.gpuannotationsunheeded.u"


@pytest.mark.parametrize("status", [409, 403])
def test_refused_event_is_not_sent_again(status: int) -> None:
    api, warnings = Api(pod(WHOLE, **CLASS), pod(WHOLE)), PodWarnings("node-1", "nvidia")
    api.refusal = ApiRefusedError(status, "no")
    warnings.look(api)  # type: ignore[arg-type]
    warnings.look(api)  # type: ignore[arg-type]
    assert len(api.events) == 1


@pytest.mark.parametrize("odd", [7, {}, {"metadata": 7}, pod(WHOLE) | {"spec": 7}])
def test_an_odd_pod_of_the_node_costs_itself_alone(odd: object) -> None:
    api = Api(odd, pod(WHOLE))
    PodWarnings("node-1", "nvidia").look(api)  # type: ignore[arg-type]
    assert [event["reason"] for event in api.events] == [NO_CLASS]
