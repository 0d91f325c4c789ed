# SPDX-License-Identifier: Apache-2.0
"""What the policy says holds from one call to the next; one that cannot be read refuses memory and breaks nothing."""

from __future__ import annotations

import mmap
import os
import struct
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from kube_accel.enforce.policy import GENERATION_OFFSET, Feedback, Limit
from native.conftest import GIB, Container

TRY = """
d.open()
print(take(1), d('cuMemAllocAsync', byref(c_uint64()), n(1), None), refused('create(2)'), d.mem_info()[0])
print(d.mem_info()[1] > GIB, d.launch(d.spinner(), 1))
"""


def cut(container: Container) -> None:
    os.truncate(container.policy, 1000)


def empty(container: Container) -> None:
    os.truncate(container.policy, 0)


def missing(container: Container) -> None:
    container.policy.unlink()


def write(container: Container, offset: int, data: bytes) -> None:
    with container.policy.open("r+b") as file:
        file.seek(offset)
        file.write(data)


@pytest.mark.attack
@pytest.mark.parametrize(
    ("harm", "says"),
    [
        (missing, "No such file or directory"),
        (empty, "is too short"),
        (cut, "is too short"),
        (lambda c: write(c, 0, b"KASTATE\0"), "is not a policy"),
        (lambda c: write(c, 8, struct.pack("<I", 2)), "has a layout this build does not know"),
        (lambda c: write(c, 12, struct.pack("<I", 64)), "is not as long as it says"),
        (lambda c: write(c, 12, struct.pack("<I", 1 << 20)), "is not as long as it says"),
        (lambda c: write(c, 24, struct.pack("<I", 0)), "names no device, or too many"),
        (lambda c: write(c, 24, struct.pack("<I", 17)), "names no device, or too many"),
    ],
    ids=["missing", "empty", "short", "foreign", "unknown layout", "too small", "too large", "no device", "too many"],
)
def test_without_a_usable_policy_memory_is_refused_with_one_line(
    container: Container, harm: Callable[[Container], None], says: str
) -> None:
    harm(container)
    out, err = container.both(TRY)
    assert out.split() == ["2", "2", "2", "0", "True", "0"]
    assert err.startswith(f"kube-accel: GPU memory is refused: policy {container.policy}")
    assert says in err
    assert err.count("\n") == 1
    assert container.whole_account().denied_policy == 3


@pytest.mark.attack
@pytest.mark.parametrize(
    ("harm", "says"),
    [
        (lambda path: path.unlink(), "No such file or directory"),
        (lambda path: os.truncate(path, 4096), "is too short"),
        (lambda path: path.write_bytes(path.read_bytes().replace(b"KASTATE", b"NOSTATE")), "has a layout"),
    ],
    ids=["missing", "short", "foreign"],
)
def test_without_an_account_memory_is_refused_with_one_line(
    container: Container, harm: Callable[[Path], None], says: str
) -> None:
    harm(container.state)
    out, err = container.both("d.ok('cuInit', 0)\nprint(refused('create(2)'), refused('create(2)'))")
    assert out.split() == ["2", "2"]
    assert says in err
    assert err.count("\n") == 1


def test_a_limit_changes_between_two_calls(container: Container) -> None:
    uuid = container.topology.gpus[0].uuid
    process = container.start("d.open()\nfor _ in sys.stdin: print(take(2 * GIB), d.mem_info()[1] // GIB, flush=True)")

    def step() -> str:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write("\n")
        process.stdin.flush()
        return process.stdout.readline().strip()

    answers = [step()]
    for limit in (1, 6, 3, 0):
        container.tell(Limit(uuid, limit * GIB, 30))
        answers.append(step())
    process.communicate(timeout=60)
    whole = container.topology.gpus[0].mem // GIB
    assert answers == ["0 4", "2 1", "0 6", "2 3", f"0 {whole}"]


def test_a_writer_that_died_half_way_stops_nobody(container: Container) -> None:
    write(container, GENERATION_OFFSET, struct.pack("<I", 7))
    assert container.words("d.open()\nprint(take(4 * GIB), take(1))") == ["0", "2"]


@pytest.mark.parametrize(
    ("age", "free", "result"),
    [("0", "2048", "2"), ("3 * 10**9", "4096", "0"), ("-3600 * 10**9", "4096", "0")],
    ids=["news", "stale", "from the future"],
)
def test_memory_that_only_nvml_sees_counts_while_that_is_news(
    container: Container, age: str, free: str, result: str
) -> None:
    limit = Limit(container.topology.gpus[0].uuid, 4 * GIB, 30)
    container.tell(limit, feedback=[Feedback(uncounted_bytes=2 * GIB)])
    code = f"""
import time
d.open()
with open(os.environ["KUBE_ACCEL_POLICY"], "r+b") as policy:
    policy.seek(32)
    policy.write(struct.pack("<Q", time.monotonic_ns() - ({age})))
print(d.mem_info()[0] // MIB, take(3 * GIB))
"""
    assert container.words(code) == [free, result]


