# SPDX-License-Identifier: Apache-2.0
"""Pods that kube-scheduler takes for ours and that ask for nothing: what it sends us and what we do is one rule."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kube_accel.extender.service import Layout
from kube_accel.kube.api import ApiError, ApiRefusedError, ApiUnreachableError
from kube_accel.model import Mode
from kube_accel.shared.asked import names_any
from kube_accel.shared.gpu_view import view
from kube_accel.sharing.assignment import ANNOTATION
from unit.kube_accel.extender.world import Api, Extender, bound, node_object, pod_object, share

SHARED = (
    "tencent.com/vcuda-core",
    "tencent.com/vcuda-memory",
    "nvidia.com/mps-core",
    "nvidia.com/mps-memory",
    "aliyun.com/gpu-mem",
)
WHOLE = "nvidia.com/gpu"
ZEROS = ("0", "0m", "0Gi", "0.0", "0e3", 0, None)
PLACES = ("containers", "initContainers")


def with_resources(name: str, place: str, resources: Mapping[str, Any], **container: Any) -> dict[str, Any]:
    """A pod whose container, or init container, asks so beside one that asks for no GPU."""
    pod = pod_object(name, {"cpu": "1"})
    entry = {"name": "asks", "resources": dict(resources), **container}
    pod["spec"].setdefault(place, []).append(entry)
    return pod


def asks_nobody(api: Api, extender: Extender, pod: dict[str, Any]) -> None:
    """The pod is led through every verb, and has nothing of any GPU then."""
    api.create(pod)
    extender.listen()
    assert extender.filter(pod, "cpu-node", "gpu-node")["NodeNames"] == ["cpu-node", "gpu-node"]
    victims = {"NodeNameToMetaVictims": {"cpu-node": {"Pods": [{"UID": "u"}], "NumPDBViolations": 1}}}
    assert extender.call("preemption", {"Pod": pod, **victims}) == victims
    scores = extender.call("priorities", {"Pod": pod, "NodeNames": ["cpu-node", "gpu-node"]})
    assert [entry["Score"] for entry in scores] == [0, 0]
    assert extender.bind(pod, "cpu-node") == ""
    assert api.pods[pod["metadata"]["name"]]["spec"]["nodeName"] == "cpu-node"
    assert ANNOTATION not in api.pods[pod["metadata"]["name"]]["metadata"]["annotations"]
    assert not extender.cluster.pods
    assert extender.cluster.reservations == 0
    assert extender.cluster.charges.namespaces() == []
    assert view([node_object("gpu-node")], [pod]).waiting == ()


@pytest.mark.parametrize("zero", ZEROS)
@pytest.mark.parametrize("resource", [*SHARED, WHOLE])
def test_pod_that_asks_for_zero_is_bound_in_any_spelling(resource: str, zero: object) -> None:
    api = Api()
    extender = Extender(api, whole_gpus=True)
    extender.cluster.keep_node(node_object("gpu-node"))
    for number, place in enumerate(PLACES):
        for keys in (("limits",), ("requests",), ("limits", "requests")):
            pod = with_resources(f"p{number}-{'-'.join(keys)}", place, {key: {resource: zero} for key in keys})
            asks_nobody(api, extender, pod)
    sidecar = with_resources("sidecar", "initContainers", {"limits": {resource: zero}}, restartPolicy="Always")
    asks_nobody(api, extender, sidecar)


def test_none_beside_some_is_left_out_and_the_rest_is_served() -> None:
    api = Api()
    extender = Extender(api)
    extender.cluster.keep_node(node_object("gpu-node"))
    pod = with_resources("mixed", "initContainers", {"limits": {"tencent.com/vcuda-core": "0", "nvidia.com/gpu": "0"}})
    pod["spec"]["containers"].append(
        {"name": "asks", "resources": {"limits": {**share(30, 8), "aliyun.com/gpu-mem": "0"}}}
    )
    api.create(pod)
    extender.listen()
    assert extender.schedule(pod, "gpu-node") == ""
    assert '"containers":{"asks":[' in api.pods["mixed"]["metadata"]["annotations"][ANNOTATION]
    whole = api.create(pod_object("whole", {"tencent.com/vcuda-core": "100", "tencent.com/vcuda-memory": "0"}))
    extender.listen()
    assert "1 whole GPU" in extender.schedule(whole, "gpu-node")


def test_foreign_whole_gpu_stays_foreign_beside_a_zero_share() -> None:
    api = Api()
    extender = Extender(api)
    pod = api.create(pod_object("plain", {WHOLE: "1", "tencent.com/vcuda-core": "0"}))
    extender.listen()
    assert extender.schedule(pod, "any") == ""
    assert bound(api) == ["plain"]


def test_overhead_and_a_pods_own_resources_are_nobodys() -> None:
    pod = pod_object("p", {"cpu": "1"}, overhead=share(30, 8), resources={"limits": share(30, 8)})
    assert not names_any(pod["spec"], frozenset(SHARED))


def test_they_pass_where_kube_scheduler_binds_itself() -> None:
    extender = Extender(Api(), layout=Layout.PROXIED)
    pod = extender.api.create(pod_object("p", {"tencent.com/vcuda-core": "0"}))
    extender.listen()
    assert extender.filter(pod, "a", "b")["NodeNames"] == ["a", "b"]
    assert extender.cluster.reservations == 0


def test_pod_that_asks_for_gpus_waits_for_the_watch() -> None:
    api = Api()
    extender = Extender(api)
    pod = api.create(pod_object("p", share(30, 8)))
    assert "has not been seen yet; try again" in extender.bind(pod, "a")
    assert bound(api) == []


def test_repeated_or_late_bind_reports_the_pods_state() -> None:
    api = Api()
    extender = Extender(api)
    pod = api.create(pod_object("p", {"tencent.com/vcuda-core": "0"}))
    assert extender.bind(pod, "a") == ""
    assert extender.bind(pod, "a") == ""
    assert extender.bind(pod, "b") == "the pod is already bound to a"
    api.delete("p")
    assert extender.bind(pod, "b") == "pod team/p is gone"


@pytest.mark.parametrize(
    ("failure", "said"),
    [(ApiRefusedError(403, "not allowed"), "not allowed"), (ApiUnreachableError("no route"), "no route")],
)
def test_refused_bind_is_left_for_kube_scheduler_to_repeat(failure: ApiError, said: str) -> None:
    api = Api()
    extender = Extender(api)
    pod = api.create(pod_object("p", {"tencent.com/vcuda-core": "0"}))
    api.holds = failure
    reason = extender.bind(pod, "a")
    assert reason.startswith("pod team/p was not bound to a: ")
    assert said in reason
    api.holds = None
    assert extender.bind(pod, "a") == ""


def test_a_pod_that_changes_meanwhile_is_bound_as_it_is_then(monkeypatch: pytest.MonkeyPatch) -> None:
    api = Api()
    extender = Extender(api)
    pod = api.create(pod_object("p", {"tencent.com/vcuda-core": "0"}))
    post, changes = api.post, iter(range(2))

    def changed_first(path: str, body: Any) -> dict[str, Any]:
        if next(changes, None) is not None:
            api.annotate("p", {"who": "somebody"})
        return post(path, body)

    monkeypatch.setattr(api, "post", changed_first)
    assert extender.bind(pod, "a") == ""
    assert bound(api) == ["p"]


def interested(pod: Mapping[str, Any]) -> bool:
    """``IsInterested`` of kube-scheduler's ``extender.go``, with the resources that the role scheduler names."""
    return any(
        name in (*SHARED, WHOLE)
        for place in PLACES
        for container in pod["spec"].get(place, ())
        for key in ("requests", "limits")
        for name in container["resources"].get(key, {})
    )


