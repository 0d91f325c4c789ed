# SPDX-License-Identifier: Apache-2.0
"""The thread that labels the node, against an API server."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import trustme

from kube_accel.plugin.node import labels
from kube_accel.plugin.node.labels import LabelWriter
from sim.cluster.client import until
from unit.kube_accel.api_server import ApiServer, service_account, serving

LABELS = {"cuda-major-version": "13"}


class Node:
    """A running writer; ``wanted`` is what it is told."""

    def __init__(self, server: ApiServer, account: Path) -> None:
        self.server = server
        self.wanted: dict[str, str] | None = None
        self.asked = 0
        self.writer = LabelWriter("node-1", account, self._tell)
        self.ended = False
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def _run(self) -> None:
        with suppress(SystemExit):
            self.writer.run()

    def _tell(self) -> dict[str, str] | None:
        self.asked += 1
        if self.ended:
            raise SystemExit
        return self.wanted

    def end(self) -> None:
        self.ended = True
        self.writer.wake()
        self.thread.join()

    def want(self, wanted: dict[str, str] | None) -> None:
        """Until the writer has heard of it."""
        self.wanted, before = wanted, self.asked
        self.writer.wake()
        until(lambda: self.asked > before, "it asks")

    @property
    def labels(self) -> dict[str, str]:
        return self.server.node["metadata"].get("labels", {})

    def sent(self, method: str) -> int:
        return sum(request.method == method for request in self.server.requests)


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], Node]]:
    """A node whose API server answers, and whose writer never rests."""
    authority = trustme.CA()
    monkeypatch.setattr(labels, "_BETWEEN_WRITES", 0)
    monkeypatch.setattr(labels, "_BACK_OFF", (0.01, 0.01))
    with serving(authority) as server:
        monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
        monkeypatch.setenv("KUBERNETES_SERVICE_PORT", str(server.port))
        nodes: list[Node] = []

        def start() -> Node:
            nodes.append(Node(server, service_account(tmp_path / "account", authority)))
            return nodes[-1]

        yield start
        for node in nodes:
            node.end()


def test_they_are_written_once_and_again_when_they_change(start: Callable[[], Node]) -> None:
    node = start()
    node.want(None)
    assert node.server.requests == []
    node.want(LABELS)
    until(lambda: node.labels == LABELS, "the label")
    node.want(LABELS)
    node.want(LABELS)
    assert (node.sent("GET"), node.sent("PATCH")) == (1, 1)
    node.want({"cuda-major-version": "14"})
    until(lambda: node.labels == {"cuda-major-version": "14"}, "the new label")
    assert node.server.requests[-1].body == {"metadata": {"labels": {"cuda-major-version": "14"}}}
    node.want({})
    until(lambda: node.labels == {}, "no label")
    assert node.server.node["metadata"]["annotations"] == {}


def test_what_others_change_is_seen_at_the_next_look(
    start: Callable[[], Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(labels, "_LOOK", 0.01)
    node = start()
    node.want(LABELS)
    until(lambda: node.labels == LABELS, "the label")
    node.server.node["metadata"]["labels"] = {}
    until(lambda: node.labels == LABELS, "the label again")
    looked = node.sent("GET")
    until(lambda: node.sent("GET") > looked + 2, "it looks on")
    assert node.sent("PATCH") == 2


def test_a_server_that_refuses_is_asked_again(start: Callable[[], Node], caplog: pytest.LogCaptureFixture) -> None:
    node = start()
    node.server.status, node.server.reply = 403, {"message": "nodes is forbidden"}
    node.want(LABELS)
    until(lambda: node.sent("GET") > 2, "it asks again")
    assert [record.message for record in caplog.records] == ["the node is not labelled"]
    node.server.status = 200
    until(lambda: node.labels == LABELS, "the label")


def test_outside_a_cluster_it_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    LabelWriter("node-1", tmp_path, lambda: LABELS).run()
