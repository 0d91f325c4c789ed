# SPDX-License-Identifier: Apache-2.0
"""HTTP/2 (RFC 9113) as bytes, for who has to send it without a library that knows what is right."""

from __future__ import annotations

import socket
from typing import Final

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    """A frame, section 4.1."""
    return len(payload).to_bytes(3) + bytes((kind, flags)) + stream.to_bytes(4) + payload


def literal(name: str, value: str) -> bytes:
    """A header field without compression (RFC 7541, 6.2.2)."""
    return b"\0" + bytes((len(name),)) + name.encode() + bytes((len(value),)) + value.encode()


def read_out(connected: socket.socket) -> None:
    """Read until the other side ends it, in whatever way."""
    try:
        while connected.recv(4096):
            pass
    except ConnectionError:
        pass
