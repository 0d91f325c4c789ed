# SPDX-License-Identifier: Apache-2.0
"""What kube-scheduler is answered, and what of pods and nodes counts."""

from __future__ import annotations

import itertools
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest

from kube_accel.extender import quota as extender_quota
from kube_accel.extender.pods import PodReader
from kube_accel.extender.service import Layout
from kube_accel.model import Ancestor, GpuHealth, GpuLink, GpuUse, Health, Inventory, Mode
from kube_accel.shared import quota
from kube_accel.sharing import assignment
from kube_accel.sharing.inventory_annotation import Holding
from unit.kube_accel.extender.world import GIB, Api, Clock, Extender, bound, node_object, pod_object, share, taken, uuid
from unit.kube_accel.plugin import fakes


@pytest.fixture
def api() -> Api:
    return Api()


@pytest.fixture
def extender(api: Api) -> Extender:
    found = Extender(api)
    found.cluster.keep_node(node_object("a", gpus=2))
    return found


def forged(node: str, gpu: str, cores: int = 1, memory: int = 1) -> dict[str, str]:
    containers = {"main": [{"uuid": gpu, "cores": cores, "memoryBytes": memory}]}
    return {assignment.ANNOTATION: json.dumps({"version": 1, "node": node, "containers": containers})}


def test_a_refusal_names_the_node_the_gpu_and_what_it_lacks(extender: Extender, api: Api) -> None:
    for name, cores in (("first", 90), ("second", 80)):
        assert extender.schedule(api.create(pod_object(name, share(cores, 10))), "a") == ""
    answer = extender.filter(pod_object("third", share(30, 8)), "a")
    assert answer["NodeNames"] == []
    assert answer["FailedNodes"] == {
        "a": "a: needs 30 percent and 8 GiB on one GPU; best has 20 percent and 70 GiB free (GPU 1)"
    }


def test_few_nodes_get_a_reason_of_their_own(extender: Extender) -> None:
    names = [f"n{number}" for number in range(40)]
    for name in names:
        extender.cluster.keep_node(node_object(name))
    answer = extender.filter(pod_object("p", {"tencent.com/vcuda-core": "200"}), *names)
    reasons = {**answer["FailedNodes"], **answer["FailedAndUnresolvableNodes"]}
    assert reasons.keys() == set(names)
    assert len(set(reasons.values())) <= 6


@pytest.mark.parametrize(
    ("limits", "reason"),
    [
        ({"tencent.com/vcuda-core": "150"}, "multiple of 100"),
        ({"tencent.com/vcuda-core": "30"}, "needs some of its memory"),
        ({**share(30, 8), "nvidia.com/mps-core": "10", "nvidia.com/mps-memory": "1"}, "one mode"),
    ],
)
def test_impossible_request_is_refused_and_evicts_no_pod(
    extender: Extender, limits: dict[str, str], reason: str
) -> None:
    answer = extender.filter(pod_object("p", limits), "a")
    assert reason in answer["FailedAndUnresolvableNodes"]["a"]
    assert answer["FailedNodes"] == {}
    assert extender.bind(pod_object("p", limits), "a") != ""


def test_nodes_of_other_modes_and_silent_nodes_have_no_room(extender: Extender) -> None:
    extender.cluster.keep_node(node_object("m", mode=Mode.MPS))
    answer = extender.filter(pod_object("p", share(30, 8)), "a", "m", "x")
    assert answer["NodeNames"] == ["a"]
    assert answer["FailedAndUnresolvableNodes"] == {
        "m": "serves mps, not vgpu",
        "x": "its plugin has not reported GPUs",
    }


def test_unreadable_annotation_takes_the_node_out_with_a_reason(extender: Extender) -> None:
    broken = node_object("a")
    broken["metadata"]["annotations"]["kube-accel.io/inventory"] = '{"version":9}'
    extender.cluster.keep_node(broken)
    answer = extender.filter(pod_object("p", share(30, 8)), "a")
    assert "cannot be read: version" in answer["FailedAndUnresolvableNodes"]["a"]


def test_node_objects_are_answered_with_node_objects(extender: Extender) -> None:
    nodes = {"items": [{"metadata": {"name": "a"}, "extra": 1}, {"metadata": {"name": "x"}}]}
    answer = extender.call("predicates", {"pod": pod_object("p", share(30, 8)), "nodes": nodes, "nodenames": None})
    assert answer["Nodes"]["items"] == [{"metadata": {"name": "a"}, "extra": 1}]
    assert answer["NodeNames"] is None


@pytest.mark.parametrize("body", ["[]", "{}", '{"Pod": 1}', '{"Pod": {}, "NodeNames": [1]}', '{"Pod": {}, "Nodes": 5}'])
def test_what_kube_scheduler_never_sends_is_a_bad_request(extender: Extender, body: str) -> None:
    extender.call("predicates", json.loads(body), status=400)


def test_pods_without_gpus_pass(extender: Extender) -> None:
    assert extender.filter(pod_object("p", {"cpu": "1"}), "a", "x")["NodeNames"] == ["a", "x"]
    assert extender.filter(pod_object("p", {"nvidia.com/gpu": "1"}), "x")["NodeNames"] == ["x"]


def test_plain_gpus_are_ours_when_told_so(api: Api) -> None:
    extender = Extender(api, whole_gpus=True)
    extender.cluster.keep_node(node_object("a", gpus=2, mode=Mode.PGPU))
    for name, fits in (("p", True), ("q", False)):
        pod = api.create(pod_object(name, {"nvidia.com/gpu": "2"}))
        assert (extender.schedule(pod, "a") == "") is fits


