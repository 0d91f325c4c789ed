# SPDX-License-Identifier: Apache-2.0
"""A node's taints and the note that says which of them is ours change together, or neither does."""

from __future__ import annotations

import json
from typing import Any

import pytest

from sim.cluster.kinds import ApiError, Object
from sim.cluster.patch import apply

from .conftest import Evaluate

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


def patch(evaluate: Evaluate, found: Object, wanted: Object) -> list[Object]:
    words = {"gpu_plugins_taint": wanted, "__gpu_plugins_picked": {"resources": [found]}}
    made: list[Object] = evaluate("gpu_plugins", "__gpu_plugins_taint_patch", {}, **words)
    return made


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
    evaluate: Evaluate, taints: list[Object], annotations: dict[str, str], wanted: Object, expected: Any
) -> None:
    found = node(taints, annotations)
    after = apply(found, patch(evaluate, found, wanted))
    assert (after["spec"]["taints"], after["metadata"]["annotations"]) == expected


def test_taints_that_others_changed_meanwhile_stay(evaluate: Evaluate) -> None:
    seen = node([OTHER], told(OTHER))
    with pytest.raises(ApiError):
        apply(node([THEIRS, OTHER], told(OTHER)), patch(evaluate, seen, OURS))
