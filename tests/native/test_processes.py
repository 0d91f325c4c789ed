# SPDX-License-Identifier: Apache-2.0
"""One account for all processes of a container, whatever becomes of them."""

from __future__ import annotations

import contextlib
import mmap
import os
import signal
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kube_accel.enforce.containers import Containers
from kube_accel.enforce.policy import Limit, Policy
from native.conftest import GIB, MIB, PROLOGUE, Container
from waiting import wait

SLOTS, SLOT = 64 + 16 * 192, 192
HOLD = "d.open()\nd.alloc({0} * MIB)\nprint(os.getpid(), flush=True)\ninput()"


@contextlib.contextmanager
def holding(container: Container, mebibytes: int, code: str = "") -> Iterator[subprocess.Popen[str]]:
    """A process that holds so much."""
    process = container.start(code or HOLD.format(mebibytes))
    try:
        assert process.stdout is not None
        assert process.stdout.readline().strip().isdigit()
        yield process
    finally:
        process.kill()
        process.communicate()


def slots(container: Container) -> list[tuple[int, int]]:
    """Process id and bytes of GPU 0, of every place that is taken."""
    data = container.state.read_bytes()
    taken = []
    for at in range(SLOTS, len(data), SLOT):
        flags, pid = struct.unpack_from("<II", data, at)
        if flags:
            taken.append((pid, struct.unpack_from("<Q", data, at + 64)[0]))
    return taken


def test_processes_share_one_limit(container: Container) -> None:
    with holding(container, 3072):
        assert container.words("d.open()\nprint(take(2 * GIB), d.mem_info()[0] // MIB, take(GIB))") == [
            "2",
            "1024",
            "0",
        ]


def test_account_counts_while_a_process_of_it_lives(container: Container, tmp_path: Path) -> None:
    key = "0" * 32
    (tmp_path / "containers" / key).mkdir(parents=True)
    os.link(container.state, tmp_path / "containers" / key / "state")
    plugin = Containers(tmp_path, tmp_path / "sys")

    def used() -> int:
        return (
            plugin.uses({key: Policy((Limit(container.topology.gpus[0].uuid, 4 * GIB, 30),))})[key][0].used_bytes // MIB
        )

    with holding(container, 512) as one, holding(container, 256) as other:
        assert used() == 768
        for process in (one, other):
            process.kill()
            process.wait()
        assert container.account().used_bytes == 768 * MIB
        assert used() == 0


def test_what_a_killed_process_held_is_there_for_the_next(container: Container) -> None:
    with holding(container, 3072) as one, holding(container, 512):
        one.kill()
        one.wait()
        assert container.account().used_bytes == 3584 * MIB
        assert container.words("d.open()\nprint(take(3 * GIB), used())") == ["0", "3584"]


def test_a_process_that_ends_without_freeing_leaves_nothing(container: Container) -> None:
    container.words("d.open()\nd.alloc(3 * GIB)")
    assert container.words("d.open()\nprint(d.mem_info()[0] // MIB, take(4 * GIB))") == ["4096", "0"]
    assert len(slots(container)) == 1


def test_a_dead_process_that_nobody_has_reaped_counts_no_more(container: Container) -> None:
    code = """
import time
child = os.fork()
if child == 0:
    d.open()
    d.alloc(3 * GIB)
    os._exit(0)
os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
d.open()
print(take(4 * GIB))
"""
    assert container.words(code) == ["0"]


@pytest.mark.attack
@pytest.mark.parametrize("before", ["pass", "os.closerange(3, 100)"])
def test_a_process_whose_main_thread_has_ended_stays_charged(container: Container, before: str) -> None:
    """As in the moment after a kill: its first thread is a zombie while others still run, or hold the driver's files
    after ours are closed."""
    code = f"""
import threading
context = d.open()
def go_on():
    while open("/proc/self/stat").read().rsplit(")", 1)[1].split()[0] != "Z":
        pass
    d.ok('cuCtxSetCurrent', c_void_p(context))
    d.alloc(2 * GIB)
    {before}
    for _ in range(2):
        print(os.getpid(), flush=True)
        input()
        d.alloc(GIB)
threading.Thread(target=go_on).start()
CDLL(None).pthread_exit(None)
"""
    with holding(container, 0, code) as outliving:
        assert container.words("d.open()\nprint(take(3 * GIB), used())") == ["2", "2048"]
        assert outliving.stdin is not None
        assert outliving.stdout is not None
        outliving.stdin.write("\n")
        outliving.stdin.flush()
        outliving.stdout.readline()
        assert container.words("d.open()\nprint(take(2 * GIB), used())") == ["2", "3072"]
    assert container.words("d.open()\nprint(take(4 * GIB))") == ["0"]


