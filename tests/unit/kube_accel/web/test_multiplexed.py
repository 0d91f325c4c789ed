# SPDX-License-Identifier: Apache-2.0
"""HTTP/2, of clients that showed a certificate and of strangers."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

import pytest
import trustme
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from attacks.stranger import until_closed
from http2_bytes import PREFACE, frame, literal, read_out
from kube_accel.http2 import frames
from kube_accel.http2.connection import Connection, ConnectionEndedError, Data, GoAway, Headers, Reset
from kube_accel.web import multiplexed
from unit.kube_accel.web.test_server import LARGE, SMALL, Served, client, served
from waiting import wait

MALFORMED = {
    "a field in capitals": [("X", "a")],
    "a second path": [(":path", "/healthz")],
    "a pseudo field after others": [("a", "b"), (":authority", "a")],
    "an unknown pseudo field": [(":status", "200")],
    "a field of connections": [("connection", "close")],
    "chunks": [("transfer-encoding", "chunked")],
    "two lengths": [("content-length", "0"), ("content-length", "0")],
    "a length that is no number": [("content-length", "-1")],
    "a host with a path": [(":authority", "a/b")],
    "too many fields": [(f"x-{number}", "a") for number in range(101)],
}


@dataclass
class Http2:
    """A client's side of a connection."""

    stream: ssl.SSLSocket

    def __post_init__(self) -> None:
        self.http = Connection(self.stream)
        self.http.open()
        self.next = 1

    def ask(self, method: str, path: str, body: bytes = b"", *more: tuple[str, str], length: int | None = None) -> int:
        """Send a request and return its stream."""
        stream, self.next = self.next, self.next + 2
        length = len(body) if length is None else length
        fields = [(":method", method), (":scheme", "https"), (":path", path), (":authority", "a")]
        fields += [("content-length", str(length))] if length else []
        self.http.begin(stream)
        self.http.send(stream, (*fields, *more), body, last=len(body) == length)
        return stream

    def answer(self, stream: int) -> tuple[str, bytes]:
        """Status and body; the status is empty when the stream was reset."""
        status, body = "", bytearray()
        while True:
            match self.http.read():
                case Headers(number, fields, last) if number == stream:
                    status = dict(fields)[":status"]
                    if last:
                        return status, b""
                case Data(number, data, last) if number == stream:
                    body += data
                    if last:
                        return status, bytes(body)
                case Reset(number, _) if number == stream:
                    return "", bytes(body)

    def get(self, path: str) -> tuple[str, bytes]:
        return self.answer(self.ask("GET", path))


def secured(authority: trustme.CA) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    authority.configure_trust(context)
    context.verify_mode = ssl.CERT_OPTIONAL
    context.set_alpn_protocols(["h2", "http/1.1"])
    return context


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def server(authority: trustme.CA) -> Iterator[Served]:
    with served(SMALL, secured(authority)) as found:
        yield found


@contextmanager
def connected(server: Served, authority: trustme.CA, known: bool = True) -> Iterator[Http2]:
    context = client(authority, known)
    context.set_alpn_protocols(["h2"])
    with context.wrap_socket(server.connect(), server_hostname="127.0.0.1") as stream:
        assert stream.selected_alpn_protocol() == "h2"
        yield Http2(stream)


@contextmanager
def raw(server: Served, authority: trustme.CA, known: bool) -> Iterator[ssl.SSLSocket]:
    context = client(authority, known)
    context.set_alpn_protocols(["h2"])
    with context.wrap_socket(server.connect(), server_hostname="127.0.0.1") as stream:
        yield stream


def more_of(stream: ssl.SSLSocket) -> bytes:
    """What comes next, as long as the other side has not ended it."""
    stream.settimeout(30)
    found = stream.recv(1 << 16)
    assert found
    return found


def head(method: str, path: str, *more: bytes) -> bytes:
    fields = {":method": method, ":scheme": "https", ":path": path}
    return b"".join((*(literal(name, value) for name, value in fields.items()), *more))


def test_requests_that_wait_are_answered_beside_each_other(server: Served, authority: trustme.CA) -> None:
    server.site.waits = True
    with connected(server, authority) as http:
        streams = [http.ask("POST", "/work", bytes([number])) for number in range(40)]
        for _ in streams:
            assert server.site.begun.acquire(timeout=30)
        assert http.get("/healthz") == ("200", b"ok\n")
        server.site.done.set()
        found: dict[int, bytes] = {}
        while len(found) < len(streams):
            match http.http.read():
                case Data(stream, data, True):
                    found[stream] = data
        assert [found[stream] for stream in streams] == [bytes([number]) + b" known" for number in range(40)]


