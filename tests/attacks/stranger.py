# SPDX-License-Identifier: Apache-2.0
"""Who can reach a port and nothing else: malformed requests, floods, probes meanwhile, and what the server takes.

``python -m attacks.stranger <flood> <port> <seconds>`` floods a port of this machine; ``tls:<port>`` speaks TLS.
"""

from __future__ import annotations

import re
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import yaml

from kube_accel.shared.quantity import parse_quantity

CLIENTS = 60
"""Connections that a flood has open at once, the oldest going first."""
TIMEOUT = 1.0
"""Seconds in which kubelet wants a probe answered whose ``timeoutSeconds`` is not set, as that of readiness is not."""
PROBES = 3
"""That are made at least."""

MALFORMED = {
    "a space before the colon": b"GET /healthz HTTP/1.1\r\nHost: a\r\nContent-Length : 5\r\n\r\n",
    "a folded field": b"GET /healthz HTTP/1.1\r\nHost: a\r\nX: a\r\n b\r\n\r\n",
    "a first field that is folded": b"GET /healthz HTTP/1.1\r\n X: a\r\nHost: a\r\n\r\n",
    "two lengths": b"POST /healthz HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\nContent-Length: 5\r\n\r\n",
    "two equal lengths": b"POST /healthz HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\nContent-Length: 0\r\n\r\n",
    "lengths in a list": b"POST /healthz HTTP/1.1\r\nHost: a\r\nContent-Length: 0, 0\r\n\r\n",
    "a signed length": b"POST /healthz HTTP/1.1\r\nHost: a\r\nContent-Length: +5\r\n\r\n",
    "a negative length": b"POST /healthz HTTP/1.1\r\nHost: a\r\nContent-Length: -1\r\n\r\n",
    "a length in hexadecimal": b"POST /healthz HTTP/1.1\r\nHost: a\r\nContent-Length: 0x5\r\n\r\n",
    "a length with an underscore": b"POST /healthz HTTP/1.1\r\nHost: a\r\nContent-Length: 1_0\r\n\r\n",
    "a length in other digits": "POST /healthz HTTP/1.1\r\nHost: a\r\nContent-Length: \u0665\r\n\r\n".encode(),
    "an empty length": b"POST /healthz HTTP/1.1\r\nHost: a\r\nContent-Length:\r\n\r\n",
    "an endless length": b"POST /healthz HTTP/1.1\r\nHost: a\r\nContent-Length: " + b"9" * 5000 + b"\r\n\r\n",
    "two hosts": b"GET /healthz HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
    "no host": b"GET /healthz HTTP/1.1\r\n\r\n",
    "a host with a space": b"GET /healthz HTTP/1.1\r\nHost: a b\r\n\r\n",
    "a host with a tab": b"GET /healthz HTTP/1.1\r\nHost: a\tb\r\n\r\n",
    "a host with a path": b"GET /healthz HTTP/1.1\r\nHost: a/b\r\n\r\n",
    "a host with a user": b"GET /healthz HTTP/1.1\r\nHost: a@b\r\n\r\n",
    "a host beyond ASCII": b"GET /healthz HTTP/1.1\r\nHost: \xff\r\n\r\n",
    "chunks": b"POST /healthz HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "chunks and a length": b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0",
    "chunks after a tab": b"POST /healthz HTTP/1.1\r\nHost: a\r\nTransfer-Encoding:\tchunked\r\n\r\n0\r\n\r\n",
    "chunks of another name": b"POST /healthz HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: xchunked\r\n\r\n",
    "100-continue": b"POST /healthz HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\n",
    "bare line feeds": b"GET /healthz HTTP/1.1\n\n",
    "one bare line feed": b"GET /healthz HTTP/1.1\r\nHost: a\r\nX: a\nY: b\r\n\r\n",
    "a bare carriage return": b"GET /healthz HTTP/1.1\r\nHost: a\r\nX: a\rY: b\r\n\r\n",
    "a field without colon": b"GET /healthz HTTP/1.1\r\nHost: a\r\nX\r\n\r\n",
    "a field without name": b"GET /healthz HTTP/1.1\r\nHost: a\r\n: a\r\n\r\n",
    "a name that is no token": b"GET /healthz HTTP/1.1\r\nHost: a\r\nX(Y): a\r\n\r\n",
    "a name with a NUL": b"GET /healthz HTTP/1.1\r\nHost: a\r\nX\x00: a\r\n\r\n",
    "a value with a NUL": b"GET /healthz HTTP/1.1\r\nHost: a\r\nX: \x00\r\n\r\n",
    "a value with an escape": b"GET /healthz HTTP/1.1\r\nHost: a\r\nX: \x1b[2J\r\n\r\n",
    "too many fields": b"GET /healthz HTTP/1.1\r\nHost: a\r\n" + b"X: a\r\n" * 101 + b"\r\n",
    "a head that is too long": b"GET /healthz HTTP/1.1\r\nHost: a\r\nX: " + b"x" * 20_000 + b"\r\n\r\n",
    "a target that is too long": b"GET /" + b"x" * 20_000 + b" HTTP/1.1\r\nHost: a\r\n\r\n",
    "a URL for a target": b"GET http://other/healthz HTTP/1.1\r\nHost: a\r\n\r\n",
    "a star for a target": b"OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n",
    "an authority for a target": b"CONNECT other:80 HTTP/1.1\r\nHost: a\r\n\r\n",
    "no target": b"GET  HTTP/1.1\r\nHost: a\r\n\r\n",
    "a target with a control character": b"GET /health\x01z HTTP/1.1\r\nHost: a\r\n\r\n",
    "a target with a space": b"GET /healthz x HTTP/1.1\r\nHost: a\r\n\r\n",
    "a target with bytes beyond ASCII": b"GET /\xff HTTP/1.1\r\nHost: a\r\n\r\n",
    "no version": b"GET /healthz\r\n\r\n",
    "HTTP/2.0": b"GET /healthz HTTP/2.0\r\n\r\n",
    "HTTP/1.9": b"GET /healthz HTTP/1.9\r\n\r\n",
    "HTTP/1.10": b"GET /healthz HTTP/1.10\r\n\r\n",
    "a version in small letters": b"GET /healthz http/1.1\r\n\r\n",
    "the preface of HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "a method that is no token": b"G(T /healthz HTTP/1.1\r\nHost: a\r\n\r\n",
    "tabs between words": b"GET\t/healthz\tHTTP/1.1\r\nHost: a\r\n\r\n",
    "empty lines": b"\r\n\r\n\r\n\r\n",
    "a space in front": b" GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n",
    "zeros": bytes(50) + b"\r\n\r\n",
}
"""Requests that are none. After each comes a good one, which must not be answered."""

FLOODS = (
    "connects",
    "half a head",
    "large heads",
    "unread answers",
    "pages",
    "100-continue",
    "announced bodies",
    "bodies of lists",
    "bodies of names",
    "bodies of words",
)
MOST = 4 << 20
"""Bytes of a flood's bodies."""
POD = (
    b'{"metadata":{"name":"p","namespace":"team","uid":"nobody"},"spec":{"containers":[{"name":"c",'
    b'"resources":{"limits":{"tencent.com/vcuda-core":"100"}}}]}}'
)
WORD = b'"\xf0\x9f\x98\x80%s",' % (b"w" * 20)
"""A word that takes four bytes a character in memory, in as large a body as may have so many."""

SUITES = (0xC02B, 0xC02F, 0xC009, 0xC013, 0x002F)
"""Ciphers of TLS 1.2 and before, which a server may take."""

GOOD = b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n"


def record(kind: int, payload: bytes, version: int = 0x0301) -> bytes:
    """A record of TLS in the clear (RFC 5246, section 6.2.1)."""
    return bytes((kind,)) + version.to_bytes(2) + len(payload).to_bytes(2) + payload


def client_hello(version: int, suites: Sequence[int] = SUITES, server: bytes | None = None) -> bytes:
    """What a client says first that knows this version at most, with a server's name if one is given."""
    listed = b"".join(suite.to_bytes(2) for suite in suites)
    groups, signatures = b"\0\x02\0\x17", b"\0\x08\x04\x03\x04\x01\x02\x03\x02\x01"
    extensions = [(10, groups), (13, signatures)]
    if server is not None:
        name = b"\0" + len(server).to_bytes(2) + server
        extensions.append((0, len(name).to_bytes(2) + name))
    written = b"".join(kind.to_bytes(2) + len(data).to_bytes(2) + data for kind, data in extensions)
    hello = version.to_bytes(2) + bytes(32) + b"\0" + len(listed).to_bytes(2) + listed + b"\x01\0"
    hello += len(written).to_bytes(2) + written
    return record(22, b"\x01" + len(hello).to_bytes(3) + hello)


def until_closed(stream: socket.socket) -> bytes:
    """What comes until the other side closes."""
    found = b""
    with suppress(ConnectionError, ssl.SSLError):
        while data := stream.recv(1 << 16):
            found += data
    return found


def statuses(answer: bytes) -> list[int]:
    """Return the statuses of the answers in it."""
    return [int(status) for status in re.findall(rb"^HTTP/1\.1 ([0-9]+) ", answer, re.MULTILINE)]


def is_refused(answer: bytes) -> bool:
    """Whether one request was refused as the client's mistake, and the connection then closed."""
    return len(statuses(answer)) == 1 and 400 <= statuses(answer)[0] < 500 and b"\r\nConnection: close\r\n" in answer


@dataclass(frozen=True)
class Memory:
    """What a process takes, in bytes."""

    pid: int

    def forget_peak(self) -> None:
        """From now on only."""
        Path(f"/proc/{self.pid}/clear_refs").write_text("5")

    @property
    def peak(self) -> int:
        """The most it had resident."""
        found = re.search(r"^VmHWM:\s+([0-9]+) kB", Path(f"/proc/{self.pid}/status").read_text(), re.MULTILINE)
        assert found is not None
        return int(found[1]) << 10

    @property
    def threads(self) -> int:
        """That it has now."""
        return len(list(Path(f"/proc/{self.pid}/task").iterdir()))


def limit_of(role: str, variable: str) -> int:
    """Bytes of memory that a role gives a container."""
    text = (Path(__file__).parents[2] / "roles" / role / "defaults/main.yml").read_text()
    return parse_quantity(yaml.safe_load(text)[variable]["limits"]["memory"])


@contextmanager
def flooded(kind: str, port: int, secure: bool, seconds: float = 2.5) -> Iterator[subprocess.Popen[bytes]]:
    """A flood by a process of its own, until it ends by itself."""
    where = f"tls:{port}" if secure else str(port)
    process = subprocess.Popen([sys.executable, "-m", "attacks.stranger", kind, where, str(seconds)])
    try:
        yield process
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()


def probe_through(flood: subprocess.Popen[bytes], probe: Callable[[float], bool]) -> None:
    """Probe as kubelet does while a flood lasts: probes are answered in time, but for one now and then.

    On a machine that is busy with other things both the prober and the server may get no processor for a second.
    """
    answered: list[bool] = []
    while flood.poll() is None or len(answered) < PROBES:
        answered.append(False)
        with suppress(OSError):
            answered[-1] = probe(TIMEOUT)
        time.sleep(0.05)
    found = "".join("." if one else "x" for one in answered)
    assert "xx" not in found, found
    assert found.count("x") <= 1 + len(found) // 20, found


def _post(start: bytes, part: bytes, end: bytes) -> bytes:
    """A call with as large a body as is taken."""
    body = start + part * ((MOST - len(start) - len(end)) // len(part)) + end
    return b"POST /scheduler/predicates HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % len(body) + body


def main(kind: str, where: str, seconds: float) -> None:
    """Flood a port."""
    secure, _, port = where.rpartition(":")
    address = ("127.0.0.1", int(port))
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    post = b"POST /scheduler/predicates HTTP/1.1\r\nHost: a\r\n"
    words = {
        "connects": b"",
        "half a handshake": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        "half a head": b"GET /metrics HTTP/1.1\r\nHost: a\r\nX: ",
        "large heads": b"GET /healthz HTTP/1.1\r\nHost: a\r\nX: " + b"x" * 60_000,
        "unread answers": b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n" * 200,
        "pages": b"GET /metrics HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n",
        "100-continue": post + b"Expect: 100-continue\r\nContent-Length: 4000000\r\n\r\n",
        "announced bodies": post + b"Content-Length: %d\r\n\r\n{" % MOST,
        "bodies of lists": _post(b'{"Pod":{"x":[', b"[],", b'1]},"NodeNames":[]}'),
        "bodies of names": _post(b'{"Pod":%s,"NodeNames":[' % POD, b'"%s",' % (b"n" * 19), b'"n"]}'),
        "bodies of words": _post(b'{"Pod":{"x":[', WORD, b'1]},"NodeNames":[]}'),
    }[kind]
    speaks = bool(secure) and kind not in ("connects", "half a handshake")
    held: list[socket.socket] = []
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        with suppress(OSError):
            stream = socket.create_connection(address, timeout=1)
            held.append(stream)
            if speaks:
                stream = held[-1] = context.wrap_socket(stream, do_handshake_on_connect=False)
                stream.do_handshake()
            stream.sendall(words)
        while len(held) > CLIENTS:
            with suppress(OSError):
                held.pop(0).close()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], float(sys.argv[3]))
