# SPDX-License-Identifier: Apache-2.0
"""How a call ended: grpc/grpc, doc/statuscodes.md, and what doc/PROTOCOL-HTTP2.md makes headers of it. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import IntEnum
from typing import Final
from urllib.parse import quote, unquote

_LONGEST: Final = 4 << 10
"""Bytes of a message as a header. gRPC's C library ends some calls whose headers exceed 8 KiB in all."""
_AS_THEY_ARE: Final = "".join(chr(code) for code in range(0x20, 0x7F) if chr(code) != "%")


class Code(IntEnum):
    """The status codes, by gRPC's names."""

    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    OUT_OF_RANGE = 11
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    DATA_LOSS = 15
    UNAUTHENTICATED = 16


class RpcError(Exception):
    """A call that failed, on either side; a handler that raises it ends its call so."""

    def __init__(self, code: Code, details: str) -> None:
        super().__init__(f"{code.name}: {details}")
        self.code = code
        self.details = details


def to_headers(code: Code, details: str = "") -> list[tuple[str, str]]:
    """Return the trailers that end a call. Details that are too long are cut."""
    headers = [("grpc-status", str(code.value))]
    if details:
        headers.append(("grpc-message", _message(details)))
    return headers


def _message(details: str) -> str:
    quoted = quote(details, safe=_AS_THEY_ARE)
    if len(quoted) <= _LONGEST:
        return quoted
    # Not in the middle of an escape.
    return re.sub("%.?$", "", quoted[:_LONGEST])


def from_headers(headers: Mapping[str, str]) -> RpcError | None:
    """Return what trailers say went wrong; None when nothing did."""
    try:
        code = Code(int(headers.get("grpc-status", "")))
    except ValueError:
        return RpcError(Code.UNKNOWN, f"no gRPC status but HTTP status {headers.get(':status', 'none')}")
    return None if code is Code.OK else RpcError(code, unquote(headers.get("grpc-message", "")))
