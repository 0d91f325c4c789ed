# SPDX-License-Identifier: Apache-2.0
"""Who holds what since when, and who held it until when: SQLite at ``<state-dir>/ledger.db``.

Kubelet is the truth and the ledger follows it: lost or damaged, it is filled again from what kubelet lists. A pod and
its successor on the node may use the file at the same time. The file is bound to its node and machine: where another
one finds it, a new one begins. Which boot it was counted in is in the meter's state.
"""

from __future__ import annotations

import logging
import math
import os
import sqlite3
import threading
import time
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

from kube_accel.model import Share
from kube_accel.plugin.kubelet.holdings import Holder

_T = TypeVar("_T")

ChargeRow = tuple[str, str, str, float, float, float]
"""Namespace, mode, model; seconds of GPUs, seconds of bytes, seconds busy."""

PeakRow = tuple[int, str, str, str, str, str, int | None]
"""Id, namespace, pod, container, pod's UID and GPU of an open row; the most memory seen in use, if any was seen."""

PayerKey = tuple[str, str, str]
"""Namespace, mode, model."""

_Charged = tuple[dict[PayerKey, ChargeRow], dict[PayerKey, ChargeRow], set[PayerKey]]
"""What had been written, what was written now, what was forgotten."""

_log = logging.getLogger(__name__)

FILE = "ledger.db"
_DAY = 86400.0
_KEPT_DAYS = 90
"""For which an ended allocation is remembered, and a namespace that was charged nothing more."""
_SCHEMA = """
CREATE TABLE IF NOT EXISTS allocations (
    id INTEGER PRIMARY KEY,
    mode TEXT NOT NULL,
    namespace TEXT NOT NULL,
    pod TEXT NOT NULL,
    uid TEXT NOT NULL,
    container TEXT NOT NULL,
    gpu TEXT NOT NULL,
    cores INTEGER NOT NULL,
    memory_bytes INTEGER NOT NULL,
    since REAL NOT NULL,
    until REAL
);
CREATE UNIQUE INDEX IF NOT EXISTS running ON allocations (namespace, pod, container, gpu) WHERE until IS NULL;
CREATE INDEX IF NOT EXISTS ended ON allocations (until) WHERE until IS NOT NULL;
CREATE TABLE IF NOT EXISTS refusals (
    allocation INTEGER NOT NULL,
    reason TEXT NOT NULL,
    count INTEGER NOT NULL,
    seen INTEGER NOT NULL,
    PRIMARY KEY (allocation, reason)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS peaks (allocation INTEGER PRIMARY KEY, bytes INTEGER NOT NULL);
CREATE TRIGGER IF NOT EXISTS peaks_forgotten AFTER DELETE ON allocations
    BEGIN DELETE FROM peaks WHERE allocation = old.id; END;
CREATE TABLE IF NOT EXISTS charges (
    namespace TEXT NOT NULL,
    mode TEXT NOT NULL,
    model TEXT NOT NULL,
    gpu_seconds REAL NOT NULL,
    memory_byte_seconds REAL NOT NULL,
    busy_seconds REAL NOT NULL,
    PRIMARY KEY (namespace, mode, model)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS quiet (
    namespace TEXT NOT NULL,
    mode TEXT NOT NULL,
    model TEXT NOT NULL,
    gpu_seconds REAL NOT NULL,
    days INTEGER NOT NULL,
    day INTEGER NOT NULL,
    PRIMARY KEY (namespace, mode, model)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS meter (id INTEGER PRIMARY KEY CHECK (id = 1), state TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS owner (
    id INTEGER PRIMARY KEY CHECK (id = 1),
    ledger TEXT NOT NULL,
    node TEXT NOT NULL,
    machine TEXT NOT NULL
);
"""
"""A release only adds: the one before goes on with the file, also while both have it open.

So it is a trigger that forgets peaks: a plugin that knows none deletes allocations too, and their ids come again.
"""
_CHARGE = (
    "INSERT INTO charges (namespace, mode, model, gpu_seconds, memory_byte_seconds, busy_seconds) "
    "VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT (namespace, mode, model) DO UPDATE SET "
    "gpu_seconds = MAX(gpu_seconds, excluded.gpu_seconds), "
    "memory_byte_seconds = MAX(memory_byte_seconds, excluded.memory_byte_seconds), "
    "busy_seconds = MAX(busy_seconds, excluded.busy_seconds)"
)
_COUNT_QUIET = (
    "INSERT INTO quiet (namespace, mode, model, gpu_seconds, days, day) "
    "SELECT namespace, mode, model, gpu_seconds, 0, ? FROM charges WHERE namespace != '' "
    "ON CONFLICT (namespace, mode, model) DO UPDATE SET "
    "days = CASE WHEN gpu_seconds = excluded.gpu_seconds THEN days + 1 ELSE 0 END, "
    "gpu_seconds = excluded.gpu_seconds, day = excluded.day WHERE day != excluded.day"
)
"""Days are counted on which a plugin looked, not the time between two: a clock may be wrong for a while."""
_FORGET_QUIET = (
    "DELETE FROM charges WHERE (namespace, mode, model) IN (SELECT namespace, mode, model FROM quiet WHERE days >= ?)",
    "DELETE FROM quiet WHERE days >= ?",
)
_SELECT = (
    "SELECT mode, namespace, pod, container, uid, gpu, cores, memory_bytes, since, until "
    "FROM allocations WHERE ? OR until IS NULL ORDER BY since, id"
)

