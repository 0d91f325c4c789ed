# SPDX-License-Identifier: Apache-2.0
"""What is kept for pods in the layout proxied, where anyone may ask: on one node, for a minute, then after a pause."""

from __future__ import annotations

import random
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kube_accel.extender.binder import RESERVED_SECONDS
from kube_accel.extender.keeper import BIND_SECONDS, FIRST_PAUSE, LONGEST_PAUSE, pause
from kube_accel.extender.service import Layout
from kube_accel.model import GpuHealth, Health
from unit.kube_accel.extender.world import Api, Clock, Extender, bound, node_object, pod_object, share, uuid

NODES = ("a", "b", "c")
GATED = {"schedulingGates": [{"name": "example.com/quota"}]}


@pytest.fixture
def api() -> Api:
    return Api()


@pytest.fixture
def extender(api: Api) -> Extender:
    return proxied(api)


def proxied(api: Api) -> Extender:
    found = Extender(api, Clock(), Layout.PROXIED)
    for name in NODES:
        found.cluster.keep_node(node_object(name))
    return found


def waiting(extender: Extender, name: str, cores: int = 60, **spec: Any) -> dict[str, Any]:
    """A pod that the extender has heard of."""
    item = extender.api.create(pod_object(name, share(cores, 8), **spec))
    extender.listen()
    return item


def later(extender: Extender, seconds: float) -> None:
    extender.clock.now += seconds
    extender.binder.expire()


def kept(extender: Extender, name: str) -> list[str]:
    """The nodes where something is kept for a pod."""
    return [node.name for node in extender.cluster.nodes.values() if f"uid-{name}" in node.reserved]


@pytest.mark.attack
@pytest.mark.parametrize("being_deleted", [False, True])
def test_pod_that_is_not_to_be_scheduled_gets_nothing(extender: Extender, api: Api, being_deleted: bool) -> None:
    item = pod_object("held", share(60, 8), **({} if being_deleted else GATED))
    if being_deleted:
        item["metadata"] |= {"deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": ["example.com/wait"]}
    api.create(item)
    extender.listen()
    claims = pod_object("held", share(60, 8))
    assert "not known to wait" in extender.filter(claims, *NODES)["Error"]
    assert extender.cluster.reservations == 0


def test_pod_gets_gpus_once_its_last_gate_is_gone(extender: Extender, api: Api) -> None:
    item = waiting(extender, "p", **GATED)
    del item["spec"]["schedulingGates"]
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(extender.filter, item, *NODES)  # kube-scheduler has heard of it first
        api.annotate("p", {})
        extender.listen()
        assert answer.result()["NodeNames"] == kept(extender, "p")


def test_second_attempt_within_the_time_gets_the_same_node(extender: Extender) -> None:
    item = waiting(extender, "p")
    first = extender.filter(item, *NODES)["NodeNames"]
    later(extender, RESERVED_SECONDS - BIND_SECONDS)
    assert extender.filter(item, *reversed(NODES))["NodeNames"] == first == kept(extender, "p")


@pytest.mark.attack
@pytest.mark.parametrize("others", [True, False])
def test_call_without_the_kept_node_drops_and_moves_nothing(extender: Extender, others: bool) -> None:
    victim, rival = waiting(extender, "victim"), waiting(extender, "rival")
    (node,) = extender.filter(victim, *NODES)["NodeNames"]
    names = [name for name in NODES if others and name != node]
    assert f"GPUs on {node} are reserved for pod team/victim" in extender.filter(victim, *names)["Error"]
    assert kept(extender, "victim") == [node]
    assert extender.filter(rival, node)["NodeNames"] == []
    assert extender.filter(victim, *NODES)["NodeNames"] == [node]


@pytest.mark.attack
def test_asking_again_does_not_put_the_end_off(extender: Extender) -> None:
    greedy, neighbour = waiting(extender, "greedy"), waiting(extender, "neighbour")
    extender.filter(greedy, "a")
    for _ in range(int(RESERVED_SECONDS)):
        assert extender.filter(neighbour, "a")["NodeNames"] == []
        extender.filter(greedy, "a")
        later(extender, 1)
    assert kept(extender, "greedy") == []
    assert extender.filter(neighbour, "a")["NodeNames"] == ["a"]


def test_nobody_is_sent_to_gpus_whose_time_is_nearly_over(extender: Extender) -> None:
    item = waiting(extender, "p")
    extender.filter(item, *NODES)
    later(extender, RESERVED_SECONDS - BIND_SECONDS / 2)
    assert "try again" in extender.filter(item, *NODES)["Error"]
    assert kept(extender, "p") != []


