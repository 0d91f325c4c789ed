# SPDX-License-Identifier: Apache-2.0
"""Messages as gRPC puts them on a stream: Length-Prefixed-Message of grpc/grpc, doc/PROTOCOL-HTTP2.md. Pure."""

from __future__ import annotations

import struct
from typing import Final

from google.protobuf.message import Message

HEAD: Final = 5
"""Bytes in front of a message: whether it is compressed, and its length."""


def pack(message: Message) -> bytes:
    """Return the message with its head."""
    body: bytes = message.SerializeToString()
    return struct.pack(">BI", 0, len(body)) + body


def unpack(packed: bytes) -> bytes:
    """Return what is behind the head. Raises ValueError unless it is one whole message that is not compressed."""
    if len(packed) < HEAD:
        raise ValueError("there is no message")
    compressed, length = struct.unpack_from(">BI", packed)
    if compressed:
        raise ValueError("it is compressed")
    if len(packed) != HEAD + length:
        raise ValueError(f"it says {length} bytes and has {len(packed) - HEAD}")
    return packed[HEAD:]
