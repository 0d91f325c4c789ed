# SPDX-License-Identifier: Apache-2.0
"""The head of a request, read as strictly as RFC 9112 and 9113 allow: no proxy before us reads another one. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

MOST_BYTES: Final = 16 << 10
MOST_FIELDS: Final = 100

_REQUEST = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+) (/[\x21-\x7e]*) HTTP/1\.([01])")
_FIELD = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([\t\x20-\x7e\x80-\xff]*)")
_HOST = re.compile(rb"[!$%&'()*+,.0-9:;=a-z\[\]_~-]*")
"""In small letters."""
_ONCE = frozenset({b"content-length", b"expect", b"host", b"transfer-encoding"})
_DIGITS = 18

_METHOD = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_TARGET = re.compile(r"/[\x21-\x7e]*")
_PSEUDO = frozenset({":method", ":scheme", ":authority", ":path"})
_SINGLE = frozenset({"content-length", "expect", "host"})
_OF_CONNECTIONS = frozenset({"connection", "proxy-connection", "keep-alive", "transfer-encoding", "upgrade"})
"""Header fields that HTTP/2 does not have, section 8.2.2."""


class RequestError(Exception):
    """The connection ends with this status."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


@dataclass(frozen=True, slots=True)
class Head:
    """What a request says before its body."""

    method: str
    path: str
    """Without the query."""
    length: int
    """Bytes of the body."""
    keep: bool
    """The client wants the connection to go on."""


def end_of_head(data: bytes) -> int:
    """Return where the head in ``data`` ends, before its empty line; -1 when that has not come yet.

    Raises RequestError when no head can come of it.
    """
    end = data.find(b"\r\n\r\n")
    head = data[:end] if end >= 0 else data
    if len(head) > MOST_BYTES:
        raise RequestError(431, f"the head has more than {MOST_BYTES} bytes")
    lines = head.count(b"\r\n")
    # A carriage return at the end may be half of what is to come.
    if head.count(b"\n") != lines or head.count(b"\r") - head.endswith(b"\r") != lines:
        raise RequestError(400, "a line does not end with CR LF")
    return end


def read_head(data: bytes) -> Head:
    """Read a head without its last empty line. Raises RequestError."""
    first, *lines = data.split(b"\r\n")
    request = _REQUEST.fullmatch(first)
    if request is None:
        raise RequestError(400, "the first line is not METHOD /path HTTP/1.1")
    if len(lines) > MOST_FIELDS:
        raise RequestError(431, f"the head has more than {MOST_FIELDS} fields")
    fields: dict[bytes, bytes] = {}
    for line in lines:
        found = _FIELD.fullmatch(line)
        if found is None:
            raise RequestError(400, "a header field is not name: value")
        name = found[1].lower()
        if name in fields and name in _ONCE:
            raise RequestError(400, f"the header field {name.decode()} comes twice")
        value = found[2].rstrip(b" \t").lower()
        fields[name] = fields[name] + b"," + value if name in fields else value
    if b"transfer-encoding" in fields:
        raise RequestError(411, "send Content-Length in place of Transfer-Encoding")
    if b"expect" in fields:
        raise RequestError(417, "send the body without Expect")
    method, target, minor = request.groups()
    host = fields.get(b"host", b"" if minor == b"0" else None)
    if host is None or _HOST.fullmatch(host) is None:
        raise RequestError(400, "send one Host, without a user and a path")
    return Head(
        method=method.decode(),
        path=target.partition(b"?")[0].decode(),
        length=_length(fields.get(b"content-length", b"0")),
        keep=minor == b"1" and b"close" not in fields.get(b"connection", b""),
    )


def head_of(fields: Iterable[tuple[str, str]]) -> Head:
    """Return the head that header fields of HTTP/2 are (RFC 9113, section 8.3). Raises RequestError."""
    found: dict[str, str] = {}
    plain = False
    for count, (name, value) in enumerate(fields, 1):
        if count > MOST_FIELDS:
            raise RequestError(431, f"the head has more than {MOST_FIELDS} fields")
        pseudo = name.startswith(":")
        if (pseudo and (plain or name not in _PSEUDO)) or name in _OF_CONNECTIONS or name != name.lower():
            raise RequestError(400, f"the header field {name[:40]} does not belong there")
        if name in found and (pseudo or name in _SINGLE):
            raise RequestError(400, f"the header field {name} comes twice")
        plain = plain or not pseudo
        found[name] = value
    method, target = found.get(":method", ""), found.get(":path", "")
    if not _METHOD.fullmatch(method) or not _TARGET.fullmatch(target) or ":scheme" not in found:
        raise RequestError(400, "the request is not METHOD /path")
    if _HOST.fullmatch(found.get(":authority", found.get("host", "")).lower().encode(errors="replace")) is None:
        raise RequestError(400, "send one Host, without a user and a path")
    if "expect" in found:
        raise RequestError(417, "send the body without Expect")
    length = _length(found.get("content-length", "0").encode(errors="replace"))
    return Head(method=method, path=target.partition("?")[0], length=length, keep=True)


def _length(text: bytes) -> int:
    if not text.isdigit():
        raise RequestError(400, "Content-Length is not a number")
    if len(text.lstrip(b"0")) > _DIGITS:
        raise RequestError(413, "the body is too large")
    return int(text[-_DIGITS:])