_OPEN = "WHERE namespace = ? AND pod = ? AND container = ? AND until IS NULL"
_REFUSALS = (
    "SELECT mode, namespace, pod, container, uid, gpu, cores, memory_bytes, since, until, reason, count "
    "FROM allocations JOIN refusals ON allocation = id WHERE (? OR until IS NULL) AND count > 0 "
    "ORDER BY since, id, reason"
)
_MOST = 2**62
_PEAKS = (
    "SELECT id, namespace, pod, container, uid, gpu, bytes FROM allocations LEFT JOIN peaks ON allocation = id "
    "WHERE until IS NULL"
)
_PEAKED = (
    "INSERT INTO peaks (allocation, bytes) VALUES (?, ?) "
    "ON CONFLICT (allocation) DO UPDATE SET bytes = MAX(bytes, excluded.bytes)"
)


@dataclass(frozen=True, slots=True)
class Allocation:
    """What a container has, or had, of one GPU. Times are seconds since 1970; ``until`` is None while it lasts."""

    mode: str
    holder: Holder
    uid: str
    """UID of the pod; empty when it was not known."""
    share: Share
    since: float
    until: float | None


@dataclass(frozen=True, slots=True)
class Refusals:
    """How many allocations of GPU memory a container was refused, for one reason, in all its starts."""

    allocation: Allocation
    reason: str
    """``limit``: over its limit; ``device``: the GPU itself was full; ``policy``: its limits could not be read."""
    count: int


@dataclass(frozen=True, slots=True)
class Owner:
    """The node and machine that a ledger belongs to."""

    node: str
    """Name of the node."""
    machine: str = ""
    """UUID of the machine; empty where it has none."""

    def other_than(self, other: Owner) -> bool:
        """Return whether they are certainly not the same."""
        return self.node != other.node or bool(self.machine and other.machine and self.machine != other.machine)


def this_machine(path: Path = Path("/sys/class/dmi/id/product_uuid")) -> str:
    """Return the machine's UUID, which a copied or moved disk does not take along; empty where there is none."""
    try:
        return path.read_text().strip().lower()
    except (OSError, ValueError):
        return ""


class _MovedError(sqlite3.DatabaseError):
    """The file is another node's."""


class LedgerError(Exception):
    """The file cannot be read; the message names it and the reason."""


def running(state_dir: Path) -> list[Allocation]:
    """Return the open rows as they are in the file, oldest first; nothing is changed. Raises LedgerError."""
    return [_allocation(row) for row in _read(state_dir, _SELECT)]


def refusals(state_dir: Path) -> list[Refusals]:
    """Return what was refused to containers that run, as it is in the file; nothing is changed. Raises LedgerError."""
    return [_refusals(row) for row in _read(state_dir, _REFUSALS)]


