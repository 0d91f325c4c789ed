# SPDX-License-Identifier: Apache-2.0
"""The extender with a real kube-scheduler and API server. Nodes are objects alone: nothing runs on them."""

from __future__ import annotations

import json
import signal
import ssl
import time
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import pytest

from cluster.control_plane import (
    ControlPlane,
    Program,
    answers,
    control_plane,
    entry,
    extender_beside,
    free_port,
    missing,
    wait_for,
)
from kube_accel.kube.api import ApiRefusedError
from unit.kube_accel.extender.world import GIB, Api, node_object, pod_object, share, taken

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing() or "all there")

NODES = ("a", "b", "c", "d")
GPUS = 2
PODS = "/api/v1/namespaces/team/pods"


@pytest.fixture(scope="module")
def plane() -> Iterator[ControlPlane]:
    with control_plane() as found:
        admin = found.admin
        for namespace in ("team", "kube-system"):
            wait_for(lambda name=namespace: exists(found, name), f"namespace {namespace}")
        for name in NODES:
            make_node(admin, name)
        yield found


def exists(plane: ControlPlane, namespace: str) -> bool:
    try:
        plane.admin.post("/api/v1/namespaces", {"metadata": {"name": namespace}})
    except ApiRefusedError as error:
        return error.status == 409
    return True


def make_node(admin: Any, name: str, gpus: int = GPUS) -> None:
    """A node that is ready and offers its GPUs."""
    node = node_object(name, gpus=gpus)
    node["metadata"]["labels"] = {"kubernetes.io/hostname": name}
    admin.post("/api/v1/nodes", {"apiVersion": "v1", "kind": "Node", **node})
    amounts = {"cpu": "1000", "memory": "1000Gi", "pods": "10000"}
    amounts |= {"tencent.com/vcuda-core": str(100 * gpus), "tencent.com/vcuda-memory": str(320 * gpus)}
    ready = {"type": "Ready", "status": "True", "lastHeartbeatTime": None, "lastTransitionTime": None}
    status = {"capacity": amounts, "allocatable": amounts, "conditions": [ready]}
    admin.patch(f"/api/v1/nodes/{name}/status", {"status": status})
    # An admission plugin holds new nodes for unready; the controller that ends this does not run.
    admin.patch(f"/api/v1/nodes/{name}", {"spec": {"taints": []}})


@pytest.fixture(autouse=True)
def no_pods(plane: ControlPlane) -> Iterator[None]:
    yield
    plane.admin.send("DELETE", PODS, {"gracePeriodSeconds": 0})
    wait_for(lambda: not pods(plane), "pods gone")


def submit(plane: ControlPlane, name: str, limits: dict[str, str], **spec: Any) -> None:
    pod = pod_object(name, limits, **spec)
    pod["spec"]["containers"][0] |= {"image": "none", "resources": {"limits": limits, "requests": limits}}
    del pod["metadata"]["uid"], pod["status"]
    plane.admin.post(PODS, {"apiVersion": "v1", "kind": "Pod", **pod})


def pods(plane: ControlPlane) -> dict[str, dict[str, Any]]:
    return {item["metadata"]["name"]: item for item in plane.admin.get(PODS)["items"]}


def bound(plane: ControlPlane) -> set[str]:
    return {name for name, pod in pods(plane).items() if pod["spec"].get("nodeName")}


def quiet(plane: ControlPlane, port: int, seconds: float) -> Callable[[], bool]:
    """Whether kube-scheduler has not asked for so long."""
    context = ssl.create_default_context(cafile=plane.ca)
    last = [0.0, time.monotonic()]

    def probe() -> bool:
        with urllib.request.urlopen(f"https://127.0.0.1:{port}/metrics", context=context) as response:
            text = response.read().decode()
        line = next(line for line in text.splitlines() if 'seconds_count{verb="predicates"}' in line)
        asked = float(line.rpartition(" ")[2])
        if asked != last[0]:
            last[:] = asked, time.monotonic()
        return time.monotonic() > last[1] + seconds

    return probe


