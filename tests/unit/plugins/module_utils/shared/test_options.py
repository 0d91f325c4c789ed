# SPDX-License-Identifier: Apache-2.0
"""Variables of a role, in the types that an inventory, a survey and -e give them."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.accel.kubernetes.plugins.module_utils.shared.options import OptionReader
from hypothesis import given
from hypothesis import strategies as st

READERS = {
    "text": lambda reader: reader.text("role_x"),
    "choice": lambda reader: reader.choice("role_x", ("auto", "never")),
    "boolean": lambda reader: reader.boolean("role_x"),
    "words": lambda reader: reader.words("role_x"),
    "numbers": lambda reader: reader.numbers("role_x"),
}
EMPTY = {"text": "", "choice": "auto", "boolean": False, "words": (), "numbers": {}}


@pytest.mark.parametrize(
    ("kind", "value", "read"),
    [
        ("text", "580", "580"),
        ("text", 580, "580"),
        ("text", 580.95, "580.95"),
        ("choice", "never", "never"),
        *(("boolean", value, True) for value in (True, "true", "True", "yes", "on", "1", 1, "y", " TRUE ")),
        *(("boolean", value, False) for value in (False, "false", "False", "no", "off", "0", 0, "n")),
        ("words", ["a", 580], ("a", "580")),
        ("words", "a, b", ("a", "b")),
        ("words", "", ()),
        ("numbers", {"/usr": 2000, "/boot": "100"}, {"/usr": 2000, "/boot": 100}),
    ],
)
def test_a_value_is_read_in_every_form_that_it_may_have(kind: str, value: Any, read: Any) -> None:
    reader = OptionReader({"role_x": value})
    assert READERS[kind](reader) == read
    assert reader.refusals == []


@pytest.mark.parametrize("values", [{}, {"role_x": None}])
@pytest.mark.parametrize("kind", READERS)
def test_what_is_not_given_is_empty(kind: str, values: dict[str, Any]) -> None:
    reader = OptionReader(values)
    assert READERS[kind](reader) == EMPTY[kind]
    assert reader.refusals == []


@pytest.mark.parametrize(
    ("kind", "value", "message"),
    [
        ("text", ["a"], "role_x is ['a']; set it to a text."),
        ("text", True, "role_x is True; set it to a text."),
        ("choice", "sometimes", "role_x is 'sometimes'; set it to one of auto, never."),
        ("choice", 7, "role_x is 7; set it to one of auto, never."),
        ("boolean", "maybe", "role_x is 'maybe'; set it to true or false."),
        ("boolean", "", "role_x is ''; set it to true or false."),
        ("boolean", 2, "role_x is 2; set it to true or false."),
        ("boolean", [True], "role_x is [True]; set it to true or false."),
        ("words", {"a": 1}, "role_x is {'a': 1}; set it to a list of texts."),
        ("words", ["a", ["b"]], "role_x is ['a', ['b']]; set it to a list of texts."),
        ("numbers", {"/usr": "much"}, "role_x is {'/usr': 'much'}; set it to a mapping of texts to whole numbers."),
        ("numbers", {"/usr": -1}, "role_x is {'/usr': -1}; set it to a mapping of texts to whole numbers."),
        ("numbers", [2000], "role_x is [2000]; set it to a mapping of texts to whole numbers."),
        ("text", "\x1b" * 2, ""),
    ],
)
def test_another_type_is_refused_with_the_variables_name(kind: str, value: Any, message: str) -> None:
    reader = OptionReader({"role_x": value})
    READERS[kind](reader)
    assert [(each.code, each.message) for each in reader.refusals] == ([("option_type", message)] if message else [])


SIMPLE = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(), st.builds(lambda: 10**5000), st.binary()
)
ANY = st.recursive(SIMPLE, lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.integers(), inner))


@given(st.sampled_from(sorted(READERS)), ANY)
def test_whatever_is_given_is_read_or_refused_in_one_line(kind: str, value: Any) -> None:
    reader = OptionReader({"role_x": value})
    read = READERS[kind](reader)
    assert type(read) is type(EMPTY[kind])
    for refusal in reader.refusals:
        assert refusal.message.startswith("role_x is ")
        assert refusal.message.isprintable()
