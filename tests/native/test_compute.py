# SPDX-License-Identifier: Apache-2.0
"""The share of GPU time a container gets, in virtual time: what the machine is doing meanwhile changes nothing."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

import sim.clock
import sim.cuda
from kube_accel.enforce.policy import Feedback, Limit
from native.conftest import GIB, NATIVE, Container, Libraries
from sim.nvml.topology import Topology

POINTS = 0.02
HERE = Path(__file__).parent
ENTRIES = ["kernel", "ptsz", "ex", "cooperative", "multi", "grid", "graph"]


@pytest.fixture(scope="session")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of ``load`` and ``feedback``."""
    out = tmp_path_factory.mktemp("programs")
    command = ["gcc", "-std=gnu11", "-O2", "-Wall", "-Wextra", f"-I{sim.cuda.HERE}", f"-I{NATIVE}", "-pthread"]
    for name in ("load", "feedback"):
        subprocess.run([*command, "-o", out / name, HERE / f"{name}.c", "-ldl"], check=True)
    return out


class Card:
    """Containers that share a GPU and a virtual clock, and run load.c."""

    def __init__(self, root: Path, libraries: Libraries, topology: Topology, programs: Path) -> None:
        self.root, self.libraries, self.topology, self.programs = root, libraries, topology, programs
        self.clock = sim.clock.build(root)
        self.containers: list[Container] = []

    def limit(self, percent: int, soft: int = 0) -> Limit:
        return Limit(self.topology.gpus[0].uuid, 4 * GIB, percent, soft_cores=soft)

    def container(self, percent: int, soft: int = 0, *more: Limit) -> Container:
        root = self.root / str(len(self.containers))
        container = Container(root, self.libraries, self.topology, [self.limit(percent, soft), *more])
        self.containers.append(container)
        container.gpus = self.containers[0].gpus
        return container

    def run(self, *jobs: tuple[Container, str], feedback: int = 0, **variables: str) -> list[dict[str, Any]]:
        """What load.c says of each job, all at once; with ``feedback`` the daemon speaks that often, once a second."""
        parties = len(jobs) + (feedback > 0)
        clock = {
            "LD_PRELOAD": str(self.clock),
            "SIMCLOCK_FILE": str(self.root / "clock"),
            "SIMCLOCK_PARTIES": str(parties),
        }
        sim.clock.gather(self.root / "clock")

        def start(container: Container, *command: str | Path) -> subprocess.Popen[str]:
            environment = {**container.environment, **clock, **variables}
            return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

        processes = [start(container, self.programs / "load", *words.split()) for container, words in jobs]
        if feedback:
            told = [
                str(word)
                for (container, _), process in zip(jobs, processes, strict=True)
                for word in (container.policy, process.pid)
            ]
            start(jobs[0][0], self.programs / "feedback", str(feedback), *told)
        answers = []
        for process in processes:
            out, err = process.communicate(timeout=120)
            assert (process.returncode, err) == (0, ""), err
            answers.append(json.loads(out))
        return answers


@pytest.fixture
def card(tmp_path: Path, libraries: Libraries, topology: Topology, programs: Path) -> Card:
    return Card(tmp_path, libraries, topology, programs)


def near(share: float, percent: float) -> bool:
    return abs(share - percent / 100) <= POINTS


@pytest.mark.parametrize("percent", [10, 30, 50, 90])
@pytest.mark.parametrize("work", ["10 2000", "10 2000 sync=1", "10 50 sync=20", "60 100000 sync=1"])
def test_a_container_gets_its_share(card: Card, percent: int, work: str) -> None:
    [answer] = card.run((card.container(percent), work))
    assert near(answer["share"], percent)


@pytest.mark.parametrize("percent", [0, 100])
def test_without_a_limit_nothing_is_gated_or_measured(card: Card, percent: int) -> None:
    container = card.container(percent)
    [answer] = card.run((container, "2 1000"))
    assert answer["share"] > 0.99
    assert container.work() == (0, 0, 0)


@pytest.mark.attack
@pytest.mark.parametrize("entry", ENTRIES)
def test_every_way_to_launch_is_gated(card: Card, entry: str) -> None:
    container = card.container(30)
    [answer] = card.run((container, f"10 1000 streams=1 by={entry}"))
    assert near(answer["share"], 30)
    assert abs(container.work().busy_ns - answer["launched"] * 10**6) < 10**8


@pytest.mark.parametrize(
    "work", ["streams=4", "streams=4 sync=8", "threads=4 streams=1", "threads=3 streams=2 by=graph"]
)
def test_streams_that_overlap_are_charged_once(card: Card, work: str) -> None:
    [answer] = card.run((card.container(30), f"10 1000 {work}"))
    assert near(answer["share"], 30)


