# SPDX-License-Identifier: Apache-2.0
"""Many pods at once, binds that fail, two extenders, restarts, news that come late: nothing is handed out twice."""

from __future__ import annotations

import json
import random
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from kube_accel.extender import node as node_module
from kube_accel.extender.binder import RESERVED_SECONDS
from kube_accel.extender.leader_lease import HOLD
from kube_accel.kube.api import ApiError, ApiRefusedError, ApiUnreachableError
from kube_accel.shared import quota
from kube_accel.sharing import inventory_annotation
from kube_accel.sharing.inventory_annotation import Holding
from unit.kube_accel.extender.world import GIB, Api, Clock, Extender, bound, node_object, pod_object, share, taken, uuid

NODES = ("a", "b", "c", "d")


def never_twice(api: Api) -> None:
    assert all(cores <= 100 and memory <= 80 * GIB for cores, memory in taken(api).values()), taken(api)


def fresh(api: Api, clock: Clock | None = None) -> Extender:
    extender = Extender(api, clock)
    for name in NODES:
        extender.cluster.keep_node(node_object(name, gpus=2))
    return extender


def test_fifty_pods_at_once_for_sixteen_slots() -> None:
    api = Api()
    extender = fresh(api)
    pods = [api.create(pod_object(f"p{number}", share(50, 20))) for number in range(50)]
    extender.listen()
    with ThreadPoolExecutor(50) as pool:
        answers = list(pool.map(lambda pod: extender.schedule(pod, *NODES), pods))
    # Some lost a race for the room they had found; kube-scheduler tries these again.
    answers = [extender.schedule(pod, *NODES) if answer else "" for pod, answer in zip(pods, answers, strict=True)]
    assert len(bound(api)) == 16
    never_twice(api)
    waiting = [pod for pod, answer in zip(pods, answers, strict=True) if answer]
    assert len(waiting) == 34
    assert all("needs 50 percent and 20 GiB on one GPU; best has 0 percent" in answer for answer in answers if answer)
    api.delete(bound(api)[0])
    extender.listen()
    assert extender.cluster.reservations == 0
    assert [extender.schedule(pod, *NODES) == "" for pod in waiting[:2]] == [True, False]
    never_twice(api)


def test_binds_that_fail_leave_nothing_behind() -> None:
    api = Api(fail=0.2)
    extender = fresh(api)
    pods = {name: api.create(pod_object(name, share(50, 20))) for name in (f"p{number}" for number in range(30))}
    extender.listen()
    with ThreadPoolExecutor(8) as pool:
        for _ in range(20):
            list(pool.map(lambda pod: extender.schedule(pod, *NODES), [pods[name] for name in {*pods} - {*bound(api)}]))
            extender.listen()
            never_twice(api)
    assert len(bound(api)) == 16
    assert extender.cluster.reservations == 0


def test_unanswered_bind_keeps_its_gpus_until_seen_or_expired() -> None:
    api, clock = Api(), Clock()
    extender = fresh(api, clock)
    assert extender.bind(api.create(pod_object("first", share(5, 1))), "a") != "", "not heard of yet"
    extender.listen()
    assert extender.bind(api.pods["first"], "a") == ""
    pod = api.create(pod_object("p", share(50, 20)))
    extender.listen()
    extender.lease.step()
    api.gone = True
    assert "not bound" in extender.bind(pod, "a")
    assert extender.cluster.reservations == 1
    assert extender.filter(pod_object("q", share(30, 8)), "a")["NodeNames"] == ["a"]
    clock.now += RESERVED_SECONDS
    with pytest.raises(ApiError, match="team/p"):
        extender.binder.expire()
    assert extender.cluster.reservations == 1, "nobody can say whether the pod is bound"
    api.gone = False
    clock.now -= 1
    extender.binder.expire()
    assert extender.cluster.reservations == 1
    clock.now += 1
    extender.binder.expire()
    assert extender.cluster.reservations == 0
    assert extender.filter(pod_object("q", share(30, 8)), "a")["NodeNames"] == ["a"]


