# SPDX-License-Identifier: Apache-2.0
"""A node's taints and the note that says which of them is ours change together, or neither does."""

from __future__ import annotations

import json
from typing import Any

import pytest
from ansible_collections.accel.kubernetes.plugins.module_utils.gpu_plugins.taint import read_taint, taint_plan

from sim.cluster.kinds import ApiError, Object
from sim.cluster.patch import apply

THEIRS: Object = {"key": "example.com/theirs", "value": "x", "effect": "NoSchedule"}
OURS: Object = {"key": "nvidia.com/gpu", "value": "true", "effect": "NoSchedule"}
OTHER: Object = OURS | {"value": "other"}


def told(taint: Object) -> dict[str, str]:
    return {"kube-accel.io/taint": json.dumps(taint, sort_keys=True)}


def node(taints: list[Object], annotations: dict[str, str]) -> Object:
    spec = {"taints": taints} if taints else {}
    return {
        "metadata": {"name": "node-1", "resourceVersion": "1"} | ({"annotations": annotations} if annotations else {}),
        "spec": spec,
    }


@pytest.mark.parametrize(
    ("taints", "annotations", "wanted", "expected"),
    [
        ([], {}, OURS, ([OURS], told(OURS))),
        ([THEIRS, OTHER], {"a": "b"} | told(OTHER), OURS, ([THEIRS, OURS], {"a": "b"} | told(OURS))),
        ([THEIRS, OURS], {"a": "b"} | told(OURS), {}, ([THEIRS], {"a": "b"})),
        # It was taken away by hand.
        ([THEIRS], {"a": "b"} | told(OURS), {}, ([THEIRS], {"a": "b"})),
        # It has become theirs.
        ([OURS], {"a": "b"} | told(OTHER), OURS, ([OURS], {"a": "b"})),
    ],
)
def test_the_note_changes_together_with_the_taint(
    taints: list[Object], annotations: dict[str, str], wanted: Object, expected: Any
) -> None:
    found = node(taints, annotations)
    plan = taint_plan(found, wanted)
    after = apply(found, plan.patch)
    assert (after["spec"]["taints"], after["metadata"]["annotations"]) == expected
    assert plan.taints == after["spec"]["taints"]


def test_taints_that_others_changed_meanwhile_stay() -> None:
    seen = node([OTHER], told(OTHER))
    with pytest.raises(ApiError):
        apply(node([THEIRS, OTHER], told(OTHER)), taint_plan(seen, OURS).patch)


def test_annotations_that_others_wrote_meanwhile_stay() -> None:
    seen, now = node([THEIRS], {}), node([THEIRS], {"example.com/rack": "7"})
    now["metadata"]["resourceVersion"] = "2"
    with pytest.raises(ApiError):
        apply(now, taint_plan(seen, OURS).patch)


@pytest.mark.parametrize(
    ("taints", "annotations", "wanted", "due"),
    [
        ([], {}, {}, False),
        ([THEIRS], {}, {}, False),
        ([], {}, OURS, True),
        ([THEIRS, OURS], told(OURS), OURS, False),
        ([OURS], told(OURS), {}, True),
        ([THEIRS], told(OURS), {}, True),
        ([OURS], {}, OURS, False),
        ([OTHER], told(OTHER), OURS, True),
    ],
)
def test_nodes_that_are_as_wanted_need_no_change(
    taints: list[Object], annotations: dict[str, str], wanted: Object, due: bool
) -> None:
    assert taint_plan(node(taints, annotations), wanted).due == due


TEAM: Object = {"key": "team", "value": "a", "effect": "NoSchedule"}


@pytest.mark.parametrize(
    ("taint", "tolerations", "tolerated"),
    [
        (TEAM, [], False),
        (TEAM, [{"key": "other", "operator": "Exists"}, {"key": "team", "operator": "Exists"}], True),
        (TEAM, [{"operator": "Exists"}], True),
        (TEAM, [{"operator": "Exists", "effect": "NoExecute"}], False),
        (TEAM, [{"key": "team", "operator": "Exists", "effect": "NoSchedule"}], True),
        (TEAM | {"effect": "NoExecute"}, [{"key": "team", "operator": "Exists", "effect": "NoSchedule"}], False),
        (TEAM, [{"key": "team", "value": "a"}], True),
        (TEAM, [{"key": "team", "operator": "Equal", "value": "b", "effect": ""}], False),
        (TEAM, [{"key": "team"}], False),
        ({"key": "team", "effect": "NoSchedule"}, [{"key": "team"}], True),
        (TEAM | {"effect": "PreferNoSchedule"}, [], True),
    ],
)
def test_a_taint_is_tolerated_as_kubernetes_has_it(taint: Object, tolerations: list[Object], tolerated: bool) -> None:
    assert taint_plan(node([], {}), taint, tolerations).tolerated == tolerated


@pytest.mark.parametrize(
    ("text", "taint"),
    [
        ("team=a:NoSchedule", TEAM),
        (" team=a:NoSchedule ", TEAM),
        (json.dumps(TEAM), TEAM),
        ("example.com/team:NoExecute", {"key": "example.com/team", "value": "", "effect": "NoExecute"}),
        ("{}", {}),
        ("", {}),
    ],
)
def test_a_survey_gives_a_taint_as_text(text: str, taint: Object) -> None:
    assert read_taint(text) == taint
    assert taint_plan(node([], {}), text) == taint_plan(node([], {}), taint)


@pytest.mark.parametrize("text", ["team", "team=a", "team=a:Sometimes", ":NoSchedule", "=a:NoSchedule", "[]", "{", "1"])
def test_text_that_is_no_taint_is_none(text: str) -> None:
    assert read_taint(text) is None
    assert not taint_plan(node([], {}), text).due
