# SPDX-License-Identifier: Apache-2.0
"""The whole extender in this process, over real sockets, with an API server that can go away."""

from __future__ import annotations

import http.client
import json
import re
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import trustme

from bench.api_stub import HttpsServer, Size, Stub, node_name, pod, shares
from kube_accel.extender.daemon import Extender, ExtenderError, ExtenderOptions
from kube_accel.extender.service import MAX_BODY, Layout
from kube_accel.kube.client import Credentials, KubeClient
from kube_accel.model import PlacementPolicy
from waiting import wait

NODES = 3


@dataclass
class Rig:
    root: Path
    authority: trustme.CA
    stub: Stub
    server: HttpsServer
    extender: Extender
    trusted: ssl.SSLContext
    known: ssl.SSLContext

    def call(
        self, method: str, path: str, body: object = None, context: ssl.SSLContext | None = None
    ) -> tuple[int, str]:
        connection = http.client.HTTPSConnection(
            "127.0.0.1", self.extender.port, context=context or self.known, timeout=10
        )
        try:
            connection.request(method, path, None if body is None else json.dumps(body))
            response = connection.getresponse()
            return response.status, response.read().decode()
        finally:
            connection.close()

    def passed(self, item: dict[str, Any]) -> list[str]:
        names = [node_name(number) for number in range(NODES)]
        status, text = self.call("POST", "/scheduler/predicates", {"Pod": item, "NodeNames": names})
        assert status == 200, text
        return list(json.loads(text)["NodeNames"])


def serve(authority: trustme.CA, stub: Stub, port: int = 0) -> HttpsServer:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    server = HttpsServer(stub, context, port)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    return server


def options(root: Path, **changed: Any) -> ExtenderOptions:
    values: dict[str, Any] = {
        "listen": ("127.0.0.1", 0),
        "layout": Layout.LOCAL,
        "tls_cert": root / "server.pem",
        "tls_key": root / "server.pem",
        "client_ca": root / "ca.crt",
        "policy": PlacementPolicy.BINPACK,
        "quota_configmap": ("kube-system", "kube-accel-quota"),
        "manage_whole_gpus": False,
    }
    return ExtenderOptions(**{**values, **changed})


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca.crt")
    authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(tmp_path / "server.pem")
    stub = Stub(Size(NODES, 2 * NODES, 1200))
    server = serve(authority, stub)
    threading.Thread(target=stub.run_plugins, daemon=True).start()
    stop = threading.Event()
    client = KubeClient(f"https://127.0.0.1:{server.server_port}", Credentials(tmp_path / "ca.crt"))
    extender = Extender(options(tmp_path), client, stop)
    thread = threading.Thread(target=extender.run, daemon=True)
    thread.start()
    trusted = ssl.create_default_context(cafile=tmp_path / "ca.crt")
    known = ssl.create_default_context(cafile=tmp_path / "ca.crt")
    authority.issue_cert("scheduler").configure_cert(known)
    rig = Rig(tmp_path, authority, stub, server, extender, trusted, known)
    wait(lambda: rig.call("GET", "/readyz")[0] == 200)
    yield rig
    stop.set()
    thread.join(5)
    rig.server.shutdown()
    rig.server.server_close()


def test_a_pod_goes_from_filter_to_bound_and_counts_from_then_on(rig: Rig) -> None:
    first = pod("first", "uid-first", shares(100, 0))
    rig.stub.create(first)
    assert rig.passed(first) == [node_name(number) for number in range(NODES)]
    binding = {"PodName": "first", "PodNamespace": "team", "PodUID": "uid-first", "Node": node_name(1)}
    assert rig.call("POST", "/scheduler/bind", binding) == (200, '{"Error":""}')
    assert first["spec"]["nodeName"] == node_name(1)
    # Two of eight GPUs have a pod of the start, one is the new pod's: five are left there, six elsewhere.
    six = pod("six", "uid-six", shares(600, 0))
    assert rig.passed(six) == [node_name(0), node_name(2)]
    rig.stub.delete("first")
    wait(lambda: len(rig.passed(six)) == 3)


@pytest.mark.attack
def test_verbs_need_a_certificate_and_probes_do_not(rig: Rig) -> None:
    for path in ("/healthz", "/readyz", "/metrics"):
        assert rig.call("GET", path, context=rig.trusted)[0] == 200
    for verb in ("predicates", "priorities", "preemption", "bind"):
        assert rig.call("POST", f"/scheduler/{verb}", {}, rig.trusted)[0] == 403
    foreign = ssl.create_default_context(cafile=rig.root / "ca.crt")
    trustme.CA().issue_cert("scheduler").configure_cert(foreign)
    with pytest.raises((ssl.SSLError, ConnectionError)):
        rig.call("POST", "/scheduler/bind", {}, foreign)
    assert rig.call("GET", "/scheduler/bind")[0] == 405
    assert rig.call("GET", "/")[0] == 404


def test_the_api_server_goes_away_and_comes_back(rig: Rig) -> None:
    item = pod("p", "uid-p", shares(50, 8))
    port = rig.server.server_port
    rig.server.stop()
    rig.stub.end_watches()
    wait(lambda: 'watch_up{kind="pods"} 0' in rig.call("GET", "/metrics")[1])
    assert len(rig.passed(item)) == NODES
    binding = {"PodName": "p", "PodNamespace": "team", "PodUID": "uid-p", "Node": node_name(0)}
    assert "not reached" in json.loads(rig.call("POST", "/scheduler/bind", binding)[1])["Error"]
    rig.server = serve(rig.authority, rig.stub, port)
    rig.stub.create(pod("q", "uid-q", shares(50, 8)))
    wait(lambda: 'watch_up{kind="pods"} 1' in rig.call("GET", "/metrics")[1])
    binding = {"PodName": "q", "PodNamespace": "team", "PodUID": "uid-q", "Node": node_name(0)}
    wait(lambda: rig.call("POST", "/scheduler/bind", binding) == (200, '{"Error":""}'))