@pytest.mark.ci
@pytest.mark.parametrize("work", ["10 10 by=ptsz", "10 30 by=ptsz", "10 5 by=graph streams=1", "10 10 streams=16"])
def test_short_work_measured_by_launch_is_limited(card: Card, work: str) -> None:
    """More launches are on the GPU than there are events to measure them with."""
    container = card.container(30)
    [answer] = card.run((container, work))
    assert near(answer["share"], 30)
    assert container.work().launches > 0.99 * answer["launched"]


@pytest.mark.parametrize(("length", "streams"), [(3000, 16), (30000, 16), (30000, 250)])
def test_streams_that_run_at_once_are_not_taken_for_a_queue(card: Card, length: int, streams: int) -> None:
    """Many streams wait once, for their first launches: how long one takes is not known before."""
    container = card.container(60)
    [answer] = card.run((container, f"10 {length} streams={streams} sync={streams} think={2 * length}"))
    assert near(answer["share"], 33)
    assert container.work().throttled_ns <= (1100 * length if streams > 32 else 0)
    assert answer["launched"] * 3 * length > streams * 0.98 * 10**7


def test_a_container_that_uses_less_than_its_share_never_waits(card: Card) -> None:
    container = card.container(30)
    [answer] = card.run((container, "5 10 sync=20 think=1000"))
    assert near(answer["share"], 16.7)
    assert container.work().throttled_ns == 0


def test_processes_of_a_container_share_one_budget(card: Card) -> None:
    container = card.container(30)
    answers = card.run(*[(container, "10 2000 sync=1")] * 4)
    assert near(sum(answer["share"] for answer in answers), 30)
    assert all(answer["share"] > 0.05 for answer in answers)


def test_two_tenants_get_30_and_70(card: Card) -> None:
    """Both always have work: each is measured through the other's time slices, and corrected by what NVML saw."""
    first, second = card.run((card.container(30), "40 2000"), (card.container(70), "40 2000"), feedback=39)
    assert abs(first["share"] / second["share"] / (30 / 70) - 1) <= 0.1
    assert first["share"] + second["share"] > 0.95


def test_the_soft_limit_holds_while_the_others_are_idle(card: Card) -> None:
    [answer] = card.run((card.container(30, soft=80), "10 2000"), feedback=9)
    assert near(answer["share"], 80)


def test_hard_limit_holds_if_others_are_busy_or_unknown(card: Card) -> None:
    first, _ = card.run((card.container(30, soft=80), "20 2000"), (card.container(50), "20 2000"), feedback=19)
    assert near(first["share"], 30)
    [answer] = card.run((card.container(30, soft=80), "10 2000"))
    assert near(answer["share"], 30)


@pytest.mark.parametrize("streams", [0, 2])
def test_capture_beside_throttled_work_is_complete(card: Card, streams: int) -> None:
    """load.c fails when a graph of 100 captured launches has another number of nodes, or a capture breaks."""
    [answer] = card.run((card.container(30), f"10 1000 capture=1 streams={streams}"))
    assert answer["captured"] > 50
    assert answer["captured_records"] == 0
    assert near(answer["share"], 30)


def test_a_capture_survives_launches_on_another_stream_beside_it(container: Container) -> None:
    code = """
import time
d.open()
kernel, captured, other = d.spinner(), d.stream(), d.stream()
codes = set()
for _ in range(50):
    d.launch(kernel, 10, stream=other)
    d.ok('cuStreamBeginCapture_v2', c_void_p(captured), 0)
    for _ in range(3):
        d.launch(kernel, 10, stream=other)
        d.launch(kernel, 10, stream=captured)
        time.sleep(0.0003)
    codes.add(d('cuStreamEndCapture', c_void_p(captured), byref(c_void_p())))
print(*codes)
"""
    assert container.words(code) == ["0"]


def test_a_kernel_of_many_seconds_is_paid_for(card: Card) -> None:
    [answer] = card.run((card.container(10), "400 5000000 sync=1"))
    assert near(answer["share"], 10)


def test_a_new_limit_counts_at_once(card: Card) -> None:
    container = card.container(10)
    card.run((container, "5 2000"))
    container.tell(card.limit(60))
    [answer] = card.run((container, "10 2000"))
    assert near(answer["share"], 60)
    container.tell(card.limit(100))
    [answer] = card.run((container, "10 2000"))
    assert answer["share"] > 0.99


def test_stale_feedback_is_no_feedback(card: Card) -> None:
    container = card.container(30, soft=80)
    container.tell(card.limit(30, soft=80), feedback=[Feedback(None, 0, 0)], at_ns=1)
    [answer] = card.run((container, "10 2000"))
    assert near(answer["share"], 30)


def test_gpu_is_found_by_uuid_in_any_visible_order(card: Card) -> None:
    other = Limit(card.topology.gpus[1].uuid, 4 * GIB, 60)
    container = card.container(20, 0, other)
    [answer] = card.run((container, "10 2000 card=1"), CUDA_VISIBLE_DEVICES="1,0")
    assert near(answer["share"], 60)
    assert (container.work(0).launches, container.work(1).launches > 0) == (0, True)