def test_a_gpu_that_is_handed_out_in_parts_is_no_whole_one(api: Api) -> None:
    extender = Extender(api, whole_gpus=True)
    cut = frozenset([uuid("a", 0), uuid("a", 1)])
    extender.cluster.keep_node(node_object("a", gpus=3, mode=Mode.PGPU, divided=cut))
    refused = extender.filter(pod_object("q", {"nvidia.com/gpu": "2"}), "a")["FailedAndUnresolvableNodes"]["a"]
    assert "GPUs 0, 1 left out (handed out in parts)" in refused
    assert extender.schedule(api.create(pod_object("p", {"nvidia.com/gpu": "1"})), "a") == ""
    assignment = json.loads(api.pods["p"]["metadata"]["annotations"]["kube-accel.io/assignment"])
    assert [share["uuid"] for share in assignment["containers"]["main"]] == [uuid("a", 2)]


def in_parts(name: str, gpus: int = 1, **more: Any) -> dict[str, Any]:
    """A node of whose GPUs ``nvidia.com/gpu`` is a replica or a MIG device."""
    cut = frozenset(uuid(name, index) for index in range(gpus))
    return node_object(name, gpus=gpus, mode=Mode.PGPU, divided=cut, **more)


PLAIN = {"nvidia.com/gpu": "2"}


@pytest.fixture
def mixed(api: Api) -> Extender:
    """Make a cluster in which node ``a`` has whole GPUs, and ``b`` does not."""
    extender = Extender(api, whole_gpus=True)
    extender.cluster.keep_node(node_object("a", gpus=2, mode=Mode.PGPU))
    extender.cluster.keep_node(in_parts("b"))
    return extender


def test_nodes_that_hand_out_parts_are_left_to_kubelet(mixed: Extender, api: Api) -> None:
    first = api.create(pod_object("first", PLAIN))
    assert mixed.filter(first, "a", "b")["NodeNames"] == ["a", "b"]
    scores = mixed.call("priorities", {"Pod": first, "NodeNames": ["a", "b"]})
    assert {entry["Host"]: entry["Score"] for entry in scores}["b"] == 0
    assert mixed.schedule(first, "a", "b") == ""
    assert api.pods["first"]["spec"]["nodeName"] == "a"
    # However many there are: what is free there kube-scheduler and kubelet count.
    for number in range(3):
        assert mixed.schedule(api.create(pod_object(f"p{number}", PLAIN)), "a", "b") == ""
        mixed.listen()
        assert api.pods[f"p{number}"]["spec"]["nodeName"] == "b"
        assert assignment.ANNOTATION not in api.pods[f"p{number}"]["metadata"]["annotations"]
    assert mixed.cluster.reservations == 0
    assert mixed.cluster.charges.used("team")[fakes.inventory(1).gpus[0].model].cards == 2
    assert [use.cores for use in view_of(mixed, "b")] == [0]
    assert mixed.filter(pod_object("share", share(30, 8)), "b")["NodeNames"] == []


def view_of(extender: Extender, name: str) -> list[GpuUse]:
    view = extender.cluster.nodes[name].view()
    assert view is not None
    return [gpu.used for gpu in view.gpus]


def test_gpus_left_to_kubelet_count_for_no_pod(mixed: Extender, api: Api) -> None:
    api.create(pod_object("theirs", PLAIN, nodeName="b"))
    mixed.listen()
    assert [use.cores for use in view_of(mixed, "b")] == [0]
    assert mixed.cluster.charges.used("team") == {}
    holding = Holding("team", "theirs", "main", 100, fakes.inventory(1).gpus[0].memory_bytes)
    mixed.cluster.keep_node(in_parts("b", held={uuid("b", 0): (holding,)}))
    assert [use.cores for use in view_of(mixed, "b")] == [100], "as its plugin tells"
    mixed.cluster.keep_node(node_object("b", mode=Mode.PGPU))
    assert mixed.cluster.charges.used("team")[fakes.inventory(1).gpus[0].model].cards == 2


def test_quota_change_wakes_all_that_wait_for_it(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extender_quota, "_WAITING", 10)
    extender = Extender(api)
    extender.cluster.keep_node(node_object("a"))
    extender.quotas.replace(quota.parse("{version: 1, namespaces: {team: {limits: [{cores: 5}]}}}"))
    for number in range(30):
        pod = _seen(extender, api, f"gone{number}", 10)
        assert extender.filter(pod, "a")["NodeNames"] == []
        if number % 2:
            api.delete(pod["metadata"]["name"])
        else:
            pod["spec"]["nodeName"] = "elsewhere"
            api.annotate(pod["metadata"]["name"], {})
        extender.listen()
    waiting = [f"p{number}" for number in range(20)]
    for name in waiting:
        extender.filter(_seen(extender, api, name, 10), "a")
    assert len(extender.quotas._waiting) <= 2 * len(waiting), "nor are they kept"
    assert sorted(pod.name for pod in extender.quotas.replace(quota.Quota())) == sorted(waiting)