@pytest.mark.attack
def test_program_that_closes_foreign_descriptors_stays_charged(container: Container) -> None:
    code = "d.open()\nd.alloc(3 * GIB)\nos.closerange(3, 100)\nprint(os.getpid(), flush=True)\ninput()"
    with holding(container, 0, code):
        assert container.words("d.open()\nprint(take(2 * GIB), used())") == ["2", "3072"]


@pytest.mark.attack
def test_a_program_that_reuses_our_descriptor_keeps_its_file(container: Container) -> None:
    code = """
d.open()
d.alloc(3 * GIB)
os.closerange(3, 100)
files = [os.open("/dev/null", os.O_RDWR) for _ in range(8)]
print(take(2 * GIB), used(), *(os.fstat(file).st_rdev == os.stat("/dev/null").st_rdev for file in files))
"""
    assert container.words(code) == ["2", "3072", *["True"] * 8]


@pytest.mark.attack
def test_another_program_in_the_same_process_starts_from_nothing(container: Container) -> None:
    code = """
if "AGAIN" not in os.environ:
    d.open()
    d.alloc(3 * GIB)
    os.execve(sys.executable, [sys.executable, "-S", "-c", os.environ["CODE"]], {**os.environ, "AGAIN": "1"})
d.open()
print(used(), take(4 * GIB))
"""
    assert container.words(code, CODE=PROLOGUE + code) == ["0", "0"]


def test_child_forked_before_cuinit_has_its_own_slot(container: Container) -> None:
    code = """
d('cuDriverGetVersion', byref(c_int()))
child = os.fork()
d.open()
p = d.alloc(GIB)
if child == 0:
    d.free(p)
    os._exit(take(GIB))
print(os.waitpid(child, 0)[1], take(2 * GIB), d.mem_info()[0] // MIB)
"""
    assert container.words(code) == ["0", "0", "1024"]


@pytest.mark.attack
def test_a_child_forked_afterwards_takes_nothing_of_its_parents(container: Container) -> None:
    """The driver does not serve such a child: whatever it tries, the account is not touched."""
    code = """
def changes():
    with open(os.environ["KUBE_ACCEL_STATE"], "rb") as state:
        return state.read(80)[72:]
d.open()
p = d.alloc(GIB)
before = changes()
child = os.fork()
if child == 0:
    d('cuMemFree_v2', c_uint64(p))
    print(refused("create(2)"), changes() == before, flush=True)
    os._exit(0)
os.waitpid(child, 0)
print(used(), take(3 * GIB), take(1))
"""
    assert container.words(code) == ["3", "True", "1024", "0", "2"]


def test_half_made_charge_is_repaired_before_a_refusal(container: Container) -> None:
    with holding(container, 1024), container.state.open("r+b") as file, mmap.mmap(file.fileno(), 0) as state:
        struct.pack_into("<Q", state, 64, 4 * GIB)  # as left by a process killed between the sum and its own share
        assert container.words("d.open()\nprint(take(3 * GIB), used())") == ["0", "4096"]


def test_nothing_is_mended_while_a_charge_is_under_way(container: Container) -> None:
    with holding(container, 1024), container.state.open("r+b") as file, mmap.mmap(file.fileno(), 0) as state:
        struct.pack_into("<Q", state, 64, 4 * GIB)
        struct.pack_into("<I", state, SLOTS + 24, 1)
        assert container.words("d.open()\nprint(take(3 * GIB))") == ["2"]
        struct.pack_into("<I", state, SLOTS + 24, 0)
        assert container.words("d.open()\nprint(take(3 * GIB))") == ["0"]