def _unanswered(extender: Extender, name: str, node: str) -> None:
    """A bind that nobody answers: what was chosen for the pod stays kept."""
    extender.lease.step()
    extender.api.gone = True
    assert "not bound" in extender.bind(extender.api.pods[name], node)
    extender.api.gone = False
    assert extender.cluster.reservations == 1


def test_what_is_kept_for_a_pod_is_not_in_its_own_way() -> None:
    api = Api()
    extender = Extender(api)
    extender.cluster.keep_node(node_object("a"))
    low = api.create(pod_object("low", share(30, 8), priority=-1))
    api.create(pod_object("first", share(5, 1)))
    pod = api.create(pod_object("p", share(60, 20)))
    extender.listen()
    assert [extender.schedule(api.pods[name], "a") for name in ("low", "first")] == ["", ""]
    extender.listen()
    _unanswered(extender, "p", "a")
    other = extender.filter(pod_object("other", share(60, 20)), "a")
    assert "needs 60 percent" in other["FailedNodes"]["a"]
    assert extender.filter(pod, "a")["NodeNames"] == ["a"]
    body = {"Pod": pod, "NodeNameToMetaVictims": {"a": {"Pods": [{"UID": "uid-low"}]}}}
    assert extender.call("preemption", body)["NodeNameToMetaVictims"]["a"]["Pods"] == [{"UID": "uid-low"}]
    assert extender.bind(pod, "a") == ""
    extender.listen()
    assert low["spec"]["nodeName"] == pod["spec"]["nodeName"] == "a"


def test_reservation_does_not_count_against_its_own_quota() -> None:
    api = Api()
    extender = fresh(api)
    limits = quota.Limit(cores=60)
    extender.quotas.replace(quota.Quota(namespaces={"team": quota.NamespaceQuota(limits=(limits,))}))
    for name in ("first", "p", "other"):
        api.create(pod_object(name, share(5 if name == "first" else 50, 1)))
    extender.listen()
    assert extender.schedule(api.pods["first"], *NODES) == ""
    extender.listen()
    _unanswered(extender, "p", "b")
    assert extender.filter(api.pods["other"], *NODES)["NodeNames"] == []
    assert sorted(extender.filter(api.pods["p"], *NODES)["NodeNames"]) == list(NODES)


def test_bound_pods_gpus_stay_taken_while_the_watch_is_late() -> None:
    api, clock = Api(), Clock()
    extender = fresh(api, clock)
    for name in ("p", "q", "r"):
        api.create(pod_object(name, share(60, 20)))
    extender.listen()
    assert [extender.bind(api.pods[name], "a") for name in ("p", "q")] == ["", ""]
    for _ in range(int(RESERVED_SECONDS)):
        clock.now += 1
        extender.filter(api.pods["r"], "a")
        extender.binder.expire()
    assert extender.cluster.reservations == 0
    assert "needs 60 percent" in extender.bind(api.pods["r"], "a")
    api.delete("p")
    extender.listen()
    assert extender.bind(api.pods["r"], "a") == ""
    never_twice(api)


def test_a_pod_deleted_while_it_is_bound_leaves_nothing_behind() -> None:
    api = Api()
    extender = fresh(api)
    pod, other = (api.create(pod_object(name, share(50, 20))) for name in ("p", "other"))
    extender.listen()
    assert extender.bind(other, "a") == ""
    extender.listen()
    api.pods.clear()
    assert "404" in extender.bind(pod, "a")
    assert extender.cluster.reservations == 0


@pytest.mark.parametrize("seed", range(5))
def test_two_extenders_take_turns_though_both_hear_late(seed: int) -> None:
    """A turn goes to the other as with kube-scheduler's Lease: nobody calls for a while, then the new leader does."""
    api, clock, rng = Api(fail=0.1, rng=random.Random(seed)), Clock(), random.Random(seed)
    extenders = [fresh(api, clock) for _ in range(2)]
    pods = {name: api.create(pod_object(name, share(50, 20))) for name in (f"p{number}" for number in range(30))}
    for turn in range(40):
        clock.now += 3
        leader = extenders[turn % 2]
        for name in rng.sample(sorted(pods), 10):
            if name in bound(api):
                continue
            leader.schedule(pods[name], *NODES)
            leader.listen(rng.randrange(3))
        never_twice(api)
    assert len(bound(api)) == 16


