# SPDX-License-Identifier: Apache-2.0
"""A stranger at the port of ``kube-accel plugin``, where probes and metrics are."""

from __future__ import annotations

import http.client
import socket
import struct
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from attacks.stranger import (
    GOOD,
    MALFORMED,
    Memory,
    client_hello,
    flooded,
    is_refused,
    limit_of,
    probe_through,
    statuses,
    until_closed,
)
from bench.node import simulated_node
from bench.plugin import ours
from cluster.control_plane import free_port
from http2_bytes import PREFACE, frame, literal
from kube_accel.model import Mode
from waiting import wait

pytestmark = pytest.mark.attack

FLOODS = ("connects", "half a head", "large heads", "unread answers", "pages", "announced bodies", "bodies of lists")


@dataclass(frozen=True)
class Plugin:
    pid: int
    port: int

    def plain(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=30)

    def get(self, path: str, seconds: float = 10) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=seconds)
        try:
            connection.request("GET", path)
            response = connection.getresponse()
            return response.status, response.read()
        finally:
            connection.close()


@pytest.fixture(scope="module")
def plugin() -> Iterator[Plugin]:
    """One plugin for all attacks. Whatever they do, it serves and has logged no fault in the end."""
    port = free_port()
    with simulated_node("8xh100", Mode.PGPU) as node:
        with node.plugin([*ours(node), f"--listen=127.0.0.1:{port}"]) as process:
            running = Plugin(process.pid, port)
            wait(lambda: running.get("/readyz")[0] == 200, "ready")
            yield running
            assert running.get("/readyz")[0] == 200
        assert "Traceback" not in (node.root / "plugin.log").read_text()


@pytest.mark.parametrize("data", [pytest.param(data, id=name) for name, data in MALFORMED.items()])
def test_a_malformed_request_ends_the_connection(plugin: Plugin, data: bytes) -> None:
    with plugin.plain() as stream:
        stream.sendall(data + GOOD)
        answer = until_closed(stream)
    assert is_refused(answer), answer


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "TRACE", "OPTIONS", "CONNECT"])
@pytest.mark.parametrize("path", ["/healthz", "/metrics"])
def test_nothing_is_changed_over_http(plugin: Plugin, method: str, path: str) -> None:
    with plugin.plain() as stream:
        stream.sendall(f"{method} {path} HTTP/1.1\r\nHost: a\r\n\r\n".encode())
        assert until_closed(stream).startswith(b"HTTP/1.1 405 ")


@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/metrics"])
def test_a_page_takes_no_body(plugin: Plugin, path: str) -> None:
    with plugin.plain() as stream:
        stream.sendall(f"GET {path} HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\n".encode())
        assert until_closed(stream).startswith(b"HTTP/1.1 413 ")


@pytest.mark.parametrize("path", ["/../etc/passwd", "/%2e%2e/etc/passwd", "//metrics", "/metrics/", "/healthz%00"])
def test_no_other_path_is_a_page(plugin: Plugin, path: str) -> None:
    assert plugin.get(path)[0] == 404


