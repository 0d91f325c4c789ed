# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import pytest
import yaml
from ansible_collections.accel.kubernetes.plugins.module_utils.documents import yaml_text
from ansible_collections.accel.kubernetes.plugins.module_utils.documents.yaml_edit import edit
from ansible_collections.accel.kubernetes.plugins.module_utils.documents.yaml_text import YamlError
from hypothesis import given, settings
from hypothesis import strategies as st

FILE = "/etc/f.yaml"


@pytest.fixture(params=["C", "Python"])
def parser(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hosts have a parser in C beside ruamel.yaml, or none."""
    yaml_text.parsed.cache_clear()
    if request.param == "Python":
        monkeypatch.setattr(yaml_text, "_FAST", None)
    else:
        assert yaml_text._FAST is not None


READ: list[tuple[str, Any]] = [
    *(("a: " + text, True) for text in ("yes", "On", "y", "TRUE", "!!bool yes")),
    *(("a: " + text, False) for text in ("no", "off", "N")),
    *(("a: " + text, None) for text in ("", "~", "Null")),
    *(("a: " + text, 8) for text in ("010", "0o10", "0x8", "0b1000", "8.0", "8e0", "+8", "08")),
    ("a: -1_000", -1000),
    ("a: 0.5", 0.5),
    ("a: .5", 0.5),
    ("a: .inf", math.inf),
    *((f"a: {text}", text) for text in ("2001-01-01", "1:30", "yEs", "1.2.3", "=")),
    ("a: 'yes'", "yes"),
    ('a: "8"', "8"),
    ("a: !!str 8", "8"),
    ("a: |\n  8\n", "8\n"),
    ("b: &b {c: 1}\na: {<<: *b, d: 2}", {"c": 1, "d": 2}),
    ("b: &b {c: 1}\na: {<<: [*b], c: 2}", {"c": 2}),
    ("b: &b {c: 1}\na: {c: 2, <<: [*b]}", {"c": 1}),  # go-yaml v2 reads on.
    ("b: [&b {c: 1}, &c {c: 2, d: 2}]\na: {<<: [*b, *c]}", {"c": 1, "d": 2}),
]


@pytest.mark.parametrize(("text", "value"), READ, ids=[text for text, _value in READ])
@pytest.mark.usefixtures("parser")
def test_values_are_what_kubernetes_reads(text: str, value: object) -> None:
    found = yaml_text.load(text, FILE)["a"]
    assert found == value
    assert isinstance(found, bool) is isinstance(value, bool)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a: [\n", "line"),
        ("a: 1\na: 2\n", "a twice"),
        ("a: *b\n", "line 1"),
        ("a: !!int x\n", "take the tag out"),
        ("a: !mine x\n", "take the tag out"),
        ("a: 1\n---\nb: 1\n", "single YAML mapping"),
        ("- a\n", "single YAML mapping"),
        ("? [a]\n: 1\n", "key that is no text"),
        ("a: {<<: 1}\n", "merges with <<"),
        ("a: &a [*a]\n", "holds itself"),
        ("a: " + "[" * 1500 + "]" * 1500, "deeply"),
        (
            "a: &a [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]\n"
            + "".join(f"{chr(98 + n)}: &{chr(98 + n)} [{', '.join(['*' + chr(97 + n)] * 10)}]\n" for n in range(8)),
            "aliases",
        ),
    ],
    ids=lambda text: text[:12],
)
@pytest.mark.usefixtures("parser")
def test_what_cannot_be_read_is_refused_with_the_reason(text: str, words: str) -> None:
    with pytest.raises(YamlError, match=words) as refusal:
        yaml_text.load(text, FILE)
    assert str(refusal.value).startswith(f"{FILE} ")


def put(*path: Any, value: Any) -> Callable[[Any], None]:
    def change(data: Any) -> None:
        for step in path[:-1]:
            data = data[step]
        data[path[-1]] = value

    return change


def take(*path: Any) -> Callable[[Any], None]:
    def change(data: Any) -> None:
        for step in path[:-1]:
            data = data[step]
        del data[path[-1]]

    return change


def push(*path: Any, value: Any) -> Callable[[Any], None]:
    def change(data: Any) -> None:
        for step in path:
            data = data[step]
        data.append(value)

    return change


EDITS: list[tuple[str, Callable[[Any], None], str]] = [
    ("a: 1 # one\nb: 2\n", put("a", value=3), "a: 3 # one\nb: 2\n"),
    ("a: 1\nb: # none\n# end\n", put("b", value=[{"c": 1}]), "a: 1\nb: # none\n- c: 1\n# end\n"),
    ("a: []  # none\n", put("a", value=["x"]), "a:  # none\n- x\n"),
    ("a: {b: []}\n", put("a", "b", value=["x", "yes"]), 'a: {b: [x, "yes"]}\n'),
    ("a:\n# of x\n- x # y\n# end\n", put("a", value=[]), "a: []\n# of x\n# end\n"),
    ("a: # why\n- x\n", put("a", value=None), "a: # why\n"),
    ("a:\n  - x\n  # of y\n  - y\n", push("a", value={"z": [1]}), "a:\n  - x\n  # of y\n  - y\n  - z:\n    - 1\n"),
    ("a:\n- x\n- y\n- z\n", take("a", 1), "a:\n- x\n- z\n"),
    ("a:\n- b: 1\n  c: 2\n", take("a", 0, "b"), "a:\n- c: 2\n"),
    ("a: [x, y, z]\n", take("a", 2), "a: [x, y]\n"),
    ("a: [x, y, z]\n", take("a", 0), "a: [y, z]\n"),
    ("a: [x, y, z]\n", put("a", value=["x", "v"]), "a: [x, v]\n"),
    ("{a: 1, b: 2, c: 3}\n", lambda data: (data.pop("b"), data.pop("c"), data.update(d=4)), "{a: 1, d: 4}\n"),
    ("a: {x: 1, y: 2} # c\n", put("a", "z", value={"w": None}), "a: {x: 1, y: 2, z: {w: null}} # c\n"),
    ("a: 1", put("b", value="x y"), 'a: 1\nb: "x y"'),
    ("a:\n-\n  b: 1\n- c\n", take("a", 0), "a:\n- c\n"),
    ("a: &a # c\n- x\n", push("a", value="v"), "a: &a # c\n- x\n- v\n"),
    ("a: |\n  x\nb: 1\n", put("a", value="v"), "a: v\nb: 1\n"),
    ("a: &a [x]\nb: *a\n", push("b", value="v"), "a: &a [x]\nb:\n- x\n- v\n"),
    ("a: &a [x]\nb: *a\n", push("a", value="v"), "a: &a [x, v]\nb:\n- x\n"),
    ("a: &a [x]\nb: [*a]\n", push("b", 0, value="v"), "a: &a [x]\nb: [[x, v]]\n"),
    ("a: &a {x: 1}\nb:\n- *a\n- *a\n", put("b", 1, "z", value=2), "a: &a {x: 1}\nb:\n- *a\n- x: 1\n  z: 2\n"),
    ("a: &a {x: 1}\nb:\n  <<: *a\n", put("b", "x", value=2), "a: &a {x: 1}\nb:\n  <<: *a\n  x: 2\n"),
    ("a: &a {x: 1}\nb:\n  <<: *a\n", put("a", "x", value=2), "a: &a {x: 2}\nb:\n  <<:\n    x: 1\n"),
    ("---\na: 1\n...\n", put("b", value=2), "---\na: 1\nb: 2\n...\n"),
]


@pytest.mark.parametrize(("text", "change", "after"), EDITS, ids=[text for text, _change, _after in EDITS])
@pytest.mark.usefixtures("parser")
def test_of_a_text_just_what_changes_is_written_anew(text: str, change: Callable[[Any], None], after: str) -> None:
    data = yaml_text.load(text, FILE)
    assert edit(text, data, FILE) == text
    change(data)
    assert edit(text, data, FILE) == after
    assert yaml_text.load(after, FILE) == data


@pytest.mark.usefixtures("parser")
@pytest.mark.parametrize(
    "merge", ["{<<: *b, c: 2}", "{c: 2, <<: *b}", "{<<: [*b, {c: 2}]}", "{x: [{d: {c: 1, <<: *b}}]}"]
)
def test_a_strict_reader_takes_no_key_that_a_merge_brings_again(merge: str) -> None:
    text = f"b: &b {{c: 1}}\na: {merge}\n"
    yaml_text.load(text, FILE)
    with pytest.raises(YamlError, match=f"^{FILE} has c twice in one mapping, by a merge .* leave it in one place"):
        yaml_text.load(text, FILE, strict=True)
    assert yaml_text.load("b: &b {c: 1}\na: {<<: *b, d: 2}\n", FILE, strict=True)["a"] == {"c": 1, "d": 2}


@pytest.mark.usefixtures("parser")
def test_strict_reader_gets_no_key_twice_beside_a_merge() -> None:
    text = "a: &a {x: 1}\nb:\n  <<: *a\n"
    with pytest.raises(YamlError, match="cannot be edited safely"):
        edit(text, {"a": {"x": 1}, "b": {"x": 2}}, FILE, strict=True)


@pytest.mark.usefixtures("parser")
def test_what_cannot_be_edited_safely_is_refused_with_a_remedy() -> None:
    text = "a: &a {x: 1}\nb:\n  <<: *a\n"
    with pytest.raises(
        YamlError, match=r"cannot be edited safely. In that file, write .* out as plain lists"
    ) as refusal:
        edit(text, {"a": {"x": 1}, "b": {"y": 1}}, FILE)
    assert str(refusal.value).startswith(f"{FILE} ")
    assert "then run again" in str(refusal.value)


SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(10**6), 10**6),
    st.sampled_from(["x", "yes", "8x", "a b", "- c", "#", "", "é", "\t"]),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.sampled_from(["a", "b", "no", "c d"]), inner, max_size=3)
    ),
    max_leaves=12,
)
DOCUMENTS = st.dictionaries(st.sampled_from(["a", "b", "c", "on"]), VALUES, min_size=1, max_size=4)


def untyped(data: Any) -> Any:
    """As data that tells 1 from true."""
    return repr(data)


@settings(max_examples=300)
@given(DOCUMENTS, DOCUMENTS, st.sampled_from([None, False, True]), st.sampled_from([2, 4]))
def test_whatever_the_document_it_becomes_any_other(
    before: dict[str, Any], after: dict[str, Any], style: bool | None, indent: int
) -> None:
    text = yaml.safe_dump(before, default_flow_style=style, indent=indent, sort_keys=False, width=1000)
    assert untyped(yaml_text.load(text, FILE)) == untyped(before)

    result = edit(text, copy.deepcopy(after), FILE)

    assert yaml_text.load(result, FILE) == after
    assert yaml.safe_load(result) == after
