# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A risky change of a few files on one host, all of it or nothing.

The order is: backups, journal, dead-man timer, files, apply, wait for health, record, disarm. A failure puts the old
bytes back and waits for health again. A run that dies leaves its journal; the timer, or else the next run, ends what
it began. The state lives in one directory per managed file set::

    journal.json   the change under way; absent when there is none
    record.json    what the files were before our first change, what we last wrote, what in them is ours
    <n>-<name>     each file's bytes before the last change
    restore.sh     what the timer runs; does nothing unless `armed` names that timer
"""

from __future__ import annotations

import base64
import contextlib
import errno
import hashlib
import json
import os
import shlex
from dataclasses import asdict, dataclass, field
from typing import Any, Callable, Dict, Mapping, Sequence

from ansible_collections.accel.kubernetes.plugins.module_utils.host.machine import CommandError, Host

RESTORED = "restored"
CONFIRMED = "confirmed"
RESTORED_BY_TIMER = "restored_by_timer"
_SLACK = 256 * 1024
"""Bytes for the journal, the record and the blocks that files are rounded up to."""


class TransactionError(Exception):
    """The change was not made. Says why, and in what state the host is now."""


@dataclass(frozen=True)
class FileChange:
    """New content of one file; None stands for no file. ``mode`` is for a file that does not exist yet."""

    path: str
    before: bytes | None
    after: bytes | None
    mode: int = 0o644
    restart: bool = True
    """False where the service reads the file whenever it needs it."""


Watch = Callable[[Host, bool], Callable[[], str]]
"""Called before files are written, with True when that undoes a change. What it returns is polled afterwards and says
what is wrong, nothing when all is well."""


@dataclass(frozen=True)
class Service:
    """How written files take effect and how that is seen."""

    apply: Sequence[str] = ()
    """Command that makes the files effective; empty when something watches them."""
    watch: Watch | None = None
    timeout: float = 60
    """Seconds for ``apply``, for its second try, and again for the wait."""
    reset: Sequence[str] = ()
    """Run before ``apply``, whatever comes of it: clears what keeps a service from starting, as a start limit does."""


@dataclass
class Record:
    """What is remembered of managed files from one run to the next."""

    originals: Dict[str, bytes | None] = field(default_factory=dict)
    """By path: content before our first change, None when there was no file."""
    written: Dict[str, str] = field(default_factory=dict)
    """By path: digest of what we wrote last."""
    targets: Dict[str, str] = field(default_factory=dict)
    """By path: the file that it led to when we wrote it last."""
    owned: Dict[str, Any] = field(default_factory=dict)
    """What in the files is ours, in the words of the module."""
    directories: list[str] = field(default_factory=list)
    """Directories we created, outermost first."""

    def untouched(self, path: str, current: bytes | None) -> bool:
        """Return whether the file is byte for byte what we wrote last."""
        return path in self.written and self.written[path] == digest(current)

    def name(self, path: str) -> None:
        """Have what is remembered of a file under another name of it be known by this one."""
        _rename(self.originals, path)
        _rename(self.written, path)
        _rename(self.targets, path)

    def to_json(self) -> Dict[str, Any]:
        """Return the record as it is stored."""
        originals = {
            path: None if data is None else base64.b64encode(data).decode() for path, data in self.originals.items()
        }
        return dict(asdict(self), originals=originals)

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> Record:
        """Return the record that ``to_json`` made this of."""
        originals = {
            path: None if data is None else base64.b64decode(data) for path, data in stored["originals"].items()
        }
        targets = dict(stored.get("targets", {}))
        return cls(originals, dict(stored["written"]), targets, dict(stored["owned"]), list(stored["directories"]))


def _rename(known: Dict[str, Any], path: str) -> None:
    others = [] if path in known else [other for other in known if same_file(other, path)]
    if others:
        known[path] = known.pop(others[0])


def same_file(one: str, other: str) -> bool:
    """Return whether two paths name one file, as they are spelled or by where their links lead."""
    return any(resolved(one) == resolved(other) for resolved in (os.path.abspath, settled, os.path.realpath))


def settled(path: str) -> str:
    """Return an absolute path without links in its directories; the file itself may be one."""
    directory, name = os.path.split(path.rstrip("/"))
    return os.path.join(os.path.realpath(directory), name)


def digest(data: bytes | None) -> str:
    """SHA-256 in hexadecimal, empty for no file."""
    return "" if data is None else hashlib.sha256(data).hexdigest()


def command_watch(argv: Sequence[str]) -> Watch:
    """Return a watch that calls the service well when the command ends with 0."""

    def watch(host: Host, undoing: bool) -> Callable[[], str]:
        del undoing

        def probe() -> str:
            try:
                host.run(argv, timeout=10)
            except CommandError as error:
                return str(error)
            return ""

        return probe

    return watch


REMEDIES = {
    errno.ENOSPC: "make room there (see 'df {path}'), then run again",
    errno.EDQUOT: "make room there (see 'df {path}'), then run again",
    errno.EROFS: "make its file system writable (see 'findmnt -T {path}'), then run again",
    errno.EACCES: "let root write there (see 'lsattr -d {path}' and the audit log), then run again",
    errno.EPERM: "let root write there (see 'lsattr -d {path}' and the audit log), then run again",
}


def explained(error: BaseException) -> str:
    """Return an error's words, with the remedy where a file or its disk is to blame."""
    words = str(error) or "interrupted"
    if not isinstance(error, OSError) or error.errno not in REMEDIES:
        return words
    return f"{words}; {REMEDIES[error.errno].format(path=os.path.dirname(str(error.filename or '/')))}"


