# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import os
import threading
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest

from kube_accel.enforce import policy as layouts
from kube_accel.enforce.containers import Containers, key_of
from kube_accel.enforce.overrides import Override
from kube_accel.enforce.policy import Feedback, Limit, Policy
from kube_accel.kube.cgroups import Place
from kube_accel.model import GpuUsage, Mode, Share
from kube_accel.plugin.allocation.ledger import Ledger
from kube_accel.plugin.allocation.pods import NodePods
from kube_accel.plugin.kubelet.holdings import Holder
from kube_accel.plugin.tenancy.running import keys_of
from kube_accel.plugin.tenancy.tenants import Processes, Rules, Tenants
from kube_accel.sharing.fraction import Kind
from kube_accel.sharing.profile import PROFILES
from unit.kube_accel.plugin.fakes import inventory, uuid

GIB = 1 << 30
PROFILE = PROFILES[Mode.VGPU]
CARD = uuid(0)
ID = "0123456789abcdef" * 4


class World:
    """A node's tenants, with what is around them made up."""

    def __init__(self, root: Path) -> None:
        self.containers = Containers(root, root / "sys")
        self.ledger = Ledger(root, Mode.VGPU)
        self.pods = NodePods(PROFILE, "node")
        self.reported: list[tuple[str, str, str]] = []
        self.asked: list[tuple[str, ...]] = []
        self.usage: Mapping[str, GpuUsage] | None = {}
        self.places: dict[int, Place] = {}
        self.gpus = {gpu.uuid: gpu for gpu in inventory(2).gpus}
        self.held: dict[Holder, tuple[Share, ...]] = {}
        self.devices: dict[Holder, dict[Kind, frozenset[str]]] = {}
        self.specs: dict[str, dict[str, Any]] = {}
        self.tenants = self.successor()

    def successor(self, cores: bool = True) -> Tenants:
        processes, rules = Processes(self.ask, self.places.get), Rules(cores, 64 << 20)
        return Tenants(self.containers, self.ledger, self.pods, processes, rules, self.report)

    def ask(self, uuids: Collection[str], timeout: float) -> Mapping[str, GpuUsage] | None:
        self.asked.append(tuple(uuids))
        return self.usage

    def report(self, holder: Holder, reason: str, message: str) -> None:
        self.reported.append((holder.pod, reason, message))

    def pod(
        self, name: str, gib: int = 4, cores: int = 30, card: str = CARD, containers: tuple[str, ...] = ("main",)
    ) -> None:
        limits = {PROFILE.core_resource: str(cores), PROFILE.memory_resource: str(gib * 4)}
        self.specs[name] = {
            "nodeName": "node",
            "containers": [{"name": each, "resources": {"limits": limits}} for each in containers],
        }
        self.hear(name)
        for each in containers:
            holder = Holder("team", name, each)
            self.held[holder] = (Share(card, cores, gib * GIB),)
            self.devices[holder] = {
                Kind.MEMORY: frozenset(f"{card}::m{name}{each}{number}" for number in range(gib * 4)),
                Kind.CORES: frozenset(f"{card}::c{name}{each}{number}" for number in range(cores)),
            }
            self.start(holder)
        self.list()

    def hear(self, name: str, static: str = "") -> None:
        """The API server tells of a pod; of a static one with what kubelet calls it."""
        ids = {entry["name"]: self.id(name, entry["name"]) for entry in self.specs[name]["containers"]}
        statuses = [{"name": each, "containerID": f"containerd://{found}"} for each, found in ids.items()]
        metadata = {"uid": self.uid(name), "namespace": "team", "name": name}
        if static:
            metadata |= {"annotations": {"kubernetes.io/config.hash": static}}
        self.pods.keep({"metadata": metadata, "spec": self.specs[name], "status": {"containerStatuses": statuses}})

    @staticmethod
    def uid(name: str) -> str:
        return f"uid-{name}"

    @staticmethod
    def id(name: str, container: str) -> str:
        return f"id-{name}-{container}"

    def key(self, name: str, container: str = "main") -> str:
        return key_of(self.devices[Holder("team", name, container)][Kind.MEMORY])

    def start(self, holder: Holder) -> None:
        key = self.key(holder.pod, holder.container)
        self.containers.prepare(key, "build")

        def write(limits: tuple[Limit, ...]) -> None:
            self.containers.start(key, Policy(limits))

        self.tenants.start(holder, key, self.held[holder], write)
        self.ledger.record(holder, self.uid(holder.pod), self.held[holder])

    def list(self) -> None:
        self.tenants.listed(self.devices, self.held, self.gpus)
        self.ledger.reconcile(self.held, lambda holder: self.uid(holder.pod))

    def policy(self, name: str, container: str = "main") -> Policy:
        found = self.containers.policy(self.key(name, container))
        assert found is not None
        return found

    def write_state(self, name: str, offset: int, value: int) -> None:
        """As a process in the container does it."""
        with self.containers.state_path(self.key(name)).open("r+b") as file:
            os.pwrite(file.fileno(), value.to_bytes(8, "little"), 64 + offset)

    def process(self, pid: int, name: str, container: str = "main") -> None:
        self.places[pid] = Place(self.uid(name), self.id(name, container))

    def refusals(self) -> dict[tuple[str, str], int]:
        return {(row.allocation.holder.pod, row.reason): row.count for row in self.ledger.refusals(running=False)}