@pytest.mark.attack
def test_no_more_processes_than_there_are_places(container: Container) -> None:
    data = bytearray(container.state.read_bytes())
    struct.pack_into("<I", data, 28, 1024)
    with holding(container, 1) as live:
        stat = Path(f"/proc/{live.pid}/stat").read_text().rsplit(")", 1)[1].split()
        for at in range(SLOTS + SLOT, len(data), SLOT):
            struct.pack_into("<IIQQ", data, at, 1, live.pid, int(stat[19]), 0)
        with container.state.open("r+b") as file:
            file.seek(SLOTS + SLOT)
            file.write(data[SLOTS + SLOT :])
            file.seek(28)
            file.write(struct.pack("<I", 1024))
        code = "d.ok('cuInit', 0)\nprint(refused('create(2)'), refused('create(2)'))"
        out, err = container.both(code)
    assert out.split() == ["2", "2"]
    assert err.count("\n") == 1
    assert "no place for another process" in err


@pytest.mark.attack
def test_a_stopped_process_keeps_nobody_waiting(container: Container) -> None:
    code = """
d.open()
print(os.getpid(), flush=True)
while True:
    d.free(d.alloc(MIB))
    take(5 * GIB)
"""
    with holding(container, 0, code) as busy:
        for _ in range(5):
            container.stop(busy)
            assert container.words("d.open()\nprint(take(3 * GIB), d.mem_info()[1] // GIB)") == ["0", "4"]
            busy.send_signal(signal.SIGCONT)


@pytest.mark.attack
@pytest.mark.parametrize("number", [0, 1, 2**63, 2**64 - 1])
def test_numbers_a_tenant_wrote_break_nothing(container: Container, number: int) -> None:
    code = f"""
d.open()
p = d.alloc(GIB)
with open(os.environ["KUBE_ACCEL_STATE"], "r+b") as state:
    state.seek(64)
    state.write(struct.pack("<2Q", {number}, {number}))
    state.seek({SLOTS} + 64)
    state.write(struct.pack("<Q", {number}))
free, total = d.mem_info()
d.free(p)
print(free <= total == 4 * GIB, d.mem_info()[0] <= 4 * GIB, take(5 * GIB))
"""
    assert container.words(code) == ["True", "True", "2"]


@pytest.mark.attack
def test_truncated_account_ends_only_its_own_processes(container: Container) -> None:
    limit = Limit(container.topology.gpus[0].uuid, 2 * GIB, 30)
    neighbour = Container(container.root / "neighbour", container.libraries, container.topology, [limit])
    size = container.state.stat().st_size
    cut = """
d.open()
os.truncate(os.environ["KUBE_ACCEL_STATE"], 0)
print(os.getpid(), flush=True)
d.alloc(GIB)
"""
    with holding(neighbour, 1024):
        process = container.start(cut)
        process.communicate(timeout=60)
        assert process.returncode == -signal.SIGBUS
        os.truncate(container.state, size)  # as the plugin does
        out, err = container.both("d.ok('cuInit', 0)\nprint(refused('create(2)'))")
        assert (out, err.count("\n")) == ("2\n", 1)
        assert "has a layout this build does not know" in err
        assert neighbour.words("d.open()\nprint(take(GIB), take(2 * GIB), used())") == ["0", "2", "2048"]


@pytest.mark.attack
def test_memory_of_another_process_is_charged_to_who_made_it(container: Container) -> None:
    code = """
d.open()
p = d.alloc(GIB)
handle = (c_char * 64)()
d.ok('cuIpcGetMemHandle', handle, c_uint64(p))
print(os.getpid(), bytes(handle).hex(), flush=True)
input()
"""
    process = container.start(code)
    assert process.stdout is not None
    _, handle = process.stdout.readline().split()
    opened = f"""
d.open()
class Handle(Structure):
    _fields_ = [("bytes", c_char * 64)]
handle = Handle.from_buffer_copy(bytes.fromhex("{handle}"))
there = c_uint64()
print(d('cuIpcOpenMemHandle_v2', byref(there), handle, c_uint(1)), used(), d('cuIpcCloseMemHandle', there), used())
"""
    assert container.words(opened) == ["0", "1024", "0", "1024"]
    process.communicate("\n", timeout=60)


