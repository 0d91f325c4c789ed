# SPDX-License-Identifier: Apache-2.0
"""What is made of a failed call's message on its way."""

from __future__ import annotations

import pytest

from kube_accel.rpc.status import Code, from_headers, to_headers

SOFT_LIMIT = 8 << 10
"""Most bytes of all headers with gRPC's C library; an entry is its name, its value and 32 bytes (RFC 7540, 6.5.2)."""


@pytest.mark.parametrize("text", ["very long " * 10_000, "ö" * 10_000, "a" + "ö" * 10_000, "ab" + "ö" * 10_000])
def test_a_message_that_is_too_long_is_cut_to_what_peers_take(text: str) -> None:
    headers = to_headers(Code.RESOURCE_EXHAUSTED, text)
    others = [(":status", "200"), ("content-type", "application/grpc")]
    assert sum(len(name) + len(value) + 32 for name, value in [*others, *headers]) < SOFT_LIMIT
    error = from_headers(dict(headers))
    assert error is not None
    assert text.startswith(error.details.rstrip("\ufffd"))
    assert "%" not in error.details
    assert len(error.details) > 500


def test_a_message_that_fits_is_whole() -> None:
    error = from_headers(dict(to_headers(Code.NOT_FOUND, "100 % größer\n")))
    assert error is not None
    assert (error.code, error.details) == (Code.NOT_FOUND, "100 % größer\n")
