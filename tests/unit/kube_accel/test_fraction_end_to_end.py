# SPDX-License-Identifier: Apache-2.0
"""Shares of GPUs from the shipped command, between a kubelet, a driver and an API server that are simulated."""

from __future__ import annotations

import re
import sqlite3
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

from kube_accel.model import Health, Mode
from kube_accel.sharing.inventory_annotation import NodeInventory
from sim import mps
from sim.kubelet import AdmissionError, ContainerStartError
from sim.nvml.topology import Topology
from unit.kube_accel.fraction_node import FractionNode
from unit.kube_accel.mps_daemons import MpsDaemons
from waiting import wait

GIB = 1 << 30
Make = Callable[..., FractionNode]


@pytest.fixture
def make() -> Iterator[Make]:
    """Makes a running node with an API server; ``start=False`` leaves both to the test."""
    with ExitStack() as stack:

        def make(mode: Mode = Mode.VGPU, start: bool = True, **options: Any) -> FractionNode:
            root = Path(stack.enter_context(tempfile.TemporaryDirectory(dir="/tmp")))
            node = FractionNode(root, stack, mode, **options)
            if start:
                node.start_api()
                node.start()
                node.seen()
            return node

        yield make


def test_a_share_is_of_the_gpu_that_was_assigned_and_of_one_gpu(make: Make) -> None:
    node = make()
    for number, gpu in enumerate((5, 2, 5, 7)):
        pod = node.pod(f"p{number}", {"main": (30, 32)}, assigned={"main": (gpu,)})
        got = node.kubelet.admit(pod)["main"]
        assert node.gpu_of(got) == gpu
        assert got.envs == {"NVIDIA_VISIBLE_DEVICES": node.uuids[gpu]}
        minor = node.topology.gpus[gpu].minor
        nodes = {spec.container_path for spec in got.devices}
        assert {"/dev/nvidiactl", f"/dev/nvidia{gpu if minor is None else minor}"} <= nodes
    wait(lambda: node.held() == {(f"p{n}", "main"): [(g, 30, 8 * GIB)] for n, g in enumerate((5, 2, 5, 7))}, "held")
    annotation = node.annotation()
    assert annotation is not None
    assert (annotation.mode, annotation.memory_unit) == (Mode.VGPU, 256 << 20)
    assert sorted(node.running()) == [(f"p{n}", "main", g, 30, False) for n, g in enumerate((5, 2, 5, 7))]
    assert node.terminate() == 0


@pytest.mark.parametrize("seed", range(4))
def test_both_resources_are_of_the_assigned_gpu_in_any_order(make: Make, seed: int) -> None:
    node = make(gpus="4xa100-mig", seed=seed, start=False)
    node.start_api()
    node.start()
    for number, gpu in enumerate((3, 1, 3)):
        pod = node.pod(f"p{number}", {"main": (20 + number, 10 + number)}, assigned={"main": (gpu,)})
        assert node.gpu_of(node.kubelet.admit(pod)["main"]) == gpu


def test_a_gpu_in_mig_mode_is_left_out(make: Make) -> None:
    node = make(gpus="4xa100-mig", mig=True)
    assert node.healthy() == {node.uuids[2], node.uuids[3]}
    pod = node.pod("forged", {"main": (20, 8)}, assigned={"main": (0,)})
    assert node.gpu_of(node.kubelet.admit(pod)["main"]) in (2, 3)


def test_every_container_of_a_pod_goes_to_its_own_gpu(make: Make) -> None:
    node = make()
    containers = {"a": (10, 4), "b": (10, 4), "c": (40, 8)}
    pod = node.pod("several", containers, assigned={"a": (6,), "b": (1,), "c": (6,)})
    got = node.kubelet.admit(pod)
    assert [node.gpu_of(got[name]) for name in "abc"] == [6, 1, 6]
    wait(lambda: node.held().keys() == {("several", name) for name in "abc"}, "held")


