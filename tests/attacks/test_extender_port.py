# SPDX-License-Identifier: Apache-2.0
"""A stranger at the port of ``kube-accel extender`` in the layout local: TLS, and no certificate."""

from __future__ import annotations

import ssl
from collections.abc import Iterator

import pytest

from attacks.stranger import FLOODS, GOOD, MALFORMED, Memory, flooded, is_refused, limit_of, probe_through, until_closed
from unit.kube_accel.extender.outside import Outside, Running, Scheduler

pytestmark = pytest.mark.attack

VERBS = ("predicates", "priorities", "preemption", "bind")


@pytest.fixture(scope="module")
def extender(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """One extender for all attacks. Whatever they do, it serves and has logged no fault in the end."""
    outside = Outside(tmp_path_factory.mktemp("port"), nodes=3)
    with outside.extender() as running:
        yield running
        assert running.ready()
        assert "a request failed" not in (outside.root / "extender.log").read_text()
    outside.api.stop()


def secured(extender: Running, certificate: str = "") -> ssl.SSLSocket:
    return extender.outside.client(certificate).wrap_socket(extender.plain(), server_hostname="127.0.0.1")


def healthy(extender: Running, seconds: float) -> bool:
    """Whether a probe of kubelet's is answered in so many seconds."""
    scheduler = Scheduler(extender.port, extender.outside.client(""), seconds)
    try:
        return scheduler.send("GET", "/healthz")[0] == 200
    finally:
        scheduler.close()


@pytest.mark.parametrize("certificate", ["", "client"])
@pytest.mark.parametrize("data", [pytest.param(data, id=name) for name, data in MALFORMED.items()])
def test_a_malformed_request_ends_the_connection(extender: Running, certificate: str, data: bytes) -> None:
    with secured(extender, certificate) as stream:
        stream.sendall(data + GOOD)
        answer = until_closed(stream)
    assert is_refused(answer), answer


@pytest.mark.parametrize("verb", VERBS)
def test_without_a_certificate_no_body_is_read(extender: Running, verb: str) -> None:
    with secured(extender) as stream:
        stream.sendall(b"POST /scheduler/%s HTTP/1.1\r\nHost: a\r\nContent-Length: 4000000\r\n\r\n" % verb.encode())
        answer = until_closed(stream)
    assert answer.startswith(b"HTTP/1.1 403 "), answer
    assert answer.endswith(b"show a client certificate of --client-ca\n")


@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/metrics"])
@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_a_page_takes_no_body(extender: Running, method: str, path: str) -> None:
    with secured(extender) as stream:
        stream.sendall(f"{method} {path} HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\n".encode())
        assert until_closed(stream).startswith(b"HTTP/1.1 413 ")


def test_a_stranger_asks_once_on_a_connection(extender: Running) -> None:
    with secured(extender) as stream:
        stream.sendall(GOOD * 3)
        assert until_closed(stream).count(b"HTTP/1.1 200 ") == 1


@pytest.mark.parametrize("kind", [*FLOODS, "half a handshake"])
def test_a_flood_keeps_no_probe_out_and_takes_little_memory(extender: Running, kind: str) -> None:
    memory = Memory(extender.process.pid)
    memory.forget_peak()
    with flooded(kind, extender.port, secure=True) as flood:
        probe_through(flood, lambda seconds: healthy(extender, seconds))
    assert memory.peak < limit_of("scheduler", "scheduler_extender_resources") // 4, "of strangers no body is kept"
    assert memory.threads < 150


def test_a_flood_keeps_no_scheduler_waiting(extender: Running) -> None:
    """Known clients share nothing with strangers but the processor."""
    item = {"metadata": {"name": "plain", "namespace": "team", "uid": "u"}, "spec": {"containers": []}}
    scheduler = extender.scheduler()
    with flooded("connects", extender.port, secure=True) as flood:
        calls = 0
        while flood.poll() is None:
            assert scheduler.filter(item, extender.outside.names)["NodeNames"] == extender.outside.names
            calls += 1
    scheduler.close()
    assert calls > 10


def test_a_body_of_another_size_than_it_says_is_no_next_request(extender: Running) -> None:
    """What is left of a body that was refused is not answered."""
    with secured(extender) as stream:
        stream.sendall(b"POST /scheduler/bind HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % len(GOOD) + GOOD)
        assert until_closed(stream).count(b"HTTP/1.1 ") == 1