USED, LIMIT, DEVICE, BUSY = 0, 16, 24, 80


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_limits_are_those_of_the_devices(world: World) -> None:
    world.pod("a")
    assert world.policy("a").limits == (Limit(CARD, 4 * GIB, 30, 0, 64 << 20),)
    world.tenants.tick()
    assert world.policy("a").limits == (Limit(CARD, 4 * GIB, 30, 0, 64 << 20),)


def test_cores_are_left_to_mps_where_it_limits_them(world: World) -> None:
    world.tenants = world.successor(cores=False)
    world.pod("a")
    assert world.policy("a").limits[0].cores == 0


def test_limited_containers_gpu_is_asked_about(world: World) -> None:
    world.pod("whole", cores=100, card=uuid(1))
    world.tenants.tick()
    assert world.asked == []
    world.pod("a")
    world.tenants.tick()
    assert world.asked == [(CARD,)]
    assert world.policy("whole").feedback == ()


def test_seen_memory_counts_the_same_alone_and_with_a_neighbor(world: World) -> None:
    world.pod("a")
    world.process(1, "a")
    world.usage = {CARD: GpuUsage({1: 2 * GIB}, {1: 40})}
    world.write_state("a", USED, GIB)
    for _ in range(2):
        world.tenants.tick()
    alone = world.policy("a").feedback
    assert alone == (Feedback(GIB, 400, 0),)
    world.pod("b")
    for _ in range(2):
        world.tenants.tick()
    assert world.policy("a").feedback == alone


def test_containers_are_shown_their_own_and_others_use(world: World) -> None:
    world.pod("a")
    world.pod("b", containers=("x", "y"))
    for pid, name, container in ((1, "a", "main"), (2, "a", "main"), (3, "b", "x"), (4, "b", "y")):
        world.process(pid, name, container)
    world.usage = {CARD: GpuUsage({1: GIB, 2: GIB, 3: 2 * GIB, 4: GIB, 9: GIB}, {1: 10, 2: 5, 3: 40, 9: 7})}
    world.write_state("a", USED, GIB)
    world.tenants.tick()
    assert world.policy("a").feedback == (Feedback(0, 150, 470),)
    world.tenants.tick()
    assert world.policy("a").feedback == (Feedback(GIB, 150, 470),)
    assert world.policy("b", "x").feedback == (Feedback(2 * GIB, 400, 220),)
    assert world.policy("b", "y").feedback == (Feedback(GIB, 0, 620),)
    assert world.policy("a").feedback_at_ns > 0


def test_successor_writes_nothing_before_it_knows_the_pods(world: World) -> None:
    for name in ("a", "b"):
        world.pod(name)
    world.process(1, "a")
    world.usage = {CARD: GpuUsage({1: 2 * GIB}, {1: 40})}
    for _ in range(2):
        world.tenants.tick()
    before = world.policy("a")
    assert before.feedback == (Feedback(2 * GIB, 400, 0),)
    world.pods = NodePods(PROFILE, "node")
    world.tenants = world.successor()
    world.list()
    world.tenants.tick()
    assert world.policy("a") == before
    for name in ("a", "b"):
        world.hear(name)
    for _ in range(2):
        world.tenants.tick()
    assert world.policy("a").feedback == (Feedback(2 * GIB, 400, 0),)
    assert world.policy("b").feedback == (Feedback(0, 0, 400),)


