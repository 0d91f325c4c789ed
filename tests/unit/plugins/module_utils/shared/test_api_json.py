# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
import time
from typing import Any

import pytest
from ansible_collections.accel.kubernetes.plugins.module_utils.shared import api_json
from ansible_collections.accel.kubernetes.plugins.module_utils.shared.api_json import (
    ANY,
    ApiJsonError,
    checked,
    named,
    read_object,
    shaped,
)

pytestmark = pytest.mark.attack


def int_below_9(value: int) -> None:
    if value >= 9:
        raise ValueError(f"{value} is too much")


GOOD = {
    "metadata": {"name": "n", "namespace": "s", "labels": {"a": "b"}, "annotations": None},
    "spec": {},
    "status": {},
}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{",
        '{"a": NaN}',
        '{"a": -Infinity}',
        '{"a": 1e999}',
        '{"a": 100000000000000000000000}',
        '{"a": "\x01"}',
        '{"a":' * 100_000,
        "[" * 100_000,
        b"\xff\xfe{\x00}\x00",
    ],
    ids=lambda text: ascii(text[:30]),
)
def test_what_is_no_object_of_json_is_said_in_a_line(text: str | bytes) -> None:
    with pytest.raises(ApiJsonError) as caught:
        read_object(text)
    assert str(caught.value).isprintable()
    with pytest.raises(ApiJsonError):
        api_json.checked(api_json.read_at("" if isinstance(text, bytes) else text, 0)[0])


SHAPE = {"spec!": {"list": [{"name!": str}], "switch": bool, "number": int, "map": {ANY: str}, "amount": int_below_9}}


@pytest.mark.parametrize(
    ("spec", "problem"),
    [
        ({"list": [{"name": "a"}], "switch": True, "number": 7, "map": {"x": "y"}, "amount": 8, "other": []}, ""),
        ({"list": None, "switch": None, "number": None, "map": None, "amount": None}, ""),
        (None, "spec is missing"),
        ({"list": {}}, "spec.list is no list"),
        ({"list": [{"name": "a"}, None]}, "spec.list[1] is no JSON object"),
        ({"list": [{"name": ""}]}, "spec.list[0].name is missing"),
        ({"list": [{"name": "\ud800"}]}, "spec.list[0].name is no text"),
        ({"switch": 1}, "spec.switch is neither true nor false"),
        ({"number": True}, "spec.number is no whole number"),
        ({"map": {"x": 7}}, "spec.map.x is no text"),
        ({"amount": 9}, "spec.amount cannot be used: 9 is too much"),
    ],
)
def test_object_of_another_shape_names_the_wrong_part(spec: Any, problem: str) -> None:
    item = {"metadata": {"name": "n", "namespace": "s"}, "spec": spec}
    if not problem:
        assert shaped(item, SHAPE) is item
        return
    with pytest.raises(ApiJsonError) as caught:
        shaped(item, SHAPE)
    assert str(caught.value) == f"s/n: {problem}"


def test_the_last_of_a_name_given_twice_counts_as_in_go() -> None:
    assert read_object('{"a": 1, "a": 2}') == {"a": 2}


def test_letters_that_are_no_utf_8_cost_themselves_alone() -> None:
    assert read_object(b'{"a": "\xff\xed\xa0\x80", "b": 18446744073709551615}')["b"] == (1 << 64) - 1


@pytest.mark.parametrize(
    ("part", "value"),
    [
        ("metadata", []),
        ("metadata", None),
        ("metadata", {"name": 7}),
        ("metadata", {"name": "n", "uid": []}),
        ("metadata", {"name": "n", "labels": ["a"]}),
        ("metadata", {"name": "n", "annotations": {"a": {}}}),
        ("spec", "x"),
        ("status", [1]),
        ("data", 5),
    ],
)
def test_an_object_of_other_kinds_is_named(part: str, value: Any) -> None:
    assert checked(GOOD) is GOOD
    odd = {**GOOD, part: value}
    with pytest.raises(ApiJsonError) as caught:
        checked(odd)
    assert named(odd) in str(caught.value)
    assert str(caught.value).isprintable()


@pytest.mark.parametrize(
    "item", [None, 7, [], {}, {"metadata": {"name": "\x1b[2J\u202e" * 9999}}, {"metadata": {"name": {}}}]
)
def test_whatever_an_object_is_called_is_one_harmless_line(item: Any) -> None:
    assert named(item).isprintable()
    assert 0 < len(named(item)) <= 512


def test_strict_reading_has_the_speed_of_the_decoder_in_c() -> None:
    """5,000 nodes are read at the speed of the decoder in C, which a hook for each object would lose."""
    labels = {f"k{number}.example.com/x": f"value{number}" for number in range(30)}
    node = {"metadata": {"name": "n", "labels": labels, "annotations": {"a": json.dumps(labels) * 8}}}
    text = json.dumps({"items": [node] * 1000})

    def least(read: Any) -> float:
        times = []
        for _ in range(7):
            begin = time.process_time()
            read()
            times.append(time.process_time() - begin)
        return min(times)

    plain = least(lambda: json.loads(text))
    strict = least(lambda: [checked(item) for item in read_object(text)["items"]])
    # A decoder in Python takes twenty times as long.
    assert strict < 5 * plain + 0.01
