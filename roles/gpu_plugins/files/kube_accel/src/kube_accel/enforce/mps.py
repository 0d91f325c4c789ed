# SPDX-License-Identifier: Apache-2.0
"""Shares enforced by MPS: one control daemon a GPU, which runs on the host; here it is looked after and used.

MPS limits each client process, not the container: the percentage caps the multiprocessors a process may use, the
memory limit its pinned device memory.
"""

from __future__ import annotations

import fcntl
import logging
import os
import re
import subprocess
import threading
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

from kube_accel.enforce.backend import EnforceError
from kube_accel.files import open_regular
from kube_accel.model import Gpu, GpuHealth, Health, Inventory, Snapshot
from kube_accel.shared.offers import client_limit, mps_unfit
from kube_accel.sharing.delivery import Grant
from kube_accel.sharing.fraction import Kind
from kube_accel.sharing.profile import Profile
from kube_accel.sharing.whole import Part

_log = logging.getLogger(__name__)

PIPE_VARIABLE = "CUDA_MPS_PIPE_DIRECTORY"
THREADS_VARIABLE = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"
MEMORY_VARIABLE = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"

_SHM = "/dev/shm"  # noqa: S108
_INJECTION = "cuda_injection_path_shm"
"""CUDA loads the library that this file of the same user names: a neighbor's CUDA, and the server's, which is root."""
_GET_FLAGS, _IMMUTABLE = 0x80086601, 0x10

_DEADLINE = 5.0
_REST = 60.0
"""Seconds. So often is a control daemon asked that nobody uses: each time a program starts."""
_NO_SERVER = re.compile(r"^Server \d+ not found", re.MULTILINE)
_PERCENTAGE = re.compile(r"\s*\d+(\.\d+)?\s*")
_FAULT = re.compile(r"\bFAULT\b")


@dataclass(frozen=True, slots=True)
class MpsPaths:
    """Where the control daemons are."""

    root: Path
    """On the host, and seen at the same path here."""
    command: str
    """``nvidia-cuda-mps-control``."""

    def pipe(self, uuid: str) -> Path:
        """Return the pipe directory of a GPU's control daemon."""
        return self.root / uuid / "pipe"

    def client(self, uuid: str) -> Path:
        """Return a container's pipe directory, which has the control daemon's socket for clients and nothing else."""
        own = self.root / uuid / "client"
        # A control daemon of an earlier version has none until its unit is reloaded.
        return own if own.is_dir() else self.pipe(uuid)

    def shm(self, uuid: str) -> Path:
        """Return what a GPU's control daemon and its clients have as ``/dev/shm``."""
        own = self.root / uuid / "shm"
        # A control daemon that runs since before it had one of its own uses the directory of all.
        return own if own.is_dir() else self.root / "shm"

    def keeps_libraries(self, uuid: str) -> bool:
        """Return whether the unit has made the file immutable that names a library to CUDA."""
        try:
            file = open_regular(self.shm(uuid) / _INJECTION, os.O_RDONLY)
        except OSError:
            return False
        try:
            return bool(fcntl.ioctl(file, _GET_FLAGS, bytes(8))[0] & _IMMUTABLE)
        except OSError:
            return False
        finally:
            os.close(file)


def grant(kind: Kind, chosen: Mapping[str, int], gpus: Mapping[str, Gpu], profile: Profile, paths: MpsPaths) -> Grant:
    """Return what MPS adds for so many devices of each GPU. Pure.

    Raises EnforceError for cores of several GPUs.
    """
    if len(chosen) != 1:
        if kind is Kind.CORES:
            raise EnforceError(
                f"these are of {len(chosen)} GPUs, and a process uses one through MPS; ask for 100 at most, or for "
                "several GPUs on a node of mode pgpu"
            )
        return Grant({}, ())
    ((uuid, count),) = chosen.items()
    if kind is Kind.CORES:
        return _client(uuid, count, paths)
    return Grant(_memory_limit(count * profile.memory_unit_bytes), ())


