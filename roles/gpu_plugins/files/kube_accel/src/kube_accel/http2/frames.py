# SPDX-License-Identifier: Apache-2.0
"""The frames of HTTP/2 (RFC 9113, section 4 and 6) and header fields without compression (RFC 7541), as bytes. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Final, NamedTuple

DATA: Final = 0x0
HEADERS: Final = 0x1
RST_STREAM: Final = 0x3
SETTINGS: Final = 0x4
PING: Final = 0x6
GOAWAY: Final = 0x7
WINDOW_UPDATE: Final = 0x8
CONTINUATION: Final = 0x9
"""Kinds of frames."""

ACK: Final = 0x1
END_STREAM: Final = 0x1
END_HEADERS: Final = 0x4
_PADDED: Final = 0x8
_PRIORITY: Final = 0x20
"""Flags."""

HEADER_TABLE_SIZE: Final = 0x1
MAX_CONCURRENT_STREAMS: Final = 0x3
INITIAL_WINDOW_SIZE: Final = 0x4
MAX_FRAME_SIZE: Final = 0x5
"""Settings."""

NO_ERROR: Final = 0x0
PROTOCOL_ERROR: Final = 0x1
REFUSED_STREAM: Final = 0x7
CANCEL: Final = 0x8
"""Error codes, section 7."""

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
LARGEST: Final = 1 << 14
"""Bytes of the largest frame that is taken, which is what peers assume."""
LARGEST_WINDOW: Final = (1 << 31) - 1
_LARGEST_FRAMES: Final = (1 << 24) - 1
_HEAD: Final = 9
"""Bytes in front of each frame."""
_OF_STREAMS: Final = (DATA, HEADERS, RST_STREAM, CONTINUATION)
_OF_CONNECTIONS: Final = (SETTINGS, PING, GOAWAY)
_LENGTHS: Final = {RST_STREAM: 4, PING: 8, WINDOW_UPDATE: 4}

Fields = Sequence[tuple[str, str]]


class FrameError(ValueError):
    """What came is no frame, or no good one."""


class Frame(NamedTuple):
    """One frame."""

    kind: int
    flags: int
    stream: int
    payload: bytes


def parsed(data: bytes | bytearray, position: int = 0) -> Frame | None:
    """Return the frame that begins at a position; None while it is not there as a whole. Raises FrameError."""
    begin = position + _HEAD
    if len(data) < begin:
        return None
    length = int.from_bytes(data[position : position + 3])
    if length > LARGEST:
        raise FrameError(f"a frame of {length} bytes is too large")
    if len(data) < begin + length:
        return None
    kind, flags = data[position + 3], data[position + 4]
    stream = int.from_bytes(data[position + 5 : begin]) & LARGEST_WINDOW
    if kind in _LENGTHS and length != _LENGTHS[kind]:
        raise FrameError(f"a frame of kind {kind} has {length} bytes")
    if kind in (_OF_CONNECTIONS if stream else _OF_STREAMS):
        raise FrameError(f"a frame of kind {kind} belongs to {stream or 'no stream'}")
    return Frame(kind, flags, stream, bytes(data[begin : begin + length]))


def length(frame: Frame) -> int:
    """Return how many bytes a frame has on the wire."""
    return _HEAD + len(frame.payload)


def content(frame: Frame) -> bytes:
    """Return what data or headers carry, without padding and priority. Raises FrameError."""
    payload = frame.payload
    if not frame.flags & (_PADDED | _PRIORITY):
        return payload
    begin = padding = 0
    if frame.flags & _PADDED:
        begin, padding = 1, payload[0] if payload else 1
    if frame.kind == HEADERS and frame.flags & _PRIORITY:
        begin += 5
    if begin + padding > len(payload):
        raise FrameError("a frame has more padding than bytes")
    return payload[begin : len(payload) - padding]


def number(frame: Frame) -> int:
    """Return what a frame that is a number says: an increment, or an error code."""
    return int.from_bytes(frame.payload[:4]) & (LARGEST_WINDOW if frame.kind == WINDOW_UPDATE else 0xFFFFFFFF)


def settings(frame: Frame) -> dict[int, int]:
    """Return the settings of a frame. Raises FrameError."""
    payload = frame.payload
    if len(payload) % 6:
        raise FrameError("settings are cut off")
    found = {
        int.from_bytes(payload[place : place + 2]): int.from_bytes(payload[place + 2 : place + 6])
        for place in range(0, len(payload), 6)
    }
    if found.get(INITIAL_WINDOW_SIZE, 0) > LARGEST_WINDOW:
        raise FrameError("a window is too large")
    if not LARGEST <= found.get(MAX_FRAME_SIZE, LARGEST) <= _LARGEST_FRAMES:
        raise FrameError("frames are too large, or too small")
    return found


def written(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """Return a frame as it is sent."""
    return b"%b%c%c%b%b" % (len(payload).to_bytes(3), kind, flags, stream.to_bytes(4), payload)


def written_settings(values: dict[int, int]) -> bytes:
    """Return a frame of settings."""
    return written(SETTINGS, 0, 0, b"".join(key.to_bytes(2) + value.to_bytes(4) for key, value in values.items()))


def written_number(kind: int, stream: int, value: int) -> bytes:
    """Return a frame that is a number."""
    return written(kind, 0, stream, value.to_bytes(4))


@lru_cache(256)
def written_fields(fields: Fields) -> bytes:
    """Return header fields, none of which the other side has to remember. They must be hashable, and ASCII."""
    return b"".join(b"\0" + _text(name) + _text(value) for name, value in fields)


def _text(text: str) -> bytes:
    data = text.encode("ascii")
    size = len(data)
    if size < 127:
        return b"%c%b" % (size, data)
    size, head = size - 127, bytearray((127,))
    while size > 127:
        head.append(size & 127 | 128)
        size >>= 7
    head.append(size)
    return bytes(head) + data
