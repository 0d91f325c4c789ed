# SPDX-License-Identifier: Apache-2.0
"""What programs of every kind are charged, in virtual time: as much as the GPU did, and waits only beyond the share."""

from __future__ import annotations

import json
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

import sim.clock
import sim.cuda
from kube_accel.enforce.policy import Limit
from native.conftest import GIB, Container, Libraries, Work, marked
from sim.nvml.topology import Topology

POINTS = 0.02
STREAMS = range(4)
EVERY = ["cuCtxSynchronize", "cuStreamSynchronize", "cuStreamQuery", "cuEventSynchronize", "cuEventQuery"]
EVERY += ["cuStreamWaitEvent", "cuStreamAddCallback", "cuLaunchHostFunc", "cuMemFree", "cuArrayDestroy", "look"]
COPIES = [f"cuMemcpy{ends}" for ends in ("", "Peer", "HtoD", "DtoH", "DtoD", "DtoA", "HtoA", "AtoD", "AtoH", "AtoA")]
COPIES += ["cuMemcpy2D", "cuMemcpy2DUnaligned", "cuMemcpy3D", "cuMemcpy3DPeer", "cuMemsetD8", "cuMemsetD2D32"]
ASYNC = [f"cuMemcpy{ends}Async" for ends in ("", "HtoD", "DtoH", "DtoD", "HtoA", "AtoH", "2D", "3D")] + [
    "cuMemsetD16Async"
]
WAITS = EVERY + COPIES


@pytest.fixture(scope="session")
def mix(tmp_path_factory: pytest.TempPathFactory) -> Path:
    program = tmp_path_factory.mktemp("mix") / "mix"
    command = ["gcc", "-std=gnu11", "-O2", "-Wall", "-Wextra", f"-I{sim.cuda.HERE}", "-pthread"]
    subprocess.run([*command, "-o", program, Path(__file__).with_name("mix.c"), "-ldl"], check=True)
    return program


@dataclass(frozen=True)
class Outcome:
    """What one program measured: nanoseconds, its own and the account's."""

    took: int
    done: int
    late_took: int
    late_done: int
    work: Work

    @property
    def use(self) -> float:
        return self.done / self.took

    @property
    def charged(self) -> float:
        return self.work.busy_ns / self.took


class Programs:
    """Runs programs, each in a container of its own on a machine of its own."""

    def __init__(self, root: Path, libraries: Libraries, topology: Topology, mix: Path) -> None:
        self.root, self.libraries, self.topology, self.mix = root, libraries, topology, mix
        self.clock = sim.clock.build(root)
        self.runs = 0

    def run(self, percent: int, rounds: int, *steps: str) -> Outcome:
        self.runs += 1
        limits = [Limit(self.topology.gpus[0].uuid, 4 * GIB, percent)]
        container = Container(self.root / str(self.runs), self.libraries, self.topology, limits)
        clock = {"LD_PRELOAD": str(self.clock), "SIMCLOCK_FILE": str(container.root / "clock")}
        command = [self.mix, str(rounds), *steps]
        ran = subprocess.run(
            command, env={**container.environment, **clock}, capture_output=True, text=True, timeout=120
        )
        assert (ran.returncode, ran.stderr) == (0, "")
        told, work = json.loads(ran.stdout), container.work()
        shutil.rmtree(container.root)
        times = (told[f"{name}_ns"] for name in ("took", "done", "late_took", "late_done"))
        return Outcome(*times, work)


@pytest.fixture
def programs(tmp_path: Path, libraries: Libraries, topology: Topology, mix: Path) -> Programs:
    return Programs(tmp_path, libraries, topology, mix)


@pytest.mark.parametrize("own", [False, True], ids=["legacy stream", "own stream"])
@pytest.mark.parametrize("way", WAITS)
def test_work_is_charged_whichever_function_tells_its_end(programs: Programs, way: str, own: bool) -> None:
    """A kernel of 1 ms in 21 ms under a share of 10 %; in every second round it asks 4 ms late."""
    stream = 3 if own else 0
    work, wait = f"kernel:1000:{stream}", f"wait:{way}:{stream}"
    outcome = programs.run(10, 50, work, wait, "think:20000", work, "think:4000", wait, "think:16000")
    assert abs(outcome.charged - outcome.use) <= POINTS
    assert abs(outcome.use - 2 / 42) <= POINTS
    assert outcome.work.throttled_ns == 0


@pytest.mark.parametrize("kernel", [5, 20, 40])
@pytest.mark.parametrize("pause", [10, 40, 200])
def test_launches_are_charged_without_the_pauses_between(programs: Programs, kernel: int, pause: int) -> None:
    outcome = programs.run(99, 2000, f"kernel:{kernel}:1", f"think:{pause}")
    assert abs(outcome.charged - outcome.use) <= POINTS


EACH_TELLS = """
import mmap
d.open()
with open(os.environ["GPUSIM_FILE"] + ".cuda", "rb") as file:
    card = mmap.mmap(file.fileno(), 4096, prot=mmap.PROT_READ)
def records():  # of events, by the only process
    return struct.unpack_from("<q", card, 120)[0]
def told_by(name):
    for _ in range(1000):
        d.open()
        kernel = d.spinner()
        d('cuStreamQuery', None)
        before = records()
        d.ok('cuLaunchKernel', c_void_p(kernel), *[c_uint(1)] * 6, c_uint(0), None, None, None)
        if records() != before + 1:  # it was measured precisely
            continue
        d(name, *[c_void_p(0)] * 11)
        after = records()
        d('cuStreamEndCapture_ptsz', None, byref(c_void_p()))
        return after == before + 2
for name in os.environ["NAMES"].split():
    if not told_by(name):
        print(name)
"""


