# SPDX-License-Identifier: Apache-2.0
"""Headers that come again are read as what they say by then: their bytes may refer to what came before them."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest
from hpack import Encoder
from hypothesis import given
from hypothesis import strategies as st

from http2_bytes import frame
from kube_accel.http2.connection import Connection, Headers

HEADERS, END_HEADERS = 1, 4
NEWEST = b"\xbe"
"""The entry of the dynamic table that came last, RFC 7541, 6.1."""


@pytest.fixture
def pair() -> Iterator[tuple[Connection, socket.socket]]:
    one, other = socket.socketpair()
    with one, other:
        yield Connection(one, 64), other


def said(connection: Connection, sender: socket.socket, block: bytes) -> list[tuple[str, str]]:
    sender.sendall(frame(HEADERS, END_HEADERS, 1, block))
    event = connection.read()
    assert isinstance(event, Headers)
    return list(event.fields)


def added(name: str, value: str) -> bytes:
    """A field that is added to the table, RFC 7541, 6.2.1."""
    return b"\x40" + bytes((len(name),)) + name.encode() + bytes((len(value),)) + value.encode()


def test_same_bytes_mean_what_was_added_last(pair: tuple[Connection, socket.socket]) -> None:
    for value in ("1", "2", "2", "3"):
        assert said(*pair, added("x", value)) == [("x", value)]
        for _ in range(3):
            assert said(*pair, NEWEST) == [("x", value)]


def test_same_bytes_mean_another_in_a_full_table(pair: tuple[Connection, socket.socket]) -> None:
    # A table of 80 bytes has room for two entries of 34.
    assert said(*pair, b"\x3f\x31" + added("x", "1") + added("x", "2")) == [("x", "1"), ("x", "2")]
    assert said(*pair, NEWEST) == [("x", "2")]
    assert said(*pair, added("x", "2") + added("x", "4")) == [("x", "2"), ("x", "4")]
    assert said(*pair, NEWEST) == [("x", "4")]


@given(st.lists(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(["", "1", "2" * 50])), max_size=4)))
def test_headers_are_what_an_encoder_was_given(blocks: list[list[tuple[str, str]]]) -> None:
    encoder = Encoder()
    one, other = socket.socketpair()
    with one, other:
        connection = Connection(one, 64)
        for number, fields in enumerate(blocks):
            if number % 7 == 3:
                encoder.header_table_size = 100 + number
            assert said(connection, other, encoder.encode(fields)) == fields
