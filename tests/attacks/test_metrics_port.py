# SPDX-License-Identifier: Apache-2.0
"""A stranger at ``scheduler_metrics_port``: the extender's metrics for all, beside the port of kube-scheduler."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from attacks.stranger import GOOD, MALFORMED, Memory, flooded, is_refused, limit_of, probe_through, until_closed
from cluster.control_plane import free_port
from unit.kube_accel.extender.outside import Outside, Running, Scheduler

pytestmark = pytest.mark.attack

FLOODS = ("connects", "half a head", "large heads", "unread answers", "pages", "announced bodies", "bodies of lists")


@dataclass(frozen=True)
class Metrics:
    extender: Running
    port: int

    def plain(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=30)

    def get(self, path: str, method: str = "GET") -> tuple[int, bytes]:
        client = Scheduler(self.port, None)
        try:
            return client.send(method, path)
        finally:
            client.close()

    def healthy(self, seconds: float) -> bool:
        """Whether a probe of kubelet's, at the other port, is answered in so many seconds."""
        client = Scheduler(self.extender.port, self.extender.outside.client(""), seconds)
        try:
            return client.send("GET", "/healthz")[0] == 200
        finally:
            client.close()


@pytest.fixture(scope="module")
def metrics(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Metrics]:
    """One extender for all attacks. Whatever they do, it serves and has logged no fault in the end."""
    outside, port = Outside(tmp_path_factory.mktemp("metrics"), nodes=3), free_port()
    with outside.extender(flags=(f"--metrics-listen=127.0.0.1:{port}",)) as running:
        found = Metrics(running, port)
        yield found
        assert found.get("/metrics")[0] == 200
        assert running.ready()
        assert "a request failed" not in (outside.root / "extender.log").read_text()
    outside.api.stop()


@pytest.mark.parametrize("data", [pytest.param(data, id=name) for name, data in MALFORMED.items()])
def test_a_malformed_request_ends_the_connection(metrics: Metrics, data: bytes) -> None:
    with metrics.plain() as stream:
        stream.sendall(data + GOOD)
        answer = until_closed(stream)
    assert is_refused(answer), answer


@pytest.mark.parametrize("path", ["predicates", "priorities", "preemption", "bind"])
def test_verbs_are_not_reached_by_the_port_of_metrics(metrics: Metrics, path: str) -> None:
    assert metrics.get(f"/scheduler/{path}", "POST")[0] == 404


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "TRACE", "OPTIONS"])
def test_nothing_is_changed_over_http(metrics: Metrics, method: str) -> None:
    assert metrics.get("/metrics", method)[0] == 405


@pytest.mark.parametrize("kind", FLOODS)
def test_a_flood_of_metrics_keeps_no_probe_out(metrics: Metrics, kind: str) -> None:
    memory = Memory(metrics.extender.process.pid)
    memory.forget_peak()
    with flooded(kind, metrics.port, secure=False) as flood:
        probe_through(flood, metrics.healthy)
    assert memory.peak < limit_of("scheduler", "scheduler_extender_resources") // 4
    assert memory.threads < 150