def _read(state_dir: Path, statement: str) -> list[Any]:
    path = state_dir / FILE
    try:
        with closing(sqlite3.connect(f"file:{quote(str(path))}?mode=ro", uri=True, timeout=5)) as connection:
            return connection.execute(statement, (False,)).fetchall()
    except (sqlite3.Error, ValueError) as error:
        raise LedgerError(f"{path} cannot be read: {error}") from error


class Ledger:
    """The file, for any thread. A disk that fails is said in the log, and never stops a container."""

    def __init__(
        self, state_dir: Path, mode: str, clock: Callable[[], float] = time.time, owner: Owner | None = None
    ) -> None:
        """Allocations are of this mode. Without ``owner`` the file is not bound to a node."""
        self.name = ""
        """A UUID that no other ledger has; empty while the file cannot be used, or is not bound."""
        self._owner = owner
        self._path = state_dir / FILE
        self._mode = str(mode)
        self._clock = clock
        self._lock = threading.Lock()
        self._connection: sqlite3.Connection | None = None
        self._begun: dict[Holder, float] = {}
        """When containers started, by ``time.monotonic``, that kubelet need not list yet."""
        self._written: dict[PayerKey, ChargeRow] = {}
        """What the open file has of charges, as far as it was written here."""
        self._forgot_on: int | None = None
        self._counted_on: int | None = None
        """The last days, since 1970, of what is done once a day."""
        self._run(self._forget, None)

    @property
    def _today(self) -> int:
        return int(self._clock() // _DAY)

    def _forget(self, file: sqlite3.Connection) -> None:
        if self._forgot_on == self._today:
            return
        self._forgot_on = self._today
        file.execute("DELETE FROM allocations WHERE until < ?", (self._clock() - _KEPT_DAYS * _DAY,))
        file.execute("DELETE FROM refusals WHERE allocation NOT IN (SELECT id FROM allocations)")

    def record(self, holder: Holder, uid: str, shares: Collection[Share]) -> None:
        """Open a row for each share of a starting container. Those it is known to have keep their ``since``."""

        def work(file: sqlite3.Connection) -> None:
            self._begun[holder] = time.monotonic()
            self._follow(file, holder, uid, shares)

        self._run(work, None)

    def reconcile(
        self,
        held: Mapping[Holder, Collection[Share]],
        uid_of: Callable[[Holder], str],
        asked_at: float = math.inf,
    ) -> None:
        """Close every row that kubelet, asked at this moment of ``time.monotonic``, does not list.

        It says nothing of containers that started after that.
        """

        def work(file: sqlite3.Connection) -> None:
            self._begun = {holder: at for holder, at in self._begun.items() if at >= asked_at}
            for holder in self._open(file) - held.keys() - self._begun.keys():
                self._follow(file, holder, "", ())
            for holder, shares in held.items():
                if holder not in self._begun:
                    self._follow(file, holder, uid_of(holder), shares)
            self._forget(file)

        self._run(work, None)

    def allocations(self, running: bool = True) -> list[Allocation]:
        """Return the open rows, or all of them, oldest first; none when the file cannot be read."""
        rows: list[Any] = self._run(lambda file: file.execute(_SELECT, (not running,)).fetchall(), [])
        return [_allocation(row) for row in rows]

    def refused(self, holder: Holder, gpu: str, counts: Mapping[str, int]) -> set[str]:
        """Count a running container's refusals for one GPU, by reason, and return the reasons that have grown.

        They count from the container's start, and go on from where they were when it starts again.
        """

        def work(file: sqlite3.Connection) -> set[str]:
            # What was seen is read and written in one: both plugins of an upgrade count.
            file.execute("BEGIN IMMEDIATE")
            key = (holder.namespace, holder.pod, holder.container, gpu)
            row = file.execute(f"SELECT id FROM allocations {_OPEN} AND gpu = ?", key).fetchone()  # noqa: S608
            if row is None:
                return set()
            known = dict(file.execute("SELECT reason, seen FROM refusals WHERE allocation = ?", row).fetchall())
            # A counter that fell was written by a tenant: what it says now is all that can be believed.
            grown = {
                reason: value - seen if value >= seen else value
                for reason, value in counts.items()
                if value != (seen := known.get(reason, 0))
            }
            file.executemany(
                "INSERT INTO refusals (allocation, reason, count, seen) VALUES (?, ?, ?, ?) "
                "ON CONFLICT (allocation, reason) DO UPDATE SET count = MIN(count + excluded.count, ?), "
                "seen = excluded.seen",
                [(row[0], reason, more, counts[reason], _MOST) for reason, more in grown.items()],
            )
            return {reason for reason, more in grown.items() if more}

        return self._run(work, set())

    def restarted(self, holder: Holder) -> None:
        """Start the counters of a restarted container again."""
        key = (holder.namespace, holder.pod, holder.container)
        statement = f"UPDATE refusals SET seen = 0 WHERE allocation IN (SELECT id FROM allocations {_OPEN})"  # noqa: S608
        self._run(lambda file: file.execute(statement, key).rowcount, 0)

    def refusals(self, running: bool = True) -> list[Refusals]:
        """Return what was refused to containers that run, or to all; none when the file cannot be read."""
        rows: list[Any] = self._run(lambda file: file.execute(_REFUSALS, (not running,)).fetchall(), [])
        return [_refusals(row) for row in rows]

    def peaks(self) -> list[PeakRow]:
        """Return what ``peaked`` kept of the open rows, all of them; none when the file cannot be read."""
        return self._run(lambda file: file.execute(_PEAKS).fetchall(), [])

    def peaked(self, peaks: Mapping[int, int]) -> None:
        """Keep bytes that were seen in use, by the row's id, where they are more than before."""
        self._run(lambda file: file.executemany(_PEAKED, list(peaks.items())).rowcount, 0)

    def charges(self) -> tuple[str, list[ChargeRow]]:
        """Return what ``charge`` kept: a meter's state, empty for none, and what it counted."""

        def work(file: sqlite3.Connection) -> tuple[str, list[ChargeRow]]:
            state = file.execute("SELECT state FROM meter").fetchone()
            rows = file.execute(
                "SELECT namespace, mode, model, gpu_seconds, memory_byte_seconds, busy_seconds FROM charges"
            )
            return (str(state[0]) if state is not None else ""), rows.fetchall()

        nothing: tuple[str, list[ChargeRow]] = ("", [])
        return self._run(work, nothing)

    def charge(self, state: str, rows: Iterable[ChargeRow]) -> Collection[PayerKey]:
        """Keep a meter's state and what it counted, and return those that are forgotten from now on.

        Nothing counts down: both plugins of an upgrade keep theirs.
        """
        counted = {row[:3]: row for row in rows}

        def work(file: sqlite3.Connection) -> _Charged:
            written = self._written
            news = {key: row for key, row in counted.items() if written.get(key) != row}
            file.executemany(_CHARGE, list(news.values()))
            file.execute("INSERT OR REPLACE INTO meter (id, state) VALUES (1, ?)", (state,))
            return written, news, self._forget_quiet(file, counted)

        # What has to be written to another file, opened meanwhile, is not noted for it.
        nothing: _Charged = ({}, {}, set())
        written, news, forgotten = self._run(work, nothing)
        written.update(news)
        for key in forgotten:
            written.pop(key, None)
        return forgotten

    def _forget_quiet(self, file: sqlite3.Connection, counted: Collection[PayerKey]) -> set[PayerKey]:
        if self._counted_on == self._today:
            return set()
        self._counted_on = self._today
        file.execute(_COUNT_QUIET, (self._counted_on,))
        for statement in _FORGET_QUIET:
            file.execute(statement, (_KEPT_DAYS,))
        return set(counted) - set(file.execute("SELECT namespace, mode, model FROM charges"))

    def close(self) -> None:
        """Close the file; it is opened again when needed."""
        with self._lock:
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    def _open(self, connection: sqlite3.Connection) -> set[Holder]:
        rows = connection.execute("SELECT DISTINCT namespace, pod, container FROM allocations WHERE until IS NULL")
        return {Holder(*row) for row in rows}

    def _follow(self, connection: sqlite3.Connection, holder: Holder, uid: str, shares: Collection[Share]) -> None:
        key = (holder.namespace, holder.pod, holder.container)
        now = self._clock()
        wanted = {share.uuid: share for share in shares}
        rows = connection.execute(f"SELECT id, mode, uid, gpu, cores, memory_bytes FROM allocations {_OPEN}", key)  # noqa: S608
        for row, mode, known_uid, gpu, cores, memory in rows.fetchall():
            same = wanted.get(gpu) == Share(gpu, cores, memory) and mode == self._mode
            if same and (not uid or not known_uid or uid == known_uid):
                del wanted[gpu]
                if uid and not known_uid:
                    connection.execute("UPDATE allocations SET uid = ? WHERE id = ?", (uid, row))
            else:
                connection.execute("UPDATE allocations SET until = ? WHERE id = ?", (now, row))
        connection.executemany(
            "INSERT OR IGNORE INTO allocations (mode, namespace, pod, container, uid, gpu, cores, memory_bytes, since) "
            "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
            [(self._mode, *key, uid, s.uuid, s.cores, s.memory_bytes, now) for s in wanted.values()],
        )

    def _run(self, work: Callable[[sqlite3.Connection], _T], otherwise: _T) -> _T:
        """Return the result of ``work`` in a transaction, at the second try in a new file; else ``otherwise``."""
        with self._lock:
            try:
                try:
                    return self._attempt(work)
                except sqlite3.OperationalError:
                    raise
                except sqlite3.DatabaseError as error:
                    self._move_aside(error)
                    return self._attempt(work)
            except (sqlite3.Error, OSError) as error:
                _log.error("the ledger cannot be used", extra={"path": str(self._path), "reason": str(error)})
                return otherwise

    def _attempt(self, work: Callable[[sqlite3.Connection], _T]) -> _T:
        connection = self._connected()
        with connection:
            return work(connection)

    def _connected(self) -> sqlite3.Connection:
        if self._connection is None:
            # SQLite gives the files beside it the same mode.
            file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            try:
                os.fchmod(file, 0o600)
            finally:
                os.close(file)
            connection = sqlite3.connect(self._path, timeout=5, check_same_thread=False)
            try:
                connection.execute("PRAGMA journal_mode = WAL")
                connection.execute("PRAGMA synchronous = NORMAL")
                (state,) = connection.execute("PRAGMA quick_check(1)").fetchone()
                if state != "ok":
                    raise sqlite3.DatabaseError(state)
                connection.executescript(_SCHEMA)
                if self._owner is not None:
                    self._bind(connection, self._owner)
            except BaseException:
                connection.close()
                raise
            self._connection, self._written = connection, {}
        return self._connection

    def _bind(self, connection: sqlite3.Connection, here: Owner) -> None:
        """Note the owner of the file. Raises _MovedError if it is another node's."""
        with connection:
            # Both plugins of an upgrade may find it unbound.
            connection.execute("BEGIN IMMEDIATE")
            row = connection.execute("SELECT ledger, node, machine FROM owner").fetchone()
            name, known = (row[0], Owner(*row[1:])) if row else (self.name or str(uuid.uuid4()), here)
            if known.other_than(here):
                # What this node counts in its place is another ledger.
                self.name = ""
                raise _MovedError(f"it is of node {known.node}, machine {known.machine or 'unknown'}")
            connection.execute(
                "INSERT OR REPLACE INTO owner (id, ledger, node, machine) VALUES (1, ?, ?, ?)",
                (name, here.node, here.machine or known.machine),
            )
        self.name = name

    def _move_aside(self, error: Exception) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        moved = isinstance(error, _MovedError)
        aside = self._path.with_name(f"{FILE}.{'moved' if moved else 'damaged'}-{int(self._clock())}")
        extra = {"path": str(self._path), "moved_to": str(aside), "reason": str(error)}
        what = "was made on another node or machine" if moved else "is damaged"
        _log.error(f"the ledger {what}; a new one is filled from what kubelet lists", extra=extra)
        for suffix in ("-wal", "-shm"):
            self._path.with_name(FILE + suffix).unlink(missing_ok=True)
        if self._path.exists():
            self._path.rename(aside)


def _allocation(row: tuple[Any, ...]) -> Allocation:
    return Allocation(row[0], Holder(*row[1:4]), row[4], Share(*row[5:8]), since=row[8], until=row[9])


def _refusals(row: tuple[Any, ...]) -> Refusals:
    return Refusals(_allocation(row), row[10], row[11])
