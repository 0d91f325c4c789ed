# SPDX-License-Identifier: Apache-2.0
"""What annotations and logs that anybody may have written tell the roles, which is never an error."""

from __future__ import annotations

import json
from typing import Any

import pytest
from ansible_collections.accel.kubernetes.plugins.module_utils.cluster.annotations import (
    BEFORE,
    LABELS,
    TAINT,
    before,
    checks,
    node_told,
)
from ansible_collections.accel.kubernetes.plugins.module_utils.shared.inventory_annotation import INVENTORY
from hypothesis import given
from hypothesis import strategies as st

from unit.plugins.module_utils.shared.test_gpu_view import TRAIN, entry, node

pytestmark = pytest.mark.attack

RUBBISH = {
    "nothing": "",
    "no JSON": "not json",
    "a list": "[]",
    "text": '"text"',
    "null": "null",
    "a number": "5",
    "no number": '{"version": 1, "x": NaN}',
    "without end": '{"version": 1, "x": -Infinity}',
    "a long number": '{"version": %s}' % ("9" * 200_000),
    "a deep list": "[" * 100_000,
    "a deep object": '{"a":' * 100_000,
    "names twice": '{"version": 1, "version": 1}',
    "256 KiB": "x" * (256 << 10),
    "more than there can be": " " * (256 << 10) + "{}",
    "half a character": '{"version": 1, "mode": "\\ud800"}',
    "a template": "{{ lookup('pipe', 'id') }}",
    "escapes": "\x1b[2J\x1b]0;x\x07",
}
DAEMONSET: dict[str, Any] = {
    "apiVersion": "apps/v1",
    "kind": "DaemonSet",
    "metadata": {"name": "plugin", "namespace": "kube-system"},
    "spec": {
        "template": {
            "metadata": {"annotations": {"kube-accel.io/template": "t1"}},
            "spec": {"containers": [{"name": "kube-accel", "image": "i:1"}]},
        }
    },
}


def annotated(item: dict[str, Any], **annotations: str) -> dict[str, Any]:
    return {**item, "metadata": {**item["metadata"], "annotations": annotations}}


@pytest.mark.parametrize("text", RUBBISH.values(), ids=RUBBISH.keys())
def test_unreadable_annotation_names_node_cause_and_remedy(text: str) -> None:
    told = node_told(annotated({"metadata": {"name": "gpu-1"}}, **{INVENTORY: text, TAINT: text}))
    assert (told.healthy, told.driver, told.taint) == (None, "", {})
    inventory, taint = told.problems
    assert inventory.startswith(f"node gpu-1: annotation {INVENTORY} cannot be read: ")
    assert "kubectl annotate node gpu-1 kube-accel.io/inventory-" in inventory
    assert taint.startswith(f"node gpu-1: annotation {TAINT} cannot be read: ")
    assert "kubectl annotate node gpu-1 kube-accel.io/taint-" in taint
    assert max(map(len, told.problems)) < 400
    assert all(problem.isprintable() for problem in told.problems)


@pytest.mark.parametrize(
    "gpus",
    [
        [1],
        {},
        [None],
        [entry(health=1)],
        [entry(health="\x1b")],
        [entry(uuid="{{ 1 }}")],
        [entry(held=[{"namespace": "a"}])],
        [entry(held=7)],
        [entry(memoryBytes=1.5)],
        [entry(memoryBytes=True)],
        [entry()] * 10_000,
    ],
)
def test_gpus_that_no_plugin_tells_of_are_none(gpus: object) -> None:
    text = json.dumps({"version": 1, "mode": "vgpu", "gpus": gpus})
    told = node_told(annotated({"metadata": {"name": "gpu-1"}}, **{INVENTORY: text}))
    assert told.healthy is None
    assert len(told.problems) == 1


def test_what_a_plugin_and_a_role_write_is_read() -> None:
    item = node("a", {0: (TRAIN,)})
    item["metadata"]["annotations"] |= {
        TAINT: '{"key": "nvidia.com/gpu", "effect": "NoSchedule"}',
        LABELS: "nvidia.com/gpu.count,kube-accel.io/enforcement",
    }
    told = node_told(item)
    assert (told.healthy, told.driver, told.problems) == (2, "580.1", [])
    assert told.taint == {"key": "nvidia.com/gpu", "effect": "NoSchedule"}
    assert told.labels == ["nvidia.com/gpu.count", "kube-accel.io/enforcement"]


@pytest.mark.parametrize("nothing", [{}, None, [], "x", {"metadata": None}, {"metadata": {"annotations": None}}])
def test_a_node_that_is_not_there_tells_nothing(nothing: object) -> None:
    assert node_told(nothing) == node_told({})
    assert node_told(nothing).problems == []


def test_labels_of_others_are_not_taken_for_ours() -> None:
    text = "kubernetes.io/hostname,node-role.kubernetes.io/master,nvidia.com/gpu.count,,nvidia.com/a/b,nvidia.com/ x"
    assert node_told(annotated({"metadata": {"name": "a"}}, **{LABELS: text})).labels == ["nvidia.com/gpu.count"]


def test_a_note_of_a_rollout_is_read() -> None:
    was = before(annotated(DAEMONSET, **{BEFORE: json.dumps(DAEMONSET)}))
    assert (was.noted, was.object, was.image, was.template, was.problem) == (True, DAEMONSET, "i:1", "t1", "")
    gone = before(annotated(DAEMONSET, **{BEFORE: "null"}))
    assert (gone.noted, gone.object) == (True, None)
    assert not before(DAEMONSET).noted


@pytest.mark.parametrize(
    "note",
    [
        *(text for text in RUBBISH.values() if text != "null"),
        json.dumps({**DAEMONSET, "metadata": {"name": "other", "namespace": "kube-system"}}),
        json.dumps({**DAEMONSET, "kind": "Secret"}),
        json.dumps({**DAEMONSET, "spec": {}}),
        json.dumps({**DAEMONSET, "spec": {"template": {"spec": {"containers": [7]}}}}),
    ],
)
def test_a_note_that_cannot_be_read_costs_its_object_alone(note: str) -> None:
    was = before(annotated(DAEMONSET, **{BEFORE: note}))
    assert (was.noted, was.object, was.image) == (False, None, "")
    assert was.problem.startswith(f"DaemonSet kube-system/plugin: annotation {BEFORE} cannot be read: ")
    assert was.problem.isprintable()


def test_checks_of_a_pod_are_read_from_its_log() -> None:
    found = [{"name": "cuda", "status": "ok", "detail": "fine\x1b[2J", "remedy": ""}]
    lines = ["hello", json.dumps({"checks": found}), '{"checks": ', "bye"]
    assert checks(lines) == [{"name": "cuda", "status": "ok", "detail": "fine\ufffd[2J", "remedy": ""}]
    assert checks(['{"checks": [1, {"name": 5}]}'])[1]["name"] == "5"
    assert checks([]) == checks(list(RUBBISH.values())) == []


@given(st.text() | st.none() | st.integers() | st.lists(st.text()))
def test_whatever_stands_there_is_no_error(value: Any) -> None:
    item = {"metadata": {"name": "n", "annotations": {INVENTORY: value, TAINT: value, LABELS: value, BEFORE: value}}}
    node_told(item)
    before(item)
    checks([value])
