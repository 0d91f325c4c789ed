# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import errno
import os
import re
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest
from ansible_collections.accel.kubernetes.plugins.module_utils.host.machine import CommandError, Host
from ansible_collections.accel.kubernetes.plugins.module_utils.host.record import FileChange, Record
from ansible_collections.accel.kubernetes.plugins.module_utils.host.service import Service
from ansible_collections.accel.kubernetes.plugins.module_utils.host.transaction import (
    CONFIRMED,
    RESTORED,
    RESTORED_BY_TIMER,
    Transaction,
)
from ansible_collections.accel.kubernetes.plugins.module_utils.host.writable import TransactionError

OLD, NEW, ADDED = b"old\n", b"new\n", b"added\n"


class KilledError(BaseException):
    """The module's process ends here."""


class Machine(Host):  # type: ignore[misc]
    """A directory for a machine, with one service that reads `main` when it is restarted. Dies when told to."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.running: bytes | None = OLD
        self.well: Callable[[bytes | None], bool] = lambda running: True
        self.systemd = True
        self.timer: list[str] | None = None
        self.full_for = ""
        self.operations = 0
        self.die_at = -1
        self.failing_restarts = 0
        self.clock = 0.0

    def _step(self) -> None:
        self.operations += 1
        if self.operations == self.die_at:
            raise KilledError

    def write(self, path: str, data: bytes, mode: int) -> None:
        self._step()
        if self.full_for and path.endswith(self.full_for) and data == NEW:
            raise OSError(28, "No space left on device", path)
        target = Path(path)
        target.write_bytes(data)
        target.chmod(mode)

    def remove(self, path: str) -> None:
        self._step()
        super().remove(path)

    def make_directory(self, path: str, mode: int) -> list[str]:
        self._step()
        created: list[str] = super().make_directory(path, mode)
        return created

    def find(self, command: str) -> str | None:
        return f"/bin/{command}"

    def run(self, argv: Sequence[str], timeout: float) -> str:
        self._step()
        if argv[0] == "restart":
            if self.failing_restarts:
                self.failing_restarts -= 1
                self.running = None
                raise CommandError("'restart' ended with status 1")
            self.running = self.read(str(self.root / "main"))
        elif argv[0] == "systemd-run":
            if not self.systemd:
                raise CommandError("cannot run 'systemd-run': No such file or directory")
            self.timer = list(argv)
        elif argv[:2] == ["systemctl", "stop"]:
            self.timer = None
        return ""

    def now(self) -> float:
        return self.clock

    def sleep(self, seconds: float) -> None:
        self.clock += seconds


def transaction(machine: Machine, directory: Path | None = None) -> Transaction:
    def watch(host: Host, undoing: bool) -> Callable[[], str]:
        return lambda: "" if machine.well(machine.running) else "it is ill"

    state = (directory or machine.root) / "state"
    state.mkdir(exist_ok=True)
    return Transaction(machine, str(state), "it", Service(["restart"], watch, timeout=30))


def changes(machine: Machine) -> list[FileChange]:
    """One file changed, one created in a new directory, one deleted."""
    return [
        FileChange(str(machine.root / "main"), OLD, NEW),
        FileChange(str(machine.root / "sub" / "added"), None, ADDED),
        FileChange(str(machine.root / "doomed"), OLD, None),
    ]


def contents(machine: Machine) -> dict[str, bytes]:
    files = (path for path in machine.root.rglob("*") if path.is_file() and "state" not in path.parts)
    return {str(path.relative_to(machine.root)): path.read_bytes() for path in files}


BEFORE = {"main": OLD, "doomed": OLD}
AFTER = {"main": NEW, "sub/added": ADDED}


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return new_machine(tmp_path / "m")


def new_machine(root: Path) -> Machine:
    root.mkdir()
    (root / "main").write_bytes(OLD)
    (root / "doomed").write_bytes(OLD)
    return Machine(root)


def test_a_change_is_made_applied_and_remembered(machine: Machine) -> None:
    record = Record(originals={str(machine.root / "main"): OLD}, owned={"name": "nvidia"})

    transaction(machine).commit(changes(machine), record)

    assert contents(machine) == AFTER
    assert machine.running == NEW
    remembered = transaction(machine).record()
    assert remembered.originals == {str(machine.root / "main"): OLD}
    assert remembered.owned == {"name": "nvidia"}
    assert remembered.untouched(str(machine.root / "main"), NEW)
    assert machine.timer is None
    assert transaction(machine).recover() == ""


def test_a_file_that_is_read_on_demand_restarts_nothing(machine: Machine) -> None:
    machine.well = lambda running: False

    transaction(machine).commit([FileChange(str(machine.root / "main"), OLD, NEW, restart=False)], Record())

    assert contents(machine)["main"] == NEW
    assert machine.running == OLD


def test_a_service_that_does_not_start_at_first_is_started_again(machine: Machine) -> None:
    machine.failing_restarts = 1
    transaction(machine).commit(changes(machine), Record())
    assert (contents(machine), machine.running) == (AFTER, NEW)


def test_a_service_that_does_not_start_gets_its_old_files_back(machine: Machine) -> None:
    machine.failing_restarts = 2
    with pytest.raises(TransactionError, match="'restart' ended with status 1; the previous files are back and the"):
        transaction(machine).commit(changes(machine), Record())
    assert (contents(machine), machine.running) == (BEFORE, OLD)


def test_restart_without_a_change_needs_a_healthy_service(machine: Machine) -> None:
    (machine.root / "main").write_bytes(NEW)

    transaction(machine).commit([], Record())
    assert machine.running == NEW

    machine.well = lambda running: False
    with pytest.raises(TransactionError, match="it is ill"):
        transaction(machine).commit([], Record())


def test_a_service_that_stays_ill_gets_its_old_files_back(machine: Machine) -> None:
    machine.well = lambda running: running == OLD

    with pytest.raises(
        TransactionError, match=r"not healthy 30 s after the change: it is ill; the previous files are back"
    ):
        transaction(machine).commit(changes(machine), Record())

    assert contents(machine) == BEFORE
    assert not (machine.root / "sub").exists()
    assert machine.running == OLD
    assert not transaction(machine).unfinished()
    assert transaction(machine).record() == Record()


def test_start_limit_does_not_keep_the_old_file_away(machine: Machine) -> None:
    class Limited(Machine):
        starts = 0

        def run(self, argv: Sequence[str], timeout: float) -> str:
            if argv[0] == "reset":
                self.starts = 0
                raise CommandError("it had not failed")
            if argv[0] == "restart":
                self.starts += 1
                if self.starts > 1:
                    raise CommandError("Start request repeated too quickly")
            return super().run(argv, timeout)

    limited = Limited(machine.root)
    service = Service(["restart"], lambda host, undoing: lambda: "" if limited.running == OLD else "ill", 30, ["reset"])
    (machine.root / "state").mkdir()

    with pytest.raises(TransactionError, match="the previous files are back and the service is well"):
        Transaction(limited, str(machine.root / "state"), "it", service).commit(changes(limited), Record())


def test_a_service_that_was_ill_before_is_said_to_be_so_still(machine: Machine) -> None:
    machine.well = lambda running: False

    with pytest.raises(TransactionError, match="the previous files are back, but the service is still not well: "):
        transaction(machine).commit(changes(machine), Record())

    assert contents(machine) == BEFORE


def test_a_full_disk_leaves_everything_as_it_was(machine: Machine) -> None:
    machine.full_for = "/main"

    with pytest.raises(
        TransactionError, match=r"No space left.*; make room there \(see 'df .*'\), then run again; the pre"
    ):
        transaction(machine).commit(changes(machine), Record())

    assert contents(machine) == BEFORE
    assert machine.running == OLD


@pytest.mark.parametrize(
    ("seen", "says"),
    [
        ({}, ""),
        ({"f_bfree": 2}, r"has 8 KiB left and 256 KiB are needed; make room there \(see 'df .*'\), then run again"),
        ({"f_files": 9}, "has 0 KiB left"),
        ({"f_flag": os.ST_RDONLY}, r"Read-only file system.*make its file system writable \(see 'findmnt -T "),
    ],
)
def test_a_place_where_nothing_can_be_written_is_named(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, seen: dict[str, int], says: str
) -> None:
    room = {"f_flag": 0, "f_files": 0, "f_ffree": 0, "f_bfree": 1000, "f_frsize": 4096}
    monkeypatch.setattr(os, "statvfs", lambda _path: SimpleNamespace(**(room | seen)))

    with pytest.raises(TransactionError, match=f"{says}.*nothing was changed") if says else nullcontext():
        transaction(machine).check_writable(changes(machine))


@pytest.mark.parametrize("call", ["fsync", "rename"])
def test_a_failed_write_leaves_the_file_and_nothing_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    def fail(*_arguments: object) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    path = tmp_path / "main"
    path.write_bytes(OLD)
    monkeypatch.setattr(os, call, fail)
    host = Host(SimpleNamespace(selinux_context=lambda _path: None, selinux_enabled=lambda: False))

    with pytest.raises(OSError, match=str(tmp_path)):
        host.write(str(path), NEW, 0o644)

    assert {item.name: item.read_bytes() for item in tmp_path.iterdir()} == {"main": OLD}


@pytest.mark.attack
def test_a_file_is_not_written_through_a_link_at_its_draft(tmp_path: Path) -> None:
    (tmp_path / "victim").write_bytes(OLD)
    (tmp_path / ".accel-main.tmp").symlink_to("victim")
    host = Host(SimpleNamespace(selinux_default_context=lambda _path: None, selinux_enabled=lambda: False))
    host.write(str(tmp_path / "main"), NEW, 0o644)
    found = {item.name: (item.is_symlink(), item.read_bytes()) for item in tmp_path.iterdir()}
    assert found == {"main": (False, NEW), "victim": (False, OLD)}


def linked_nowhere(machine: Machine) -> tuple[Path, Path]:
    """A link to a file that is not there, in a directory that is not there."""
    link, target = machine.root / "linked", machine.root / "gone/target"
    link.symlink_to("gone/target")
    return link, target


def test_a_link_to_nowhere_stays_whatever_comes_of_the_change(machine: Machine) -> None:
    link, target = linked_nowhere(machine)
    transaction(machine).commit([FileChange(str(link), None, NEW)], Record())
    assert (link.is_symlink(), target.read_bytes()) == (True, NEW)
    record = transaction(machine).record()
    transaction(machine).commit([FileChange(str(link), NEW, None)], record)
    assert (link.is_symlink(), target.parent.exists()) == (True, False)
    machine.well = lambda running: running == OLD
    (machine.root / "main").write_bytes(NEW)
    with pytest.raises(TransactionError, match="the previous files are back"):
        transaction(machine).commit([FileChange(str(link), None, NEW)], Record())
    assert (link.is_symlink(), target.parent.exists()) == (True, False)


def test_the_timer_leaves_a_link_to_nowhere(machine: Machine) -> None:
    link, target = linked_nowhere(machine)

    def die(running: bytes | None) -> bool:
        raise KilledError

    machine.well = die
    with pytest.raises(KilledError):
        transaction(machine).commit([FileChange(str(link), None, NEW)], Record())
    assert machine.timer is not None
    subprocess.run(machine.timer[-3:], env={"PATH": "/usr/bin:/bin"}, check=False)
    assert (link.is_symlink(), target.exists()) == (True, False)


def test_a_file_that_is_a_mount_is_refused_with_what_to_do(machine: Machine) -> None:
    path = str(machine.root / "main")
    machine.is_mounted = lambda path: path.endswith("main")  # type: ignore[method-assign]
    with pytest.raises(TransactionError, match=f"{path} is a mount of its own, .* nothing was changed"):
        transaction(machine).check_writable(changes(machine))


def test_a_mount_on_a_file_is_seen(tmp_path: Path) -> None:
    file, other = tmp_path / "a file", tmp_path / "other"
    for path in (file, other):
        path.touch()
    machine = Machine(tmp_path)
    assert not machine.is_mounted(str(file))
    mounted = subprocess.run(["mount", "--bind", other, file], capture_output=True, text=True)
    if mounted.returncode != 0:
        pytest.skip(f"nothing can be mounted here: {mounted.stderr.strip()}")
    try:
        assert machine.is_mounted(str(file))
        assert not machine.is_mounted(str(other))
    finally:
        subprocess.run(["umount", file], check=True)


@pytest.mark.parametrize("mark", ["i", "a"])
@pytest.mark.parametrize("place", ["main", "doomed", ""])
def test_immutable_file_is_refused_with_a_remedy(machine: Machine, mark: str, place: str) -> None:
    path = machine.root / place
    marked = subprocess.run(["chattr", f"+{mark}", path], capture_output=True, text=True)
    if marked.returncode != 0:
        pytest.skip(f"nothing can be marked here: {marked.stderr.strip()}")
    try:
        with pytest.raises(TransactionError, match=f"^{path} is immutable .* 'chattr -i -a {path}', then run"):
            transaction(machine, machine.root.parent).check_writable(changes(machine))
    finally:
        subprocess.run(["chattr", f"-{mark}", path], check=True)


def test_a_file_of_two_names_is_refused_with_what_to_do(machine: Machine) -> None:
    path = machine.root / "main"
    os.link(path, machine.root / "other name")
    with pytest.raises(
        TransactionError, match=f"{path} is known by other names too, .* nothing was changed"
    ) as refused:
        transaction(machine).check_writable(changes(machine))
    remedy = re.search(r"'(cp .*)'", str(refused.value))
    assert remedy
    subprocess.run(remedy[1], shell=True, check=True)
    transaction(machine).check_writable(changes(machine))
    assert path.read_bytes() == OLD


def test_a_file_keeps_what_others_wrote_beside_its_content(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(OLD)
    path.chmod(0o640)
    try:
        os.setxattr(path, "user.note", b"by hand")
    except OSError as error:
        pytest.skip(f"files have no attributes here: {error}")
    module = SimpleNamespace(selinux_context=lambda path: [], selinux_enabled=lambda: False)
    Host(module).write(str(path), NEW, 0o600)
    assert path.read_bytes() == NEW
    assert os.getxattr(path, "user.note") == b"by hand"
    assert path.stat().st_mode & 0o777 == 0o640


def test_an_edit_by_others_meanwhile_is_kept(machine: Machine) -> None:
    def edit(running: bytes | None) -> bool:
        (machine.root / "main").write_bytes(b"theirs\n")
        return True

    machine.well = edit

    with pytest.raises(TransactionError, match="main was changed by something else meanwhile"):
        transaction(machine).commit(changes(machine), Record())

    assert contents(machine)["main"] == b"theirs\n"


def test_a_host_without_systemd_is_warned_about(machine: Machine) -> None:
    machine.systemd = False
    it = transaction(machine)

    it.commit(changes(machine), Record())

    assert contents(machine) == AFTER
    assert any("No restore timer" in warning for warning in it.warnings)


def test_two_runs_at_once_are_refused(machine: Machine) -> None:
    lock = str(machine.root / "lock")
    with machine.lock(lock), pytest.raises(CommandError, match="another run"), machine.lock(lock):
        pass


def killed_machines(tmp_path: Path) -> Iterator[Machine]:
    """A machine for every operation at which a run can be killed."""
    for number in range(1, 1000):
        machine = new_machine(tmp_path / str(number))
        machine.die_at = number
        try:
            transaction(machine).commit(changes(machine), Record(owned={"mark": 1}))
        except KilledError:
            machine.die_at = -1
            yield machine
        else:
            assert number > 15
            return


def test_killed_anywhere_the_next_run_ends_what_was_begun(tmp_path: Path) -> None:
    outcomes = set()
    for machine in killed_machines(tmp_path):
        it = transaction(machine)
        foretold = {path: it.read(str(machine.root / path)) for path in ("main", "sub/added", "doomed")}
        outcome = it.recover()
        outcomes.add(outcome)

        found = contents(machine)
        assert found in (BEFORE, AFTER)
        assert {path: data for path, data in foretold.items() if data is not None} == found
        assert machine.running == found["main"]
        assert it.record().owned == ({"mark": 1} if found == AFTER else {})
        assert machine.timer is None or not (machine.root / "state" / "armed").exists()
        assert not it.unfinished()
        if found == BEFORE:
            it.commit(changes(machine), Record())
            assert contents(machine) == AFTER
    assert outcomes == {"", RESTORED, CONFIRMED}


def run_timer(machine: Machine, meanwhile: str = "") -> bool:
    """What systemd does when the timer elapses; returns whether the service was restarted."""
    assert machine.timer is not None
    tools = machine.root.parent / f"{machine.root.name}-tools"
    tools.mkdir(exist_ok=True)
    (tools / "restart").write_text(f"#!/bin/sh\ntouch {tools}/restarted\n{meanwhile}\n")
    (tools / "restart").chmod(0o755)
    subprocess.run(machine.timer[-3:], check=True, env={"PATH": f"{tools}:/usr/bin:/bin"})
    return (tools / "restarted").exists()


def test_timer_restores_after_any_kill_unless_confirmed(tmp_path: Path) -> None:
    restored = 0
    for machine in killed_machines(tmp_path):
        if machine.timer is None:
            continue
        applied = run_timer(machine)
        found = contents(machine)
        assert found in (BEFORE, AFTER)
        outcome = transaction(machine).recover()
        if outcome == CONFIRMED:
            assert found == AFTER
        if outcome == RESTORED_BY_TIMER:
            restored += 1
            assert found == BEFORE
            assert applied
        assert contents(machine) in (BEFORE, AFTER)
    assert restored > 5


def test_leftover_timer_does_not_touch_a_later_run(tmp_path: Path) -> None:
    stale = 0
    for machine in killed_machines(tmp_path):
        left = machine.timer
        transaction(machine).recover()
        if left is None or contents(machine) != BEFORE:
            continue
        stale += 1

        def well(_running: bytes | None, machine: Machine = machine, left: list[str] = left) -> bool:
            machine.timer = left
            assert not run_timer(machine)
            return True

        machine.well = well
        transaction(machine).commit(changes(machine), Record())
        assert contents(machine) == AFTER
    assert stale > 5


@pytest.fixture
def interrupted(machine: Machine) -> Machine:
    """A machine whose last run was killed while it waited for health, so with the new files in place."""

    def die(_running: bytes | None) -> bool:
        raise KilledError

    machine.well = die
    with pytest.raises(KilledError):
        transaction(machine).commit(changes(machine), Record())
    machine.well = lambda running: True
    assert contents(machine) == AFTER
    return machine


def test_an_edit_after_an_interrupted_run_is_kept_and_told(interrupted: Machine) -> None:
    (interrupted.root / "main").write_bytes(b"theirs\n")

    it = transaction(interrupted)
    it.recover()

    assert contents(interrupted)["main"] == b"theirs\n"
    assert interrupted.running == b"theirs\n"
    assert any("that edit was kept" in warning for warning in it.warnings)


def test_a_timer_that_cannot_restore_leaves_that_to_the_next_run(interrupted: Machine) -> None:
    backup = next((interrupted.root / "state").glob("0-*"))
    kept = backup.read_bytes()
    backup.unlink()
    assert run_timer(interrupted), "the service was not restarted"
    backup.write_bytes(kept)

    assert transaction(interrupted).recover() == RESTORED
    assert contents(interrupted) == BEFORE


def test_overtaken_timer_leaves_the_record_of_the_later_run(interrupted: Machine) -> None:
    armed = interrupted.root / "state" / "armed"

    assert run_timer(interrupted, meanwhile=f"echo later >{armed}")

    assert armed.read_text() == "later\n"
    assert transaction(interrupted).recover() == RESTORED


def test_the_timer_keeps_the_mode_of_the_file(interrupted: Machine) -> None:
    (interrupted.root / "main").chmod(0o640)

    run_timer(interrupted)

    assert contents(interrupted) == BEFORE
    assert (interrupted.root / "main").stat().st_mode & 0o777 == 0o640


@pytest.mark.parametrize("name", ["journal.json", "record.json"])
def test_a_damaged_memory_is_named(machine: Machine, name: str) -> None:
    it = transaction(machine)
    (machine.root / "state" / name).write_text("{")

    with pytest.raises(TransactionError, match=rf"{name} is damaged"):
        it.record()


def test_a_damaged_backup_is_not_restored(interrupted: Machine) -> None:
    (interrupted.root / "state" / "0-main").write_bytes(b"rotten\n")

    with pytest.raises(TransactionError, match=r"0-main is damaged; restore .*/main by hand"):
        transaction(interrupted).recover()