NEWS = """
import time
def hear():
    with open(os.environ["KUBE_ACCEL_POLICY"], "r+b") as policy:
        policy.seek(32)
        policy.write(struct.pack("<Q", time.monotonic_ns()))
"""


def test_memory_from_before_nvml_knew_contexts_may_return(container: Container) -> None:
    """A neighbor's arrival is when that is told: a program that fitted alone fits."""
    limit = Limit(container.topology.gpus[0].uuid, 4 * GIB, 30)
    container.tell(limit, feedback=[Feedback(uncounted_bytes=GIB)], at_ns=1)
    code = """
d.open()
held = [d.alloc(GIB) for _ in range(3)] + [d.alloc(GIB // 2)]
hear()
print(take(GIB // 2), d.mem_info()[0] // MIB)
for _ in range(2):
    d.free(held.pop())
    hear()
    print(d.mem_info()[0] // MIB, take(GIB // 2 + 1), end=" ")
    held.append(d.alloc(GIB // 2))
    print(take(1), d.mem_info()[0] // MIB)
"""
    # What is more than it had is refused, as it is alone: contexts count from the beginning.
    assert container.words(NEWS + code) == ["2", "0", "512", "2", "2", "0", "512", "2", "2", "0"]


def test_more_contexts_than_it_had_leave_a_container_less(container: Container) -> None:
    limit = Limit(container.topology.gpus[0].uuid, 4 * GIB, 30)
    container.tell(limit, feedback=[Feedback(uncounted_bytes=GIB)], at_ns=1)
    code = """
d.open()
held = d.alloc(4 * GIB)
hear()
d.free(held)
with open(os.environ["KUBE_ACCEL_POLICY"], "r+b") as policy:
    policy.seek(64 + 40)
    policy.write(struct.pack("<Q", 3 * GIB))
hear()
print(d.mem_info()[0] // MIB, take(2 * GIB + 1), take(2 * GIB))
"""
    assert container.words(NEWS + code) == ["2048", "2", "0"]


@pytest.mark.attack
@pytest.mark.parametrize("written", [1 << 40, (1 << 64) - 1])
def test_tenant_that_edits_its_peak_stays_below_its_limit(container: Container, written: int) -> None:
    code = f"""
d.open()
d.alloc(MIB)
with open(os.environ["KUBE_ACCEL_STATE"], "r+b") as state:
    state.seek(64 + 32)
    state.write(struct.pack("<Q", {written}))
hear()
print(d.mem_info()[0] // MIB, take(4 * GIB), take(3 * GIB))
"""
    container.tell(
        Limit(container.topology.gpus[0].uuid, 4 * GIB, 30), feedback=[Feedback(uncounted_bytes=GIB)], at_ns=1
    )
    assert container.words(NEWS + code) == ["4095", "2", "0"]


def test_what_is_read_while_it_is_written_belongs_together(container: Container) -> None:
    limit = Limit(container.topology.gpus[0].uuid, 4 * GIB, 30)
    container.tell(limit, feedback=[Feedback(uncounted_bytes=GIB)], at_ns=1)
    code = """
d.open()
print(1, flush=True)
print(*{tuple(size >> 29 for size in d.mem_info()) for _ in range(20000)}, sep=chr(10))
"""
    process = container.start(code)
    assert process.stdout is not None
    assert process.stdout.readline() == "1\n"
    with container.policy.open("r+b") as file, mmap.mmap(file.fileno(), 0) as policy:
        generation = container.generation

        def put(offset: int, form: str, value: int) -> None:
            data = struct.pack(form, value)
            policy[offset : offset + len(data)] = data

        while process.poll() is None:
            put(32, "<Q", time.monotonic_ns())
            for memory, uncounted in ((2 * GIB, GIB // 2), (4 * GIB, GIB)):
                put(GENERATION_OFFSET, "<I", generation + 1)
                put(64 + 16, "<Q", memory)
                put(64 + 40, "<Q", uncounted)
                generation += 2
                put(GENERATION_OFFSET, "<I", generation)
    seen = set(process.communicate(timeout=60)[0].splitlines())
    # A busy machine may show the reader one of the two alone; what it must never show is a mix.
    assert set() < seen - {"(8, 8)"} <= {"(6, 8)", "(3, 4)"}