def test_pod_that_was_not_bound_is_scheduled_after_the_pause(extender: Extender, api: Api) -> None:
    item = waiting(extender, "p")
    extender.filter(item, *NODES)
    later(extender, RESERVED_SECONDS)
    assert "was not bound" in extender.filter(item, *NODES)["Error"]
    later(extender, FIRST_PAUSE)
    (node,) = extender.filter(item, *NODES)["NodeNames"]
    api.pods["p"]["spec"]["nodeName"] = node
    api.annotate("p", {})
    extender.listen()
    assert (bound(api), extender.cluster.reservations) == (["p"], 0)


def test_pauses_double_and_have_an_end() -> None:
    found = [pause(times) for times in range(1, 100)]
    assert found[:3] == [FIRST_PAUSE, 2 * FIRST_PAUSE, 4 * FIRST_PAUSE]
    assert found == sorted(found)
    assert max(found) == LONGEST_PAUSE


def test_unhealthy_reservation_is_replaced_until_the_same_end(extender: Extender) -> None:
    item = waiting(extender, "p")
    (before,) = extender.filter(item, *NODES)["NodeNames"]
    later(extender, 30)
    broken = {uuid(before, 0): GpuHealth(Health.UNHEALTHY, "XID 79", "reset it")}
    extender.cluster.keep_node(node_object(before, health=broken))
    (after,) = extender.filter(item, *NODES)["NodeNames"]
    assert before != after
    assert kept(extender, "p") == [after]
    later(extender, RESERVED_SECONDS - 30)
    assert kept(extender, "p") == []


@pytest.mark.attack
def test_two_calls_at_once_keep_one_node_for_a_pod(extender: Extender) -> None:
    """Otherwise what the first has kept would be forgotten, and never be given back."""
    item, meeting, release = waiting(extender, "p"), threading.Barrier(2), extender.cluster.release

    def together(uid: str) -> None:
        release(uid)
        with suppress(threading.BrokenBarrierError):
            meeting.wait(0.5)

    extender.cluster.release = together  # type: ignore[method-assign]
    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(lambda name: extender.filter(item, name)["NodeNames"], NODES[:2]))
    assert [kept(extender, "p"), None] == sorted(found, key=lambda names: names is None)


Call = tuple[float, int, tuple[str, ...]]
CALLS = st.lists(
    st.tuples(
        st.sampled_from([0.0, 1.0, 9.0, 14.0, 31.0, 59.0, 61.0, 200.0]),
        st.integers(0, 2),
        st.sets(st.sampled_from(NODES)).map(lambda names: tuple(sorted(names))),
    ),
    max_size=60,
)


@pytest.mark.attack
@settings(max_examples=150, deadline=None)
@given(calls=CALLS)
def test_calls_reserve_one_node_for_a_minute_between_pauses(calls: list[Call]) -> None:
    """Three pods call after any pauses, with any nodes."""
    extender = proxied(Api())
    items = [waiting(extender, f"p{number}") for number in range(3)]
    began: dict[str, float] = {}
    ended: dict[str, float] = {}
    times: dict[str, int] = {}
    for seconds, which, names in calls:
        for _ in range(int(seconds)):
            later(extender, 1)
            for name, since in list(began.items()):
                if not kept(extender, name):
                    ended[name] = extender.clock.now
                    del began[name]
                assert extender.clock.now - since <= RESERVED_SECONDS
        name = f"p{which}"
        before = kept(extender, name)
        answer = extender.filter(items[which], *names)
        now = kept(extender, name)
        assert len(now) <= 1
        assert now == before or not before
        if answer["NodeNames"]:
            assert answer["NodeNames"] == now
        if now and not before:
            assert extender.clock.now >= ended.get(name, float("-inf")) + pause(times.get(name, 0))
            began[name], times[name] = extender.clock.now, times.get(name, 0) + 1
        for node in extender.cluster.nodes.values():
            view = node.view()
            assert view is not None
            assert all(gpu.used.cores <= 100 for gpu in view.gpus)


@pytest.mark.attack
def test_pods_are_bound_while_strangers_ask_for_them_all(extender: Extender, api: Api) -> None:
    """kube-scheduler's own calls come among those of strangers, who name any nodes but never bind."""
    rng = random.Random(7)
    items = [waiting(extender, f"p{number}") for number in range(3)]
    for _ in range(600):
        item = items[rng.randrange(3)]
        extender.filter(item, *rng.sample(NODES, rng.randrange(4)))
        later(extender, 1)
        if rng.random() < 0.3:
            item = next((each for each in items if not each["spec"].get("nodeName")), item)
            answer = extender.filter(item, *NODES)
            if answer["NodeNames"] and not item["spec"].get("nodeName"):
                assert kept(extender, item["metadata"]["name"]) == answer["NodeNames"]
                item["spec"]["nodeName"] = answer["NodeNames"][0]
                api.annotate(item["metadata"]["name"], {})
                extender.listen()
    assert bound(api) == ["p0", "p1", "p2"]
    assert extender.cluster.reservations == 0
