# SPDX-License-Identifier: Apache-2.0
"""Arguments that come a second time are what they would be if they were read again."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kube_accel.extender.arguments import ArgumentReader
from kube_accel.extender.wire import Arguments, Filtered, WireError, read_arguments, write_filtered

NAMES = st.lists(st.sampled_from(["a", "b", "node-1.example", 'quo"te', "ü"]), max_size=3)
PODS = st.sampled_from(
    [
        {"metadata": {"uid": "1"}},
        {"metadata": {"uid": "2", "annotations": {"a": ',"Nodes":null,"NodeNames":["x"]}'}}},
        {"spec": {}, "Nodes": None, "NodeNames": ["x"]},
    ]
)
ODD = [
    b'{"Pod":{"q":{},"Nodes":null,"NodeNames":[]},"zzz":["a"]}',
    b'{"Pod":{"q":{},"Nodes":null,"NodeNames":["a"]}',
    b'{"Pod":{},"Nodes":null,"NodeNames":[1]}',
    b'{"Pod":[],"Nodes":null,"NodeNames":["a"]}',
    b'{"Pod":{},"NodeNames":["b"],"Nodes":null,"NodeNames":["a"]}',
    b'{"Pod":,"Nodes":null,"NodeNames":["a"]}',
    b'{"nodenames":["a"],"pod":{}}',
    b'{"Pod":{},"Nodes":{"items":[]},"NodeNames":null}',
    b'{"Pod":{},"Nodes":null,"NodeNames":[' + b"[" * 100_000 + b"]}",
    b"",
]


def body(pod: object, names: list[str]) -> bytes:
    """As Go writes it."""
    document = {"Pod": pod, "Nodes": None, "NodeNames": names}
    return json.dumps(document, separators=(",", ":"), ensure_ascii=False).encode()


def read(reader: ArgumentReader | None, text: bytes) -> Arguments | str:
    try:
        return read_arguments(text) if reader is None else reader.read(text)
    except WireError as error:
        return str(error)


@given(said=st.lists(st.builds(body, PODS, NAMES) | st.sampled_from(ODD), max_size=8), answered=NAMES)
def test_arguments_are_what_reading_them_anew_finds(said: list[bytes], answered: list[str]) -> None:
    reader = ArgumentReader()
    reader.write(Filtered(answered), Arguments({}, answered, None))
    for text in said:
        assert read(reader, bytearray(text)) == read(None, text)
        assert read(reader, text) == read(None, text)


def test_what_was_answered_is_not_read_again() -> None:
    reader, passed = ArgumentReader(), ["b", "a"]
    first = reader.read(body({"metadata": {"uid": "1"}}, ["a", "b", "c"]))
    answer = reader.write(Filtered(passed, {"c": "full"}), first)
    assert json.loads(answer)["NodeNames"] == passed
    second = reader.read(body({"metadata": {"uid": "1"}}, passed))
    assert second.pod is first.pod
    assert second.names is passed


def test_names_that_all_passed_are_answered_as_they_came() -> None:
    reader = ArgumentReader()
    asked = reader.read(b'{"Pod":{},"Nodes":null,"NodeNames":["a", "b"]}')
    assert b'"NodeNames":["a", "b"],' in reader.write(Filtered(["a", "b"]), asked)
    assert b'"NodeNames":["a"],' in reader.write(Filtered(["a"], {"b": "full"}), asked)


@pytest.mark.parametrize("nodes", [None, {"a": {"metadata": {"name": "a"}}, "b": {"metadata": {"name": "b"}}}])
def test_answer_is_what_kube_scheduler_reads(nodes: dict[str, object] | None) -> None:
    answer = Filtered(["a"], {"b": "no room, 100 %"}, {"c": 'of "cgpu"'})
    asked = Arguments({}, ["a", "b", "c"], nodes)
    found = ArgumentReader().write(answer, asked)
    assert found == write_filtered(answer, nodes)
    assert json.loads(found) == {
        "Nodes": None if nodes is None else {"metadata": {}, "items": [{"metadata": {"name": "a"}}]},
        "NodeNames": ["a"] if nodes is None else None,
        "FailedNodes": {"b": "no room, 100 percent"},
        "FailedAndUnresolvableNodes": {"c": 'of "cgpu"'},
        "Error": "",
    }
