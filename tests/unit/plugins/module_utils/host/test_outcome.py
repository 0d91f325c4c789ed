# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest
from ansible_collections.accel.kubernetes.plugins.module_utils.host.outcome import Refused, bytes_like, text_of
from hypothesis import given
from hypothesis import strategies as st

MARK = b"\xef\xbb\xbf"


@given(st.text(alphabet="a\r\n\ufeff"))
def test_a_text_that_nobody_edits_comes_back_byte_for_byte(text: str) -> None:
    data = text.encode()
    assert bytes_like(data, text_of(data, "/a/file")) == data


@pytest.mark.parametrize(
    ("before", "text", "after"),
    [
        (b"a\n", "a\n", b"a\nb\n"),
        (b"a\r\n", "a\n", b"a\r\nb\r\n"),
        (MARK + b"a\r\n", "a\n", MARK + b"a\r\nb\r\n"),
        (MARK + b"a\n", "a\n", MARK + b"a\nb\n"),
        (b"a\r\na\n", "a\r\na\n", b"a\r\na\nb\n"),
    ],
    ids=["unix", "windows", "windows, marked", "marked", "mixed"],
)
def test_a_file_keeps_its_form(before: bytes, text: str, after: bytes) -> None:
    assert text_of(before, "/a/file") == text
    assert bytes_like(before, f"{text}b\n") == after


def test_a_new_file_has_line_feeds() -> None:
    assert bytes_like(None, "a\n") == b"a\n"


def test_what_is_no_utf_8_is_refused_with_what_to_do() -> None:
    with pytest.raises(Refused, match=r"^/a/file is not UTF-8: byte 0 is 0xff; write it in UTF-8, then run again$"):
        text_of("a".encode("utf-16"), "/a/file")
