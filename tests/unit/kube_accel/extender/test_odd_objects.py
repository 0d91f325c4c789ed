# SPDX-License-Identifier: Apache-2.0
"""One object of the API server is odd in any field that the extender reads: it costs itself alone, and is named."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from kube_accel.extender.leader_lease import HOLD
from kube_accel.extender.quota import QuotaSink
from kube_accel.extender.sinks import NodeSink, PodSink
from kube_accel.kube.api import ApiError
from kube_accel.kube.watch import Sink, Watch, Watched, passing_over
from kube_accel.shared.api_json import checked
from kube_accel.shared.quota import NamespaceQuota
from kube_accel.sharing import assignment
from kube_accel.sharing.inventory_annotation import Holding
from odd_values import ODD, Path, cases, fields_read, with_value
from unit.kube_accel.extender.world import GIB, Api, Extender, bound, node_object, pod_object, share, taken, uuid

ODD_POD, ODD_NODE = "odd-pod", "odd-node"


def odd_pod(node: str = "") -> dict[str, Any]:
    """A pod as the API server has it, of which everything is there that may be read; bound when it has a node."""
    pod = pod_object(ODD_POD, share(60, 8), priority=1)
    pod["metadata"] |= {
        "resourceVersion": "5",
        "labels": {"app": "x"},
        "ownerReferences": [{"kind": "Job", "name": "j"}],
    }
    pod["metadata"]["annotations"] = {"kube-accel.io/placement": "binpack", "kube-accel.io/use-gpu-model": "h100"}
    spec = pod["spec"]
    spec["containers"][0] |= {"volumeMounts": [{"name": "v", "mountPath": "/data"}]}
    spec["containers"][0]["resources"]["requests"] = {**share(60, 8), "cpu": "500m"}
    spec["initContainers"] = [{"name": "init", "restartPolicy": "Always", "resources": {"requests": {"cpu": "1"}}}]
    spec["overhead"] = {"cpu": "250m"}
    if node:
        spec["nodeName"] = node
        containers = {"main": [{"uuid": uuid(node, 0), "cores": 60, "memoryBytes": 8 * GIB}]}
        text = json.dumps({"version": 1, "node": node, "containers": containers})
        pod["metadata"]["annotations"][assignment.ANNOTATION] = text
        state = {"name": "main", "state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}}}
        pod["status"] = {"phase": "Running", "containerStatuses": [state]}
    return pod


def odd_node() -> dict[str, Any]:
    return {**node_object(ODD_NODE, gpus=2, labels={"pool": "a"}), "spec": {}, "status": {}}


class Client:
    """An API server that lists these objects."""

    def __init__(self, items: list[dict[str, Any]]) -> None:
        self.body = json.dumps({"metadata": {"resourceVersion": "9"}, "items": items}).encode()

    def send(self, *_: object, **__: object) -> bytes:
        return self.body


@dataclass
class Cluster:
    """An extender that has listed nodes and pods, of which one is odd."""

    api: Api = field(default_factory=Api)

    def __post_init__(self) -> None:
        self.extender = Extender(self.api)

    def deliver(self, sink: Sink, items: list[dict[str, Any]]) -> None:
        watch = Watch(Client(items), Watched("/api/v1/x"), sink)  # type: ignore[arg-type]
        watch._list(_NEVER)
        assert watch.following()

    def nodes(self, *items: dict[str, Any]) -> None:
        self.deliver(NodeSink(self.extender.cluster), list(items))

    def pods(self, *items: dict[str, Any]) -> None:
        self.deliver(PodSink(self.extender.cluster), list(items))

    def serves(self, node: str = "n1") -> str:
        """The UUID of the GPU on which another pod is scheduled and bound."""
        pod = self.api.create(pod_object("other", share(60, 8)))
        self.extender.listen()
        assert self.extender.schedule(pod, node) == ""
        assert "other" in bound(self.api)
        [found] = taken(Api(pods={"other": self.api.pods["other"]}))
        return found


class _Never:
    def is_set(self) -> bool:
        return False

    def wait(self, timeout: float | None = None) -> bool:
        return False


_NEVER: Any = _Never()

READ_BY_WATCH = {
    "waiting": fields_read(odd_pod(), lambda item: PodSink(Extender(Api()).cluster).keep(checked(item))),
    "bound": fields_read(odd_pod("n1"), lambda item: PodSink(Extender(Api()).cluster).keep(checked(item))),
    "gone": fields_read(odd_pod("n1"), lambda item: PodSink(Extender(Api()).cluster).drop(checked(item))),
}
READ_OF_NODES = fields_read(odd_node(), lambda item: NodeSink(Extender(Api()).cluster).keep(checked(item)))


def told(caplog: pytest.LogCaptureFixture) -> str:
    return " ".join(json.dumps(record.__dict__, default=str) for record in caplog.records)


def test_the_fields_are_found() -> None:
    assert ("spec", "containers", 0, "resources", "limits", "tencent.com/vcuda-core") in READ_BY_WATCH["waiting"]
    assert ("status", "nominatedNodeName") in READ_BY_WATCH["waiting"]
    assert ("metadata", "annotations", assignment.ANNOTATION) in READ_BY_WATCH["bound"]
    assert ("metadata", "deletionGracePeriodSeconds") in READ_BY_WATCH["gone"]
    assert ("metadata", "annotations", "kube-accel.io/inventory") in READ_OF_NODES


@pytest.mark.parametrize(("path", "values"), cases(READ_BY_WATCH["waiting"]))
def test_an_odd_pod_that_waits_costs_itself_alone(
    path: Path, values: Mapping[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    for name, value in values.items():
        caplog.clear()
        cluster = Cluster()
        item = with_value(odd_pod(), path, value)
        cluster.nodes(node_object("n1", gpus=2))
        cluster.pods(item, pod_object("after", share(30, 8)))
        assert "uid-after" in cluster.extender.cluster.pods, name
        assert cluster.serves()
        answer = cluster.extender.service.handle(_request("predicates", {"Pod": item, "NodeNames": ["n1"]}))
        if answer.status == 400:
            assert ODD_POD in answer.body.decode() or named_oddly(path), (name, answer.body)
            assert ODD_POD in told(caplog) or named_oddly(path), name
        else:
            said = json.loads(answer.body)
            assert said["NodeNames"] or said["FailedNodes"] or said["FailedAndUnresolvableNodes"]["n1"], name
            assert f"uid-{ODD_POD}" in cluster.extender.cluster.pods or _asks_nobody(item) or path[-1] == "uid", name


@pytest.mark.parametrize(("path", "values"), cases(READ_BY_WATCH["bound"]))
def test_what_an_odd_pod_has_stays_taken(
    path: Path, values: Mapping[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    for name, value in values.items():
        caplog.clear()
        cluster = Cluster()
        item = with_value(odd_pod("n1"), path, value)
        held = {uuid("n1", 0): (Holding("team", ODD_POD, "main", 60, 8 * GIB),)}
        cluster.nodes(node_object("n1", gpus=2, held=held))
        cluster.pods(item, pod_object("after", share(30, 8)))
        assert cluster.serves() == uuid("n1", 1), name
        if not any(pod.name == ODD_POD and pod.node == "n1" for pod in cluster.extender.cluster.pods.values()):
            known = named_oddly(path) or _asks_nobody(item) or path[-1] == "nodeName"
            assert ODD_POD in told(caplog) or known, name


@pytest.mark.parametrize(("path", "values"), cases(READ_BY_WATCH["gone"]))
def test_odd_news_of_a_pod_that_is_gone_end_no_watch(path: Path, values: Mapping[str, Any]) -> None:
    for value in values.values():
        cluster = Cluster()
        cluster.nodes(node_object("n1", gpus=2))
        cluster.pods(odd_pod("n1"))
        sink, item = PodSink(cluster.extender.cluster), with_value(odd_pod("n1"), path, value)
        with passing_over(item, "/api/v1/pods"):
            sink.drop(checked(item))
        assert cluster.serves()


@pytest.mark.parametrize(("path", "values"), cases(READ_OF_NODES))
def test_an_odd_node_costs_itself_alone(
    path: Path, values: Mapping[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    for name, value in values.items():
        caplog.clear()
        cluster = Cluster()
        cluster.nodes(node_object("n1", gpus=2), with_value(odd_node(), path, value), node_object("n2"))
        assert cluster.serves() in (uuid("n1", 0), uuid("n1", 1))
        names = ["n1", "n2", ODD_NODE]
        answer = cluster.extender.filter(pod_object("p", share(30, 8)), *names)
        passed, refused = answer["NodeNames"], {**answer["FailedNodes"], **answer["FailedAndUnresolvableNodes"]}
        assert {"n1", "n2"} <= set(passed), name
        assert ODD_NODE in passed or refused[ODD_NODE], name


class Given(Api):
    """An API server that answers with this object for every one of a kind."""

    def __init__(self, kind: str, item: dict[str, Any]) -> None:
        super().__init__()
        self.kind, self.item = kind, item

    def get(self, path: str, query: Any = None) -> dict[str, Any]:
        return self.item if f"/{self.kind}/" in path else super().get(path, query)

    def patch(self, path: str, body: Any) -> dict[str, Any]:
        found = super().patch(path, body)
        return self.item if f"/{self.kind}/" in path else found

    def put(self, path: str, body: Any) -> dict[str, Any]:
        json.dumps(body)
        return {} if f"/{self.kind}/" in path else super().put(path, body)


def lease() -> dict[str, Any]:
    return {
        "apiVersion": "coordination.k8s.io/v1",
        "metadata": {"name": "kube-accel-extender", "resourceVersion": "3"},
        "spec": {"holderIdentity": "extender-before", "leaseTransitions": 3, "renewTime": "2026-01-01T00:00:00Z"},
    }


def take_the_lease(item: dict[str, Any]) -> Extender | None:
    """An extender that takes it when nobody has renewed it; None where it says why not."""
    extender = Extender(Given("leases", lease()))
    extender.api.create(pod_object("p", share(30, 8)))
    extender.listen()
    extender.lease.called()
    assert isinstance(extender.api, Given)
    extender.api.item = item
    for _ in range(2):
        try:
            extender.lease.step()
        except ApiError:
            return None
        extender.clock.now += HOLD
        extender.lease.called()
    return extender


@pytest.mark.parametrize(("path", "values"), cases(fields_read(lease(), take_the_lease)))
def test_an_odd_lease_is_taken_or_told(path: Path, values: Mapping[str, Any]) -> None:
    for name, value in values.items():
        extender = take_the_lease(with_value(lease(), path, value))
        assert extender is None or extender.lease._serving, name


def asked_again(item: dict[str, Any]) -> str:
    """A pod is bound without a GPU, or looked at since an earlier bind of it may be on its way."""
    extender = Extender(Given("pods", item))
    pod = {"metadata": {"name": ODD_POD, "namespace": "team", "uid": f"uid-{ODD_POD}"}}
    said = extender.bind(pod, "n1")
    extender.api.create(odd_pod())
    extender.listen()
    extender.binder._sent[f"uid-{ODD_POD}"] = "5"
    return said + extender.bind(pod, "n1")


@pytest.mark.parametrize(("path", "values"), cases(fields_read(odd_pod(), asked_again)))
def test_an_odd_answer_about_a_pod_is_why_it_is_not_bound(path: Path, values: Mapping[str, Any]) -> None:
    for name, value in values.items():
        assert ODD_POD in asked_again(with_value(odd_pod(), path, value)), name


def test_odd_node_from_kube_scheduler_costs_itself_alone(caplog: pytest.LogCaptureFixture) -> None:
    extender = Extender(Api())
    extender.cluster.keep_node(node_object("n1"))

    def filtered(item: Any) -> list[dict[str, Any]]:
        body = {"Pod": pod_object("p", share(30, 8)), "Nodes": {"items": [item, {"metadata": {"name": "n1"}}]}}
        found = extender.call("predicates", body)["Nodes"]["items"]
        assert isinstance(found, list)
        return found

    for path in (("metadata",), ("metadata", "name"), ("spec",)):
        for value in ODD.values():
            item = with_value({"metadata": {"name": ODD_NODE}, "spec": {}}, path, value)
            assert {"metadata": {"name": "n1"}} in filtered(item)
    assert ODD_NODE in told(caplog)


def quota() -> dict[str, Any]:
    text = "{version: 1, namespaces: {team: {limits: [{cores: 50}]}}}"
    return {"metadata": {"name": "quota", "namespace": "kube-system", "uid": "u"}, "data": {"quota.yaml": text}}


def quota_taken(item: dict[str, Any]) -> tuple[list[str], bool]:
    """What is complained of after a good quota is followed by this one, and whether a quota is in force."""
    extender = Extender(Api())
    complaints: list[str] = []
    sink = QuotaSink(extender.quotas, lambda pods: None, lambda item, problem: complaints.append(problem))
    sink.keep(quota())
    with passing_over(item, "/api/v1/configmaps"):
        sink.keep(checked(item))
    return complaints, extender.quotas.quota.of("team") != NamespaceQuota()


@pytest.mark.parametrize(("path", "values"), cases(fields_read(quota(), quota_taken)))
def test_an_odd_quota_leaves_the_one_before_and_is_told(
    path: Path, values: Mapping[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    for name, value in values.items():
        caplog.clear()
        complaints, in_force = quota_taken(with_value(quota(), path, value))
        assert in_force, name
        if path[0] == "data":
            assert complaints or "quota" in told(caplog), name


def _request(verb: str, body: object) -> Any:
    from kube_accel.web.site import Request

    return Request("POST", f"/scheduler/{verb}", json.dumps(body).encode(), True)


def named_oddly(path: Path) -> bool:
    return path in (("metadata",), ("metadata", "name"))


def _asks_nobody(item: dict[str, Any]) -> bool:
    """It names none of our resources any more, so that kube-scheduler does not send it."""
    return "tencent.com/vcuda" not in json.dumps(item.get("spec"))