def replica_grant(parts: Collection[Part], paths: MpsPaths) -> Grant:
    """Return what MPS adds for replicas: each has an equal part of its GPU's threads and memory.

    Raises EnforceError for those of several GPUs.
    """
    gpus = {part.gpu.uuid: part for part in parts}
    if len(gpus) != 1:
        raise EnforceError(f"these are replicas of {len(gpus)} GPUs, and a process uses one through MPS; ask for 1")
    ((uuid, part),) = gpus.items()
    count, replicas = len(parts), part.mps_replicas
    client = _client(uuid, max(1, 100 * count // replicas), paths)
    return replace(client, environment=client.environment | _memory_limit(part.gpu.memory_bytes * count // replicas))


def _client(uuid: str, threads: int, paths: MpsPaths) -> Grant:
    """Return what makes processes clients of a GPU's control daemon, with this percentage of its threads."""
    client = str(paths.client(uuid))
    # A socket is connected to on a read-only mount too.
    read_only = {client: client}
    if not paths.keeps_libraries(uuid):
        # A file that something is mounted on is not replaced.
        read_only[f"{_SHM}/{_INJECTION}"] = "/dev/null"
    return Grant({PIPE_VARIABLE: client, THREADS_VARIABLE: str(threads)}, (), {_SHM: str(paths.shm(uuid))}, read_only)


def _memory_limit(size: int) -> dict[str, str]:
    limit = f"{size >> 30}G" if size % (1 << 30) == 0 else f"{size >> 20}M"
    # The container sees one GPU, which to it is number 0.
    return {MEMORY_VARIABLE: f"0={limit}"}


@dataclass(frozen=True, slots=True)
class Server:
    """A server of a control daemon."""

    clients: int
    """Processes; 0 also while they have not been asked for."""
    faulty: bool = False
    """It takes no clients until those it has are gone."""


@dataclass(frozen=True, slots=True)
class DaemonState:
    """What was seen of a GPU's control daemon and its servers."""

    problem: str
    """Why no container can be started with it; empty when one can."""
    identity: tuple[int, int] | None = None
    """Inode and time (ns) of what it made when it started, which differ from those of the next one; None for none."""
    servers: Mapping[int, Server] = field(default_factory=dict)
    """By process id."""


UNSEEN = DaemonState("the MPS control daemon has not been asked yet")


def incident(before: DaemonState, now: DaemonState) -> str:
    """Return what clients of the GPU have suffered between two looks; empty when nothing. Pure."""
    if before.identity is not None and now.identity != before.identity:
        since = datetime.fromtimestamp(before.identity[1] / 1e9, UTC).isoformat(timespec="seconds")
        return f"the MPS control daemon of {since} ended or was restarted: processes that used it have lost the GPU"
    for process, server in sorted(now.servers.items()):
        if server.faulty and not (process in before.servers and before.servers[process].faulty):
            return (
                f"MPS server {process} reports a fault: every process on this GPU is affected, and new ones wait until "
                "they end"
            )
    for process, server in sorted(before.servers.items()):
        # One that was faulty ends when its clients have, and one without clients makes room for another user's.
        if server.clients and not server.faulty and process not in now.servers:
            return f"MPS server {process} ended while it had {server.clients} clients: they have lost the GPU"
    return ""


def probe(
    paths: MpsPaths, uuid: str, before: DaemonState, client_limit: int, deadline: float = _DEADLINE
) -> DaemonState:
    """Ask a GPU's control daemon; ``deadline`` in seconds. New servers are asked at the next look."""
    pipe = paths.pipe(uuid)
    identity = _identity(pipe)
    questions = ["get_default_active_thread_percentage", "get_server_list"]
    for process in sorted(before.servers):
        questions += [f"get_server_status {process}", f"get_client_list {process}"]
    service = f"kube-accel-mps@{uuid}"
    unit = f"see `systemctl status {service}` on the node, and restart the unit if it is active"
    try:
        servers = _servers(_ask(paths, pipe, "\n".join(questions), deadline), before.servers)
    except TimeoutError as error:
        # It may be slow: neither it nor its servers are known to have ended.
        return replace(before, problem=f"the MPS control daemon in {pipe} is stuck: {error}; {unit}")
    except OSError as error:
        return DaemonState(f"no live MPS control daemon in {pipe}: {error}; {unit}")
    problem = _problem(servers, client_limit)
    if not _offered(paths, uuid):
        socket = paths.client(uuid) / "control"
        problem = (
            f"containers do not reach the MPS control daemon: {socket} is not its socket; run "
            f"`systemctl reload {service}` on the node"
        )
    return DaemonState(problem, identity, servers)


def rests(before: DaemonState, now: DaemonState) -> bool:
    """Return whether the control daemon is well, and its servers are known and have no clients. Pure."""
    known = now == before or (before == UNSEEN and not now.servers)
    return known and not now.problem and not any(server.clients for server in now.servers.values())


def _offered(paths: MpsPaths, uuid: str) -> bool:
    """Return whether containers have the socket of the control daemon that runs now."""
    try:
        return (paths.client(uuid) / "control").samefile(paths.pipe(uuid) / "control")
    except OSError:
        return False


def _problem(servers: Mapping[int, Server], client_limit: int) -> str:
    faulty = [process for process, server in servers.items() if server.faulty]
    if faulty:
        return f"MPS server fault (process {min(faulty)}): clients have to end before it recovers"
    clients = sum(server.clients for server in servers.values())
    if clients >= client_limit:
        return f"{clients} processes use MPS, which takes {client_limit}: one more would get CUDA error 808"
    return ""


def _servers(answer: str, before: Mapping[int, Server]) -> dict[int, Server]:
    """Return the servers, from the answers to ``probe``'s questions.

    Process ids stand on lines of their own; a status is a line that is no number, also where the control program does
    not know the command (before driver 545). Raises OSError for what is no such answer.
    """
    percentage, *lines = answer.splitlines() or [""]
    if not _PERCENTAGE.fullmatch(percentage):
        raise OSError(f"it answers {percentage!r}")
    sections: list[tuple[str, list[int]]] = [("", [])]
    for line in lines:
        if line.strip().isdecimal():
            sections[-1][1].append(int(line))
        else:
            sections.append((line, []))
    listed = sections[0][1]
    if len(sections) - 1 == len(before) and not _NO_SERVER.search(answer):
        told = dict(zip(sorted(before), sections[1:], strict=True))
        before = {process: Server(len(clients), bool(_FAULT.search(word))) for process, (word, clients) in told.items()}
    # Otherwise one has just gone, which makes two lines or one, by the driver: the others have not changed much.
    return {process: before.get(process, Server(0)) for process in listed}


class MpsMonitor:
    """Looks at every GPU's control daemon from a thread of its own, so that one that hangs hides no other."""

    def __init__(
        self,
        paths: MpsPaths,
        on_change: Callable[[], None],
        on_incident: Callable[[str, str], None],
        interval: float,
        in_use: Callable[[str], bool] = lambda uuid: True,
        deadline: float = _DEADLINE,
        rest: float = _REST,
    ) -> None:
        """Ask every ``interval`` seconds, and every ``rest`` seconds where a GPU is not in use and has no clients.

        A daemon that starts, or ends in order, changes its files, which are looked at every ``interval`` seconds in
        any case. One that is killed and not started again is noticed after ``rest``.
        ``in_use`` gets a GPU's UUID; ``on_incident`` gets a UUID and a sentence. All are called on the monitor's
        threads.
        """
        self._paths = paths
        self._on_change = on_change
        self._on_incident = on_incident
        self._interval = interval
        self._in_use = in_use
        self._deadline = deadline
        self._rest = rest
        self._lock = threading.Lock()
        self._states: dict[str, DaemonState] = {}
        self._shared: frozenset[str] = frozenset()
        self._client_limit = 0

    def see(self, inventory: Inventory | None, shared: frozenset[str] | None = None) -> None:
        """Look after these GPUs from now on, all, or those with ``shared`` UUIDs. Others are let go."""
        gpus = inventory.gpus if inventory is not None else ()
        self._shared = frozenset(gpu.uuid for gpu in gpus) if shared is None else shared
        version = inventory.driver_version if inventory is not None else ""
        wanted = {gpu.uuid for gpu in gpus if gpu.uuid in self._shared and not mps_unfit(gpu, version)}
        with self._lock:
            if inventory is not None:
                self._client_limit = client_limit(inventory.cuda_version)
            new = wanted - self._states.keys()
            self._states = {uuid: self._states.get(uuid, UNSEEN) for uuid in wanted}
        for uuid in new:
            threading.Thread(target=self._follow, args=(uuid,), name=f"mps {uuid[-6:]}", daemon=True).start()

    def apply(self, snapshot: Snapshot) -> Snapshot:
        """Return the snapshot, with the GPUs unhealthy that MPS cannot share now."""
        inventory = snapshot.inventory
        if inventory is None:
            return snapshot
        health = dict(snapshot.health)
        for gpu in (gpu for gpu in inventory.gpus if gpu.uuid in self._shared):
            known = health.get(gpu.uuid, GpuHealth(Health.UNKNOWN))
            problem = mps_unfit(gpu, inventory.driver_version) or self._states.get(gpu.uuid, UNSEEN).problem
            if problem and known.health is not Health.UNHEALTHY:
                health[gpu.uuid] = GpuHealth(Health.UNHEALTHY, problem)
        return replace(snapshot, health=health)

    def _follow(self, uuid: str) -> None:
        rest_until = 0.0
        while True:
            begin = time.monotonic()
            with self._lock:
                before = self._states.get(uuid)
                limit = self._client_limit
            if before is None:
                return
            if begin < rest_until and not self._in_use(uuid) and self._is_unchanged(uuid, before):
                time.sleep(self._interval)
                continue
            now = probe(self._paths, uuid, before, limit, self._deadline)
            rest_until = begin + self._rest if rests(before, now) else 0.0
            if happened := incident(before, now):
                _log.warning("MPS clients are affected", extra={"gpu": uuid, "reason": happened})
                self._on_incident(uuid, happened)
                if not now.problem:
                    now = replace(now, problem=f"{happened}; offered again when the control daemon is seen well")
            with self._lock:
                if uuid in self._states:
                    self._states[uuid] = now
            if now.problem != before.problem:
                _log.info("MPS control daemon", extra={"gpu": uuid, "problem": now.problem})
                self._on_change()
            time.sleep(max(0.0, self._interval - (time.monotonic() - begin)))

    def _is_unchanged(self, uuid: str, before: DaemonState) -> bool:
        return _identity(self._paths.pipe(uuid)) == before.identity and _offered(self._paths, uuid)


def _ask(paths: MpsPaths, pipe: Path, command: str, deadline: float) -> str:
    """Return the answer to a command, or to several, a line each.

    Raises OSError with the reason when there is none, TimeoutError when it does not come.
    """
    environment = os.environ | {PIPE_VARIABLE: str(pipe)}
    try:
        done = subprocess.run(
            [paths.command],
            input=f"{command}\n",
            env=environment,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=deadline,
        )
    except subprocess.TimeoutExpired:
        raise TimeoutError(f"no answer within {deadline:g} s") from None
    except FileNotFoundError:
        raise OSError(f"program {paths.command} does not exist; set --mps-control-command") from None
    if done.returncode != 0:
        raise OSError((done.stderr or done.stdout).strip() or f"exit code {done.returncode}")
    return done.stdout


def _identity(pipe: Path) -> tuple[int, int] | None:
    """Identify the running control daemon by its pidfile, which newer ones write, or else by its socket."""
    for name in ("nvidia-cuda-mps-control.pid", "control"):
        try:
            status = (pipe / name).stat()
        except OSError:
            continue
        return status.st_ino, status.st_mtime_ns
    return None