def test_functions_that_tell_the_end_of_work_end_its_batch(container: Container) -> None:
    names = sorted(marked())
    assert len(names) > 250
    assert container.words(EACH_TELLS, NAMES=" ".join(names)) == []
    assert container.words(EACH_TELLS, NAMES="cuCtxGetCurrent cuEventQuery") == ["cuCtxGetCurrent", "cuEventQuery"]


def test_copies_between_launches_are_not_paid_for(programs: Programs) -> None:
    """16 bytes take no time here, so that the stream is full of copies and the charge is of the kernels alone."""
    outcome = programs.run(99, 500, "kernel:100:1", *["copy:cuMemcpyHtoDAsync:1"] * 4, "kernel:100:1", "think:300")
    assert abs(outcome.charged - outcome.use) <= POINTS


def test_a_burst_that_the_budget_has_paid_for_does_not_wait(programs: Programs) -> None:
    """40 ms of work at once, on the way for longer than launches otherwise are, by a container that has 50."""
    outcome = programs.run(50, 20, *["kernel:1000:1"] * 40, "wait:cuStreamSynchronize:1", "think:100000")
    assert outcome.work.throttled_ns == 0
    assert abs(outcome.charged - outcome.use) <= POINTS


@pytest.mark.parametrize(
    "steps",
    [
        ["copy:cuMemsetD16Async:1", "kernel:54:2", "kernel:113:1"],
        ["copy:cuMemcpyAtoHAsync:2", "kernel:95:2", "kernel:51:1"],
        ["kernel:45:2", "kernel:300:1", "copy:cuMemcpyDtoDAsync:0", "kernel:165:2", "kernel:18:1"],
    ],
    ids=lambda steps: f"{len(steps)} steps",
)
def test_short_work_of_lagging_streams_is_charged_once(programs: Programs, steps: list[str]) -> None:
    """Each launch is measured by itself, and those of one stream are read long before older ones of the other. After
    seconds, the driver's times are rounded to more than what lies between two events."""
    work = sum(int(text.split(":")[1]) for text in steps if not text.startswith("copy:"))
    outcome = programs.run(50, 3_000_000 // work, *steps)
    assert abs(outcome.charged - outcome.use) <= POINTS / 4
    assert outcome.use >= 0.5


def step(short: int, long: int) -> st.SearchStrategy[tuple[str, int]]:
    """A step and the microseconds of GPU time that it takes at most; lengths of every order of magnitude."""
    length = st.floats(0, 1).map(lambda part: round(short * (long / short) ** part))
    stream = st.sampled_from(STREAMS)
    return st.one_of(
        st.builds(lambda what, us, on: (f"{what}:{us}:{on}", us), st.sampled_from(["kernel", "graph"]), length, stream),
        st.builds(lambda name, on: (f"copy:{name}:{on}", 0), st.sampled_from(ASYNC), stream),
        st.builds(lambda us: (f"think:{us}", 0), st.floats(1, 4.3).map(lambda power: round(10**power))),
        st.builds(lambda name, on: (f"wait:{name}:{on}", 0), st.sampled_from(WAITS), stream),
    )


PROGRAM = st.lists(step(5, 2000), min_size=1, max_size=12)


def tried(examples: int) -> settings:
    shared = [HealthCheck.function_scoped_fixture]
    return settings(max_examples=examples, deadline=None, suppress_health_check=shared, derandomize=True)


class TestAnyProgram:
    """Steps of every kind in any order, again and again."""

    @given(PROGRAM)
    @tried(40)
    def test_below_its_share_is_charged_what_it_used_and_never_waits(
        self, programs: Programs, program: list[tuple[str, int]]
    ) -> None:
        work = sum(microseconds for _, microseconds in program)
        assume(0 < work <= 5000)
        steps = [text for text, _ in program]
        outcome = programs.run(99, 200, *steps, "wait:cuCtxSynchronize:0", f"think:{work + 500}")
        assert abs(outcome.charged - outcome.use) <= POINTS, steps
        share = min(99, max(15, round(100 * outcome.use) + 5))
        outcome = programs.run(share, 200, *steps, "wait:cuCtxSynchronize:0", f"think:{work + 500}")
        assert abs(outcome.charged - outcome.use) <= POINTS, steps
        assert outcome.work.throttled_ns == 0, steps

    @given(PROGRAM)
    @tried(15)
    def test_beyond_its_share_gets_its_share(self, programs: Programs, program: list[tuple[str, int]]) -> None:
        steps = [text for text, microseconds in program]
        work = sum(microseconds for _, microseconds in program)
        assume(work > 100)
        use = programs.run(99, 100, *steps).use
        share = round(50 * use)
        assume(share >= 5)
        outcome = programs.run(share, 3_000_000 // work, *steps)
        assert outcome.late_done / outcome.late_took <= share / 100 + POINTS, steps
        assert abs(outcome.charged - outcome.use) <= POINTS, steps