def test_expired_watch_lists_again_and_forgets_what_is_gone(rig: Rig) -> None:
    item = pod("p", "uid-p", shares(800, 0))
    assert rig.passed(item) == []
    rig.stub.size = Size(NODES, 0, 10)
    rig.stub.end_watches()
    wait(lambda: len(rig.passed(item)) == NODES)


def raw(rig: Rig, data: bytes) -> bytes:
    with (
        socket.create_connection(("127.0.0.1", rig.extender.port), timeout=10) as plain,
        rig.known.wrap_socket(plain, server_hostname="127.0.0.1") as stream,
    ):
        stream.sendall(data)
        return stream.recv(1 << 16)


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"nonsense\r\n\r\n", 400),
        (b"POST /scheduler/bind HTTP/1.1\r\nHost: a\r\nContent-Length: -1\r\n\r\n", 400),
        (b"POST /scheduler/bind HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % (MAX_BODY + 1), 413),
        (b"POST /scheduler/bind HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n", 411),
        (b"GET / HTTP/1.1\r\nHost: a\r\nX: " + b"x" * 20_000, 431),
    ],
)
def test_requests_out_of_bounds_are_refused(rig: Rig, data: bytes, status: int) -> None:
    assert raw(rig, data).startswith(b"HTTP/1.1 %d " % status)


def test_requests_may_follow_each_other_on_a_connection(rig: Rig) -> None:
    answer = raw(rig, b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n" * 2)
    assert answer.count(b"200 OK") >= 1


@contextmanager
def beside(root: Path, address: tuple[str, int]) -> Iterator[Extender]:
    """An extender that runs, with an address for metrics and no API server."""
    stop = threading.Event()
    client = KubeClient("https://127.0.0.1:9", Credentials(root / "ca.crt"))
    extender = Extender(options(root, metrics_listen=address), client, stop)
    thread = threading.Thread(target=extender.run, daemon=True)
    thread.start()
    yield extender
    stop.set()
    thread.join(5)


def of_metrics(extender: Extender, path: str, method: str = "GET") -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", extender.metrics_port or 0, timeout=10)
    connection.request(method, path)
    response = connection.getresponse()
    return response.status, response.read().decode()


def test_metrics_alone_are_at_an_address_of_their_own(tmp_path: Path, rig: Rig) -> None:
    with beside(tmp_path, ("127.0.0.1", 0)) as extender:
        status, text = of_metrics(extender, "/metrics")
        assert status == 200
        assert "accel_extender_nodes 0" in text
        assert of_metrics(extender, "/scheduler/predicates", "POST")[0] == 404
        assert of_metrics(extender, "/healthz")[0] == 404
    assert rig.extender.metrics_port is None


def test_pods_are_placed_while_others_have_the_port_of_metrics(
    tmp_path: Path, rig: Rig, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("kube_accel.extender.daemon._ADDRESS_SECONDS", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as other, beside(tmp_path, other.getsockname()) as extender:
        assert extender.metrics_port is None
        reasons = [getattr(record, "reason", "") for record in caplog.records]
        (reason,) = {each for each in reasons if each.startswith("--metrics-listen 127.0.0.1:")}
        assert reason.endswith("free the port or choose another one")
        other.close()
        wait(lambda: extender.metrics_port, "that metrics are served")
        assert of_metrics(extender, "/metrics")[0] == 200
    assert rig.extender.metrics_port is None


def test_idle_strangers_do_not_keep_the_scheduler_out(rig: Rig) -> None:
    held = [socket.create_connection(("127.0.0.1", rig.extender.port)) for _ in range(100)]
    assert rig.call("GET", "/healthz")[0] == 200
    for connection in held:
        connection.close()


def test_the_local_layout_does_not_start_without_certificates(tmp_path: Path) -> None:
    client = KubeClient("https://127.0.0.1:1", Credentials())
    with pytest.raises(ExtenderError, match="--client-ca"):
        Extender(options(tmp_path, tls_cert=None), client, threading.Event())
    with pytest.raises(ExtenderError, match=r"server\.pem"):
        Extender(options(tmp_path), client, threading.Event())


def test_every_pending_gpu_pod_is_counted_by_its_mode(rig: Rig) -> None:
    for name, limits in (
        ("share", shares(50, 80)),
        ("odd", shares(150, 80)),
        ("whole", {"nvidia.com/gpu": "1"}),
        ("part", {"nvidia.com/mig-1g.5gb": "1"}),
    ):
        rig.stub.create(pod(name, f"uid-{name}", limits))

    def told() -> set[tuple[str, str]]:
        page = rig.extender._metrics_page().body.decode()
        return set(re.findall(r'accel_pending_gpu_pods\{namespace="team",mode="(\w+)"\} (\d+)', page))

    wait(lambda: told() == {("vgpu", "1"), ("refused", "1"), ("pgpu", "2")}, "the counts")
    rig.stub.delete("whole")
    wait(lambda: ("pgpu", "1") in told(), "one less")