@pytest.mark.parametrize("told", [True, False])
def test_an_extender_that_starts_again_knows_what_is_taken(told: bool) -> None:
    """From what kubelet has handed out or, where it has not yet, from the assignments."""
    api, clock = Api(), Clock()
    extender = fresh(api, clock)
    pods = [api.create(pod_object(f"p{number}", share(50, 20))) for number in range(20)]
    for pod in pods[:10]:
        assert extender.schedule(pod, *NODES) == ""
    again = fresh(api, clock)
    clock.now += HOLD
    if told:
        for node in NODES:
            held: dict[str, tuple[Holding, ...]] = {}
            for name in bound(api):
                for uuid in taken(Api(pods={name: api.pods[name]})):
                    if uuid.startswith(f"GPU-{node}-"):
                        held[uuid] = (*held.get(uuid, ()), Holding("team", name, "main", 50, 20 * GIB))
            again.cluster.keep_node(node_object(node, gpus=2, held=held))
    again.listen()
    for pod in pods[10:]:
        again.schedule(pod, *NODES)
    assert len(bound(api)) == 16
    never_twice(api)


class Histories(RuleBasedStateMachine):
    """Pods come, go, are tried and heard of in any order, on two nodes of two GPUs."""

    names = st.sampled_from([f"p{number}" for number in range(8)])

    @initialize(seed=st.integers(0, 5))
    def start(self, seed: int) -> None:
        self.api = Api(fail=0.2, rng=random.Random(seed))
        self.clock = Clock()
        self.extender = Extender(self.api, self.clock)
        self.count = 0
        for name in ("a", "b"):
            self.extender.cluster.keep_node(node_object(name, gpus=2))

    @rule(cores=st.sampled_from([5, 30, 50, 70, 100, 200]), gib=st.sampled_from([1, 20, 50]))
    def create(self, cores: int, gib: int) -> None:
        self.count += 1
        limits = share(cores, gib) if cores < 100 else {"tencent.com/vcuda-core": str(cores)}
        self.api.create(pod_object(f"p{self.count}", limits))

    @rule(data=st.data(), node=st.sampled_from("ab"))
    def try_pod(self, data: st.DataObject, node: str) -> None:
        if self.api.pods:
            pod = self.api.pods[data.draw(st.sampled_from(sorted(self.api.pods)))]
            if not pod["spec"].get("nodeName"):
                self.extender.filter(pod, "a", "b")
                self.extender.bind(pod, node)

    @rule(data=st.data())
    def delete(self, data: st.DataObject) -> None:
        if self.api.pods:
            self.api.delete(data.draw(st.sampled_from(sorted(self.api.pods))))

    @rule(data=st.data(), uuid=st.sampled_from(["GPU-a-0", "GPU-b-1", "GPU-none"]))
    def forge(self, data: st.DataObject, uuid: str) -> None:
        """A tenant says that a pod of theirs, which waits, has been assigned something."""
        waiting = [name for name, pod in self.api.pods.items() if not pod["spec"].get("nodeName")]
        if waiting:
            containers = {"main": [{"uuid": uuid, "cores": 0, "memoryBytes": 0}]}
            text = json.dumps({"version": 1, "node": "a", "containers": containers})
            self.api.annotate(data.draw(st.sampled_from(waiting)), {"kube-accel.io/assignment": text})

    @rule(events=st.integers(1, 5))
    def listen(self, events: int) -> None:
        self.extender.listen(events)

    @rule(seconds=st.sampled_from([1.0, 30.0, RESERVED_SECONDS]))
    def wait(self, seconds: float) -> None:
        """What happened may be heard of long after a reservation ends."""
        self.clock.now += seconds
        self.extender.binder.expire()

    @rule()
    def restart(self) -> None:
        again = Extender(self.api, self.clock)
        for name in ("a", "b"):
            again.cluster.keep_node(node_object(name, gpus=2))
        again.listen()
        self.clock.now += HOLD
        self.extender = again

    @invariant()
    def nothing_is_handed_out_twice(self) -> None:
        never_twice(self.api)
        for node in self.extender.cluster.nodes.values():
            view = node.view()
            assert view is not None
            for gpu in view.gpus:
                assert gpu.used.cores <= 100
                assert gpu.used.memory_bytes <= gpu.gpu.memory_bytes

    def teardown(self) -> None:
        self.extender.listen()
        self.clock.now += RESERVED_SECONDS
        self.extender.binder.expire()
        assert self.extender.cluster.reservations == 0
        counted = sum(len(node.pods) for node in self.extender.cluster.nodes.values())
        assert counted == len(bound(self.api))