def test_a_node_that_is_gone_is_forgotten_with_its_last_pod(extender: Extender, api: Api) -> None:
    cluster = extender.cluster
    for number in range(50):
        name = f"n{number}"
        cluster.keep_node(node_object(name))
        assert extender.filter(pod_object("asks", share(10, 8)), name)["NodeNames"] == [name]
        cluster.drop_node(name)
        assert (
            "has not reported GPUs"
            in extender.filter(pod_object("asks", share(10, 8)), name)["FailedAndUnresolvableNodes"][name]
        )
    assert cluster.nodes.keys() == {"a"}
    assert not any(name != "a" for judged in extender.decider._verdicts._found.values() for name in judged.nodes)
    pod = _seen(extender, api, "p", 60)
    assert extender.schedule(pod, "a") == ""
    extender.listen()
    cluster.drop_node("a")
    cluster.keep_node(node_object("a", gpus=1))
    assert extender.filter(pod_object("q", share(60, 8)), "a")["NodeNames"] == [], "its pod is still there"
    cluster.drop_node("a")
    api.delete("p")
    extender.listen()
    assert not cluster.nodes
    assert "has not reported GPUs" in extender.bind(_seen(extender, api, "r", 60), "a")
    assert not cluster.nodes


def test_news_of_a_node_while_it_is_forgotten_is_not_lost(extender: Extender) -> None:
    cluster, stop = extender.cluster, threading.Event()

    def flap() -> None:
        while not stop.is_set():
            cluster.drop_node("n")
            cluster.keep_node(node_object("n"))

    with ThreadPoolExecutor(4) as pool:
        flapping = pool.submit(flap)
        try:
            for number in range(200):
                pods = [pod_object(f"p{number}-{other}", share(20, 8), nodeName="n") for other in range(3)]
                list(pool.map(cluster.keep_pod, pods))
                assert cluster.nodes["n"].pods.keys() == {pod["metadata"]["uid"] for pod in pods}
                list(pool.map(cluster.drop_pod, [pod["metadata"]["uid"] for pod in pods]))
        finally:
            stop.set()
        flapping.result()
    assert not cluster.nodes["n"].pods


def test_quota_without_whole_gpus_counts_pools_only(mixed: Extender, api: Api) -> None:
    mixed.cluster.keep_node(in_parts("c", labels={"gpu-pool": "theirs"}))
    mixed.cluster.keep_node(in_parts("b", labels={"gpu-pool": "ours"}))
    pools = "pools: {ours: {gpu-pool: ours}}"
    mixed.quotas.replace(
        quota.parse(f"version: 1\n{pools}\nnamespaces: {{team: {{pools: [ours], limits: [{{cards: 1}}]}}}}")
    )
    pod = api.create(pod_object("p", PLAIN))
    answer = mixed.filter(pod, "a", "b", "c")
    assert answer["NodeNames"] == ["b"]
    assert "may use pool ours" in answer["FailedAndUnresolvableNodes"]["c"]
    mixed.listen()
    assert "may use pool ours" in mixed.bind(pod, "c")
    assert mixed.bind(pod, "b") == ""


def test_node_left_to_kubelet_needs_one_of_the_wanted_models(mixed: Extender) -> None:
    pod = pod_object("p", PLAIN)
    pod["metadata"]["annotations"]["kube-accel.io/use-gpu-model"] = "L40"
    refused = mixed.filter(pod, "b")["FailedAndUnresolvableNodes"]["b"]
    assert refused.startswith("none of its GPUs is wanted: model ")


def test_victims_on_a_node_left_to_kubelet_are_kube_schedulers(mixed: Extender, api: Api) -> None:
    api.create(pod_object("low", PLAIN, nodeName="b"))
    mixed.listen()
    body = {"Pod": pod_object("p", PLAIN, priority=5), "NodeNameToMetaVictims": {"b": {"Pods": [{"UID": "uid-low"}]}}}
    answer = mixed.call("preemption", body)["NodeNameToMetaVictims"]
    assert answer == {"b": {"Pods": [{"UID": "uid-low"}], "NumPDBViolations": 0}}
    waiting = api.create(pod_object("p", PLAIN, priority=5) | {"status": {"nominatedNodeName": "b"}})
    mixed.listen()
    assert mixed.filter(pod_object("q", PLAIN), "b")["NodeNames"] == ["b"]
    assert mixed.schedule(waiting, "b") == ""


def test_proxied_layout_reserves_nothing_where_kubelet_chooses(api: Api) -> None:
    extender = Extender(api, Clock(), Layout.PROXIED, whole_gpus=True)
    extender.cluster.keep_node(node_object("a", gpus=2, mode=Mode.PGPU))
    for name in ("b", "c"):
        extender.cluster.keep_node(in_parts(name))
    pods = [api.create(pod_object(name, PLAIN)) for name in ("p", "q")]
    extender.listen()
    assert [extender.filter(pod, "a", "b", "c")["NodeNames"] for pod in pods] == [["a"], ["b", "c"]]
    assert extender.cluster.reservations == 1


def test_binpack_fills_the_fuller_node_and_spread_the_emptier(extender: Extender, api: Api) -> None:
    extender.cluster.keep_node(node_object("b", gpus=2))
    assert extender.bind(_seen(extender, api, "p", 30), "b") == ""
    assert extender.schedule(_seen(extender, api, "q", 30), "a", "b") == ""
    assert api.pods["q"]["spec"]["nodeName"] == "b"
    spread = pod_object("r", share(30, 8))
    spread["metadata"]["annotations"]["kube-accel.io/placement"] = "spread"
    assert extender.schedule(api.create(spread), "a", "b") == ""
    assert api.pods["r"]["spec"]["nodeName"] == "a"


def _seen(extender: Extender, api: Api, name: str, cores: int, **spec: object) -> dict[str, object]:
    pod = api.create(pod_object(name, share(cores, 8), **spec))
    extender.listen()
    return pod