def test_client_without_http2_is_served_as_before(server: Served, authority: trustme.CA) -> None:
    server.site.done.set()
    with client(authority, True).wrap_socket(server.connect(), server_hostname="127.0.0.1") as stream:
        stream.sendall(b"POST /work HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\nbody")
        assert stream.recv(1000).endswith(b"\r\n\r\nbody known")


def test_what_is_not_admitted_is_refused_unread(server: Served, authority: trustme.CA) -> None:
    with connected(server, authority) as http:
        assert http.answer(http.ask("POST", "/work", length=1001))[0] == "413"
        assert http.get("/nothing")[0] == "404"
        assert http.answer(http.ask("POST", "/healthz"))[0] == "405"
        server.site.done.set()
        assert http.answer(http.ask("POST", "/work", b"a" * 1000))[0] == "200"


def test_answer_larger_than_the_window_comes_as_a_whole(server: Served, authority: trustme.CA) -> None:
    for known in (True, False):
        with raw(server, authority, known) as stream:
            stream.sendall(PREFACE + frames.written_settings({}))
            stream.sendall(frame(1, 5, 1, head("GET", "/large")))
            found, received = 0, bytearray()
            while found < LARGE:
                while (part := frames.parsed(received)) is None:
                    received += more_of(stream)
                del received[: frames.length(part)]
                if part.kind == frames.DATA:
                    found += len(part.payload)
                    size = len(part.payload)
                    updates = (frames.written_number(frames.WINDOW_UPDATE, of, size) for of in (0, 1))
                    stream.sendall(b"".join(updates))
            assert found == LARGE


@pytest.mark.attack
@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("more", MALFORMED.values(), ids=MALFORMED)
def test_malformed_request_is_refused(
    server: Served, authority: trustme.CA, known: bool, more: list[tuple[str, str]]
) -> None:
    with raw(server, authority, known) as stream:
        block = head("GET", "/healthz", *(literal(name, value) for name, value in more))
        stream.sendall(PREFACE + frames.written_settings({}) + frame(1, 5, 1, block) + frame(7, 0, 0, bytes(8)))
        received = bytearray()
        while (found := frames.parsed(received)) is None or found.kind != frames.HEADERS:
            if found is not None:
                del received[: frames.length(found)]
                continue
            received += more_of(stream)
        assert found.payload.startswith(literal(":status", "431" if len(more) > 100 else "400"))


@pytest.mark.attack
def test_body_of_another_length_ends_its_request_alone(server: Served, authority: trustme.CA) -> None:
    server.site.done.set()
    with connected(server, authority) as http:
        for length in (2, 4):
            stream = http.ask("POST", "/work", b"", length=length)
            http.http.send(stream, data=b"abc", last=True)
            assert http.answer(stream) == ("", b"")
        assert http.answer(http.ask("POST", "/work", b"abc")) == ("200", b"abc known")


@pytest.mark.attack
def test_requests_that_are_taken_back_cost_no_room(server: Served, authority: trustme.CA) -> None:
    """As many as one likes, each of them begun and reset at once."""
    server.site.done.set()
    with connected(server, authority) as http:
        for _ in range(1000):
            http.http.reset(http.ask("POST", "/work", length=1000))
        assert http.answer(http.ask("POST", "/work", b"abc")) == ("200", b"abc known")
    wait(lambda: server.server._known_room._free == SMALL.known_bytes)


@pytest.mark.attack
def test_requests_without_end_are_no_more_than_was_said(server: Served, authority: trustme.CA) -> None:
    server.site.done.set()
    with connected(server, authority) as http:
        streams = [http.ask("POST", "/work", length=1000) for _ in range(101)]
        assert http.answer(streams[-1]) == ("", b"")
        http.http.reset(streams[0])
        assert http.answer(http.ask("POST", "/work", b"abc")) == ("200", b"abc known")