CROWD = """
#include <unistd.h>
#include <sys/wait.h>
#include <stdio.h>
#include <stdlib.h>
int cuInit(unsigned), cuCtxCreate_v2(void **, unsigned, int), cuMemAlloc_v2(unsigned long long *, unsigned long);
int main(void) {
    int ready[2], failed = 0;
    char answer;
    if (pipe(ready)) return 9;
    for (int i = 0; i < PROCESSES; i++)
        if (fork() == 0) {
            void *context;
            unsigned long long pointer;
            answer = (char)(cuInit(0) | cuCtxCreate_v2(&context, 0, 0) | cuMemAlloc_v2(&pointer, 3 << 20));
            if (write(ready[1], &answer, 1) != 1) return 9;
            pause();
        }
    for (int i = 0; i < PROCESSES; i++) failed += read(ready[0], &answer, 1) != 1 || answer != 0;
    printf("%d\\n", failed);
    fflush(stdout);
    pause();
}
"""


def test_a_crowd_of_processes_starts_at_once(container: Container, tmp_path: Path) -> None:
    source, crowd, count = tmp_path / "crowd.c", tmp_path / "crowd", 200
    source.write_text(CROWD)
    library = container.public / "libcuda.so.1"
    subprocess.run(["gcc", f"-DPROCESSES={count}", "-o", crowd, source, library, "-ldl"], check=True)
    container.tell(Limit(container.topology.gpus[0].uuid, count * 4 * MIB, 30))
    process = subprocess.Popen(
        [crowd], env=container.environment, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "0\n"
        assert container.account().used_bytes == count * 4 * MIB
        assert len({pid for pid, _ in slots(container)}) == count
        assert container.words("d.open()\nprint(take(1))") == ["2"]
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
    # The kernel takes its time to end so many.
    wait(lambda: container.words("d.open()\nprint(take(800 * MIB))") == ["0"], "the memory of the dead")


@pytest.fixture
def elsewhere() -> list[str]:
    """The command before one that is to see no process but its own."""
    command = ["unshare", "--pid", "--fork", "--mount-proc"]
    probe = subprocess.run([*command, "true"], capture_output=True, text=True)
    if probe.returncode != 0:
        pytest.skip(f"NOT TESTED: processes in another PID namespace: none can be made here: {probe.stderr.strip()}")
    return command


def test_process_without_descriptors_counts_across_pid_ns(container: Container, elsewhere: list[str]) -> None:
    code = "d.open()\nd.alloc(3 * GIB)\nos.closerange(3, 1024)\nprint(os.getpid(), flush=True)\ninput()"
    program = PROLOGUE + "d.open()\nprint(take(2 * GIB), take(GIB), used())"
    with holding(container, 3072, code):
        command = [*elsewhere, sys.executable, "-S", "-c", program]
        shown = subprocess.run(command, env=container.environment, capture_output=True, text=True)
        assert (shown.stdout.split(), shown.stderr) == (["2", "0", "4096"], "")


class TestLine:
    """What the interposer says on stderr."""

    CODE = PROLOGUE + "import signal\nsignal.signal(signal.SIGPIPE, signal.SIG_DFL)\nd.open()\nprint(take(1))"

    def run(self, container: Container, stderr: int) -> str:
        container.policy.unlink()
        command = [sys.executable, "-S", "-c", self.CODE]
        shown = subprocess.run(command, env=container.environment, stdout=subprocess.PIPE, stderr=stderr, text=True)
        assert shown.returncode == 0
        return shown.stdout

    @pytest.mark.parametrize(("mode", "written"), [(os.O_WRONLY, True), (os.O_RDWR, False)])
    def test_goes_to_a_log_file_and_not_to_a_programs_own_file(
        self, container: Container, tmp_path: Path, mode: int, written: bool
    ) -> None:
        """A daemon that closed descriptor 2 may have opened its data by that number."""
        path = tmp_path / "file"
        file = os.open(path, mode | os.O_CREAT)
        assert self.run(container, file) == "2\n"
        os.close(file)
        assert path.read_text().startswith("kube-accel: GPU memory is refused") == written
        assert written or path.read_bytes() == b""

    def test_ends_no_program_whose_reader_is_gone(self, container: Container) -> None:
        reader, writer = os.pipe()
        os.close(reader)
        assert self.run(container, writer) == "2\n"
        os.close(writer)
