# SPDX-License-Identifier: Apache-2.0
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kube_accel.shared.quantity import human_bytes, parse_quantity, thousandths, whole_units

GIB = 1 << 30


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (30, 30),
        ("0", 0),
        ("30", 30),
        ("1k", 1000),
        ("1.5k", 1500),
        ("2e3", 2000),
        ("2E3", 2000),
        ("3000m", 3),
        ("320Gi", 320 << 30),
        ("0.5Gi", 1 << 29),
        ("1E", 10**18),
    ],
)
def test_quantities_the_api_server_writes(text: object, value: int) -> None:
    assert parse_quantity(text) == value


@pytest.mark.parametrize(
    ("text", "value"), [("500m", 500), ("1.5", 1500), ("1u", 1), (2, 2000), ("1k", 1_000_000), ("0", 0)]
)
def test_thousandths_are_rounded_up_as_the_api_server_does(text: object, value: int) -> None:
    assert thousandths(text) == value


@pytest.mark.parametrize(
    "text",
    ["", " 1", "1 ", "1.5", "100m", "-1", "1Qi", "1gi", "0x10", "1e99", "9Ei", "９", "nan", None, True, 1.0, [], 2**63],
)
def test_everything_else_is_refused(text: object) -> None:
    with pytest.raises(ValueError, match=r"is not a (quantity|whole number)"):
        parse_quantity(text)


@pytest.mark.parametrize(
    ("text", "units"),
    [
        ("1k", 1000),
        (1000, 1000),
        ("2M", 2_000_000),
        ("1500m", 1),
        ("999m", 0),
        ("100E", 10**20),
        ("two", None),
        ("-1", None),
        (None, None),
    ],
)
def test_of_what_an_api_server_takes_whole_units_are_counted(text: object, units: int | None) -> None:
    assert whole_units(text) == units


@given(st.text() | st.integers() | st.floats() | st.none() | st.lists(st.integers()))
def test_any_input_gives_a_number_or_a_value_error(value: object) -> None:
    number, refusal = 0, ""
    try:
        number = parse_quantity(value)
    except ValueError as error:
        refusal = str(error)
    assert 0 <= number < 2**63
    assert len(refusal) < 200


@given(st.integers(0, 2**55), st.sampled_from([("Ki", 2**10), ("Mi", 2**20), ("k", 1000), ("", 1), ("e2", 100)]))
def test_no_digit_is_lost(number: int, suffix: tuple[str, int]) -> None:
    expected = Fraction(number) * suffix[1]
    if expected < 2**63:
        assert parse_quantity(f"{number}{suffix[0]}") == expected


@pytest.mark.parametrize(
    ("amount", "text"),
    [
        (0, "0 MiB"),
        (256 << 20, "256 MiB"),
        (8 * GIB, "8 GiB"),
        (8 * GIB + (256 << 20), "8.25 GiB"),
        (80 * GIB - 1, "79.99 GiB"),
    ],
)
def test_bytes_for_people_never_say_more_than_there_is(amount: int, text: str) -> None:
    assert human_bytes(amount) == text