Histories.TestCase.settings = settings(max_examples=60, stateful_step_count=40)
TestHistories = Histories.TestCase


class Frozen(BaseException):
    """Whoever sends does not go on."""


class Rivals(RuleBasedStateMachine):
    """Two extenders that are called whenever anybody likes, each for a kube-scheduler that takes itself for the leader.

    Extenders freeze over a bind, answers are lost, binds arrive late, and news later still. Pods refuse to be changed.
    """

    which = st.sampled_from([0, 1])

    @initialize()
    def start(self) -> None:
        self.api, self.clock = Api(), Clock()
        self.extenders = [self.another() for _ in range(2)]
        self.count = 0

    def another(self) -> Extender:
        extender = Extender(self.api, self.clock)
        for name in ("a", "b"):
            extender.cluster.keep_node(node_object(name, gpus=2))
        return extender

    @rule()
    def create(self) -> None:
        self.count += 1
        self.api.create(pod_object(f"p{self.count}", share(60, 50)))

    @rule(data=st.data())
    def delete(self, data: st.DataObject) -> None:
        if bound(self.api):
            self.api.delete(data.draw(st.sampled_from(bound(self.api))))

    @rule(
        data=st.data(),
        which=which,
        node=st.sampled_from("ab"),
        fate=st.sampled_from([None, None, Frozen(), ApiUnreachableError("no answer")]),
        asks=st.booleans(),
    )
    def bind(self, data: st.DataObject, which: int, node: str, fate: BaseException | None, asks: bool) -> None:
        waiting = sorted(set(self.api.pods) - set(bound(self.api)))
        if waiting:
            extender, pod = self.extenders[which], self.api.pods[data.draw(st.sampled_from(waiting))]
            extender.filter(pod, "a", "b")
            extender.lease.asks, self.api.holds = asks, fate
            with suppress(Frozen):
                extender.bind(pod, node)
            extender.lease.asks, self.api.holds = True, None

    @rule(data=st.data())
    def refuse(self, data: st.DataObject) -> None:
        """A pod cannot be changed from now on, or can be again."""
        if self.api.pods:
            name = data.draw(st.sampled_from(sorted(self.api.pods)))
            if self.api.stubborn.pop(name, None) is None:
                self.api.stubborn[name] = ApiRefusedError(403, "denied")

    @rule()
    def deliver(self) -> None:
        self.api.deliver()

    @rule(which=which, events=st.integers(1, 5))
    def listen(self, which: int, events: int) -> None:
        self.extenders[which].listen(events)

    @rule(which=which, seconds=st.sampled_from([1.0, HOLD, RESERVED_SECONDS]))
    def wait(self, which: int, seconds: float) -> None:
        self.clock.now += seconds
        with suppress(ApiError):
            self.extenders[which].binder.expire()
        self.extenders[which].lease.retry_unfenced()
        with suppress(ApiError):
            self.extenders[1 - which].lease.step()

    @rule(which=which, ends=st.booleans())
    def restart(self, which: int, ends: bool) -> None:
        if ends:
            self.extenders[which].lease.release()
        self.extenders[which] = self.another()
        self.extenders[which].listen()

    @invariant()
    def nothing_is_handed_out_twice(self) -> None:
        never_twice(self.api)

    def teardown(self) -> None:
        """Whoever is called in the end binds as much as there is room for."""
        self.api.deliver()
        self.create()
        self.api.stubborn.clear()
        for extender in self.extenders:
            extender.listen()
            extender.lease.retry_unfenced()
            self.clock.now += HOLD
            for pod in [pod for name, pod in self.api.pods.items() if name not in bound(self.api)]:
                extender.schedule(pod, "a", "b")
                extender.listen()
            self.clock.now += RESERVED_SECONDS
            extender.binder.expire()
            assert extender.cluster.reservations == 0
            for pod in [pod for name, pod in self.api.pods.items() if name not in bound(self.api)]:
                extender.schedule(pod, "a", "b")
                extender.listen()
            never_twice(self.api)
            assert len(bound(self.api)) == min(len(self.api.pods), 4)