def test_bind_writes_the_assignment_and_binds_once(extender: Extender, api: Api) -> None:
    pod = _seen(extender, api, "p", 30)
    assert extender.bind(pod, "a") == ""
    text = api.pods["p"]["metadata"]["annotations"][assignment.ANNOTATION]
    assert "were free" in json.loads(text)["why"]["main"]
    stated = assignment.decode(text)
    assert stated.node == "a"
    assert {entry.uuid for entry in stated.containers["main"]} <= {uuid("a", 0), uuid("a", 1)}
    extender.listen()
    assert extender.bind(pod, "a") == ""
    assert "already bound to a" in extender.bind(pod, "b")
    assert api.binds == 1


@pytest.mark.parametrize("gpu", [0, 1])
def test_what_kubelet_handed_out_counts_not_what_was_assigned(extender: Extender, api: Api, gpu: int) -> None:
    extender.bind(_seen(extender, api, "p", 60), "a")
    extender.listen()
    held = {uuid("a", gpu): (Holding("team", "p", "main", 60, 8 * GIB),)}
    extender.cluster.keep_node(node_object("a", gpus=2, held=held))
    extender.bind(_seen(extender, api, "q", 60), "a")
    assert taken(Api(pods={"q": api.pods["q"]})).keys() == {uuid("a", 1 - gpu)}


def test_earlier_pods_holdings_are_not_its_namesakes(extender: Extender, api: Api) -> None:
    """GPU 0 is what the annotation still says; the new pod goes to GPU 1, which must count."""
    extender.bind(_seen(extender, api, "other", 60), "a")
    extender.listen()
    assert taken(api).keys() == {uuid("a", 0)}
    extender.cluster.keep_node(node_object("a", gpus=2, held={uuid("a", 0): (Holding("team", "p", "main", 60, 1),)}))
    assert extender.schedule(_seen(extender, api, "p", 60), "a") == ""
    extender.listen()
    assert "needs 60 percent" in extender.schedule(_seen(extender, api, "q", 60), "a")


@pytest.mark.parametrize(
    "annotations",
    [
        forged("a", uuid("a", 0)),
        forged("b", uuid("a", 0)),
        forged("a", "GPU-none"),
        {assignment.ANNOTATION: "[" * 100_000},
        {assignment.ANNOTATION: '{"version":2,"node":"a","gpus":[]}'},
        {assignment.ANNOTATION: "{"},
        {},
    ],
)
def test_a_pod_bound_by_others_counts_in_full_whatever_it_says(
    extender: Extender, api: Api, annotations: dict[str, str]
) -> None:
    """It says it takes next to nothing, or nothing at all, or nothing that can be read."""
    stranger = pod_object("stranger", share(60, 8), nodeName="a")
    stranger["metadata"]["annotations"] = annotations
    api.create(stranger)
    extender.listen()
    assert extender.schedule(_seen(extender, api, "p", 60), "a") == ""
    extender.listen()
    assert "needs 60 percent" in extender.schedule(_seen(extender, api, "q", 60), "a")


@pytest.mark.parametrize(("node", "gpu"), [("a", 1), ("b", 0)])
def test_an_assignment_of_another_node_is_not_this_pods(extender: Extender, api: Api, node: str, gpu: int) -> None:
    """It runs on node a and says it has GPU 1 there. Where that is not believed, it counts where it would be put."""
    stranger = pod_object("stranger", share(60, 8), nodeName="a")
    stranger["metadata"]["annotations"] = forged(node, uuid("a", 1))
    api.create(stranger)
    extender.listen()
    assert extender.schedule(_seen(extender, api, "p", 60), "a") == ""
    assert taken(Api(pods={"p": api.pods["p"]})).keys() == {uuid("a", 1 - gpu)}


@pytest.mark.attack
def test_a_tenant_who_rewrites_the_assignment_gains_nothing(extender: Extender, api: Api) -> None:
    extender.bind(_seen(extender, api, "p", 60), "a")
    extender.listen()
    extender.bind(_seen(extender, api, "q", 60), "a")
    extender.listen()
    api.annotate("q", forged("a", uuid("a", 0)))
    api.annotate("p", forged("a", uuid("a", 0)))
    extender.listen()
    assert "needs 60 percent" in extender.schedule(_seen(extender, api, "r", 60), "a")


def test_unhealthy_gpus_are_left_out(extender: Extender, api: Api) -> None:
    lost = {uuid("a", 0): GpuHealth(Health.UNHEALTHY, "XID 79")}
    extender.cluster.keep_node(node_object("a", gpus=2, health=lost))
    extender.bind(_seen(extender, api, "p", 60), "a")
    assert taken(api).keys() == {uuid("a", 1)}
    assert "left out (unhealthy: XID 79)" in extender.schedule(_seen(extender, api, "q", 60), "a")


def test_victims_are_enough_for_one_gpu_and_no_more(extender: Extender, api: Api) -> None:
    for name, cores, priority in (("low", 60, 1), ("lower", 60, 0), ("small", 30, 0), ("high", 10, 9)):
        assert extender.bind(_seen(extender, api, name, cores, priority=priority), "a") == ""
        extender.listen()
    pod = pod_object("p", share(70, 8), priority=5)
    body = {"Pod": pod, "NodeNameToMetaVictims": {"a": {"Pods": [{"UID": "uid-small"}]}, "x": {"Pods": []}}}
    answer = extender.call("preemption", body)["NodeNameToMetaVictims"]
    assert answer.keys() == {"a"}
    assert answer["a"]["Pods"] == [{"UID": "uid-lower"}], "small is on the other GPU, and need not go"
    nobody = pod_object("nobody", share(70, 8), priority=0)
    assert extender.call("preemption", {**body, "Pod": nobody})["NodeNameToMetaVictims"] == {}


