# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a container runtime says of itself over CRI, which kubeadm no longer brings crictl to ask for.

Sources: runtime.v1's StatusRequest and StatusResponse (kubernetes/cri-api), gRPC over HTTP/2 (RFC 9113, RFC 7541).
"""

from __future__ import annotations

import socket
import struct
from typing import Dict, Iterator, Tuple

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA, _HEADERS, _RESET, _SETTINGS, _PING, _GO_AWAY, _WINDOW = 0, 1, 3, 4, 6, 7, 8
_ACK = _END_STREAM = 0x1
_END_HEADERS = 0x4
_PADDED = 0x8
_INITIAL_WINDOW_SIZE = 4
_ROOM = 1 << 24
"""Bytes of an answer at most. A containerd of thousands of registries sends some hundred KiB."""
_REQUEST = b"\x08\x01"
"""StatusRequest with ``verbose``, its field 1, true."""
_INFO = 2
"""Field of StatusResponse: a map from names to JSON."""


class StatusError(Exception):
    """The runtime did not answer. Says at which socket and why."""


def info(path: str, timeout: float = 10) -> Dict[str, str]:
    """Return the runtime's verbose status by name, each a JSON text, from the socket at ``path``.

    ``timeout`` is in seconds, for each read. Raises StatusError.
    """
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(timeout)
            connection.connect(path)
            message = _call(connection, "/runtime.v1.RuntimeService/Status", _REQUEST)
        return {name.decode(): said.decode() for name, said in map(_entry, _fields(message, _INFO))}
    except (OSError, ValueError, IndexError) as error:
        raise StatusError(f"the container runtime does not answer at {path}: {error}") from error


def unheard(path: str) -> str:
    """Return why nothing listens at a socket, empty when something does."""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(10)
            connection.connect(path)
    except OSError as error:
        return error.strerror or str(error)
    return ""


def _call(connection: socket.socket, method: str, message: bytes) -> bytes:
    """Return the answer to a gRPC call. Raises ValueError where there is none."""
    settings = struct.pack(">HI", _INITIAL_WINDOW_SIZE, _ROOM)
    # By RFC 7541's static table: 0x83 is POST, 0x86 http, 4 names :path, 1 :authority, 31 content-type.
    headers = b"\x83\x86\x04" + _text(method) + b"\x01" + _text("localhost") + b"\x0f\x10" + _text("application/grpc")
    headers += b"\x00" + _text("te") + _text("trailers")
    connection.sendall(
        _PREFACE
        + _frame(_SETTINGS, 0, 0, settings)
        + _frame(_WINDOW, 0, 0, struct.pack(">I", _ROOM))
        + _frame(_HEADERS, _END_HEADERS, 1, headers)
        + _frame(_DATA, _END_STREAM, 1, struct.pack(">BI", 0, len(message)) + message)
    )
    answer = b""
    while True:
        kind, flags, stream, payload = _read_frame(connection)
        if kind == _SETTINGS and not flags & _ACK:
            connection.sendall(_frame(_SETTINGS, _ACK, 0, b""))
        elif kind == _PING and not flags & _ACK:
            connection.sendall(_frame(_PING, _ACK, 0, payload))
        elif kind in (_RESET, _GO_AWAY):
            raise ValueError("it ended the call")
        elif kind == _DATA and stream == 1:
            answer += payload[1 : len(payload) - payload[0]] if flags & _PADDED else payload
        if stream == 1 and kind in (_DATA, _HEADERS) and flags & _END_STREAM:
            break
    # What it refuses has headers alone, and no message.
    if len(answer) < 5:
        raise ValueError("it does not know CRI's runtime.v1, or refused the call")
    return answer[5 : 5 + struct.unpack(">I", answer[1:5])[0]]


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def _read_frame(connection: socket.socket) -> Tuple[int, int, int, bytes]:
    head = _read(connection, 9)
    kind, flags, stream = struct.unpack(">BBI", head[3:])
    return kind, flags, stream & 0x7FFFFFFF, _read(connection, int.from_bytes(head[:3], "big"))


def _read(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        more = connection.recv(size - len(data))
        if not more:
            raise ValueError("it closed the connection")
        data += more
    return data


def _text(value: str) -> bytes:
    """Return a text of less than 127 bytes in HPACK, without Huffman's code."""
    return bytes([len(value)]) + value.encode()


def _entry(message: bytes) -> Tuple[bytes, bytes]:
    """Key and value of a map's entry in protobuf."""
    return next(_fields(message, 1), b""), next(_fields(message, 2), b"")


def _fields(message: bytes, wanted: int) -> Iterator[bytes]:
    """Yield the length-delimited fields of that number in a protobuf message."""
    place = 0
    while place < len(message):
        key, place = _varint(message, place)
        number, kind = key >> 3, key & 7
        size = {1: 8, 5: 4}.get(kind, 0)
        if kind in (0, 2):
            value, place = _varint(message, place)
            size = value if kind == 2 else 0
        if kind == 2 and number == wanted:
            yield message[place : place + size]
        place += size


def _varint(message: bytes, place: int) -> Tuple[int, int]:
    """Return a number in protobuf, and the place behind it."""
    value = shift = 0
    while True:
        byte = message[place]
        value |= (byte & 0x7F) << shift
        place, shift = place + 1, shift + 7
        if byte < 0x80:
            return value, place
