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

import json
import os
from typing import Any, Callable, Dict, Mapping, Sequence

from ansible_collections.accel.kubernetes.plugins.module_utils.host.machine import CommandError, Host

from .record import FileChange, Record, digest, same_file
from .restore_timer import RestoreTimer
from .service import Service
from .writable import TransactionError, check_writable, explained

RESTORED = "restored"
CONFIRMED = "confirmed"
RESTORED_BY_TIMER = "restored_by_timer"


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
        self._timer = RestoreTimer(host, directory, service)

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
        if self._timer.has_restored():
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
        check_writable(self.host, changes, self._journal_path)

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
        self._timer.disarm()
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
        self.service.make_effective(self.host)
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
        self._timer.disarm()
        if journal.get("armed"):
            try:
                self._timer.stop(journal["unit"])
            except CommandError as error:
                # One that is not armed does nothing.
                self.warnings.append(f"The restore timer could not be stopped and will end by itself: {error}")
        self.host.remove(self._journal_path)
        self._timer.forget()

    def _arm(self, journal: Dict[str, Any]) -> None:
        if not self._restarts(journal):
            return
        self._timer.arm(journal["unit"], journal["files"])
        journal["armed"] = True
        self._save(self._journal_path, journal)
        try:
            self._timer.start(journal["unit"])
        except CommandError as error:
            journal["armed"] = False
            self.warnings.append(
                f"No restore timer: {error}. Should this run be cut off, the next one restores the files."
            )

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