def test_victims_are_found_where_kube_scheduler_sees_no_need(extender: Extender, api: Api) -> None:
    """It asks about nodes that have the amounts in sum as well, since kubernetes/kubernetes#135486."""
    for name in ("one", "two"):
        pod = api.create(pod_object(name, share(60, 8), priority=0))
        extender.listen()
        assert extender.schedule(pod, "a") == ""
    extender.listen()
    extender.cluster.keep_node(node_object("b"))

    def victims(cores: int) -> dict[str, list[str]]:
        given = {name: {"Pods": None, "NumPDBViolations": 0} for name in ("a", "b")}
        body = {"Pod": pod_object("asks", share(cores, 8), priority=5), "NodeNameToMetaVictims": given}
        answer = extender.call("preemption", body)["NodeNameToMetaVictims"]
        return {name: [entry["UID"] for entry in found["Pods"]] for name, found in answer.items()}

    found = victims(70)
    assert len(found["a"]) == 1
    assert found["b"] == [], "left to other extenders"
    assert victims(40) == {"a": [], "b": []}
    assert victims(100).keys() == {"a", "b"}


@pytest.mark.attack
def test_nothing_is_answered_without_a_client_certificate(extender: Extender) -> None:
    for verb in ("predicates", "priorities", "preemption", "bind"):
        assert "client certificate" in extender.call(verb, {}, status=403, known=False)


def test_proxied_layout_offers_predicates_for_known_pods_only(api: Api) -> None:
    extender = Extender(api, Clock(), Layout.PROXIED)
    for name in ("a", "b"):
        extender.cluster.keep_node(node_object(name))
    for verb in ("priorities", "preemption", "bind"):
        extender.call(verb, {}, status=404, known=False)
    unknown = pod_object("unknown", share(60, 8))
    assert "not known" in extender.filter(unknown, "a", "b")["Error"]
    assert extender.cluster.reservations == 0
    pods = [_seen(extender, api, name, 60) for name in ("p", "q", "r")]
    answers = [extender.filter(pod, "a", "b")["NodeNames"] for pod in pods]
    assert sorted(answers) == [[], ["a"], ["b"]]
    told = []
    extender.cluster.bound = lambda pod, reservation: told.append((pod.name, reservation.annotations))
    api.pods["p"]["spec"]["nodeName"] = answers[0][0]
    api.annotate("p", {})
    extender.listen()
    assert [name for name, _ in told] == ["p"]
    assert assignment.decode(told[0][1][assignment.ANNOTATION]).node == answers[0][0]
    assert extender.cluster.reservations == 1
    assert bound(api) == ["p"]


def test_proxied_layout_waits_for_news_of_a_pod(api: Api) -> None:
    extender = Extender(api, Clock(), Layout.PROXIED)
    extender.cluster.keep_node(node_object("a"))
    new = api.create(pod_object("new", share(60, 8)))
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(extender.filter, new, "a")
        extender.listen()
        assert answer.result()["NodeNames"] == ["a"]


def test_proxied_layout_wakes_a_pod_whose_room_others_took(api: Api) -> None:
    """A kube-scheduler before 1.29 does not come back by itself to a pod whose filter failed."""
    extender = Extender(api, layout=Layout.PROXIED)
    extender.cluster.keep_node(node_object("a"))
    late = _seen(extender, api, "late", 60)
    taken = extender.binder.reserve
    extender.binder.reserve = lambda *_: "taken"  # type: ignore[method-assign]
    assert "others took" in extender.filter(late, "a")["Error"]
    extender.binder.reserve = taken  # type: ignore[method-assign]
    extender.clock.now += 1
    assert _rechecks(extender) == ["late"]


def linked(node: str, nvlinks: int, *traits: dict[str, Any]) -> Inventory:
    """Four GPUs of a node; ``traits`` replaces fields of the first ones."""
    changes = [*traits, *({} for _ in range(4 - len(traits)))]
    gpus = tuple(
        replace(gpu, uuid=uuid(node, gpu.index), **change)
        for gpu, change in zip(fakes.inventory(4).gpus, changes, strict=True)
    )
    links = {frozenset((a.uuid, b.uuid)): GpuLink(Ancestor.NODE, nvlinks) for a, b in itertools.combinations(gpus, 2)}
    return Inventory("580.1", (13, 0), gpus, links)


@pytest.mark.parametrize("policy", ["binpack", "spread"])
def test_several_gpus_go_where_they_are_connected_best(extender: Extender, api: Api, policy: str) -> None:
    for name, nvlinks in (("pcie", 0), ("nvlink", 18)):
        extender.cluster.keep_node(node_object(name, known=linked(name, nvlinks)))
    two = pod_object("two", {"tencent.com/vcuda-core": "200"})
    scores = extender.call("priorities", {"Pod": two, "NodeNames": ["pcie", "nvlink"]})
    assert [entry["Score"] for entry in scores] == sorted({entry["Score"] for entry in scores})
    fuller = "pcie" if policy == "binpack" else "nvlink"
    assert extender.bind(_seen(extender, api, "first", 50), fuller) == ""
    pod = pod_object("p", {"tencent.com/vcuda-core": "200"})
    pod["metadata"]["annotations"]["kube-accel.io/placement"] = policy
    assert extender.schedule(api.create(pod), "pcie", "nvlink") == ""
    assert api.pods["p"]["spec"]["nodeName"] == "nvlink"


