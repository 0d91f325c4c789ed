# SPDX-License-Identifier: Apache-2.0
"""The HTTP server: who is answered while others are slow, and what each may take."""

from __future__ import annotations

import socket
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace

import pytest
import trustme

from attacks.stranger import statuses, until_closed
from kube_accel.web import reception, server
from kube_accel.web.head import Head
from kube_accel.web.pages import Pages
from kube_accel.web.server import Limits, Server
from kube_accel.web.site import Request, Response
from waiting import wait

PROBE = b"GET /healthz HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
SMALL = Limits(strangers=2, received=4, stranger_bytes=1 << 20)
LARGE = 32 << 20


class Site:
    """Pages, and ``/work``, which takes a body and is done when ``done`` is set."""

    def __init__(self) -> None:
        self.pages = Pages({"/healthz": lambda: ""}, {"/large": lambda: Response(200, bytes(LARGE))})
        self.begun, self.done = threading.Semaphore(0), threading.Event()
        self.waits = False
        """It says so before it waits for ``done``."""

    def admit(self, head: Head, known: bool) -> int | Response:
        return 1000 if head.path == "/work" else self.pages.admit(head, known)

    def probe(self, head: Head) -> Response | None:
        return self.pages.probe(head)

    def handle(self, request: Request) -> Response:
        if request.path != "/work":
            return self.pages.handle(request)
        self.begun.release()
        if self.waits:
            request.waits()
        assert self.done.wait(60)
        return Response(200, bytes(request.body) + (b" known" if request.known else b""))


class Served:
    """A server under test."""

    def __init__(self, limits: Limits, tls: ssl.SSLContext | None) -> None:
        self.site = Site()
        self.server = Server(("127.0.0.1", 0), self.site, limits, lambda: tls)

    def connect(self, *words: bytes) -> socket.socket:
        stream = socket.create_connection(("127.0.0.1", self.server.port), timeout=30)
        for word in words:
            stream.sendall(word)
        return stream

    def asked(self, *words: bytes) -> bytes:
        with self.connect(*words) as stream:
            return until_closed(stream)

    def probe(self) -> list[int]:
        return statuses(self.asked(PROBE))


@contextmanager
def served(limits: Limits = SMALL, tls: ssl.SSLContext | None = None) -> Iterator[Served]:
    others, found = set(threading.enumerate()), Served(limits, tls)
    thread = threading.Thread(target=found.server.run)
    thread.start()
    try:
        yield found
    finally:
        found.site.done.set()
        found.server.stop()
        thread.join()
    wait(lambda: set(threading.enumerate()) <= others, "the end of all threads")


@pytest.fixture
def plain() -> Iterator[Served]:
    with served() as found:
        yield found


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def secure(authority: trustme.CA) -> Iterator[Served]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    authority.configure_trust(context)
    context.verify_mode = ssl.CERT_OPTIONAL
    with served(SMALL, context) as found:
        yield found


def client(authority: trustme.CA, certificate: bool) -> ssl.SSLContext:
    context = ssl.create_default_context()
    authority.configure_trust(context)
    if certificate:
        authority.issue_cert("client").configure_cert(context)
    return context


def work(body: bytes, path: bytes = b"/work") -> bytes:
    return b"POST %s HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s" % (path, len(body), body)


def test_request_is_answered_whatever_pieces_it_comes_in(plain: Served) -> None:
    plain.site.done.set()
    words = [bytes([byte]) for byte in work(b"body")]
    assert plain.asked(*words).endswith(b"\r\n\r\nbody")
    assert plain.asked(*(bytes([byte]) for byte in PROBE)).endswith(b"\r\n\r\nok\n")


def test_head_of_a_probe_brings_no_body(plain: Served) -> None:
    answer = plain.asked(PROBE.replace(b"GET", b"HEAD"))
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert answer.endswith(b"Content-Length: 3\r\nConnection: close\r\n\r\n")


@pytest.mark.attack
def test_probe_is_answered_while_strangers_fill_all_threads(plain: Served) -> None:
    held = [plain.connect(work(b"x")) for _ in range(SMALL.strangers)]
    for _ in held:
        assert plain.site.begun.acquire(timeout=30)
    assert plain.probe() == [200]
    plain.site.done.set()
    assert [statuses(until_closed(stream)) for stream in held] == [[200]] * SMALL.strangers


