# SPDX-License-Identifier: Apache-2.0
import errno
import gc
import mmap
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kube_accel.enforce import policy as layouts
from kube_accel.enforce import selinux
from kube_accel.enforce.accounts import Wrong
from kube_accel.enforce.containers import Containers, key_of
from kube_accel.enforce.fd_cache import FdCache
from kube_accel.enforce.policy import Feedback, Limit, Policy, Use
from kube_accel.enforce.spares import Spare
from waiting import wait

GIB = 1 << 30
UUID = "GPU-0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0"
KEY = key_of(["a::m1", "a::m0"])
POLICY = Policy((Limit(UUID, 4 * GIB, 30),))


@pytest.fixture
def containers(tmp_path: Path) -> Containers:
    made = Containers(tmp_path, tmp_path / "sys")
    made.prepare(KEY, "build-1")
    made.start(KEY, POLICY)
    return made


def test_a_share_has_one_name_in_whatever_order_its_devices_come() -> None:
    assert key_of(["a::m0", "a::m1"]) == KEY
    assert key_of(["a::m0"]) != KEY


def test_containers_users_may_account_but_not_change_limits(containers: Containers) -> None:
    # Its owner may: the daemon runs as root without the capability that passes over modes.
    assert containers.policy_path(KEY).stat().st_mode & 0o7777 == 0o644
    assert containers.state_path(KEY).stat().st_mode & 0o7777 == 0o666
    assert containers.state_path(KEY).stat().st_size == layouts.state_size(1)
    assert containers.policy_path(KEY).parent.stat().st_mode & 0o7777 == 0o700
    assert containers.policy(KEY) == POLICY
    assert containers.build_of(KEY) == "build-1"


def test_files_made_at_once_are_those_of_a_prepared_start(containers: Containers, tmp_path: Path) -> None:
    key, others = key_of(["c::m0"]), Containers(tmp_path, tmp_path / "sys")
    places = [
        path.relative_to(containers.policy_path(KEY).parent) for path in containers.policy_path(KEY).parent.iterdir()
    ]
    for build in ("build-2", "build-3"):
        before = containers.state_path(key).stat().st_ino if containers.state_path(key).exists() else 0
        containers.start(key, POLICY, build)
        assert (others.policy(key), others.build_of(key)) == (POLICY, build)
        assert containers.state_path(key).stat().st_ino != before
    for place in places:
        one, other = (containers.policy_path(each).parent / place for each in (KEY, key))
        assert (one.stat().st_mode, one.stat().st_size) == (other.stat().st_mode, other.stat().st_size)
        assert place.name == "build" or one.read_bytes() == other.read_bytes()
    assert containers.keys() == {KEY, key}


def test_a_running_container_sees_a_change_and_never_half_of_it(containers: Containers) -> None:
    with containers.policy_path(KEY).open("rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
    changed = replace(POLICY, limits=(Limit(UUID, 2 * GIB, 10),))
    assert containers.update(KEY, lambda current: changed)
    found, generation = layouts.read_policy(mapped[:])
    assert (found, generation) == (changed, 4)
    assert not containers.update(KEY, lambda current: changed)
    assert layouts.read_policy(mapped[:])[1] == 4


FEEDBACK = st.builds(
    Feedback, st.none() | st.integers(0, 2**40), st.none() | st.integers(0, 1000), st.none() | st.integers(0, 1000)
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(FEEDBACK, st.integers(0, 2**50)), min_size=1, max_size=5))
def test_what_was_written_is_known_as_another_daemon_reads_it(
    containers: Containers, tmp_path: Path, told: list[tuple[Feedback, int]]
) -> None:
    for feedback, at in told:
        containers.update(KEY, lambda current, f=feedback, at=at: replace(current, feedback=(f,), feedback_at_ns=at))
        assert containers.read_all([KEY]) == Containers(tmp_path, tmp_path / "sys").read_all([KEY])


def test_several_policies_are_changed_at_once(containers: Containers) -> None:
    other = key_of(["b::m0"])
    containers.prepare(other, "build-1")
    containers.start(other, POLICY)
    changed = replace(POLICY, limits=(Limit(UUID, 2 * GIB, 10),))
    with containers.updating() as update:
        assert [update(key, lambda current: changed) for key in (KEY, other)] == [True, True]
        with pytest.raises(OSError, match="No such file"):
            update("unknown", lambda current: changed)
    assert [containers.policy(key) for key in (KEY, other)] == [changed, changed]


def test_half_written_policy_is_written_again(containers: Containers) -> None:
    with containers.policy_path(KEY).open("r+b") as file:
        os.pwrite(file.fileno(), (3).to_bytes(4, "little"), layouts.GENERATION_OFFSET)
    assert containers.update(KEY, lambda current: current)
    assert layouts.read_policy(containers.policy_path(KEY).read_bytes()) == (POLICY, 4)