A100 = "NVIDIA A100-SXM4-40GB"


@pytest.mark.parametrize(
    ("other", "annotations"),
    [
        pytest.param(node_object("b", known=linked("b", 0, {"model": A100})), {"use-gpu-model": "a100"}, id="model"),
        pytest.param(
            node_object("b", known=linked("b", 0, {"compute_capability": (10, 0)})),
            {"min-compute-capability": "10"},
            id="compute capability",
        ),
        pytest.param(
            node_object("b", known=replace(linked("b", 0), cuda_version=(13, 1))), {"min-cuda": "13.1"}, id="CUDA"
        ),
        pytest.param(node_object("b", known=linked("b", 0)), {"use-gpu-uuid": uuid("b", 0)}, id="UUID"),
    ],
)
def test_node_that_differs_in_one_trait_has_its_own_verdict(
    extender: Extender, other: dict[str, Any], annotations: dict[str, str]
) -> None:
    extender.cluster.keep_node(node_object("a", known=linked("a", 0)))
    extender.cluster.keep_node(other)
    pod = pod_object("p", share(30, 8))
    pod["metadata"]["annotations"] = {f"kube-accel.io/{key}": value for key, value in annotations.items()}
    assert extender.filter(pod, "b", "a")["NodeNames"] == ["b"]


@pytest.mark.parametrize(
    ("other", "cores"),
    [
        pytest.param(node_object("b", known=linked("b", 0, *[{"mig_enabled": True}] * 4)), 30, id="MIG"),
        pytest.param(
            node_object("b", known=linked("b", 0), health={uuid("b", i): fakes.LOST for i in range(4)}), 30, id="health"
        ),
        pytest.param(node_object("b", known=linked("b", 0, {"memory_bytes": GIB})), 400, id="memory"),
    ],
)
def test_a_node_that_lacks_one_thing_is_not_taken_for_its_like(
    extender: Extender, other: dict[str, Any], cores: int
) -> None:
    extender.cluster.keep_node(node_object("a", known=linked("a", 0)))
    extender.cluster.keep_node(other)
    memory = "1280" if cores == 400 else "4"
    pod = pod_object("p", {"tencent.com/vcuda-core": str(cores), "tencent.com/vcuda-memory": memory})
    assert extender.filter(pod, "a", "b")["NodeNames"] == ["a"]