def why(plane: ControlPlane, name: str) -> str:
    """Why a pod waits, as its status tells a person."""
    conditions = pods(plane)[name]["status"].get("conditions", [])
    return next((str(found.get("message")) for found in conditions if found["type"] == "PodScheduled"), "")


def told(plane: ControlPlane, name: str) -> str:
    """What kube-scheduler's events tell of a pod."""
    events = plane.admin.get("/api/v1/namespaces/team/events")["items"]
    return " ".join(event["message"] for event in events if event["involvedObject"]["name"] == name)


def never_twice(plane: ControlPlane) -> None:
    for cores, memory in taken(Api(pods=pods(plane))).values():
        assert cores <= 100
        assert memory <= 80 * GIB


def test_fifty_pods_for_sixteen_slots(plane: ControlPlane) -> None:
    port = free_port()
    with extender_beside(plane, port), plane.scheduler([entry(plane, port)]):
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda number: submit(plane, f"p{number}", share(50, 20)), range(50)))
        wait_for(lambda: len(bound(plane)) == 16, "16 pods bound")
        wait_for(lambda: all(why(plane, name) for name in pods(plane).keys() - bound(plane)), "reasons")
        never_twice(plane)
        first = sorted(bound(plane))[0]
        plane.admin.send("DELETE", f"{PODS}/{first}", {"gracePeriodSeconds": 0})
        wait_for(lambda: len(bound(plane)) == 16, "the room is used again")
        never_twice(plane)


def test_fragments_are_no_room_and_the_reason_names_the_gpu(plane: ControlPlane) -> None:
    """By sums every node has room for 60 %; no GPU has."""
    port = free_port()
    with extender_beside(plane, port), plane.scheduler([entry(plane, port)]):
        for number in range(len(NODES) * GPUS):
            submit(plane, f"p{number}", share(55, 20))
        wait_for(lambda: len(bound(plane)) == 8, "8 pods bound")
        submit(plane, "late", share(60, 20))
        reason = "best has 45 percent and 60 GiB free (GPU "
        wait_for(lambda: reason in why(plane, "late") and reason in told(plane, "late"), "a reason")
        never_twice(plane)


def test_only_gpu_pods_wait_for_the_extender(plane: ControlPlane) -> None:
    port = free_port()
    with plane.scheduler([entry(plane, port)]):
        submit(plane, "gpu", share(50, 20))
        submit(plane, "plain", {"cpu": "1"})
        wait_for(lambda: bound(plane) == {"plain"}, "the pod without GPUs")
        wait_for(lambda: why(plane, "gpu"), "the GPU pod waits")
        with extender_beside(plane, port):
            wait_for(lambda: bound(plane) == {"plain", "gpu"}, "the GPU pod")


def test_an_extender_killed_and_started_again_goes_on(plane: ControlPlane) -> None:
    port = free_port()
    with plane.scheduler([entry(plane, port)]):
        with extender_beside(plane, port, "first"):
            for number in range(8):
                submit(plane, f"p{number}", share(50, 20))
            wait_for(lambda: len(bound(plane)) >= 4, "some pods")
        for number in range(8, 20):
            submit(plane, f"p{number}", share(50, 20))
        with extender_beside(plane, port, "second"):
            wait_for(lambda: len(bound(plane)) == 16, "16 pods bound")
            never_twice(plane)


LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases"


def leader(plane: ControlPlane) -> str:
    """The kube-scheduler that leads; empty while there has been none."""
    try:
        return str(plane.admin.get(f"{LEASES}/kube-scheduler")["spec"]["holderIdentity"])
    except ApiRefusedError:
        return ""


