# SPDX-License-Identifier: Apache-2.0
"""Heads of requests: what is read of good ones. Bad ones are in ``attacks.stranger.MALFORMED``."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attacks.stranger import MALFORMED
from kube_accel.web.head import MOST_BYTES, MOST_FIELDS, Head, RequestError, end_of_head, read_head


def refused(data: bytes) -> int:
    """The status with which a head is refused; 0 when it is not."""
    try:
        end = end_of_head(data)
        if end >= 0:
            read_head(data[:end])
    except RequestError as error:
        return error.status
    return 0


def test_head_is_read_with_its_method_path_length_and_wish() -> None:
    data = b"POST /scheduler/bind?timeout=5s HTTP/1.1\r\nHOST: a\r\ncontent-length:\t0012 \r\n\r\nbody"
    end = end_of_head(data)
    assert data[end:] == b"\r\n\r\nbody"
    assert read_head(data[:end]) == Head("POST", "/scheduler/bind", 12, True)


@pytest.mark.parametrize(
    ("line", "field", "keep"),
    [
        (b"GET / HTTP/1.1", b"Connection: keep-alive", True),
        (b"GET / HTTP/1.1", b"Connection: Close", False),
        (b"GET / HTTP/1.1", b"connection: upgrade, close", False),
        (b"GET / HTTP/1.1", b"Connection: close\r\nConnection: keep-alive", False),
        (b"GET / HTTP/1.1", b"Connection: keep-alive\r\nX: close\r\nconnection: Close", False),
        (b"GET / HTTP/1.0", b"X: a", False),
    ],
)
def test_connection_goes_on_as_the_client_wants(line: bytes, field: bytes, keep: bool) -> None:
    assert read_head(line + b"\r\nHost: a\r\n" + field).keep is keep


@pytest.mark.parametrize("host", [b"", b"10.0.0.1:9445", b"[fd00::1]:9445", b"kube-accel-extender.kube-system.svc"])
def test_hosts_of_http_1_1_are_read(host: bytes) -> None:
    assert refused(b"GET / HTTP/1.1\r\nHost: " + host + b"\r\n\r\n") == 0


def test_only_http_1_1_has_to_name_a_host() -> None:
    assert refused(b"GET / HTTP/1.0\r\n\r\n") == 0
    assert refused(b"GET / HTTP/1.1\r\n\r\n") == 400


def test_head_of_the_most_bytes_and_fields_is_read() -> None:
    fields = b"".join(b"\r\nX: a" for _ in range(MOST_FIELDS - 2)) + b"\r\nY: "
    data = b"GET / HTTP/1.1\r\nHost: a" + fields
    data += b"y" * (MOST_BYTES - len(data))
    assert refused(data + b"\r\n\r\n") == 0
    assert refused(data + b"y\r\n\r\n") == 431
    assert refused(data[: -MOST_BYTES // 2] + b"\r\nZ: z\r\n\r\n") == 431


@pytest.mark.attack
@pytest.mark.parametrize("data", [pytest.param(data, id=name) for name, data in MALFORMED.items()])
def test_malformed_head_is_the_client_s_mistake(data: bytes) -> None:
    # A page refuses a body, whatever the head says of it.
    assert 400 <= (refused(data) or 413) < 500


@given(data=st.binary(max_size=300), cut=st.integers(0, 300))
def test_any_bytes_in_any_pieces_are_a_head_or_an_error(data: bytes, cut: int) -> None:
    data = b"GET /" + data + b"\r\n\r\n"
    status = refused(data)
    assert status == 0 or 400 <= status < 500
    if refused(data[: min(cut, len(data))]):
        assert status