def test_recreated_pod_with_same_devices_gets_its_own_feedback(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a", "b"):
        world.pod(name)
    world.tenants.tick()
    monkeypatch.setattr(World, "uid", staticmethod(lambda name: f"uid-{name}-anew"))
    world.hear("a")
    world.process(1, "a")
    world.usage = {CARD: GpuUsage({1: GIB}, {1: 40})}
    world.tenants.tick()
    assert world.policy("a").feedback == (Feedback(0, 400, 0),)


def test_static_pods_are_known_by_what_kubelet_calls_them(world: World) -> None:
    for name in ("a", "b"):
        world.pod(name)
    world.hear("a", static="5f" * 16)
    world.places[1] = Place("-".join("5f" * n for n in (4, 2, 2, 2, 6)), world.id("a", "main"))
    world.usage = {CARD: GpuUsage({1: GIB}, {1: 40})}
    world.tenants.tick()
    assert world.policy("a").feedback == (Feedback(0, 400, 0),)


def test_nothing_is_written_until_something_runs(world: World) -> None:
    world.pod("a")
    world.pod("b")
    world.process(1, "a")
    world.usage = {CARD: GpuUsage({}, {})}
    world.tenants.tick()
    told = world.policy("a")
    assert told.feedback == (Feedback(0, 0, 0),)
    assert not world.tenants.tick()
    assert world.policy("a") == told
    world.usage = {CARD: GpuUsage({1: GIB}, {1: 20})}
    world.tenants.tick()
    assert world.policy("a").feedback == (Feedback(0, 200, 0),)
    assert world.policy("b").feedback == (Feedback(0, 0, 200),)
    world.tenants.tick()
    assert world.policy("a").feedback == (Feedback(GIB, 200, 0),)
    at = world.policy("b").feedback_at_ns
    assert world.tenants.tick()
    assert world.policy("b").feedback_at_ns > at


class Clockwork(threading.Event):
    """Does not wait, and remembers how long it should have."""

    asked: ClassVar[list[float]] = []

    def wait(self, timeout: float | None = None) -> bool:
        assert timeout is not None
        self.asked.append(timeout)
        return False


@pytest.mark.parametrize(("running", "most"), [(GpuUsage({1: GIB}, {1: 20}), 1.0), (GpuUsage({}, {}), 3.0)])
def test_feedback_stays_young_while_something_runs(
    world: World, monkeypatch: pytest.MonkeyPatch, running: GpuUsage, most: float
) -> None:
    world.pod("a")
    world.pod("b")
    world.usage = {CARD: running}
    world.tenants.tick()
    monkeypatch.setattr(Clockwork, "asked", [])
    monkeypatch.setattr(world.tenants, "_wake", Clockwork())
    stop = Clockwork()
    monkeypatch.setattr(stop, "is_set", lambda: len(world.asked) >= 4)
    world.tenants.run(stop)
    assert most - 1 < sum(Clockwork.asked) / 3 <= most


def test_what_nvml_does_not_tell_is_unknown_and_not_nothing(world: World) -> None:
    world.pod("a")
    world.pod("b")
    world.process(1, "a")
    world.usage = {CARD: GpuUsage({1: None}, None)}
    world.tenants.tick()
    assert world.policy("a").feedback == ()
    world.usage = None
    at = world.policy("a").feedback_at_ns
    world.tenants.tick()
    assert world.policy("a").feedback_at_ns == at


def test_lone_container_with_soft_cores_is_told_it_is_alone(world: World) -> None:
    world.pod("a")
    world.tenants.override([Override("team.a.main", soft_cores=90)])
    world.tenants.tick()
    world.tenants.tick()
    assert world.policy("a").limits[0].soft_cores == 90
    assert world.policy("a").feedback == (Feedback(others_permille=0),)
    world.usage = {CARD: GpuUsage({9: GIB}, {9: 40})}
    world.tenants.tick()
    assert world.policy("a").feedback == (Feedback(0, 0, 0),)
    world.usage = {CARD: GpuUsage({9: GIB}, None)}
    world.tenants.tick()
    assert world.policy("a").feedback == (Feedback(0, None, 0),)


def test_override_reaches_a_running_container_and_leaves_it(world: World) -> None:
    world.pod("a")
    world.tenants.override([Override("team.a.main", GIB, 10)])
    world.tenants.tick()
    assert world.policy("a").limits == (Limit(CARD, GIB, 10, 0, 64 << 20),)
    world.start(Holder("team", "a", "main"))
    assert world.policy("a").limits == (Limit(CARD, GIB, 10, 0, 64 << 20),)
    world.tenants.override([])
    world.tenants.tick()
    assert world.policy("a").limits == (Limit(CARD, 4 * GIB, 30, 0, 64 << 20),)


def test_half_written_policy_is_completed(world: World) -> None:
    world.pod("alone")
    path = world.containers.policy_path(world.key("alone"))
    with path.open("r+b") as file:
        os.pwrite(file.fileno(), (3).to_bytes(4, "little"), layouts.GENERATION_OFFSET)
    world.tenants.tick()
    assert layouts.read_policy(path.read_bytes())[1] == 4


def test_override_without_room_is_reported_and_gives_way(world: World) -> None:
    world.pod("a")
    world.tenants.override([Override("team.a.main", 70 * GIB)])
    world.tenants.tick()
    assert world.policy("a").limits[0].memory_bytes == 70 * GIB
    world.pod("b", gib=20)
    world.tenants.tick()
    assert world.policy("a").limits[0].memory_bytes == 4 * GIB
    assert world.policy("b").limits[0].memory_bytes == 20 * GIB
    assert ("a", "QuotaOverrideRefused") in [entry[:2] for entry in world.reported]


def test_an_override_for_a_container_without_a_policy_is_refused(world: World) -> None:
    world.pod("a")
    world.containers.policy_path(world.key("a")).unlink()
    world.tenants.override([Override("team.a.main", GIB)])
    world.tenants.tick()
    assert [entry[:2] for entry in world.reported] == [("a", "QuotaOverrideRefused")]


def test_refused_allocations_are_counted_and_told(world: World) -> None:
    world.pod("a")
    world.pod("b", card=uuid(1))
    world.write_state("a", LIMIT, 3)
    world.write_state("a", DEVICE, 1)
    world.tenants.tick()
    world.tenants.tick()
    assert world.refusals() == {("a", "limit"): 3, ("a", "device"): 1}
    told = [message for pod, reason, message in world.reported if (pod, reason) == ("a", "GpuMemoryRefused")]
    assert sorted(told) == [
        "an allocation on GPU 0 was refused: over the container's limit of 4 GiB",
        "an allocation within the container's limit was refused: GPU 0 itself is full",
    ]


def test_last_refusals_count_at_restart_and_at_the_end(world: World) -> None:
    world.pod("a")
    world.write_state("a", LIMIT, 3)
    world.start(Holder("team", "a", "main"))
    assert world.refusals() == {("a", "limit"): 3}
    world.write_state("a", LIMIT, 2)
    world.held.clear()
    world.devices, gone = {}, world.devices
    world.list()
    assert world.refusals() == {("a", "limit"): 5}
    assert gone


def test_a_successor_counts_on(world: World) -> None:
    world.pod("a")
    world.write_state("a", LIMIT, 3)
    world.tenants.tick()
    world.tenants = world.successor()
    world.list()
    world.write_state("a", LIMIT, 4)
    world.tenants.tick()
    assert world.refusals() == {("a", "limit"): 4}


def test_an_account_that_was_blown_up_is_cut_back_and_told(world: World) -> None:
    world.pod("a")
    os.truncate(world.containers.state_path(world.key("a")), 1 << 30)
    world.tenants.tick()
    assert world.containers.state_path(world.key("a")).stat().st_size == layouts.state_size(1)
    assert [entry[:2] for entry in world.reported] == [("a", "GpuAccountChanged")]


@pytest.mark.attack
def test_misuse_is_told_to_the_pod_that_has_the_devices_now(world: World) -> None:
    """Kubelet's last list is older than the start of the next pod with the same devices."""
    world.pod("a")
    old, new = Holder("team", "a", "main"), Holder("team", "b", "main")
    world.specs["b"] = world.specs["a"]
    world.hear("b")
    world.held[new], world.devices[new] = world.held[old], world.devices[old]
    world.start(new)
    os.truncate(world.containers.state_path(world.key("b")), 1 << 30)
    world.tenants.tick()
    assert [entry[:2] for entry in world.reported] == [("b", "GpuAccountChanged")]


def test_override_of_a_pod_does_not_reach_the_next_one(world: World) -> None:
    world.pod("a")
    world.tenants.override([Override("team.a.main", GIB, 10)])
    world.tenants.tick()
    old, new = Holder("team", "a", "main"), Holder("team", "b", "main")
    world.specs["b"] = world.specs["a"]
    world.hear("b")
    world.held[new], world.devices[new] = world.held[old], world.devices[old]
    for _ in range(2):
        world.start(new)
        assert world.policy("b").limits == (Limit(CARD, 4 * GIB, 30, 0, 64 << 20),)
        world.tenants.tick()
        assert world.policy("b").limits == (Limit(CARD, 4 * GIB, 30, 0, 64 << 20),)
    del world.held[old], world.devices[old]
    world.list()
    world.tenants.tick()
    assert world.policy("b").limits == (Limit(CARD, 4 * GIB, 30, 0, 64 << 20),)


@pytest.mark.attack
def test_a_tenant_cannot_have_events_made_without_end(world: World) -> None:
    """One of the same words is sent once."""
    world.pod("a")
    for size in (1 << 30, 1 << 29, 3, 4):
        os.truncate(world.containers.state_path(world.key("a")), size)
        world.list()
        world.tenants.tick()
    assert len(world.reported) == 4
    assert len(set(world.reported)) == 2


def test_account_cut_short_while_running_harms_none(world: World) -> None:
    world.pod("a")
    world.pod("b")
    world.process(1, "b")
    world.usage = {CARD: GpuUsage({1: GIB}, {1: 20})}
    world.tenants.tick()
    os.truncate(world.containers.state_path(world.key("a")), 0)
    world.tenants.tick()
    assert world.policy("b").feedback == (Feedback(GIB, 200, 0),)
    world.list()
    world.tenants.tick()
    assert world.containers.state_path(world.key("a")).stat().st_size == layouts.state_size(1)
    assert [entry[:2] for entry in world.reported] == [("a", "GpuAccountChanged")]


def test_another_daemons_write_is_seen_and_repaired(world: World, tmp_path: Path) -> None:
    world.pod("a")
    world.tenants.tick()
    other = Containers(tmp_path, tmp_path / "sys")
    other.update(world.key("a"), lambda current: replace(current, limits=(Limit(CARD, GIB, 10),)))
    world.list()
    world.tenants.tick()
    assert other.policy(world.key("a")) == Policy((Limit(CARD, 4 * GIB, 30),))


def test_a_container_that_starts_anew_is_told_at_once(world: World) -> None:
    for name in ("a", "b"):
        world.pod(name)
    world.process(1, "a")
    world.usage = {CARD: GpuUsage({1: GIB}, {1: 20})}
    world.tenants.tick()
    world.start(Holder("team", "a", "main"))
    assert layouts.read_policy(world.containers.policy_path(world.key("a")).read_bytes())[0].feedback == ()
    world.tenants.tick()
    assert layouts.read_policy(world.containers.policy_path(world.key("a")).read_bytes())[0].feedback != ()


def test_an_account_full_of_nonsense_harms_nobody(world: World) -> None:
    world.pod("a")
    world.pod("b")
    world.containers.state_path(world.key("a")).write_bytes(b"\xff" * layouts.state_size(1))
    world.usage = {CARD: GpuUsage({}, {})}
    world.tenants.tick()
    world.tenants.tick()
    assert world.policy("b").feedback == (Feedback(0, 0, 0),)
    assert world.refusals()["a", "limit"] == 2**53


def test_files_are_kept_by_memory_and_by_whole_gpus() -> None:
    memory, cores = frozenset({"m0"}), frozenset(map(str, range(100)))
    assert keys_of({Kind.MEMORY: memory, Kind.CORES: frozenset({"c0"})}) == {key_of(memory)}
    assert keys_of({Kind.MEMORY: memory, Kind.CORES: cores}) == {key_of(memory), key_of(cores)}
    assert keys_of({Kind.CORES: cores}) == {key_of(cores)}


@pytest.mark.parametrize("first", ["runs", "waits"])
def test_running_one_of_two_with_the_same_devices_is_served(world: World, first: str) -> None:
    for name in ("runs", "waits") if first == "runs" else ("waits", "runs"):
        world.pod(name)
    runs, waits = (Holder("team", name, "main") for name in ("runs", "waits"))
    world.devices[waits] = world.devices[runs]
    spec = {"nodeName": "node", "containers": [{"resources": {"limits": {PROFILE.memory_resource: "16"}}}]}
    metadata = {"uid": world.uid("runs"), "namespace": "team", "name": "runs"}
    world.pods.keep({"metadata": metadata, "spec": spec, "status": {"phase": "Running"}})
    world.list()
    world.write_state("runs", LIMIT, 2)
    world.tenants.tick()
    assert world.refusals() == {("runs", "limit"): 2}
    assert {name for name, _, _ in world.reported} == {"runs"}
    assert {holder.pod for holder, _ in world.tenants.uses()} == {"runs"}