Rivals.TestCase.settings = settings(max_examples=80, stateful_step_count=50)
TestRivals = Rivals.TestCase


def test_bind_unknown_to_the_next_holder_counts() -> None:
    api, clock = Api(), Clock()
    first, second = fresh(api, clock), fresh(api, clock)
    seen = api.create(pod_object("seen", share(60, 20)))
    second.listen()
    unheard = api.create(pod_object("unheard", share(60, 20)))
    first.listen()
    api.holds = Frozen()
    with suppress(Frozen):
        first.bind(unheard, "a")
    api.holds = None
    second.lease.step()
    clock.now += HOLD
    assert second.bind(seen, "a") == ""
    api.deliver()
    never_twice(api)
    assert bound(api) == ["seen"]


REFUSALS = [
    pytest.param(ApiRefusedError(403, "admission webhook denied the request"), id="refused"),
    pytest.param(ApiRefusedError(429, "too many requests"), id="busy"),
    pytest.param(ApiRefusedError(500, "failed calling webhook"), id="broken"),
    pytest.param(ApiUnreachableError("timed out"), id="silent"),
]


def frozen_leader(api: Api, clock: Clock, *stubborn: str) -> tuple[Extender, Extender]:
    """An extender that froze over the bind of a pod of 60 %, and the one that takes over. No pod named is changed."""
    first, second = fresh(api, clock), fresh(api, clock)
    for name in ("late", *(f"p{number}" for number in range(20))):
        api.create(pod_object(name, share(60, 20)))
    for extender in (first, second):
        extender.listen()
    api.holds = Frozen()
    with suppress(Frozen):
        first.bind(api.pods["late"], "a")
    api.holds = None
    api.stubborn = dict.fromkeys(stubborn, REFUSALS[0].values[0])  # type: ignore[arg-type]
    second.lease.step()
    clock.now += HOLD
    return first, second


def test_busy_api_server_leaves_no_pod_behind() -> None:
    api, clock = Api(), Clock()
    _, second = frozen_leader(api, clock)
    api.throttled = 3
    small = api.create(pod_object("small", share(40, 20)))
    second.listen()
    assert second.bind(small, "a") == ""
    assert api.throttled == 0
    waiting = [pod for name, pod in api.pods.items() if name != "small"]
    assert {second.filter(pod, *NODES)["Error"] for pod in waiting} == {""}


@pytest.mark.parametrize("error", REFUSALS)
def test_unchangeable_pod_blocks_none_and_keeps_its_gpus(error: ApiError) -> None:
    api, clock = Api(), Clock()
    _, second = frozen_leader(api, clock, "late")
    api.stubborn["late"] = error
    small = api.create(pod_object("small", share(40, 20)))
    second.listen()
    assert second.bind(small, "a") == ""
    assert "needs 60 percent" in second.bind(api.pods["p0"], "a")
    assert str(error) in second.filter(api.pods["late"], *NODES)["Error"]
    assert str(error) in second.bind(api.pods["late"], "a")
    api.deliver()
    assert bound(api) == ["late", "small"]
    never_twice(api)
    second.lease.retry_unfenced()
    second.listen()
    assert second.bind(api.pods["p0"], "b") == ""
    never_twice(api)