@pytest.mark.attack
@pytest.mark.parametrize(
    "said",
    [
        PREFACE[:10] + b"nonsense" * 3,
        PREFACE + frame(1, 0, 1, b"") + 100 * frame(9, 0, 1, b""),
        PREFACE + frame(1, 0, 1, b"") + frame(0, 0, 1, b"x"),
        PREFACE + frame(1, 5, 1, b"\xff\xff\xff\xff\xff\xff"),
        PREFACE + frame(8, 0, 0, bytes(4)) + 20 * frame(6, 0, 0, bytes(7)),
        PREFACE + frame(4, 0, 0, b"\0\5\0\0\0\0"),
    ],
)
@pytest.mark.parametrize("known", [True, False])
def test_what_is_no_http2_ends_its_connection(server: Served, authority: trustme.CA, said: bytes, known: bool) -> None:
    with raw(server, authority, known) as stream:
        with suppress(OSError):
            stream.sendall(said)
        read_out(stream)
    with connected(server, authority) as http:
        assert http.get("/healthz") == ("200", b"ok\n")


@pytest.mark.attack
def test_body_that_does_not_come_ends_in_time(
    server: Served, authority: trustme.CA, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(multiplexed, "_BODY_SECONDS", 0.3)
    with connected(server, authority) as http:
        stream = http.ask("POST", "/work", length=10)
        http.stream.settimeout(0.1)

        def over() -> bool:
            try:
                # Pings do not make it last.
                http.stream.sendall(frame(6, 0, 0, bytes(8)))
                http.answer(stream)
            except TimeoutError:
                return False
            except (ConnectionEndedError, OSError):
                return True
            return False

        wait(over)


@pytest.mark.attack
def test_answer_that_nobody_takes_ends_in_time(
    server: Served, authority: trustme.CA, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(multiplexed, "_ANSWER_SECONDS", 0.3)
    with raw(server, authority, True) as stream:
        stream.sendall(PREFACE + frames.written_settings({frames.INITIAL_WINDOW_SIZE: 1}))
        stream.sendall(frame(1, 5, 1, head("GET", "/healthz")))
        assert b"ok" not in until_closed(stream)


def test_probe_of_a_stranger_is_answered_in_whatever_pieces(server: Served, authority: trustme.CA) -> None:
    with raw(server, authority, False) as stream:
        words = PREFACE + frames.written_settings({}) + frame(1, 1, 1, head("GET", "/healthz")) + frame(9, 4, 1, b"")
        for byte in words:
            stream.sendall(bytes([byte]))
        answer = until_closed(stream)
    assert literal(":status", "200") in answer
    assert frame(0, 1, 1, b"ok\n") in answer
    with connected(server, authority, known=False) as http:
        assert http.get("/healthz") == ("200", b"ok\n")
        assert isinstance(http.http.read(), GoAway)
    with connected(server, authority, known=False) as http:
        assert http.answer(http.ask("HEAD", "/healthz")) == ("200", b"")


@pytest.mark.attack
@pytest.mark.parametrize("said", [b"", PREFACE, PREFACE + frame(1, 1, 1, head("GET", "/large"))])
def test_probe_is_answered_beside_slow_strangers_of_http2(server: Served, authority: trustme.CA, said: bytes) -> None:
    held: list[socket.socket] = []
    context = client(authority, False)
    context.set_alpn_protocols(["h2"])
    for _ in range(2 * SMALL.received):
        with suppress(OSError):
            stream = context.wrap_socket(server.connect(), server_hostname="127.0.0.1")
            held.append(stream)
            stream.sendall(said)
        with connected(server, authority, known=False) as http:
            assert http.get("/healthz") == ("200", b"ok\n")
    for stream in held:
        stream.close()


FRAMES = st.builds(frame, st.integers(0, 10), st.integers(0, 255), st.integers(0, 5), st.binary(max_size=40))


@pytest.mark.attack
@settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(sent=st.lists(FRAMES, max_size=8), known=st.booleans())
def test_nonsense_ends_its_connection_at_most(
    server: Served, authority: trustme.CA, sent: list[bytes], known: bool
) -> None:
    server.site.done.set()
    with raw(server, authority, known) as stream, suppress(OSError):
        stream.settimeout(30)
        stream.sendall(PREFACE + b"".join(sent))
        socket.socket.shutdown(stream, socket.SHUT_WR)
        read_out(stream)
    with connected(server, authority) as http:
        assert http.get("/healthz") == ("200", b"ok\n")