OTHERS = {
    "TLS": client_hello(0x0303),
    "SSL 2.0": b"\x80\x2e\x01\x00\x02\x00\x15\x00\x00\x00\x10\x07\x00\xc0" + bytes(34),
    "HTTP/0.9": b"GET /healthz\r\n",
    "HTTP/2": PREFACE + frame(4, 0, 0, b"") + frame(1, 5, 1, literal(":method", "GET") + literal(":path", "/metrics")),
    "gRPC of kubelet": PREFACE
    + frame(1, 4, 1, literal(":path", "/v1beta1.DevicePlugin/Allocate"))
    + frame(0, 1, 1, bytes(5)),
    "RTSP": b"DESCRIBE /metrics RTSP/1.0\r\nCSeq: 1\r\n\r\n",
    "SIP": b"OPTIONS sip:x SIP/2.0\r\n\r\n",
    "SSH": b"SSH-2.0-OpenSSH_9.9\r\n\r\n\r\n",
    "SMTP": b"EHLO other\r\nMAIL FROM:<>\r\n\r\n",
    "Redis": b"*1\r\n$4\r\nINFO\r\n\r\n",
    "memcached": b"stats\r\n\r\n",
    "PROXY": b"PROXY TCP4 127.0.0.1 127.0.0.1 1 2\r\n" + GOOD,
    "PROXY in binary": b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c" + bytes(12) + GOOD,
    "SOCKS": b"\x05\x01\0" + b"\x05\x01\0\x01" + bytes(6) + b"\r\n\r\n",
    "Postgres": b"\0\0\0\x08\x04\xd2\x16\x2f" + b"\r\n\r\n",
    "Java objects": b"\xac\xed\0\x05" + b"\r\n\r\n",
    "MQTT": b"\x10\x0c\0\x04MQTT\x04\x02\0<\0\0\r\n\r\n",
}


@pytest.mark.parametrize("protocol", OTHERS)
def test_another_protocol_is_not_spoken(plugin: Plugin, protocol: str) -> None:
    with plugin.plain() as stream:
        stream.sendall(OTHERS[protocol])
        stream.shutdown(socket.SHUT_WR)
        answer = until_closed(stream)
    # What never ends its head is not answered.
    assert answer == b"" or is_refused(answer), answer
    assert plugin.get("/readyz")[0] == 200


@pytest.mark.parametrize(
    "fields",
    [
        "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n",
        "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n",
        "Connection: Upgrade\r\nUpgrade: TLS/1.2\r\n",
        "Connection: keep-alive\r\nKeep-Alive: timeout=999999, max=999999\r\n",
        "Range: bytes=0-,0-,0-,0-\r\n",
        "Accept-Encoding: gzip;q=1.0, x;q=1e308\r\n",
        "X-Forwarded-For: ::1\r\nX-Original-URL: /debug\r\nX-Rewrite-URL: /debug\r\n",
    ],
    ids=lambda fields: fields.partition("\r\n")[2].partition("\r\n")[0] or fields.strip(),
)
def test_a_field_changes_neither_protocol_nor_page(plugin: Plugin, fields: str) -> None:
    with plugin.plain() as stream:
        stream.sendall(f"GET /healthz HTTP/1.1\r\nHost: a\r\n{fields}\r\n".encode() + GOOD)
        answer = until_closed(stream)
    assert statuses(answer) == [200]
    assert answer.endswith(b"\r\nContent-Length: 3\r\nConnection: close\r\n\r\nok\n"), answer


def test_a_stranger_asks_once_on_a_connection(plugin: Plugin) -> None:
    with plugin.plain() as stream:
        stream.sendall(GOOD * 200)
        assert statuses(until_closed(stream)) == [200]


def test_clients_that_break_off_leave_nothing_open(plugin: Plugin) -> None:
    descriptors = Path(f"/proc/{plugin.pid}/fd")
    before = len(list(descriptors.iterdir()))
    for words in (
        b"",
        b"GET /met",
        b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n",
        b"POST /metrics HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\n",
    ):
        for _ in range(50):
            with suppress(ConnectionError), plugin.plain() as stream:
                stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # a reset at the end
                stream.sendall(words)
    wait(lambda: len(list(descriptors.iterdir())) <= before + 2, "the descriptors of those that went away")
    assert plugin.get("/healthz") == (200, b"ok\n")


@pytest.mark.parametrize("kind", FLOODS)
def test_a_flood_keeps_no_probe_out_and_stays_below_the_limit(plugin: Plugin, kind: str) -> None:
    memory = Memory(plugin.pid)
    memory.forget_peak()
    with flooded(kind, plugin.port, secure=False) as flood:
        probe_through(flood, lambda seconds: plugin.get("/healthz", seconds)[0] == 200)
    assert memory.peak < limit_of("gpu_plugins", "gpu_plugins_resources")
    assert memory.threads < 100