def test_init_containers_share_is_reused_and_a_sidecars_is_not(make: Make) -> None:
    node = make()
    pod = node.pod(
        "stages",
        {"app": (30, 8)},
        init={"side": (10, 4), "prepare": (20, 16)},
        sidecars=("side",),
        assigned={"side": (4,), "prepare": (4,), "app": (4,)},
    )
    got = node.kubelet.admit(pod)
    assert [node.gpu_of(got[name]) for name in ("side", "prepare", "app")] == [4, 4, 4]
    cores = {name: set(got[name].device_ids[node.cores]) for name in got}
    assert cores["prepare"] <= cores["app"]
    assert not cores["side"] & cores["app"]
    wait(lambda: node.held().keys() == {("stages", "side"), ("stages", "app")}, "held")


def test_equal_requests_get_their_assigned_gpus_in_any_order(make: Make) -> None:
    node = make()
    pods = [node.pod(f"p{n}", {"main": (50, 100)}, assigned={"main": (n // 2,)}) for n in range(16)]
    taken = [node.gpu_of(node.kubelet.admit(pod)["main"]) for pod in reversed(pods)]
    assert sorted(taken) == sorted(n // 2 for n in range(16))
    wait(lambda: len(node.held()) == 16, "held")


def test_pods_that_end_at_once_do_not_lead_the_next_ones_astray(make: Make) -> None:
    node = make()
    for number in range(12):
        pods = [node.pod(f"p{number}{n}", {"main": (10, 4)}, assigned={"main": ((number + n) % 8,)}) for n in (0, 3)]
        taken = [node.gpu_of(node.kubelet.admit(pod)["main"]) for pod in pods]
        assert sorted(taken) == sorted((number + n) % 8 for n in (0, 3))
        for pod in pods:
            node.end(pod)


def test_unequal_pods_that_come_in_another_order_still_find_room(make: Make) -> None:
    node = make(gpus="4xa100-mig")
    first = node.pod("small", {"main": (40, 40)}, assigned={"main": (0,)})
    second = node.pod("large", {"main": (40, 150)}, assigned={"main": (1,)})
    filler = node.pod("filler", {"main": (10, 80)}, assigned={"main": (0,)})
    node.kubelet.admit(filler)
    assert node.gpu_of(node.kubelet.admit(second)["main"]) != 0
    assert node.gpu_of(node.kubelet.admit(first)["main"]) in (0, 1)


@pytest.mark.parametrize("memory", [0, 500])
def test_whole_gpus_are_whole(make: Make, memory: int) -> None:
    node = make()
    node.kubelet.admit(node.pod("share", {"main": (10, 4)}, assigned={"main": (0,)}))
    pod = node.pod("whole", {"main": (200, memory)}, assigned={"main": (2, 5)})
    got = node.kubelet.admit(pod)["main"]
    assert all(gpus == {2, 5} for gpus in node.gpus_of(got).values())
    assert set(got.envs["NVIDIA_VISIBLE_DEVICES"].split(",")) == {node.uuids[2], node.uuids[5]}
    whole = [(gpu, 100, node.topology.gpus[gpu].mem) for gpu in (2, 5)]
    wait(lambda: node.held().get(("whole", "main")) == whole, "held")


def test_a_pod_the_watch_tells_of_too_late_is_listed(make: Make) -> None:
    node = make(start=False)
    node.start_api()
    node.start()
    pod = node.pod("late", {"main": (20, 8)}, assigned={"main": (6,)})
    assert node.gpu_of(node.kubelet.admit(pod)["main"]) == 6


def test_without_an_extender_gpus_are_chosen_here(make: Make) -> None:
    node = make(gpus="4xa100-mig")
    packed = [node.pod(f"p{n}", {"a": (30, 20), "b": (20, 20)}) for n in range(2)]
    for pod in packed:
        got = node.kubelet.admit(pod)
        assert {node.gpu_of(got["a"]), node.gpu_of(got["b"])} == {0}
    spread = node.pod("spread", {"main": (30, 20)}, annotations={"kube-accel.io/placement": "spread"})
    assert node.gpu_of(node.kubelet.admit(spread)["main"]) != 0


def test_without_an_api_server_a_container_still_gets_one_gpu(make: Make) -> None:
    node = make(start=False)
    node.start()
    for number in range(6):
        pod = node.pod(f"p{number}", {"main": (40, 100)})
        node.gpu_of(node.kubelet.admit(pod)["main"])
    wait(lambda: len(node.running()) == 6, "the ledger")
    assert node.annotation() is None


def test_an_assignment_that_is_no_good_gains_nothing(make: Make) -> None:
    node = make(gpus="4xa100-mig")
    node.kubelet.admit(node.pod("full", {"main": (90, 150)}, assigned={"main": (2,)}))
    greedy = node.pod("greedy", {"main": (30, 20)}, assigned={"main": (2,)})
    assert node.gpu_of(node.kubelet.admit(greedy)["main"]) != 2
    wide = node.pod("wide", {"main": (10, 20)}, assigned={"main": (0, 1)})
    node.gpu_of(node.kubelet.admit(wide)["main"])
    garbage = node.pod("garbage", {"main": (10, 20)}, annotations={"kube-accel.io/assignment": '{"version":1,'})
    node.gpu_of(node.kubelet.admit(garbage)["main"])


def test_fragmented_node_refuses_and_the_pod_is_replaced(make: Make) -> None:
    node = make(gpus="4xa100-mig")
    for gpu in range(4):
        node.kubelet.admit(node.pod(f"p{gpu}", {"main": (60, 20)}, assigned={"main": (gpu,)}))
    names = []
    for name, owned in (("owned", True), ("alone", False)):
        pod = node.pod(name, {"main": (50, 20)}, owned=owned)
        with pytest.raises(AdmissionError, match=node.cores) as refused:
            node.kubelet.admit(pod)
        node.fail(name, str(refused.value))
        names.append(name)
    wait(lambda: node.removed("owned"), "the removal")
    assert not node.removed("alone")
    wait(lambda: ("owned", "RemovedForReplacement") in [event[:2] for event in node.events()], "the event")


def test_devices_of_two_gpus_do_not_start(make: Make) -> None:
    """Kubelet takes what it likes when it does not ask: here a plugin of an earlier release had answered it."""
    node = make(gpus="4xa100-mig")
    pod = node.pod("torn", {"main": (30, 20)}, assigned={"main": (1,)}, owned=True)
    node.kubelet.admit(pod)
    grants = node.kubelet._pods[pod.uid].grants["main"]
    elsewhere = frozenset(device.replace(node.uuids[1], node.uuids[3]) for device in grants[node.memory].ids)
    grants[node.memory].ids = elsewhere
    with pytest.raises(ContainerStartError, match="a share is of one GPU and has both"):
        node.kubelet.run(pod)
    wait(lambda: node.removed("torn"), "the removal")


@pytest.mark.parametrize("mode", [Mode.VGPU, Mode.CGPU])
def test_first_of_two_pods_with_the_same_devices_has_them(make: Make, mode: Mode) -> None:
    node = make(mode)
    amounts = (30, 8) if node.cores else (0, 8)
    elder, younger = (node.pod(name, {"main": amounts}, assigned={"main": (1,)}) for name in ("elder", "younger"))
    node.kubelet.accept(elder)
    node.kubelet.accept(younger)
    pods = node.kubelet._pods
    for resource, grant in pods[elder.uid].grants["main"].items():
        pods[younger.uid].grants["main"][resource].ids = grant.ids
    node.kubelet.run(younger)
    twice = (
        f"kubelet gave 8 {node.memory} of {node.uuids[1]} to team/elder and team/younger, and a device is for one pod"
    )
    for _ in range(2):
        with pytest.raises(ContainerStartError, match=re.escape(twice)):
            node.kubelet.run(elder)

    def told() -> bool:
        return any(event["reason"] == "GpuGivenTwice" for event in node.store.all("events", "default"))

    wait(told, "the event")
    assert not node.removed("elder")
    node.end(younger)
    node.kubelet.run(elder)
    wait(lambda: [row[0] for row in node.running()] == ["elder"], "the ledger")
    wait(lambda: node.held().keys() == {("elder", "main")}, "the annotation")


def test_validate_compares_the_ledger_with_kubelet(make: Make) -> None:
    node = make()
    node.kubelet.admit(node.pod("p", {"main": (30, 8)}, assigned={"main": (2,)}))
    wait(node.ledger, "the ledger")
    assert node.validate() == []
    with closing(sqlite3.connect(node.root / "state/ledger.db")) as file:
        # A running plugin would put it right within a second.
        file.executescript(
            "BEGIN IMMEDIATE; UPDATE allocations SET cores = 20;"
            "CREATE TRIGGER stuck BEFORE UPDATE ON allocations BEGIN SELECT RAISE(IGNORE); END; COMMIT"
        )
    (failed,) = node.validate()
    assert failed.startswith("fail  ledger: it is wrong about container main of team/p; restart the plugin")


def test_killed_plugin_adopts_pods_and_refills_a_lost_ledger(make: Make) -> None:
    node = make()
    pods = [node.pod(f"p{n}", {"main": (60, 40)}, assigned={"main": (n,)}) for n in range(3)]
    for pod in pods:
        node.kubelet.admit(pod)
    wait(lambda: len(node.running()) == 3, "the ledger")
    node.kill()
    ledger = node.root / "state/ledger.db"
    for path in node.root.glob("state/ledger.db*"):
        path.write_bytes(b"no database, this" * 300)
    node.end(pods[0])
    node.start()
    left = [("p1", "main", 1, 60, False), ("p2", "main", 2, 60, False)]
    wait(lambda: ledger.read_bytes()[:6] == b"SQLite" and sorted(node.ledger()) == left, "the ledger")
    assert list(node.root.glob("state/ledger.db.damaged-*"))
    assert any("damaged" in line["message"] for line in node.logged())
    late = node.pod("late", {"main": (50, 20)}, assigned={"main": (5,)})
    assert node.gpu_of(node.kubelet.admit(late)["main"]) == 5
    node.end(pods[1])
    again = node.pod("again", {"main": (60, 40)}, assigned={"main": (1,)})
    assert node.gpu_of(node.kubelet.admit(again)["main"]) == 1
    wait(lambda: ("p1", "main", 1, 60, True) in node.ledger(), "the end of p1")


def test_a_restarted_kubelet_gets_everything_again(make: Make) -> None:
    node = make()
    pod = node.pod("before", {"main": (60, 40)}, assigned={"main": (4,)})
    node.kubelet.admit(pod)
    node.kubelet.restart()
    wait(lambda: node.healthy() == set(node.uuids), "healthy GPUs")
    after = node.pod("after", {"main": (60, 40)}, assigned={"main": (3,)})
    assert node.gpu_of(node.kubelet.admit(after)["main"]) == 3
    node.kubelet.run(pod)


def test_an_upgrade_goes_on_where_the_old_plugin_was(make: Make) -> None:
    node = make()
    node.kubelet.admit(node.pod("before", {"main": (60, 40)}, assigned={"main": (4,)}))
    old = node.process
    node.start(wait_for=False)
    wait(lambda: node.probe("/readyz")[0] == 200, "/readyz")
    assert old is not None
    old.terminate()
    assert old.wait(20) == 0
    wait(lambda: node.healthy() == set(node.uuids), "healthy GPUs")
    after = node.pod("after", {"main": (60, 40)}, assigned={"main": (4,)})
    assert node.gpu_of(node.kubelet.admit(after)["main"]) != 4
    wait(lambda: len(node.running()) == 2, "one ledger for both")


def test_plugins_of_two_modes_take_turns(make: Make) -> None:
    """A label is switched with kubectl, or is wrong: the second plugin waits, and names what keeps it."""
    node = make()
    first, mode = node.process, node.mode
    node.mode = Mode.CGPU
    node.start(wait_for=False)
    second = node.process
    wait(lambda: node.probe("/readyz")[0] == 503, "/readyz")
    reason = node.probe("/readyz")[1]
    assert "mode vgpu runs on this node" in reason
    assert "labels nvidia-device-enable and cgpu" in reason
    assert node.probe("/healthz") == (200, "ok\n")
    assert node.kubelet.allocatable().keys() == set(node.resources)
    # An upgrade of the first is none of the second's business, and it still waits.
    node.mode = mode
    node.start()
    upgraded = node.process
    assert first is not None
    assert second is not None
    assert upgraded is not None
    first.terminate()
    assert first.wait(20) == 0
    wait(lambda: node.healthy() == set(node.uuids), "healthy GPUs")
    assert "aliyun.com/gpu-mem" not in node.kubelet.allocatable()

    def lists() -> list[int]:
        return [count for name, count in node.kubelet.lists.items() if f"-{upgraded.pid}-" in name]

    # It registers again when the first has ended. A list that kubelet reads later than the end of it stays.
    wait(lambda: lists() == [2, 2], "the upgraded plugin's lists")
    upgraded.kill()
    wait(lambda: node.kubelet.allocatable().get("aliyun.com/gpu-mem", 0) > 0, "the second plugin's GPUs")
    wait(lambda: not any(node.kubelet.allocatable()[name] for name in node.resources), "kubelet to miss the first")
    second.terminate()
    assert second.wait(20) == 0


def test_gpu_held_by_another_mode_is_not_offered(make: Make) -> None:
    node = make()
    pod = node.pod("before", {"main": (30, 16)}, assigned={"main": (5,)})
    node.kubelet.admit(pod)
    node.terminate()
    node.mode, node.resources = Mode.CGPU, ["aliyun.com/gpu-mem"]
    node.start(wait_for=False)
    wait(lambda: node.healthy() == set(node.uuids) - {node.uuids[5]}, "all other GPUs")
    wait(lambda: annotation(node).mode is Mode.CGPU, "the annotation")
    assert annotation(node).health[node.uuids[5]].reason.startswith("pod team/before holds it as tencent.com/vcuda-")
    node.end(pod)
    wait(lambda: node.healthy() == set(node.uuids), "all GPUs")


def test_a_plugin_that_waits_for_its_turn_ends_when_told_to(make: Make) -> None:
    node = make()
    node.mode = Mode.CGPU
    node.start(wait_for=False)
    wait(lambda: node.probe("/readyz")[0] == 503, "/readyz")
    assert node.terminate() == 0


def unhealthy(node: FractionNode, resource: str) -> set[str]:
    devices = node.kubelet.devices(resource).items()
    return {name.partition("::")[0] for name, device in devices if not device.healthy}


def test_a_lost_gpu_takes_all_its_shares_along_and_no_others(make: Make) -> None:
    node = make()
    node.edit(lambda topology: topology.set_health(3, "lost"))
    wait(lambda: node.healthy() == set(node.uuids) - {node.uuids[3]}, "one GPU less")
    for resource in node.resources:
        wait(lambda resource=resource: unhealthy(node, resource) == {node.uuids[3]}, resource)
        devices = node.kubelet.devices(resource).items()
        assert not any(device.healthy for name, device in devices if name.startswith(node.uuids[3]))
    moved = node.pod("moved", {"main": (10, 4)}, assigned={"main": (3,)})
    assert node.gpu_of(node.kubelet.admit(moved)["main"]) != 3
    node.edit(lambda topology: topology.set_health(3, "ok"))
    wait(lambda: node.healthy() == set(node.uuids), "all GPUs")


def test_shares_of_a_gpu_without_its_device_file_are_withdrawn(make: Make) -> None:
    node = make()
    dev = node.root / "dev"
    (dev / "nvidia3").unlink()
    wait(lambda: node.healthy() == set(node.uuids) - {node.uuids[3]}, "one GPU less")
    assert any(line.get("reason", "").startswith("no /dev/nvidia3; run nvidia-modprobe") for line in node.logged())
    (dev / "nvidia3").touch()
    wait(lambda: node.healthy() == set(node.uuids), "all GPUs")
    (dev / "nvidia-uvm").unlink()
    wait(lambda: node.healthy() == set(), "no GPU")


def test_memory_alone_is_shared_in_mode_cgpu(make: Make) -> None:
    node = make(Mode.CGPU)
    for number, gpu in enumerate((5, 5, 0)):
        pod = node.pod(f"p{number}", {"main": (0, 30)}, assigned={"main": (gpu,)})
        got = node.kubelet.admit(pod)["main"]
        assert node.gpu_of(got) == gpu
        assert got.envs == {"NVIDIA_VISIBLE_DEVICES": node.uuids[gpu]}
    wait(lambda: node.held() == {(f"p{n}", "main"): [(g, 0, 30 * GIB)] for n, g in enumerate((5, 5, 0))}, "held")
    annotation = node.annotation()
    assert annotation is not None
    assert annotation.memory_unit == GIB
    assert set(annotation.health.values()).pop().health is Health.HEALTHY


class Mps(MpsDaemons):
    """The control daemons of a node of mode mps."""

    def __init__(self, node: FractionNode, stack: ExitStack) -> None:
        super().__init__(node.root, node.uuids, stack)
        self.node = node
        node.validated = self.arguments
        node.extra = [*self.arguments, "--mps-interval", "2"]


@pytest.fixture
def daemons(make: Make) -> Iterator[Mps]:
    with ExitStack() as stack:
        node = make(Mode.MPS, start=False, gpus="4xa100-mig")
        daemons = Mps(node, stack)
        node.start_api()
        node.start()
        node.seen()
        yield daemons


def test_mps_shares_get_their_control_daemon_and_their_limits(daemons: Mps) -> None:
    node = daemons.node
    got = node.kubelet.admit(node.pod("p", {"main": (30, 8)}, assigned={"main": (3,)}))["main"]
    client = str(daemons.client(3))
    assert got.envs == {
        "NVIDIA_VISIBLE_DEVICES": node.uuids[3],
        "CUDA_MPS_PIPE_DIRECTORY": client,
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "30",
        "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=8G",
    }
    mounts = {mount.container_path: mount.host_path for mount in got.mounts}
    visible = f"/var/run/nvidia-container-devices/{node.uuids[3]}"
    shm = "/dev/shm"
    assert mounts.pop(f"{shm}/cuda_injection_path_shm") == "/dev/null"
    assert mounts == {visible: "/dev/null", client: client, shm: str(daemons.root / node.uuids[3] / "shm")}
    assert [mount.container_path for mount in got.mounts if not mount.read_only] == ["/dev/shm"]
    whole = node.kubelet.admit(node.pod("whole", {"main": (100, 0)}, assigned={"main": (0,)}))["main"]
    assert whole.envs["CUDA_MPS_PIPE_DIRECTORY"] == str(daemons.client(0))


def test_mps_serves_no_container_from_several_gpus(daemons: Mps) -> None:
    node = daemons.node
    with pytest.raises(AdmissionError, match="these are of 2 GPUs, and a process uses one through MPS"):
        node.kubelet.admit(node.pod("pair", {"main": (200, 0)}, assigned={"main": (0, 1)}))


def test_gpu_without_its_mps_daemon_is_withdrawn_and_reported(daemons: Mps) -> None:
    node = daemons.node
    node.kubelet.admit(node.pod("hit", {"main": (30, 8)}, assigned={"main": (3,)}))
    node.kubelet.admit(node.pod("elsewhere", {"main": (30, 8)}, assigned={"main": (1,)}))
    wait(lambda: len(node.held()) == 2, "held")
    daemons.stop(3)
    wait(lambda: node.healthy() == set(node.uuids) - {node.uuids[3]}, "one GPU less")
    wait(lambda: annotation(node).health[node.uuids[3]].reason, "the annotation")
    reason = annotation(node).health[node.uuids[3]].reason
    assert "Cannot find MPS control daemon process" in reason
    assert f"kube-accel-mps@{node.uuids[3]}" in reason
    daemons.start(3)
    wait(lambda: node.healthy() == set(node.uuids), "all GPUs")
    wait(lambda: ("hit", "MpsInterrupted") in [event[:2] for event in node.events()], "the event")
    assert "elsewhere" not in [event[0] for event in node.events()]


def test_gpu_without_its_client_socket_is_withdrawn(daemons: Mps) -> None:
    node = daemons.node
    (daemons.client(3) / "control").unlink()
    wait(lambda: node.healthy() == set(node.uuids) - {node.uuids[3]}, "one GPU less")
    wait(lambda: annotation(node).health[node.uuids[3]].reason, "the annotation")
    assert f"systemctl reload kube-accel-mps@{node.uuids[3]}" in annotation(node).health[node.uuids[3]].reason
    (daemons.client(3) / "control").hardlink_to(daemons.pipe(3) / "control")
    wait(lambda: node.healthy() == set(node.uuids), "all GPUs")


def test_a_server_fault_is_seen_told_and_over_when_it_is_over(daemons: Mps) -> None:
    node = daemons.node
    node.kubelet.admit(node.pod("hit", {"main": (30, 8)}, assigned={"main": (2,)}))
    wait(lambda: len(node.held()) == 1, "held")
    mps.set_servers(daemons.pipe(2), (4711, 0, "FAULT", (1, 2)))
    wait(lambda: node.healthy() == set(node.uuids) - {node.uuids[2]}, "one GPU less")
    wait(lambda: any("fault" in event[2] for event in node.events() if event[0] == "hit"), "the event")
    mps.set_servers(daemons.pipe(2))
    wait(lambda: node.healthy() == set(node.uuids), "all GPUs")


def test_validate_checks_control_daemons_and_compute_mode(daemons: Mps) -> None:
    node = daemons.node
    assert node.validate("Exclusive_Process") == []
    (failed,) = node.validate("Default")
    assert failed.startswith("fail  compute mode: GPU 0 Default, GPU 1 Default,")
    assert failed.endswith("mode mps needs Exclusive_Process; restart the unit kube-accel-mps@<uuid>")
    daemons.stop(3)
    failed = node.validate("Exclusive_Process")[-1]
    assert failed.startswith("fail  mps: GPU 3: no live MPS control daemon in ")
    assert f"systemctl status kube-accel-mps@{node.uuids[3]}" in failed


def test_validate_looks_whether_selinux_lets_containers_use_mps(daemons: Mps) -> None:
    node = daemons.node
    (node.root / "sys/fs/selinux").mkdir(parents=True)
    (node.root / "sys/fs/selinux/enforce").touch()
    (warned,) = node.validate("Exclusive_Process")
    assert warned.startswith(f"warn  mps: SELinux may keep containers from MPS: {daemons.root}/")
    assert "chcon system_u:object_r:container_file_t:s0" in warned


def test_silent_death_of_an_mps_server_is_reported_and_mended(daemons: Mps) -> None:
    node = daemons.node
    node.kubelet.admit(node.pod("hit", {"main": (30, 8)}, assigned={"main": (2,)}))
    node.kubelet.admit(node.pod("elsewhere", {"main": (30, 8)}, assigned={"main": (1,)}))
    wait(lambda: len(node.held()) == 2, "held")
    for process in (4711, 4712):
        mps.set_servers(daemons.pipe(2), (process, 0, "ACTIVE", (1, 2)))
        # Of another user, and without clients: it ends to make room, which harms nobody.
        mps.set_servers(daemons.pipe(1), (4713, 0, "ACTIVE", ()))
        wait(lambda process=process: daemons.asked(2, f"get_client_list {process}"), "the clients to be counted")
        mps.set_servers(daemons.pipe(2))
        mps.set_servers(daemons.pipe(1))
        told = f"MPS server {process} ended while it had 2 clients"
        wait(lambda told=told: any(told in event[2] for event in node.events() if event[0] == "hit"), "the event")
        wait(
            lambda told=told: any(told in str(line.get("problem")) for line in node.logged()), "the GPU to be withdrawn"
        )
        wait(lambda: node.healthy() == set(node.uuids), "all GPUs")
    assert "elsewhere" not in [event[0] for event in node.events()]


def test_gpu_without_free_clients_is_withdrawn_until_one_ends(daemons: Mps) -> None:
    node = daemons.node
    mps.set_servers(daemons.pipe(2), (4711, 0, "ACTIVE", tuple(range(100, 148))))
    wait(lambda: node.healthy() == set(node.uuids) - {node.uuids[2]}, "one GPU less")
    wait(lambda: "takes 48" in annotation(node).health[node.uuids[2]].reason, "the reason")
    mps.set_servers(daemons.pipe(2), (4711, 0, "ACTIVE", tuple(range(100, 147))))
    wait(lambda: node.healthy() == set(node.uuids), "all GPUs")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda topology: setattr(topology.gpus[0], "cc", "6.1"), "compute capability 6.1"),
        (lambda topology: setattr(topology.system, "driver", "470.256.02"), "driver 470.256.02"),
    ],
)
def test_what_mps_cannot_limit_is_refused(make: Make, change: Callable[[Topology], None], reason: str) -> None:
    with ExitStack() as stack:
        node = make(Mode.MPS, start=False, gpus="t4")
        Mps(node, stack)
        node.edit(change)
        node.start_api()
        node.start(wait_for=False)
        wait(lambda: node.annotation() is not None, "the annotation")
        assert reason in annotation(node).health[node.uuids[0]].reason
        assert node.healthy() == set()


def annotation(node: FractionNode) -> NodeInventory:
    found = node.annotation()
    assert found is not None
    return found