def crowd(plane: ControlPlane, begin: int, count: int, limits: dict[str, str] | None = None) -> None:
    """Create so many pods at once, small ones by default."""
    limits = limits or share(5, 4)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda number: submit(plane, f"p{number}", limits), range(begin, begin + count)))


def room_is_used_again(plane: ControlPlane, room: int) -> None:
    wait_for(lambda: len(bound(plane)) == room, "as many pods as there is room for")
    never_twice(plane)
    for name in sorted(bound(plane))[:7]:
        plane.admin.send("DELETE", f"{PODS}/{name}", {"gracePeriodSeconds": 0})
    wait_for(lambda: len(bound(plane)) == room, "the room is used again")
    never_twice(plane)


def side(plane: ControlPlane, stack: ExitStack, name: str) -> tuple[Program, Program]:
    """A control plane host: kube-scheduler and the extender beside it."""
    port = free_port()
    extender = stack.enter_context(extender_beside(plane, port, f"extender-of-{name}"))
    return stack.enter_context(plane.scheduler([entry(plane, port)], name, elect=True)), extender


def test_two_schedulers_take_turns_under_load(plane: ControlPlane) -> None:
    """Each with an extender of its own; the one that leads dies while it binds."""
    room = len(NODES) * GPUS * 20
    with ExitStack() as stack:
        first, _ = side(plane, stack, "first")
        leading = wait_for(lambda: leader(plane), "a leader")
        second, _ = side(plane, stack, "second")
        crowd(plane, 0, room // 2)
        wait_for(lambda: len(bound(plane)) > 10, "the first to bind")
        first.kill()
        crowd(plane, room // 2, room // 2)
        next_leading = wait_for(lambda: (found := leader(plane)) != leading and found, "the second to lead")
        first.start()
        crowd(plane, room, room // 2)
        wait_for(lambda: len(bound(plane)) > room // 2, "the second to bind")
        second.kill()
        wait_for(lambda: leader(plane) not in (leading, next_leading), "the first to lead again")
        room_is_used_again(plane, room)


@pytest.fixture
def many_gpus(plane: ControlPlane) -> Iterator[int]:
    """How many more there are for one test."""
    nodes, gpus = [f"wide-{number}" for number in range(24)], 8
    for name in nodes:
        make_node(plane.admin, name, gpus)
    yield len(nodes) * gpus
    for name in nodes:
        plane.admin.send("DELETE", f"/api/v1/nodes/{name}")


@pytest.mark.parametrize("host", [False, True], ids=["scheduler", "host"])
def test_a_leader_that_was_frozen_wakes_up_under_load(plane: ControlPlane, many_gpus: int, host: bool) -> None:
    """Another leads by then, and is binding. The extender of the frozen one goes on meanwhile, or is frozen too."""
    room = len(NODES) * GPUS + many_gpus
    most = share(60, 40)  # of one GPU: two that get the same are seen
    with ExitStack() as stack:
        sides = [side(plane, stack, name) for name in ("first", "second")]
        before = wait_for(lambda: leader(plane), "a leader")
        for turn, (scheduler, extender) in enumerate(sides):
            frozen = [scheduler, extender] if host else [scheduler]
            crowd(plane, turn * room, room, most)
            wait_for(lambda: len(bound(plane)) > 10, "the leader to bind")
            for program in frozen:
                program.process.send_signal(signal.SIGSTOP)
            had = bound(plane)
            wait_for(lambda before=before: (found := leader(plane)) != before and found, "the other to lead")
            wait_for(lambda had=had: bound(plane) - had, "the other to bind")
            for program in reversed(frozen):
                program.process.send_signal(signal.SIGCONT)
            wait_for(lambda process=scheduler.process: process.poll() is not None, "it sees that it leads no more")
            before = leader(plane)
            scheduler.start()
            wait_for(lambda: len(bound(plane)) == room, "as many pods as there is room for")
            never_twice(plane)
            if not turn:
                plane.admin.send("DELETE", PODS, {"gracePeriodSeconds": 0})
                wait_for(lambda: not pods(plane), "pods gone")
        crowd(plane, 2 * room, 20, most)
        room_is_used_again(plane, room)


def test_the_api_server_restarts_under_load(plane: ControlPlane) -> None:
    port = free_port()
    with extender_beside(plane, port), plane.scheduler([entry(plane, port)]):
        for number in range(10):
            submit(plane, f"p{number}", share(50, 20))
        wait_for(lambda: len(bound(plane)) >= 4, "some pods")
        plane.programs["kube-apiserver"].restart()
        wait_for(lambda: answers(f"{plane.admin.url}/readyz", plane.ca), "kube-apiserver")
        for number in range(10, 20):
            submit(plane, f"p{number}", share(50, 20))
        submit(plane, "plain", {"cpu": "1"})
        wait_for(lambda: len(bound(plane)) == 17, "16 pods and the one without GPUs")
        never_twice(plane)


def test_pods_a_quota_kept_waiting_go_on_once_it_is_raised(plane: ControlPlane) -> None:
    def quota(cores: int) -> dict[str, Any]:
        text = json.dumps({"version": 1, "namespaces": {"team": {"limits": [{"cores": cores}]}}})
        return {"metadata": {"name": "kube-accel-quota"}, "data": {"quota.yaml": text}}

    maps = "/api/v1/namespaces/kube-system/configmaps"
    plane.admin.post(maps, quota(100))
    port = free_port()
    try:
        with extender_beside(plane, port), plane.scheduler([entry(plane, port)]):
            for number in range(4):
                submit(plane, f"p{number}", share(50, 20))
            wait_for(lambda: len(bound(plane)) == 2, "two pods bound")
            waiting = sorted(pods(plane).keys() - bound(plane))
            wait_for(lambda: all("quota of namespace team" in why(plane, name) for name in waiting), "the reason")
            plane.admin.patch(f"{maps}/kube-accel-quota", {"data": {"quota.yaml": "version: 1\nnamespace: {}\n"}})
            events = "/api/v1/namespaces/kube-system/events"

            def told() -> bool:
                found = plane.admin.get(events)["items"]
                return any("did you mean namespaces?" in event["message"] for event in found)

            wait_for(told, "an event that says what is wrong")
            assert len(bound(plane)) == 2
            # Until here each bind made kube-scheduler look again; from now on nothing does.
            wait_for(quiet(plane, port, 5), "kube-scheduler has given up")
            begin = time.monotonic()
            plane.admin.patch(f"{maps}/kube-accel-quota", quota(200))
            wait_for(lambda: len(bound(plane)) == 4, "four pods bound", 45)
            print(f"woken after {time.monotonic() - begin:.1f} s")
    finally:
        plane.admin.send("DELETE", f"{maps}/kube-accel-quota")


def test_a_pod_of_higher_priority_evicts_what_is_on_one_gpu(plane: ControlPlane) -> None:
    plane.admin.post("/apis/scheduling.k8s.io/v1/priorityclasses", {"metadata": {"name": "high"}, "value": 1000})
    port = free_port()
    with extender_beside(plane, port), plane.scheduler([entry(plane, port)]):
        for number in range(16):
            submit(plane, f"p{number}", share(50, 20))
        wait_for(lambda: len(bound(plane)) == 16, "16 pods bound")
        submit(plane, "urgent", share(70, 20), priorityClassName="high", terminationGracePeriodSeconds=0)
        evicted = set()

        def urgent() -> bool:
            # No kubelet ends the victims, so we do what it would.
            for name, found in pods(plane).items():
                if found["metadata"].get("deletionTimestamp"):
                    plane.admin.send("DELETE", f"{PODS}/{name}", {"gracePeriodSeconds": 0})
                    evicted.add(name)
            return "urgent" in bound(plane)

        wait_for(urgent, "the urgent pod")
        assert len(evicted) <= 3
        never_twice(plane)
