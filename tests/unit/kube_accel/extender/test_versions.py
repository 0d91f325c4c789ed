# SPDX-License-Identifier: Apache-2.0
"""Daemons of another version: what they wrote is understood, or a reason says why not. Texts are as first written."""

from __future__ import annotations

import json
from typing import Any

import pytest

from kube_accel.sharing import assignment, inventory_annotation
from unit.kube_accel.extender.world import GIB, Api, Extender, node_object, pod_object, share, taken

GPU = (
    '{"uuid":"GPU-a-%d","index":%d,"minor":%d,"model":"NVIDIA H100","memoryBytes":85899345920,'
    '"computeCapability":[9,0],"pciAddress":"0000:1%d:00.0","numaNode":0,"mig":false,"health":"healthy","reason":"","held":[%s]}'
)
HELD = '{"namespace":"team","pod":"before","container":"main","cores":60,"memoryBytes":8589934592}'
INVENTORY = (
    '{"version":1,"mode":"vgpu","driver":"580.159.04","cuda":[13,0],"gpus":['
    + GPU % (0, 0, 0, 0, HELD)
    + ","
    + GPU % (1, 1, 1, 1, "")
    + '],"links":[[0,1,"node",18]],"memoryUnit":268435456}'
)
ASSIGNMENT = '{"version":1,"node":"a","containers":{"main":[{"uuid":"GPU-a-1","cores":60,"memoryBytes":8589934592}]}}'


def with_more(value: object) -> object:
    """The document of a later version of the same format: keys nobody knows, everywhere."""
    if isinstance(value, dict):
        return {"later": [1, {"a": None}], **{key: with_more(entry) for key, entry in value.items()}}
    if isinstance(value, list):
        return [with_more(entry) for entry in value]
    return value


def node(text: str) -> dict[str, Any]:
    return {"metadata": {"name": "a", "labels": {}, "annotations": {inventory_annotation.ANNOTATION: text}}}


def bound(name: str, text: str) -> dict[str, Any]:
    item = pod_object(name, share(60, 8), nodeName="a")
    item["metadata"]["annotations"] = {assignment.ANNOTATION: text}
    return item


@pytest.mark.parametrize("text", [INVENTORY, json.dumps(with_more(json.loads(INVENTORY)))], ids=["first", "later"])
def test_what_a_daemon_of_another_version_holds_counts(text: str) -> None:
    api = Api()
    extender = Extender(api)
    extender.cluster.keep_node(node(text))
    for item in (bound("before", ""), pod_object("p", share(60, 8))):
        api.create(item)
    extender.listen()
    assert extender.schedule(api.pods["p"], "a") == ""
    assert taken(Api(pods={"p": api.pods["p"]})) == {"GPU-a-1": (60, 8 * GIB)}


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(ASSIGNMENT, id="first"),
        pytest.param(
            ASSIGNMENT.replace('"version"', '"later":{},"version"').replace('"cores"', '"later":1,"cores"'), id="later"
        ),
    ],
)
def test_what_an_extender_of_another_version_assigned_counts(text: str) -> None:
    api = Api()
    extender = Extender(api)
    extender.cluster.keep_node(node(INVENTORY.replace(HELD, "")))
    for item in (bound("before", text), pod_object("p", share(60, 8))):
        api.create(item)
    extender.listen()
    assert extender.schedule(api.pods["p"], "a") == ""
    assert taken(Api(pods={"p": api.pods["p"]})).keys() == {"GPU-a-0"}


def test_unknown_format_keeps_pods_off_that_node() -> None:
    api = Api()
    extender = Extender(api)
    extender.cluster.keep_node(node_object("b"))
    extender.cluster.keep_node(node(INVENTORY))
    extender.cluster.keep_node(node(INVENTORY.replace('"version":1', '"version":2')))
    pod = pod_object("p", share(60, 8))
    answer = extender.filter(pod, "a", "b")
    assert answer["NodeNames"] == ["b"]
    assert "version: not 1, the one this release reads" in answer["FailedAndUnresolvableNodes"]["a"]
    extender.cluster.keep_node(node(INVENTORY))
    assert extender.filter(pod, "a", "b")["NodeNames"] == ["a", "b"]