def test_the_next_start_leaves_the_files_of_the_last_one_to_it(containers: Containers) -> None:
    with containers.policy_path(KEY).open("rb") as policy, containers.state_path(KEY).open("r+b") as state:
        state.seek(64 + 16)
        state.write((7).to_bytes(8, "little"))
        state.flush()
        account = containers.account(KEY, POLICY)
        assert account is not None
        assert account.devices[0].denied_limit == 7
        containers.start(KEY, replace(POLICY, limits=(Limit(UUID, GIB, 30),)))
        assert layouts.read_policy(policy.read())[0] == POLICY
    account = containers.account(KEY, POLICY)
    assert account is not None
    assert account.devices[0].denied_limit == 0


@pytest.mark.parametrize("size", [0, 100, layouts.state_size(1) + (1 << 30)])
def test_a_state_has_the_size_it_was_made_with(containers: Containers, size: int) -> None:
    os.truncate(containers.state_path(KEY), size)
    wrong = Wrong.GROWN if size > layouts.state_size(1) else Wrong.SHORT
    assert containers.trim({KEY: POLICY, "unknown": POLICY}) == {KEY: {wrong}}
    wait(lambda: containers.state_path(KEY).stat().st_size == layouts.state_size(1), "the size to be put right")
    wait(lambda: containers.trim({KEY: POLICY}) == {}, "the account to be right")