def test_room_is_left_for_a_pod_until_it_changes_or_is_gone() -> None:
    api, clock = Api(), Clock()
    _, second = frozen_leader(api, clock, "late", "p1")
    assert second.bind(api.pods["p0"], "a") != ""
    second.lease.retry_unfenced()
    assert second.bind(api.pods["p0"], "a") != "", "nothing has changed"
    api.annotate("late", {"status": "tried"})
    api.delete("p1")
    second.lease.retry_unfenced()
    second.listen()
    assert second.bind(api.pods["p0"], "a") == ""
    assert second.bind(api.pods["late"], "b") == "", "though it cannot be changed still"
    api.deliver()
    never_twice(api)


def test_takeover_tried_again_does_not_change_pods_twice() -> None:
    api, clock = Api(), Clock()
    _, second = frozen_leader(api, clock)
    before = api.changes
    second.lease._pause = lambda: setattr(clock, "now", clock.now + 1)
    assert "behind" in second.bind(api.pods["p0"], "a")
    assert api.changes == before + 21
    second.lease._pause = lambda: second.listen(1)
    assert second.bind(api.pods["p0"], "a") == ""
    assert api.changes == before + 22, "one carries the mark that is waited for"


def test_full_annotation_does_not_keep_a_pod_from_being_changed() -> None:
    """The API server takes 256 KiB of annotations in all."""
    api, clock = Api(), Clock()
    _, second = frozen_leader(api, clock)
    before = {name: dict(pod["metadata"]["annotations"]) for name, pod in api.pods.items()}
    second.lease.called()
    second.lease.step()
    assert {name: pod["metadata"]["annotations"] for name, pod in api.pods.items()} == before


def test_a_reservation_that_cannot_be_ended_holds_no_other_up() -> None:
    api, clock = Api(), Clock()
    extender = fresh(api, clock)
    names = ["first", "second", "third"]
    for name in names:
        api.create(pod_object(name, share(60, 20)))
    extender.listen()
    extender.lease.called()
    extender.lease.step()
    extender.lease.step()
    extender.lease.asks = False
    api.holds = ApiUnreachableError("no answer")
    api.stubborn = dict.fromkeys(names, ApiRefusedError(403, "denied"))
    assert all("no answer" in extender.bind(api.pods[name], "a") for name in names[:2])
    assert "no answer" in extender.bind(api.pods["third"], "b")
    clock.now += RESERVED_SECONDS
    del api.stubborn["second"], api.stubborn["third"]
    with pytest.raises(ApiError, match=r"team/first.*denied"):
        extender.binder.expire()
    assert extender.cluster.reservations == 1
    api.annotate("first", {"status": "tried"})
    extender.binder.expire()
    assert extender.cluster.reservations == 0, "a bind sent before that comes to nothing"


def test_a_quota_holds_while_a_nodes_news_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    api = Api()
    extender = fresh(api)
    extender.quotas.replace(quota.parse("{version: 1, namespaces: {team: {limits: [{cores: 50}]}}}"))
    first, second = (api.create(pod_object(name, share(50, 20))) for name in ("first", "second"))
    extender.listen()
    assert extender.schedule(first, *NODES) == ""
    seen = []

    def decode(text: str) -> inventory_annotation.NodeInventory:
        seen.append(sorted(extender.quotas.limits(extender.cluster.pods[second["metadata"]["uid"]], NODES)))
        return inventory_annotation.decode(text)

    monkeypatch.setattr(node_module, "decode", decode)
    held = {uuid("a", 0): (Holding("team", "first", "main", 50, 20 * GIB),)}
    extender.cluster.keep_node(node_object("a", gpus=2, held=held))
    assert seen == [list(NODES)]