def test_the_log_says_why_this_gpu(extender: Extender, api: Api, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    extender.cluster.keep_node(node_object("m", mode=Mode.MPS))
    extender.bind(_seen(extender, api, "first", 60), "a")
    assert extender.schedule(_seen(extender, api, "p", 60), "a", "m") == ""
    (said,) = told_of("p", caplog)
    assert said["message"] == "assigned"
    assert said["asks"] == "60 % and 8 GiB of a GPU"
    assert (said["nodes"], said["passed"], said["refused"]) == (2, 1, {"serves mps, not vgpu": 1})
    assert said["best"].keys() == {"a"}
    assert said["chosen"] == {"main": [1]}
    assert [(gpu["gpu"], gpu["free_cores"]) for gpu in said["candidates"]] == [(0, 40), (1, 100)]


def told_of(name: str, caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    """The lines of the log about a pod."""
    return [vars(record) for record in caplog.records if vars(record).get("pod") == f"team/{name}"]


def test_log_tells_at_once_of_a_pod_that_fits_nowhere(
    extender: Extender, api: Api, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    extender.cluster.keep_node(node_object("m", mode=Mode.MPS))
    assert extender.schedule(_seen(extender, api, "p", 60), "m") == "serves mps, not vgpu"
    (said,) = told_of("p", caplog)
    assert (said["message"], said["passed"], said["refused"]) == ("filtered", 0, {"serves mps, not vgpu": 1})


def test_log_tells_of_each_filter_without_a_bind(
    extender: Extender, api: Api, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    pod = _seen(extender, api, "p", 60)
    extender.filter(pod, "a")
    extender.filter(pod, "a")
    extender.bind(pod, "a")
    assert [said["message"] for said in told_of("p", caplog)] == ["filtered", "assigned"]
    for first in range(2):
        extender.bind(_seen(extender, api, f"first-{first}", 60), "a")
    late = _seen(extender, api, "late", 60)
    extender.cluster.keep_node(node_object("b"))
    extender.filter(late, "a", "b")
    assert extender.bind(late, "a")
    assert [(said["message"], said["passed"]) for said in told_of("late", caplog)] == [("filtered", 1)]


def test_nearest_gpu_is_named_where_no_node_is_left(extender: Extender, api: Api) -> None:
    for number in range(2):
        assert extender.schedule(_seen(extender, api, f"first-{number}", 60), "a") == ""
    pod = _seen(extender, api, "p", 60)
    assert "best has 40 percent" in extender.filter(pod, "a")["FailedNodes"]["a"]
    extender.cluster.keep_node(node_object("b"))
    answer = extender.filter(pod, "a", "b")
    assert answer["NodeNames"] == ["b"]
    assert answer["FailedNodes"] == {"a": "no room for 60 percent and 8 GiB of a GPU"}


@pytest.mark.parametrize("told", [True, False])
def test_no_more_mps_pods_share_a_gpu_than_it_has_clients(api: Api, told: bool) -> None:
    """Counted by assignments and, once kubelet has handed them out, by what it says."""
    extender = Extender(api)
    extender.cluster.keep_node(node_object("m", mode=Mode.MPS))
    limits = {"nvidia.com/mps-core": "1", "nvidia.com/mps-memory": "1"}
    for number in range(48):
        assert extender.schedule(_made(extender, api, f"p{number}", limits), "m") == ""
    extender.listen()
    if told:
        held = {uuid("m", 0): tuple(Holding("team", f"p{number}", "main", 1, GIB) for number in range(48))}
        extender.cluster.keep_node(node_object("m", mode=Mode.MPS, held=held))
    late = _made(extender, api, "late", limits)
    assert "where MPS takes no more than 48 clients" in extender.schedule(late, "m")
    api.pods["p0"]["status"]["phase"] = "Running"
    api.delete("p0")
    extender.listen()
    assert extender.schedule(late, "m") == ""


def _made(extender: Extender, api: Api, name: str, limits: dict[str, str]) -> dict[str, Any]:
    pod = api.create(pod_object(name, limits))
    extender.listen()
    return pod


def nominate(extender: Extender, api: Api, name: str, node: str) -> None:
    """As kube-scheduler does once it has evicted others."""
    api.pods[name]["status"]["nominatedNodeName"] = node
    api.annotate(name, {})
    extender.listen()


def test_room_made_for_a_pod_is_kept_for_it(extender: Extender, api: Api) -> None:
    for name in ("first", "second"):
        assert extender.schedule(_seen(extender, api, name, 80, priority=1), "a") == ""
    evicting = _seen(extender, api, "evicting", 70, priority=5)
    extender.listen()
    nominate(extender, api, "evicting", "a")
    api.delete("first")
    extender.listen()
    for priority in (1, 5):
        other = _seen(extender, api, f"other-{priority}", 60, priority=priority)
        answer = extender.filter(other, "a", "x")
        assert "; room is kept for team/evicting" in answer["FailedNodes"]["a"]
        assert "room is kept" in extender.bind(other, "a")
    small = _seen(extender, api, "small", 20, priority=1)
    assert extender.schedule(small, "a") == "", "beside the pod that room is kept for"
    urgent = _seen(extender, api, "urgent", 70, priority=9)
    assert extender.filter(urgent, "a")["NodeNames"] == ["a"]
    assert extender.schedule(evicting, "a") == ""
    extender.listen()
    never = _seen(extender, api, "never", 60, priority=1)
    assert "room is kept" not in extender.schedule(never, "a"), "it counts as bound"


@pytest.mark.parametrize("end", ["deleted", "elsewhere", "no longer"])
def test_room_is_not_kept_for_a_pod_that_does_not_come(extender: Extender, api: Api, end: str) -> None:
    extender.cluster.keep_node(node_object("b", gpus=2))
    evicting = _seen(extender, api, "evicting", 100, priority=5)
    nominate(extender, api, "evicting", "a")
    both = pod_object("both", {"tencent.com/vcuda-core": "200"})
    assert extender.filter(both, "a")["NodeNames"] == []
    if end == "deleted":
        api.delete("evicting")
    elif end == "elsewhere":
        assert extender.schedule(evicting, "b") == ""
    else:
        nominate(extender, api, "evicting", "")
    extender.listen()
    assert extender.filter(both, "a")["NodeNames"] == ["a"]
    assert extender.cluster.contested == set()


def test_victims_make_room_beside_a_pod_that_was_there_before(extender: Extender, api: Api) -> None:
    for name in ("first", "second"):
        assert extender.schedule(_seen(extender, api, name, 80, priority=1), "a") == ""
    _seen(extender, api, "evicting", 70, priority=5)
    nominate(extender, api, "evicting", "a")
    extender.listen()
    pod = pod_object("p", share(70, 8), priority=5)
    body = {"Pod": pod, "NodeNameToMetaVictims": {"a": {"Pods": [{"UID": "uid-first"}]}}}
    victims = extender.call("preemption", body)["NodeNameToMetaVictims"]["a"]["Pods"]
    assert {entry["UID"] for entry in victims} == {"uid-first", "uid-second"}


def test_static_pods_are_no_victims(api: Api) -> None:
    extender = Extender(api)
    extender.cluster.keep_node(node_object("a"))
    static = pod_object("static", share(60, 8), nodeName="a", priority=0)
    static["metadata"]["annotations"]["kubernetes.io/config.mirror"] = "5f"
    api.create(static)
    api.create(pod_object("plain", share(20, 8), nodeName="a", priority=0))
    extender.listen()

    def victims(cores: int, *given: str) -> list[str] | None:
        asks = pod_object("asks", share(cores, 8), priority=5)
        body = {"Pod": asks, "NodeNameToMetaVictims": {"a": {"Pods": [{"UID": uid} for uid in given]}}}
        found = extender.call("preemption", body)["NodeNameToMetaVictims"]
        return [entry["UID"] for entry in found["a"]["Pods"]] if found else None

    # kubelet goes on with a static pod whatever becomes of the API server's copy.
    assert victims(40) == ["uid-plain"]
    assert victims(40, "uid-static") == ["uid-plain"]
    assert victims(60, "uid-static") is None
    assert victims(20, "uid-static") is None, "kube-scheduler takes no answer without victims"


def _urgent(extender: Extender, api: Api) -> dict[str, Any]:
    """A pod that others were evicted for, whose end the extender has not heard of."""
    for name in ("one", "other"):
        assert extender.schedule(_seen(extender, api, name, 60, priority=1), "a") == ""
    extender.listen()
    urgent = _seen(extender, api, "urgent", 70, priority=5)
    body = {"Pod": urgent, "NodeNameToMetaVictims": {"a": {"Pods": [{"UID": "uid-one"}]}}}
    assert extender.call("preemption", body)["NodeNameToMetaVictims"].keys() == {"a"}
    nominate(extender, api, "urgent", "a")
    for name in ("one", "other"):
        api.delete(name)
    return {**urgent, "status": {"nominatedNodeName": "a"}}


def test_leaving_victims_are_awaited_before_others_are_evicted(extender: Extender, api: Api) -> None:
    urgent = _urgent(extender, api)
    judged, judge = threading.Event(), extender.decider.filter

    def noticed(*arguments: Any) -> Any:
        found = judge(*arguments)
        judged.set()
        return found

    extender.decider.filter = noticed  # type: ignore[method-assign]
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(extender.filter, urgent, "a")
        assert judged.wait(30)
        extender.listen()
        assert answer.result()["NodeNames"] == ["a"]


def _rechecks(extender: Extender) -> list[str]:
    """Names of the pods that are woken now."""
    return [pod.name for pod in extender.service.recheck()]


@pytest.mark.parametrize("layout", Layout)
def test_pod_refused_before_the_news_came_is_woken_once(api: Api, layout: Layout) -> None:
    extender = Extender(api, layout=layout)
    extender.cluster.keep_node(node_object("a"))
    runs = api.create(pod_object("runs", share(60, 20), nodeName="a"))
    waits = api.create(pod_object("waits", share(60, 20)))
    extender.listen()
    # kube-scheduler has heard of the end of the one and tries the other; so far we have not.
    api.delete(runs["metadata"]["name"])
    assert extender.filter(waits, "a")["NodeNames"] == []
    extender.listen()
    assert _rechecks(extender) == [], "kube-scheduler may not be done with its answer"
    extender.clock.now += 1
    assert _rechecks(extender) == ["waits"]
    assert _rechecks(extender) == []


def test_pods_are_not_woken_for_nothing(api: Api) -> None:
    extender = Extender(api)
    extender.cluster.keep_node(node_object("a"))
    for name in ("runs", "waits", "gone", "late"):
        api.create(pod_object(name, share(60, 20), **({"nodeName": "a"} if name == "runs" else {})))
    extender.listen()
    for name in ("waits", "gone", "late"):
        assert extender.filter(api.pods[name], "a")["NodeNames"] == []
        extender.clock.now += 1
        assert _rechecks(extender) == [], "there is no room"
    api.delete("gone")
    extender.clock.now += 3
    api.delete("runs")
    extender.listen()
    assert extender.filter(api.pods["late"], "a")["NodeNames"] == ["a"], "kube-scheduler tries it anyway"
    assert _rechecks(extender) == [], "whoever waits for longer is not looked at again"


def test_the_end_of_a_pod_that_its_quota_counted_wakes_another(extender: Extender, api: Api) -> None:
    limits = (quota.Limit(cores=60),)
    extender.quotas.replace(quota.Quota(namespaces={"team": quota.NamespaceQuota(limits=limits)}))
    api.create(pod_object("runs", share(60, 20), nodeName="a"))
    waits = api.create(pod_object("waits", share(30, 20)))
    extender.listen()
    api.delete("runs")
    assert "quota" in extender.filter(waits, "a")["FailedAndUnresolvableNodes"]["a"]
    extender.listen()
    extender.clock.now += 1
    assert _rechecks(extender) == ["waits"]


def test_victims_that_take_their_time_are_not_waited_for(extender: Extender, api: Api) -> None:
    assert "needs 70 percent" in extender.schedule(_urgent(extender, api), "a")


def test_an_object_of_a_pod_is_read_once(extender: Extender, api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    assert extender.schedule(_seen(extender, api, "first", 20), "a") == ""  # the Lease is its own from here on
    pod = _seen(extender, api, "p", 60)
    read: list[object] = []
    plain = PodReader.read
    monkeypatch.setattr(PodReader, "read", lambda self, item: read.append(item) or plain(self, item))
    assert extender.schedule(pod, "a") == ""
    assert read == []
    # It is bound, and asked about once more: what is known of it is not what it asks for by this object.
    extender.listen()
    extender.filter(pod, "a")
    assert len(read) == 2


def test_each_version_of_a_pod_is_answered_by_what_it_says(extender: Extender, api: Api) -> None:
    extender.cluster.keep_node(node_object("b"))
    first = json.loads(json.dumps(_seen(extender, api, "p", 60)))
    avoids = {"kube-accel.io/avoid-gpu-uuid": ",".join(uuid("a", number) for number in range(2))}
    api.annotate("p", avoids)
    second = json.loads(json.dumps(api.pods["p"]))
    assert first["metadata"]["resourceVersion"] != second["metadata"]["resourceVersion"]
    for _ in range(2):
        assert extender.filter(second, "a", "b")["NodeNames"] == ["b"]
        assert extender.filter(first, "a", "b")["NodeNames"] == ["a", "b"]
        assert extender.filter(first, "a", "b")["NodeNames"] == ["a", "b"]
    extender.listen()
    assert extender.filter(first, "a", "b")["NodeNames"] == ["a", "b"]
    assert extender.filter(second, "a", "b")["NodeNames"] == ["b"]
