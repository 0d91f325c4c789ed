# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kube_accel.model import Assignment, Mode, Share
from kube_accel.sharing.assignment import ANNOTATION, decode, encode, pod_annotations

ONE = Assignment("node-1", {"main": (Share("GPU-a", 30, 8 << 30),), "aux": (Share("GPU-b", 100, 80 << 30),)})
TEXT = (
    '{"version":1,"node":"node-1","containers":{'
    '"aux":[{"uuid":"GPU-b","cores":100,"memoryBytes":85899345920}],'
    '"main":[{"uuid":"GPU-a","cores":30,"memoryBytes":8589934592}]}}'
)

names = st.from_regex(r"[a-z0-9]([a-z0-9-]{0,20}[a-z0-9])?", fullmatch=True)
shares = st.builds(
    Share, st.from_regex(r"GPU-[0-9a-f-]{1,36}", fullmatch=True), st.integers(0, 100), st.integers(0, 2**40)
)
assignments = st.builds(
    Assignment,
    names,
    st.dictionaries(
        names,
        st.lists(shares, min_size=1, max_size=16, unique_by=lambda share: share.uuid).map(tuple),
        min_size=1,
        max_size=5,
    ),
)


def test_the_text() -> None:
    assert encode(ONE) == TEXT
    assert decode(TEXT) == ONE


@given(assignments)
def test_what_was_written_is_read(assignment: Assignment) -> None:
    assert decode(encode(assignment)) == assignment


def changed(**document: object) -> str:
    return json.dumps(json.loads(TEXT) | document)


def with_share(**share: object) -> str:
    return changed(containers={"main": [{"uuid": "GPU-a", "cores": 1, "memoryBytes": 1} | share]})


def test_why_does_not_change_the_assignment() -> None:
    text = encode(ONE, {"main": "binpack: the fullest of 2", "aux": "the only one"})
    assert json.loads(text) == json.loads(TEXT) | {"why": {"aux": "the only one", "main": "binpack: the fullest of 2"}}
    assert decode(text) == ONE
    annotations = pod_annotations(ONE, Mode.MPS, (), {}, 17, {"main": "w"})
    assert json.loads(annotations[ANNOTATION])["why"] == {"main": "w"}


def test_later_versions_may_add_keys() -> None:
    assert decode(changed(extra=[1, {"a": None}])) == ONE
    assert decode(with_share(extra=1)).containers["main"] == (Share("GPU-a", 1, 1),)


@pytest.mark.attack
@pytest.mark.parametrize(
    "text",
    [
        pytest.param("", id="empty"),
        pytest.param("null", id="null"),
        pytest.param("[]", id="list"),
        pytest.param("{" * 60000, id="nested too deeply"),
        pytest.param("[" * 60000, id="nested lists"),
        pytest.param('{"version":1,' + " " * 70000 + "}", id="too long"),
        pytest.param('{"version":' + "9" * 5000 + "}", id="a number of 5000 digits"),
        pytest.param(changed(version=2), id="another version"),
        pytest.param(changed(version="1"), id="version as text"),
        pytest.param(changed(node=None), id="no node"),
        pytest.param(changed(node="Node_1"), id="no name of a node"),
        pytest.param(changed(node="n" * 300), id="a node's name too long"),
        pytest.param(changed(containers={}), id="no containers"),
        pytest.param(changed(containers=[]), id="containers as a list"),
        pytest.param(changed(containers={"a\n": [{"uuid": "u", "cores": 1, "memoryBytes": 1}]}), id="container's name"),
        pytest.param(changed(containers={"main": []}), id="no shares"),
        pytest.param(changed(containers={"main": {}}), id="shares as an object"),
        pytest.param(changed(containers={"main": ["GPU-a"]}), id="share as text"),
        pytest.param(changed(containers={"main": [{}]}), id="empty share"),
        pytest.param(
            changed(containers={"main": [{"uuid": "u", "cores": 1, "memoryBytes": 1}] * 2}), id="the same GPU twice"
        ),
        pytest.param(with_share(uuid="../../etc"), id="uuid is a path"),
        pytest.param(with_share(uuid="\ud800"), id="uuid is no text"),
        pytest.param(with_share(cores=101), id="cores above 100"),
        pytest.param(with_share(cores=-1), id="negative cores"),
        pytest.param(with_share(cores=1.0), id="fraction"),
        pytest.param(with_share(cores=True), id="cores as a flag"),
        pytest.param(with_share(memoryBytes=float("nan")), id="not a number"),
        pytest.param(with_share(memoryBytes=2**63), id="too much memory"),
    ],
)
def test_a_forged_or_broken_annotation_is_a_value_error(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - any text will do, any other exception will not
        decode(text)


json_values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
near_shares = st.fixed_dictionaries(
    {"uuid": json_values | st.just("GPU-a"), "cores": json_values, "memoryBytes": json_values | st.just(1)}
)
near_documents = st.fixed_dictionaries(
    {
        "version": st.just(1) | json_values,
        "node": st.just("n") | json_values,
        "containers": json_values | st.dictionaries(st.text(max_size=3), st.lists(near_shares) | json_values),
    }
)


@pytest.mark.attack
@given(st.text() | near_documents.map(json.dumps))
def test_no_text_does_worse(text: str) -> None:
    try:
        found = decode(text)
    except ValueError:
        return
    assert decode(encode(found)) == found


def test_the_annotations_of_a_pod() -> None:
    expected = {
        ANNOTATION: TEXT,
        "tencent.com/predicate-node": "node-1",
        "tencent.com/predicate-time": "17",
        "tencent.com/gpu-assigned": "false",
        "tencent.com/predicate-gpu-idx-1": "3",
        "tencent.com/predicate-gpu-idx-2": "0",
    }
    containers = ("plain", "main", "aux")
    indexes = {"GPU-a": 3, "GPU-b": 0}
    assert pod_annotations(ONE, Mode.VGPU, containers, indexes, now_ns=17) == expected
    assert pod_annotations(ONE, Mode.MPS, containers, indexes, now_ns=17) == {ANNOTATION: TEXT}