@pytest.mark.attack
@pytest.mark.parametrize(
    "said", [b"", b"GET /healthz HTTP/1.1\r\nHost: a\r\n", work(b"x" * 10)[:-1], b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"]
)
def test_probe_is_answered_beside_any_number_of_slow_strangers(plain: Served, said: bytes) -> None:
    held: list[socket.socket] = []
    for _ in range(5 * SMALL.received):
        with suppress(ConnectionError):
            held.append(plain.connect(said))
        assert plain.probe() == [200]
    for stream in held:
        stream.close()


@pytest.mark.attack
def test_half_a_probe_outlasts_any_number_of_silent_strangers(plain: Served) -> None:
    with plain.connect(PROBE[:10]) as slow:
        assert plain.probe() == [200]  # so what was sent has been heard
        held = [plain.connect() for _ in range(5 * SMALL.received)]
        assert held[0].recv(1) == b""
        slow.sendall(PROBE[10:])
        assert statuses(until_closed(slow)) == [200]
    for stream in held:
        stream.close()


@pytest.mark.attack
def test_new_stranger_ends_the_one_that_keeps_a_thread_longest(plain: Served) -> None:
    held = [plain.connect(work(b"x" * 10)[:-1]) for _ in range(SMALL.strangers)]
    plain.site.done.set()
    assert statuses(plain.asked(work(b"new"))) == [200]
    assert until_closed(held[0]) == b""
    held[1].sendall(b"x")
    assert statuses(until_closed(held[1])) == [200]


@pytest.mark.attack
def test_connection_that_stays_silent_is_ended(plain: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reception, "_HEAD_SECONDS", 0.1)
    assert plain.asked(b"GET /") == b""


def test_known_client_is_served_beside_strangers(secure: Served, authority: trustme.CA) -> None:
    secure.site.done.set()
    held = [secure.connect() for _ in range(5 * SMALL.received)]
    with client(authority, True).wrap_socket(secure.connect(), server_hostname="127.0.0.1") as stream:
        for _ in range(3):
            stream.sendall(b"POST /work HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\nbody")
            assert stream.recv(1000).endswith(b"\r\n\r\nbody known")
    for stranger in held:
        stranger.close()


def test_known_clients_are_as_many_as_the_limit_says(authority: trustme.CA) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    authority.configure_trust(context)
    context.verify_mode = ssl.CERT_OPTIONAL
    with served(replace(SMALL, known=1), context) as found:
        found.site.done.set()
        first = client(authority, True).wrap_socket(found.connect(), server_hostname="127.0.0.1")
        first.sendall(PROBE.replace(b"close", b"keep-alive"))
        assert first.recv(1000).startswith(b"HTTP/1.1 200 ")
        with client(authority, True).wrap_socket(found.connect(), server_hostname="127.0.0.1") as second:
            assert until_closed(second) == b""
        first.close()


@pytest.mark.attack
@pytest.mark.parametrize("who", ["", "a stranger", "a known client"])
def test_answer_that_is_read_slowly_ends_in_time_as_a_whole(
    request: pytest.FixtureRequest, authority: trustme.CA, who: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With TLS and without. Each piece is taken in time, all of them would not be."""
    monkeypatch.setattr(server, "_ANSWER_SECONDS", 0.5)
    stream = request.getfixturevalue("secure" if who else "plain").connect()
    if who:
        stream = client(authority, who == "a known client").wrap_socket(stream, server_hostname="127.0.0.1")
    stream.sendall(b"GET /large HTTP/1.1\r\nHost: a\r\n\r\n")
    found = 0
    with stream, suppress(ConnectionError, ssl.SSLError):
        while data := stream.recv(1 << 14):
            found += len(data)
            time.sleep(0.005)  # as slow as this stranger is
    assert 0 < found < LARGE


def test_port_is_free_once_the_server_has_stopped() -> None:
    with served() as found:
        port = found.server.port
        assert found.probe() == [200]
        found.server.stop()
        Server(("127.0.0.1", port), found.site, SMALL).stop()


def test_probe_that_fails_is_an_error_and_harms_no_other(plain: Served) -> None:
    def broken() -> str:
        raise LookupError("this probe is broken")

    plain.site.pages = Pages({"/broken": broken, "/healthz": lambda: ""}, {})
    assert statuses(plain.asked(b"GET /broken HTTP/1.1\r\nHost: a\r\n\r\n")) == [500]
    assert plain.probe() == [200]