def test_child_forked_amid_launches_ends_and_parent_goes_on(container: Container) -> None:
    code = """
d.open()
kernel = d.spinner()
print(*{d.launch(kernel, 2000) for _ in range(20)})
child = os.fork()
if child == 0:
    os._exit(d.launch(kernel, 1))
print(os.waitpid(child, 0)[1] >> 8, *{d.launch(kernel, 2000) for _ in range(20)})
d.synchronize()
"""
    assert container.words(code) == ["0", "3", "0"]


@pytest.mark.attack
def test_numbers_a_tenant_wrote_into_the_budget_stop_nobody(container: Container) -> None:
    """The last of them a claim as a process leaves it that was killed at that moment."""
    code = """
import time
d.open()
kernel = d.spinner()
for number in (0, 1, 2**63, 2**64 - 1, time.monotonic_ns()):
    d.launch(kernel, 200)
    with open(os.environ["KUBE_ACCEL_STATE"], "r+b") as state:
        state.seek(64 + 72)
        state.write(struct.pack("<15Q", *[number] * 15))
    print(*{d.launch(kernel, 200) for _ in range(50)})
    d.synchronize()
"""
    before = container.work().launches
    assert container.words(code) == ["0"] * 5
    assert container.work().launches != before


@pytest.mark.attack
def test_processes_killed_amid_launches_stop_no_other(container: Container) -> None:
    endless = "d.open()\nkernel = d.spinner()\nprint(flush=True)\nwhile True:\n    d.launch(kernel, 200)"
    some = "d.open()\nkernel = d.spinner()\nprint(*{d.launch(kernel, 200) for _ in range(50)})\nd.synchronize()"
    others = [container.start(endless) for _ in range(3)]
    try:
        for other, end in zip(others, (subprocess.Popen.kill, container.stop, subprocess.Popen.kill), strict=True):
            assert other.stdout is not None
            assert other.stdout.readline() == "\n"
            end(other)
            assert container.words(some) == ["0"]
    finally:
        for other in others:
            other.kill()
            other.communicate()


def test_child_forked_before_cuinit_has_its_own_gate(container: Container) -> None:
    code = """
child = os.fork()
d.open()
kernel = d.spinner()
codes = {d.launch(kernel, 2000) for _ in range(20)}
d.synchronize()
if child == 0:
    os._exit(max(codes))
print(os.waitpid(child, 0)[1], *codes)
"""
    assert container.words(code) == ["0", "0"]
    assert container.work().launches > 0


def test_context_gets_batches_after_another_used_all(container: Container) -> None:
    code = """
import time
def launches():
    with open(os.environ["KUBE_ACCEL_STATE"], "rb") as state:
        return struct.unpack_from("<Q", state.read(3136), 64 + 64 + 24)[0]
d.open()
kernel = d.spinner()
codes = {d.launch(kernel, 20, name="cuLaunchKernel_ptsz") for _ in range(2000)}
d.synchronize()
time.sleep(0.1)
before = launches()
d.value(c_void_p, "cuCtxCreate_v2", 0, 0)
kernel = d.spinner()
codes.update(d.launch(kernel, 20) for _ in range(10))
d.synchronize()
time.sleep(0.1)
print(*codes, launches() - before)
"""
    assert container.words(code) == ["0", "10"]


@pytest.mark.parametrize("end", ["cuCtxDestroy_v2", "cuCtxDetach"])
def test_contexts_come_and_go(container: Container, end: str) -> None:
    code = """
d.open()
kernel, codes = d.spinner(), set()
for _ in range(100):
    context = d.value(c_void_p, 'cuCtxCreate_v2', 0, 0)
    codes.update(d.launch(kernel, 100) for _ in range(3))
    codes.add(d('END', c_void_p(context)))
d.ok('cuDevicePrimaryCtxReset_v2', 0)
d.open()
codes.add(d.launch(kernel, 100))
print(*codes)
"""
    assert container.words(code.replace("END", end)) == ["0"]


@pytest.mark.parametrize("name", ["cuLaunchKernel", "cuLaunchKernel_ptsz"])
def test_context_is_destroyed_amid_launches_of_threads(container: Container, name: str) -> None:
    code = """
import threading, time
d.open()
codes = set()
for _ in range(200):
    context = d.value(c_void_p, 'cuCtxCreate_v2', 0, 0)
    kernel = d.spinner()
    streams = [d.stream() for _ in range(3)] + [0]
    def work(stream):
        d('cuCtxSetCurrent', c_void_p(context))
        while d.launch(kernel, 5, stream=stream, name="NAME") == 0:
            pass
    threads = [threading.Thread(target=work, args=[stream]) for stream in streams]
    for thread in threads:
        thread.start()
    time.sleep(0.002)
    d.ok('cuCtxDestroy_v2', c_void_p(context))
    for thread in threads:
        thread.join()
d.open()
kernel = d.spinner()
print(*{d.launch(kernel, 100) for _ in range(100)})
d.synchronize()
"""
    assert container.words(code.replace("NAME", name)) == ["0"]
