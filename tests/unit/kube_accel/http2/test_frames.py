# SPDX-License-Identifier: Apache-2.0
"""Frames and header fields as bytes."""

from __future__ import annotations

import pytest
from hpack import Decoder
from hypothesis import given
from hypothesis import strategies as st

from http2_bytes import frame
from kube_accel.http2 import frames
from kube_accel.http2.frames import Frame, FrameError

TEXTS = st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=400)


@given(kind=st.sampled_from([0, 1, 9, 77]), flags=st.integers(0, 255), stream=st.integers(1, 2**31 - 1), cut=st.data())
def test_frame_is_read_once_it_is_there_as_a_whole(kind: int, flags: int, stream: int, cut: st.DataObject) -> None:
    payload = cut.draw(st.binary(max_size=100))
    sent = frames.written(kind, flags, stream, payload)
    assert sent == frame(kind, flags, stream, payload)
    found = frames.parsed(b"before" + sent + b"after", 6)
    assert found == Frame(kind, flags, stream, payload)
    assert frames.length(found) == len(sent)
    assert frames.parsed(sent[: cut.draw(st.integers(0, len(sent) - 1))]) is None


@pytest.mark.attack
@pytest.mark.parametrize(
    "sent",
    [
        (frames.LARGEST + 1).to_bytes(3) + bytes(6),
        frame(frames.DATA, 0, 0, b""),
        frame(frames.HEADERS, 0, 0, b""),
        frame(frames.RST_STREAM, 0, 0, bytes(4)),
        frame(frames.RST_STREAM, 0, 1, bytes(3)),
        frame(frames.SETTINGS, 0, 1, b""),
        frame(frames.PING, 0, 0, bytes(7)),
        frame(frames.PING, 0, 1, bytes(8)),
        frame(frames.GOAWAY, 0, 1, bytes(8)),
        frame(frames.WINDOW_UPDATE, 0, 0, bytes(5)),
        frame(frames.CONTINUATION, 0, 0, b""),
    ],
)
def test_frame_that_is_none_is_refused(sent: bytes) -> None:
    with pytest.raises(FrameError):
        frames.parsed(sent)


def test_content_is_read_without_padding_and_priority() -> None:
    assert frames.content(Frame(frames.DATA, 0, 1, b"abc")) == b"abc"
    assert frames.content(Frame(frames.DATA, 0x8, 1, b"\2abc\0\0")) == b"abc"
    assert frames.content(Frame(frames.HEADERS, 0x28, 1, b"\1" + bytes(5) + b"abc\0")) == b"abc"
    assert frames.content(Frame(frames.HEADERS, 0x20, 1, bytes(5) + b"abc")) == b"abc"
    for kind, flags, payload in ((0, 8, b""), (0, 8, b"\3ab"), (1, 0x20, bytes(4)), (1, 0x28, b"\1" + bytes(5))):
        with pytest.raises(FrameError):
            frames.content(Frame(kind, flags, 1, payload))


@pytest.mark.attack
@pytest.mark.parametrize("setting", [(4, 1 << 31), (5, 0), (5, (1 << 14) - 1), (5, 1 << 24)])
def test_settings_that_cannot_be_heeded_are_refused(setting: tuple[int, int]) -> None:
    """With frames of no byte, sending would have no end."""
    key, value = setting
    with pytest.raises(FrameError):
        frames.settings(Frame(frames.SETTINGS, 0, 0, key.to_bytes(2) + value.to_bytes(4)))
    with pytest.raises(FrameError):
        frames.settings(Frame(frames.SETTINGS, 0, 0, bytes(5)))


def test_settings_are_read_as_they_were_written() -> None:
    values = {frames.INITIAL_WINDOW_SIZE: 7, frames.MAX_FRAME_SIZE: 1 << 14, 99: 3}
    found = frames.parsed(frames.written_settings(values))
    assert found is not None
    assert frames.settings(found) == values


@given(fields=st.lists(st.tuples(TEXTS.filter(bool), TEXTS), max_size=5))
def test_fields_are_read_by_hpack_as_they_were_written(fields: list[tuple[str, str]]) -> None:
    found = Decoder().decode(frames.written_fields(tuple(fields)))
    assert [(str(name), str(value)) for name, value in found] == fields