class Transaction:
    """Changes the files of one managed set. ``directory`` is its own; ``name`` names the timer."""

    def __init__(self, host: Host, directory: str, name: str, service: Service) -> None:
        self.host = host
        self.directory = directory
        self.name = name
        self.service = service
        self.warnings: list[str] = []
        self._journal_path = os.path.join(directory, "journal.json")
        self._record_path = os.path.join(directory, "record.json")
        self._armed_path = os.path.join(directory, "armed")
        self._restored_path = os.path.join(directory, "restored")

    def record(self) -> Record:
        """Return what the last successful run saved; empty at first."""
        journal = self._journal()
        if journal is not None and journal["phase"] == "healthy":
            return Record.from_json(journal["record"])
        stored = self._load(self._record_path)
        return Record() if stored is None else Record.from_json(stored)

    def read(self, path: str) -> bytes | None:
        """Return a file as recover() leaves it, whether or not that has been called yet."""
        current: bytes | None = self.host.read(path)
        journal = self._journal()
        if journal is None or journal["phase"] != "writing" or self._edited_since(journal):
            return current
        for entry in journal["files"]:
            if same_file(entry["path"], path):
                return self._before(entry)
        return current

    def unfinished(self) -> bool:
        """Return whether an earlier run was interrupted in a way that recover() has to act upon."""
        journal = self._journal()
        return journal is not None and journal["phase"] != "prepared"

    def recover(self) -> str:
        """End what an interrupted run began; returns what was done, empty when there was nothing. Raises on failure."""
        journal = self._journal()
        if journal is None:
            return ""
        if journal["phase"] == "healthy":
            self._finish(journal)
            return CONFIRMED
        if journal["phase"] == "prepared":
            self._close(journal)
            return ""
        if self.host.read(self._restored_path) is not None:
            self._close(journal)
            return RESTORED_BY_TIMER
        edited = self._edited_since(journal)
        try:
            self._take_back(journal, write=not edited)
        except (CommandError, OSError, TransactionError) as error:
            raise TransactionError(
                f"an earlier run was interrupted and undoing it failed: {error}. "
                f"The bytes from before are in {self.directory}"
            ) from error
        self._close(journal)
        if edited:
            self.warnings.append(
                f"An earlier run was interrupted and {edited} was edited since; that edit was kept. "
                f"The bytes from before are in {self.directory}."
            )
        return RESTORED

    def check_writable(self, changes: Sequence[FileChange]) -> None:
        """Raise TransactionError where the files, or what is remembered of them, could not be written."""
        for change in changes:
            wrong = self._unwritable(os.path.realpath(change.path))
            if wrong:
                raise TransactionError(f"{wrong}, then run again; nothing was changed")
        needed = _SLACK + sum(2 * len(change.before or b"") + len(change.after or b"") for change in changes)
        written = [change.path for change in changes if change.after is not None]
        for path in [self._journal_path, *written]:
            try:
                room = self.host.room(path)
            except OSError as error:
                raise TransactionError(f"{explained(error)}; nothing was changed") from error
            if room < needed:
                directory = os.path.dirname(path)
                raise TransactionError(
                    f"{directory} has {room // 1024} KiB left and {needed // 1024} KiB are needed; make room there "
                    f"(see 'df {directory}'), then run again; nothing was changed"
                )

    def _unwritable(self, path: str) -> str:
        """Return why no other file can take this one's place, and what to do; empty where one can."""
        if self.host.is_mounted(path):
            return (
                f"{path} is a mount of its own, so no file can take its place; unmount it, or name the file behind it "
                f"(see 'findmnt {path}')"
            )
        for place in (path, os.path.dirname(path)):
            if self.host.is_immutable(place):
                return f"{place} is immutable or append-only, even to root; run 'chattr -i -a {place}'"
        if self.host.names(path) > 1:
            return (
                f"{path} is known by other names too, as hard links, which would keep the old content; "
                f"make it a file of its own ('cp -p {path} {path}.own && mv {path}.own {path}')"
            )
        return ""

    def commit(self, changes: Sequence[FileChange], record: Record) -> None:
        """Make the changes and remember the record, or leave the host as it was and raise TransactionError.

        Without changes the service is restarted and has to become healthy.
        """
        try:
            journal = self._prepare(changes, record)
            self._set_phase(journal, "writing")
        except OSError as error:
            raise TransactionError(f"{explained(error)}; nothing was changed") from error
        try:
            self._apply(journal, lambda: self._write(changes, journal), undoing=False)
            for change in changes:
                if self.host.read(change.path) != change.after:
                    raise TransactionError(f"{change.path} was changed by something else meanwhile")
        except (CommandError, OSError, TransactionError, KeyboardInterrupt) as error:
            raise TransactionError(f"{explained(error)}; {self._undo(journal)}") from error
        # Before the phase: the timer must not undo what the journal calls healthy.
        self.host.remove(self._armed_path)
        self._set_phase(journal, "healthy")
        self._finish(journal)

    def _prepare(self, changes: Sequence[FileChange], record: Record) -> Dict[str, Any]:
        files = []
        for number, change in enumerate(changes):
            backup = ""
            if change.before is not None:
                backup = os.path.join(self.directory, f"{number}-{os.path.basename(change.path)}")
                self.host.write(backup, change.before, 0o600)
            mode = self.host.mode(change.path)
            files.append(
                {
                    "path": change.path,
                    "backup": backup,
                    "before": digest(change.before),
                    "after": digest(change.after),
                    "mode": change.mode if mode is None else mode,
                }
            )
        for change in changes:
            record.written[change.path] = digest(change.after)
            record.targets[change.path] = os.path.realpath(change.path)
        journal = {
            "phase": "prepared",
            "files": files,
            "restart": not changes or any(change.restart for change in changes),
            "record": record.to_json(),
            "unit": f"accel-{self.name}-{digest(os.urandom(8))[:8]}",
        }
        self._save(self._journal_path, journal)
        self._arm(journal)
        return journal

    def _write(self, changes: Sequence[FileChange], journal: Dict[str, Any]) -> None:
        for change in changes:
            if change.after is not None:
                created = self.host.make_directory(os.path.dirname(os.path.realpath(change.path)), 0o755)
                if created:
                    journal["record"]["directories"] += created
                    self._save(self._journal_path, journal)
                self.host.write(change.path, change.after, change.mode)
        # Last: what names a file has to let go of it first.
        for change in changes:
            if change.after is None:
                self._remove(change.path)

    def _apply(self, journal: Mapping[str, Any], write: Callable[[], None], undoing: bool) -> None:
        if not self._restarts(journal):
            write()
            return
        probe = self.service.watch(self.host, undoing) if self.service.watch else None
        write()
        self._make_effective()
        if probe is None:
            return
        deadline = self.host.now() + self.service.timeout
        while True:
            wrong = probe()
            if not wrong:
                return
            if self.host.now() >= deadline:
                raise TransactionError(f"not healthy {self.service.timeout:g} s after the change: {wrong}")
            self.host.sleep(0.5)

    def _make_effective(self) -> None:
        """Run ``apply``, and again should it fail: on a busy machine dockerd does not start each time it is asked."""
        try:
            self._reset_and_apply()
        except CommandError:
            self._reset_and_apply()

    def _reset_and_apply(self) -> None:
        if self.service.reset:
            with contextlib.suppress(CommandError):
                self.host.run(self.service.reset, timeout=10)
        if self.service.apply:
            self.host.run(self.service.apply, self.service.timeout)

    def _restarts(self, journal: Mapping[str, Any]) -> bool:
        return bool(journal.get("restart", True) and (self.service.apply or self.service.watch))

    def _take_back(self, journal: Mapping[str, Any], write: bool = True) -> None:
        self._apply(journal, lambda: self._write_back(journal) if write else None, undoing=True)

    def _write_back(self, journal: Mapping[str, Any]) -> None:
        for entry in journal["files"]:
            before = self._before(entry)
            if before is not None and self.host.read(entry["path"]) != before:
                self.host.write(entry["path"], before, entry["mode"])
        for entry in journal["files"]:
            if not entry["backup"]:
                self._remove(entry["path"])
        self._remove_empty_directories(journal)

    def _remove(self, path: str) -> None:
        """Delete what a path leads to; a link that led nowhere before leads nowhere again."""
        self.host.remove(os.path.realpath(path))

    def _remove_empty_directories(self, journal: Mapping[str, Any]) -> None:
        for directory in reversed(journal["record"]["directories"]):
            self.host.remove_directory(directory)

    def _undo(self, journal: Mapping[str, Any]) -> str:
        """Put the old bytes back after a failure; returns the clause of the message that says how that went."""
        edited = self._edited_since(journal)
        if edited:
            self._close(journal)
            return f"{edited} was left as that made it; the bytes from before are in {self.directory}"
        try:
            self._take_back(journal)
        except (CommandError, OSError, TransactionError) as error:
            restored = all(digest(self.host.read(entry["path"])) == entry["before"] for entry in journal["files"])
            if not restored:
                return f"putting the previous files back failed as well: {error}; they are in {self.directory}"
            self._close(journal)
            return f"the previous files are back, but the service is still not well: {error}"
        self._close(journal)
        return (
            "the previous files are back and the service is well"
            if self.service.watch and self._restarts(journal)
            else "the previous files are back"
        )

    def _finish(self, journal: Mapping[str, Any]) -> None:
        self._save(self._record_path, journal["record"])
        self._remove_empty_directories(journal)
        self._close(journal)

    def _close(self, journal: Mapping[str, Any]) -> None:
        self.host.remove(self._armed_path)
        if self.host.find("systemctl") and journal.get("armed"):
            try:
                self.host.run(["systemctl", "stop", f"{journal['unit']}.timer"], timeout=10)
            except CommandError as error:
                # Without the file `armed` the timer does nothing.
                self.warnings.append(f"The restore timer could not be stopped and will end by itself: {error}")
        self.host.remove(self._journal_path)
        self.host.remove(self._restored_path)

    def _arm(self, journal: Dict[str, Any]) -> None:
        if not self._restarts(journal):
            return
        script = os.path.join(self.directory, "restore.sh")
        self.host.write(script, self._script(journal).encode(), 0o700)
        # By name, and known before it exists: a timer that a killed run left must not take back what a later run does.
        self.host.write(self._armed_path, journal["unit"].encode(), 0o600)
        journal["armed"] = True
        self._save(self._journal_path, journal)
        # Longer than the change and its undoing together can take.
        delay = int(6 * self.service.timeout + 60)
        try:
            timer = ["systemd-run", "--quiet", "--collect", f"--unit={journal['unit']}", f"--on-active={delay}s"]
            self.host.run([*timer, "/bin/sh", script, journal["unit"]], timeout=10)
        except CommandError as error:
            journal["armed"] = False
            self.warnings.append(
                f"No restore timer: {error}. Should this run be cut off, the next one restores the files."
            )

    def _script(self, journal: Mapping[str, Any]) -> str:
        quote = shlex.quote
        lines = [
            "#!/bin/sh",
            "# Run by a systemd timer when a change by accel.kubernetes was never confirmed.",
            "failed=",
            f'armed() {{ [ "$(cat {quote(self._armed_path)} 2>/dev/null)" = "$1" ]; }}',
            'armed "$1" || exit 0',
            'ours() { [ "$(sha256sum <"$1" 2>/dev/null | cut -d\' \' -f1)" = "$2" ]; }',
            # A copy of the target carries its owner, mode and label; a target that is gone has none.
            'back() { tmp="$(dirname "$1")/.accel-restore.tmp"; rm -f "$tmp"; { cp -a "$1" "$tmp" 2>/dev/null || '
            '{ : >"$tmp" && chmod "$3" "$tmp"; }; } && cat "$2" >"$tmp" && mv -f "$tmp" "$1"; }',
        ]
        for entry in journal["files"]:
            path = quote(os.path.realpath(entry["path"]))
            ours = f"ours {path} {entry['after']}" if entry["after"] else f"[ ! -e {path} ]"
            action = f"back {path} {quote(entry['backup'])} {entry['mode']:o}" if entry["backup"] else f"rm -f {path}"
            lines.append(f"if {ours}; then {action} || failed=1; fi")
        lines += [" ".join(map(quote, command)) for command in (self.service.reset, self.service.apply) if command]
        # A run may have begun meanwhile, and what it remembers is not ours.
        lines.append('armed "$1" || exit 0')
        lines.append(f'[ -n "$failed" ] || touch {quote(self._restored_path)}')
        lines.append(f"rm -f {quote(self._armed_path)}")
        return "\n".join(lines) + "\n"

    def _edited_since(self, journal: Mapping[str, Any]) -> str:
        """Return the first file that is neither what it was nor what the run wrote, empty when there is none."""
        for entry in journal["files"]:
            if digest(self.host.read(entry["path"])) not in (entry["before"], entry["after"]):
                return str(entry["path"])
        return ""

    def _before(self, entry: Mapping[str, Any]) -> bytes | None:
        if not entry["backup"]:
            return None
        data: bytes | None = self.host.read(entry["backup"])
        if digest(data) != entry["before"]:
            raise TransactionError(f"the backup {entry['backup']} is damaged; restore {entry['path']} by hand")
        return data

    def _journal(self) -> Dict[str, Any] | None:
        return self._load(self._journal_path)

    def _load(self, path: str) -> Dict[str, Any] | None:
        stored = self.host.read(path)
        try:
            content: Dict[str, Any] | None = None if stored is None else json.loads(stored)
        except ValueError as error:
            raise TransactionError(f"{path} is damaged: see what is beside it, then delete it ({error})") from error
        return content

    def _set_phase(self, journal: Dict[str, Any], phase: str) -> None:
        journal["phase"] = phase
        self._save(self._journal_path, journal)

    def _save(self, path: str, content: Mapping[str, Any]) -> None:
        self.host.write(path, json.dumps(content, indent=1).encode(), 0o600)