AMOUNTS = st.sampled_from(["0", "0m", "4", "30", "100", "150", "1k"])
AMOUNTS_BY_NAME = st.dictionaries(st.sampled_from([*SHARED, WHOLE, "cpu", "example.com/nic"]), AMOUNTS, max_size=3)
RESOURCES = st.builds(
    lambda amounts, keys: dict.fromkeys(keys, amounts),
    AMOUNTS_BY_NAME,
    st.sampled_from([("limits",), ("requests",), ("limits", "requests")]),
)


@given(app=st.lists(RESOURCES, min_size=1, max_size=3), init=st.lists(RESOURCES, max_size=2), whole=st.booleans())
def test_whatever_kube_scheduler_sends_is_bound_or_told_why_not(app: list[Any], init: list[Any], whole: bool) -> None:
    api = Api()
    extender = Extender(api, whole_gpus=True)
    extender.cluster.keep_node(node_object("gpu-node", gpus=8, mode=Mode.PGPU if whole else Mode.VGPU))
    pod = pod_object("p", {})
    for place, found in (("containers", app), ("initContainers", init)):
        pod["spec"][place] = [{"name": f"{place[0]}{at}", "resources": each} for at, each in enumerate(found)]
    if not interested(pod):
        assert extender.filter(pod, "gpu-node")["NodeNames"] == ["gpu-node"]
        return
    api.create(pod)
    extender.listen()
    answer = extender.filter(pod, "gpu-node")
    refused = {**answer["FailedNodes"], **answer["FailedAndUnresolvableNodes"]}
    if answer["NodeNames"]:
        assert extender.bind(pod, "gpu-node") == ""
    else:
        assert refused["gpu-node"]
    waits = view([], [{**pod, "spec": {**pod["spec"], "nodeName": ""}}]).waiting
    assert bool(waits) == (pod["metadata"]["uid"] in extender.cluster.pods)
