# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
import threading
from typing import Any

import pytest

from kube_accel.model import Mode
from kube_accel.plugin.allocation.pods import NodePods, pending
from kube_accel.plugin.allocation.pods_watch import PodsWatch
from kube_accel.plugin.node.pod_reporter import Reporter, TokenBucket
from kube_accel.sharing.profile import PROFILES

CORES, MEMORY = "tencent.com/vcuda-core", "tencent.com/vcuda-memory"
FAILED = (
    f"Allocate failed due to requested number of devices unavailable for {CORES}. Requested: 30, which is unexpected"
)


def item(name: str, node: str = "node", limits: Any = None, status: Any = None, **metadata: Any) -> dict[str, Any]:
    wanted = {CORES: "30", MEMORY: "8"} if limits is None else limits
    return {
        "metadata": {"uid": f"uid-{name}", "namespace": "team", "name": name, **metadata},
        "spec": {"nodeName": node, "containers": [{"name": "main", "resources": {"limits": wanted}}]},
        "status": status or {"phase": "Pending"},
    }


@pytest.fixture
def pods() -> NodePods:
    return NodePods(PROFILES[Mode.VGPU], "node")


def names(pods: NodePods) -> list[str]:
    return [pod.uid.removeprefix("uid-") for pod in pending(pods.all(), set())]


def test_pods_wait_in_order_until_kubelet_has_begun_with_them(pods: NodePods) -> None:
    for name in ("b", "a", "c"):
        assert pods.keep(item(name))
    pods.keep(item("b", labels={"new": "label"}))
    assert names(pods) == ["b", "a", "c"]
    running = {"phase": "Pending", "initContainerStatuses": [{"state": {"running": {}}}]}
    pods.keep(item("b", status=running))
    pods.keep(item("a", status={"phase": "Running"}))
    assert names(pods) == ["c"]
    pods.keep(item("c", deletionTimestamp="2026-01-01T00:00:00Z"))
    assert names(pods) == []


def test_pods_of_others_are_of_no_interest(pods: NodePods) -> None:
    assert pods.keep(item("elsewhere", node="other")) is None
    assert pods.keep(item("plain", limits={"cpu": "1"})) is None
    assert pods.keep(item("none", limits={CORES: "0", MEMORY: "0m"})) is None
    assert pods.keep(item("whole", limits={CORES: "0", "nvidia.com/gpu": "1"})) is None
    assert pods.keep({"metadata": {}}) is None
    assert pods.all() == []


def test_what_nobody_gets_is_no_candidate(pods: NodePods) -> None:
    pods.keep(item("odd", limits={CORES: "150", MEMORY: "8"}))
    assert names(pods) == []


def test_a_pod_that_is_gone_does_not_come_back_with_old_news(pods: NodePods) -> None:
    pods.keep(item("a"))
    pods.drop(item("a"))
    assert pods.keep(item("a")) is None
    assert pods.all() == []


class RecheckQueue:
    """An API server whose list is older than what the watch tells while it is on its way."""

    def __init__(self, pods: NodePods, listed: list[dict[str, Any]], news: list[dict[str, Any]]) -> None:
        self.pods, self.listed, self.news = pods, listed, news

    def send(self, method: str, path: str, query: Any) -> bytes:
        for each in self.news:
            self.pods.keep(each)
        return json.dumps({"metadata": {"resourceVersion": "9"}, "items": self.listed}).encode()


def test_list_for_an_allocation_adds_pods_and_reverts_none(pods: NodePods) -> None:
    running = {"phase": "Running"}
    client = RecheckQueue(
        pods,
        [
            item("new", resourceVersion="8"),
            item("overtaken", resourceVersion="9"),
            item("changed", resourceVersion="9"),
        ],
        [item("overtaken", status=running, resourceVersion="10"), item("changed", resourceVersion="7")],
    )
    client.listed[2]["status"] = running
    stop = threading.Event()
    watch = PodsWatch(client, pods, "node", stop)  # type: ignore[arg-type]
    thread = threading.Thread(target=watch.run_lists)
    thread.start()
    watch.list_now(10)
    stop.set()
    thread.join()
    assert names(pods) == ["new"]


def test_the_watch_is_believed_whatever_it_says(pods: NodePods) -> None:
    """Versions begin anew where the API server's data were put back."""
    pods.keep(item("a", status={"phase": "Running"}, resourceVersion="1000"))
    pods.keep(item("a", resourceVersion="20"))
    assert names(pods) == ["a"]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        '{"version":1,"node":"other","containers":{"main":[{"uuid":"GPU-1","cores":1,"memoryBytes":1}]}}',
        '{"version":9,"node":"node","containers":{"main":[{"uuid":"GPU-1","cores":1,"memoryBytes":1}]}}',
    ],
)
def test_an_assignment_that_is_not_for_here_is_none(pods: NodePods, text: str) -> None:
    pods.keep(item("a", annotations={"kube-accel.io/assignment": text}))
    assert [pod.assigned for pod in pods.all()] == [None]


class DoneError(Exception):
    """Everything before it was sent."""


class Client:
    """Keeps what it is sent."""

    def __init__(self) -> None:
        self.sent: list[str] = []

    def post(self, path: str, body: Any) -> None:
        if body["reason"] == "Done":
            raise DoneError
        self.sent.append(f"{body['reason']} {body['involvedObject']['name']}")

    def send(self, method: str, path: str, body: Any) -> None:
        self.sent.append(f"{method} {path} {body['preconditions']['uid']}")


def reported(*items: dict[str, Any]) -> list[str]:
    client = Client()
    reporter = Reporter(client, "node", (CORES, MEMORY))  # type: ignore[arg-type]
    pods = NodePods(PROFILES[Mode.VGPU], "node", reporter.failed)
    for each in items:
        pods.keep(each)
    NodePods(PROFILES[Mode.VGPU], "node", lambda pod: reporter.event(pod, "Done", "")).keep(item("last"))
    with pytest.raises(DoneError):
        reporter.run()
    return client.sent


def failed(message: str = FAILED, reason: str = "UnexpectedAdmissionError") -> dict[str, str]:
    return {"phase": "Failed", "reason": reason, "message": message}


def test_pod_that_failed_admission_is_removed_once() -> None:
    owned = [{"controller": True}]
    sent = reported(
        item("a"), item("a", status=failed(), ownerReferences=owned), item("a", status=failed(), ownerReferences=owned)
    )
    assert sent == ["RemovedForReplacement a", "DELETE /api/v1/namespaces/team/pods/a uid-a"]


def test_all_others_stay() -> None:
    owned = [{"controller": True}]
    assert not reported(
        item("nobodys", status=failed()),
        item("other-resource", status=failed("devices unavailable for example.com/nic"), ownerReferences=owned),
        item("other-reason", status=failed(reason="Evicted"), ownerReferences=owned),
        item("not-a-controller", status=failed(), ownerReferences=[{"controller": False}]),
        item("static", status=failed(), ownerReferences=[{"kind": "Node", "name": "node", "controller": True}]),
    )


def test_removals_come_in_a_burst_and_then_one_by_one() -> None:
    now, slept = 100.0, []

    def sleep(seconds: float) -> None:
        nonlocal now
        slept.append(seconds)
        now += seconds

    bucket = TokenBucket(3, 2.0, lambda: now, sleep)
    for _ in range(5):
        bucket.take()
    assert slept == [2.0, 2.0]
    now += 60
    for _ in range(3):
        bucket.take()
    assert len(slept) == 2