def test_repairs_that_made_room_are_reported_at_the_next_look(
    containers: Containers, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full() -> None:
        raise OSError(errno.ENOSPC, "no room")

    assert containers.policy(KEY) == POLICY
    os.truncate(containers.state_path(KEY), 1 << 24)
    monkeypatch.setattr(containers.spares, "take", full)
    monkeypatch.setattr("kube_accel.enforce.containers._ROOM_SECONDS", 0)
    with pytest.raises(OSError, match="no room"):
        containers.start(key_of(["b::m0"]), POLICY)
    wait(lambda: containers.state_path(KEY).stat().st_size < 1 << 24, "the size to be put right", 20)
    assert containers.trim({KEY: POLICY}) == {KEY: {Wrong.GROWN}}
    assert containers.trim({KEY: POLICY}) == {}


def test_a_start_takes_room_back_until_it_has_some(containers: Containers, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody has looked at the tenant's account yet, and the tenant takes the room again before the start has it."""
    state, take, again = containers.state_path(KEY), containers.spares.take, iter(range(2))

    def grow() -> None:
        os.truncate(state, 1 << 24)

    def taken() -> Spare:
        if next(again, None) is not None:
            grow()
        if state.stat().st_size > layouts.state_size(1):
            raise OSError(errno.ENOSPC, "no room")
        return take()

    grow()
    monkeypatch.setattr(containers.spares, "take", taken)
    key = key_of(["b::m0"])
    containers.start(key, POLICY)
    assert containers.policy(key) == POLICY


def test_a_state_that_was_cut_short_counts_nothing(containers: Containers) -> None:
    os.truncate(containers.state_path(KEY), 100)
    assert containers.account(KEY, POLICY) is None
    assert containers.account("unknown", POLICY) is None


def test_files_go_when_nobody_has_held_them_for_a_while(containers: Containers) -> None:
    now = containers.policy_path(KEY).stat().st_mtime
    assert containers.prune([KEY], now + 1e6) == []
    assert containers.prune([], now + 1) == []
    assert containers.prune([], now + 1e6) == [KEY]
    assert containers.keys() == set()
    assert containers.policy(KEY) is None


@pytest.mark.attack
def test_times_of_an_account_do_not_keep_it(containers: Containers) -> None:
    """A tenant may set them, and its account would stay when its container has ended."""
    now = containers.policy_path(KEY).stat().st_mtime
    os.utime(containers.state_path(KEY), (now + 1e9, now + 1e9))
    assert containers.prune([], now + 1e6) == [KEY]


@pytest.mark.attack
def test_an_account_that_runs_as_a_program_is_told_and_put_right(tmp_path: Path) -> None:
    """Nobody may write a program that runs, so that a plugin that starts meanwhile cannot open it."""
    before, size = Containers(tmp_path, tmp_path / "sys"), layouts.state_size(1)
    before.prepare(KEY, "build-1")
    before.start(KEY, POLICY)
    state = before.state_path(KEY)
    del before
    gc.collect()
    program = Path("/bin/sleep").read_bytes()
    state.write_bytes(program.ljust(size, b"\0"))
    state.chmod(0o6777)
    with subprocess.Popen([state, "1000"]) as process:
        try:
            after = Containers(tmp_path, tmp_path / "sys")
            assert after.trim({KEY: POLICY}) == {KEY: {Wrong.HELD, Wrong.MODE}}
            wait(lambda: state.stat().st_mode & 0o7777 == 0o666, "the mode to be put right")
            assert after.trim({KEY: POLICY}) == {KEY: {Wrong.HELD}}
        finally:
            process.kill()
    wait(lambda: after.trim({KEY: POLICY}) == {}, "the account to be right")


def test_what_is_no_policy_is_not_touched(containers: Containers) -> None:
    containers.policy_path(KEY).chmod(0o600)
    containers.policy_path(KEY).write_bytes(b"something else")
    with pytest.raises(ValueError, match="cut short"):
        containers.update(KEY, lambda current: current)
    assert containers.policy_path(KEY).read_bytes() == b"something else"


def test_files_are_labelled_for_containers_with_selinux(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    labels: dict[str, bytes] = {}
    monkeypatch.setattr(os, "setxattr", lambda path, name, value: labels.update({Path(path).name: value}))
    (tmp_path / "sys/fs/selinux").mkdir(parents=True)
    (tmp_path / "sys/fs/selinux/enforce").touch()
    made = Containers(tmp_path, tmp_path / "sys")
    made.prepare(KEY, "build")
    made.start(KEY, POLICY)
    assert set(labels) == {"policy", "state"}
    assert set(labels.values()) == {b"system_u:object_r:container_file_t:s0\0"}


@pytest.mark.parametrize(("kind", "said"), [("container_file_t", ""), ("var_run_t", "system_u:object_r:var_run_t:s0")])
def test_a_label_that_is_not_for_containers_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, said: str
) -> None:
    monkeypatch.setattr(os, "getxattr", lambda path, name: f"system_u:object_r:{kind}:s0\0".encode())
    assert selinux.unshared(tmp_path) == said


def test_a_policy_is_read_again_when_somebody_has_written_it(containers: Containers, tmp_path: Path) -> None:
    assert containers.policy(KEY) == POLICY
    changed = replace(POLICY, limits=(Limit(UUID, 2 * GIB, 10),))
    other = Containers(tmp_path, tmp_path / "sys")
    os.utime(containers.policy_path(KEY), ns=(0, 0))
    other.update(KEY, lambda current: changed)
    assert containers.policy(KEY) == changed
    other.start(KEY, POLICY)
    assert containers.policy(KEY) == POLICY


def test_accounts_are_told_as_they_are_at_each_look(containers: Containers) -> None:
    with containers.state_path(KEY).open("r+b") as state:
        for used in (5, 7):
            os.pwrite(state.fileno(), used.to_bytes(8, "little"), 64)
            found = containers.accounts({KEY: POLICY, "unknown": POLICY})
            assert {key: account.devices[0].used_bytes for key, account in found.items()} == {KEY: used}


_LOCKS = """
import fcntl, sys
file = open(sys.argv[1], "r+b")
fcntl.lockf(file, fcntl.LOCK_EX, 1, int(sys.argv[2]))
print(flush=True)
sys.stdin.read()
"""


@contextmanager
def lock_of(state: Path, slot: int = 0) -> Iterator[subprocess.Popen[str]]:
    """A process of a container that has this slot of its account."""
    place = layouts.slots(1)[0] + slot * layouts.SLOT_SIZE
    command = [sys.executable, "-c", _LOCKS, str(state), str(place)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as found:
        try:
            assert found.stdout is not None
            found.stdout.readline()
            yield found
        finally:
            found.kill()


def test_memory_counts_while_a_process_of_the_container_lives(containers: Containers) -> None:
    def use() -> list[Use]:
        return [one for uses in containers.uses({KEY: POLICY, "unknown": POLICY}).values() for one in uses]

    with containers.state_path(KEY).open("r+b") as state:
        os.pwrite(state.fileno(), (3 * GIB).to_bytes(8, "little"), 64)
        os.pwrite(state.fileno(), (10**18).to_bytes(8, "little"), 64 + 80)
    assert use() == [Use(0, 10**18)]
    for slot in (0, layouts.SLOTS - 1):
        with lock_of(containers.state_path(KEY), slot) as running:
            assert use() == [Use(3 * GIB, 10**18)]
            running.kill()
            running.wait()
            assert use() == [Use(0, 10**18)], "it was killed, and could not take its memory out of the account"


@pytest.mark.attack
def test_an_account_that_was_cut_short_says_nothing(containers: Containers) -> None:
    os.truncate(containers.state_path(KEY), 100)
    assert containers.uses({KEY: POLICY}) == {}


def test_who_may_not_write_a_policy_reads_it(
    containers: Containers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(files: FdCache, name: str) -> int:
        raise PermissionError(13, "Permission denied", name)

    monkeypatch.setattr(FdCache, "_open", refused)
    assert containers.policy(KEY) == POLICY
    other = Containers(tmp_path, tmp_path / "sys")
    assert other.policy(KEY) == POLICY
    with pytest.raises(PermissionError):
        other.update(KEY, lambda current: replace(current, limits=(Limit(UUID, GIB, 30),)))
