# SPDX-License-Identifier: Apache-2.0
"""What is known of a node's GPUs, kept current by one thread that no other waits for."""

from __future__ import annotations

import contextlib
import logging
import os
import select
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

from kube_accel.model import DriverState, GpuUsage, Health, Inventory, Snapshot
from kube_accel.nvml import machine, translate
from kube_accel.nvml.expected_gpus import Seen, follow
from kube_accel.nvml.faults import KnownFaults
from kube_accel.nvml.health import Condition, Observation, Poll, Reset, Rules, Silence, Xid, observe
from kube_accel.nvml.health_store import HealthStore, Remembered, Xids
from kube_accel.nvml.kernel_log import KernelLog, Sightings
from kube_accel.nvml.process import WorkerProcess, worker_command
from kube_accel.nvml.switches import Switches

log = logging.getLogger(__name__)

_DYING_CHECK_SECONDS = 0.05
_MAX_DYING = 1
_STOP_SECONDS = 1.0
_LONGEST_PAUSE = 1800.0
"""Seconds without a call that hung."""


@dataclass(frozen=True, slots=True)
class MonitorOptions:
    """How a monitor behaves. Times in seconds."""

    sysfs_root: Path = Path("/sys")
    proc_root: Path = Path("/proc")
    poll_interval: float = 2.0
    deadline: float = 5.0
    """For the answer to a poll; NVML counts as wedged after it."""
    start_deadline: float = 60.0
    """For a worker's first answer: without nvidia-persistenced the driver brings up each GPU in turn."""
    call_deadline: float = 20.0
    """For one call about one GPU while a worker starts: as long as the driver may take to bring up a GPU."""
    retry_initial: float = 1.0
    retry_max: float = 15.0
    """Between attempts to start a worker; doubles from the initial value."""
    renew_interval: float = 60.0
    """While a GPU is lost: age at which a worker is replaced, since NVML looks for GPUs only when initialised.

    Also the time after which a function that did not return for a GPU is called again; doubles each time.
    """
    recovery_polls: int = 3
    """Good polls in a row that make a GPU healthy again."""
    xid_recovery_seconds: float = 300.0
    """Without news after a critical XID that nothing shows to have ended in a reset; see ``health``."""
    switches: Switches = field(default_factory=Switches)
    kernel_logs: tuple[Path, ...] = ()
    """Where the kernel's log is: the first that can be read is followed."""
    memory: Path | None = None
    """File that keeps what a restart must not forget."""
    excluded: Path | None = None
    """File that lists the GPUs to leave alone."""
    dev_root: Path | None = None
    """Where the host's ``/dev`` is seen; None: device files are not looked at."""
    shared_nodes: tuple[str, ...] = ()
    """Names of the device files that containers need besides their GPUs' own."""


class QuiesceError(TimeoutError):
    """The driver was not let go of in time."""


@dataclass(slots=True, eq=False)
class _Question:
    """Something that a thread wants to know of NVML, or have done."""

    operation: str
    arguments: Mapping[str, object]
    answer: dict[str, Any] | None = None


@dataclass(slots=True)
class _Worker:
    """The worker in use, and the request it owes an answer to."""

    process: WorkerProcess
    started: float
    request: int
    deadline: float | None
    answered: bool = False
    """It has given its inventory."""
    question: _Question | None = None
    """The question that its answer is for, while a thread waits for that."""
    avoids: tuple[tuple[int, str], ...] = ()
    """Functions that it does not call, by GPU's index and name."""


@dataclass(frozen=True, slots=True)
class _Hang:
    """A function that did not return for a GPU."""

    until: float
    """When it may be called again."""
    pause: float


class GpuMonitor:
    """Watches the GPUs through a worker process, and replaces the worker when it hangs, dies or is out of date.

    At most two worker processes exist: the one in use and one that was killed and cannot die because the kernel
    driver holds it. ``spawn`` starts a worker; it is a parameter for tests.
    """

    def __init__(self, options: MonitorOptions, spawn: Callable[[], WorkerProcess] | None = None) -> None:
        self._options = options
        self._rules = Rules(options.recovery_polls, options.xid_recovery_seconds, options.switches)
        command = partial(worker_command, options.sysfs_root, options.proc_root, options.excluded)
        self._spawn = spawn or (lambda: WorkerProcess(command()))
        self._thread = threading.Thread(target=self._run, name="gpu-monitor", daemon=True)
        self._wakeup = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

        self._changed = threading.Condition()  # guards the next nine
        self._snapshot = Snapshot(0, DriverState.STARTING, "NVML has not answered yet", None, MappingProxyType({}))
        self._stopping = False
        self._ended = False
        self._holds: dict[str, tuple[float, str]] = {}
        """Until when NVML is let go of and how that is said, by who asked for it."""
        self._released = False
        self._questions: deque[_Question] = deque()
        self._xids: Xids = {}
        self._seen: Mapping[str, Seen] = {}

        # The rest belongs to the thread.
        self._worker: _Worker | None = None
        self._dying: list[WorkerProcess] = []
        self._requests = 0
        self._failures = 0
        self._spawn_at = 0.0
        self._poll_at = 0.0
        self._inventory: Inventory | None = None
        self._conditions: dict[str, Condition] = {}
        self._store = HealthStore(options.memory)
        self._observed = False
        """Whether there may be something to remember."""
        self._kernel_log = KernelLog(options.kernel_logs)
        self._log_at = 0.0
        self._sightings = Sightings()
        self._platform = machine.unsupported_platform(options.sysfs_root, options.proc_root)
        self._faults = KnownFaults()
        self._hung: dict[tuple[int, str], _Hang] = {}
        """Functions that did not return, by GPU's index and name."""

    def start(self) -> None:
        """Begin watching; returns at once."""
        self._thread.start()

    def stop(self) -> None:
        """End the worker and the thread. The last snapshot stays."""
        with self._changed:
            self._stopping = True
        self._wake()
        if self._thread.is_alive():
            self._thread.join((_MAX_DYING + 2) * _STOP_SECONDS)

    def snapshot(self) -> Snapshot:
        """Return the last thing known; never waits."""
        return self._snapshot

    def wait(self, after_version: int, timeout: float) -> Snapshot:
        """Return the first snapshot newer than ``after_version``, or the current one after ``timeout`` seconds."""
        with self._changed:
            self._changed.wait_for(lambda: self._snapshot.version > after_version, timeout)
            return self._snapshot

    def quiesce(self, seconds: float, holder: str = "admin") -> None:
        """Let go of NVML for so long, at least the deadline, or until ``resume``; returns when the worker has ended.

        Raises ``QuiesceError`` when it does not end within the deadline; it is let go of as soon as it does.
        """
        seconds = max(seconds, self._options.deadline)
        until = datetime.now(UTC) + timedelta(seconds=seconds)
        with self._changed:
            detail = f"NVML was let go of on request until {until:%Y-%m-%d %H:%M:%S} UTC"
            self._holds[holder] = (time.monotonic() + seconds, detail)
            self._released = False
            self._wake()
            if not self._changed.wait_for(lambda: self._released, self._options.deadline):
                raise QuiesceError(
                    f"the NVML worker did not end within {self._options.deadline:g} s: it hangs in the kernel driver;"
                    " if it stays so, the node has to be rebooted"
                )

    def resume(self, holder: str = "admin") -> None:
        """End the holder's ``quiesce`` early; without effect when it has none."""
        with self._changed:
            self._holds.pop(holder, None)
        self._wake()

    def usage(self, uuids: Iterable[str], timeout: float) -> Mapping[str, GpuUsage] | None:
        """Return what processes have of these GPUs now, by UUID; None without an answer within ``timeout`` seconds.

        A GPU that does not answer is left out. Time is what they had since the question before.
        """
        answer = self._ask("usage", {"uuids": list(uuids)}, timeout)
        return None if answer is None else translate.usage(answer)

    def samples(self, slow: bool, profile: bool, timeout: float) -> dict[str, Any] | None:
        """Return what every GPU does, as ``nvml.sampling`` has it, and ``nvml.profiling`` where that is asked for.

        None when NVML does not tell within ``timeout`` seconds.
        """
        return self._ask("samples", {"slow": slow, "profile": profile}, timeout)

    def xids(self) -> Xids:
        """Return the XIDs reported until now, before this process too. Never waits."""
        return self._xids

    def seen(self) -> Mapping[str, Seen]:
        """Return the GPUs that there should be, by UUID. Never waits."""
        return self._seen

    def limit_memory(self, uuid: str, cgroup: str, memory_bytes: int, timeout: float) -> str:
        """Have the kernel limit a cgroup's memory of a GPU; return why that failed, empty when it did not."""
        arguments = {"uuid": uuid, "cgroup": cgroup, "bytes": memory_bytes}
        answer = self._ask("limit", arguments, timeout)
        if answer is None:
            return f"NVML did not answer within {timeout:g} s"
        return str(answer["error"]["text"]) if "error" in answer else ""

    def _ask(self, operation: str, arguments: Mapping[str, object], timeout: float) -> dict[str, Any] | None:
        question = _Question(operation, arguments)
        with self._changed:
            self._questions.append(question)
            self._wake()
            self._changed.wait_for(lambda: question.answer is not None, timeout)
            if question in self._questions:
                self._questions.remove(question)
            return question.answer

    def _wake(self) -> None:
        with self._changed:
            if not self._ended:
                os.eventfd_write(self._wakeup, 1)

    # --- the thread -------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        remembered = self._store.load()
        self._conditions = dict(remembered.conditions)
        with self._changed:
            self._xids, self._seen = remembered.xids, remembered.seen
        self._kernel_log.open()
        try:
            while not self._stopping:
                try:
                    self._step()
                    self._remember()
                except Exception as error:  # a fault of ours must show as one, not as GPUs that stay healthy for ever
                    log.exception("the GPU monitor failed")
                    detail = f"the GPU monitor failed: {error!r}"
                    self._failed(DriverState.UNAVAILABLE, detail, Health.UNKNOWN, time.monotonic())
        finally:
            self._retire()
            for process in self._dying:
                process.wait(_STOP_SECONDS)
            self._kernel_log.close()
            with self._changed:
                self._ended = True
                os.close(self._wakeup)

    def _step(self) -> None:
        now = time.monotonic()
        self._dying = [process for process in self._dying if not process.gone()]
        if self._holding(now):
            self._let_go(now)
        elif self._worker is None and now >= self._spawn_at:
            self._replace(now)
        self._sleep(now)
        now = time.monotonic()
        worker = self._worker
        if worker is None:
            return
        self._receive(worker, now)
        if worker is not self._worker:
            return
        if self._inventory is not None and now >= self._log_at:
            self._log_at = now + self._options.poll_interval
            self._read_kernel_log(self._inventory, now)
        if worker.deadline is not None and now >= worker.deadline:
            self._late(worker, now)
        elif worker.deadline is None and now >= self._poll_at:
            self._request("poll", now + self._options.deadline)
        elif worker.deadline is None and self._questions:
            self._pass_on(worker, now)

    def _sleep(self, now: float) -> None:
        """Wait until there is something to do."""
        events = select.poll()
        events.register(self._wakeup, select.POLLIN)
        worker, times = self._worker, []
        if worker is not None:
            events.register(worker.process.fileno(), select.POLLIN)
            times.append(self._poll_at if worker.deadline is None else worker.deadline)
        elif not self._holds and len(self._dying) <= _MAX_DYING:
            times.append(self._spawn_at)
        if self._dying:
            times.append(now + _DYING_CHECK_SECONDS)
        with self._changed:
            times += [until for until, _ in self._holds.values()]
        events.poll(max(0.0, min(times) - now) * 1000 + 1 if times else None)
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._wakeup)

    def _holding(self, now: float) -> bool:
        with self._changed:
            self._holds = {holder: hold for holder, hold in self._holds.items() if now < hold[0]}
            return bool(self._holds)

    def _let_go(self, now: float) -> None:
        self._retire()
        if self._dying:
            return
        self._spawn_at, self._failures = now, 0
        self._observe_all(Reset(), now)
        with self._changed:
            _, detail = max(self._holds.values(), default=(now, self._snapshot.detail))
            self._publish(DriverState.QUIESCED, detail, Health.UNHEALTHY)
            self._released = True
            self._changed.notify_all()

    def _replace(self, now: float) -> None:
        if len(self._dying) > _MAX_DYING:
            pids = ", ".join(str(process.pid) for process in self._dying)
            detail = f"NVML hangs, and its workers cannot be ended (pids {pids}): reboot the node"
            self._publish(DriverState.WEDGED, detail, Health.UNKNOWN)
            return
        if self._snapshot.driver_state is DriverState.QUIESCED:
            self._kernel_log.read()  # what an administrator did meanwhile
        try:
            process = self._spawn()
        except OSError as error:
            self._failed(DriverState.UNAVAILABLE, f"the NVML worker cannot be started: {error}", Health.UNKNOWN, now)
            return
        self._worker = _Worker(process, started=now, request=0, deadline=None)
        self._hung = {call: hang for call, hang in self._hung.items() if now < hang.until + hang.pause}
        self._worker.avoids = tuple(call for call, hang in self._hung.items() if now < hang.until)
        self._request("inventory", now + min(self._options.start_deadline, self._options.call_deadline))

    def _request(self, operation: str, deadline: float, question: _Question | None = None) -> None:
        worker = self._worker
        assert worker is not None
        self._requests += 1
        worker.request, worker.deadline, worker.question = self._requests, deadline, question
        more: Mapping[str, object] = question.arguments if question is not None else {}
        if operation == "inventory":
            more = {"note": worker.process.note, "hung": worker.avoids}
        with contextlib.suppress(OSError):  # it has ended: its output says so too
            worker.process.send({"id": self._requests, "op": operation, **more})

    def _pass_on(self, worker: _Worker, now: float) -> None:
        with self._changed:
            # Whoever asked may have given up meanwhile.
            question = self._questions.popleft() if self._questions else None
        if question is not None:
            self._request(question.operation, now + self._options.deadline, question)

    def _answered(self, question: _Question, answer: dict[str, Any]) -> None:
        if "gpus" in answer:
            source = f"{question.operation} {question.arguments.get('slow')}"
            self._see_faults(source, answer["gpus"])
        with self._changed:
            question.answer = answer
            self._changed.notify_all()

    def _receive(self, worker: _Worker, now: float) -> None:
        messages, more = worker.process.receive()
        for message in messages:
            self._handle(worker, message, now)
        if not more and worker is self._worker:
            self._observe_all(Silence(), now)
            detail = f"the NVML worker {worker.process.obituary()}"
            self._interrupted(worker, DriverState.UNAVAILABLE, detail, Health.UNKNOWN, now)

    def _handle(self, worker: _Worker, message: dict[str, Any], now: float) -> None:
        if worker is not self._worker:
            return  # replaced because of an earlier message
        if "event" in message:
            self._event(message, now)
        elif message["id"] == worker.request:
            worker.deadline = None
            if "error" in message:
                self._refused(worker, message["error"], now)
            elif worker.question is not None:
                self._answered(worker.question, message["ok"])
            elif worker.answered:
                self._polled(worker, message["ok"], now)
            else:
                self._inventoried(worker, message["ok"], now)

    def _event(self, message: dict[str, Any], now: float) -> None:
        self._poll_at = now
        uuid = message.get("uuid")
        if message["event"] == "xid" and uuid in self._conditions:
            self._xid(uuid, message["xid"], "NVML", now)

    def _read_kernel_log(self, inventory: Inventory, now: float) -> None:
        xids = self._kernel_log.read()
        if not xids:
            return
        uuids = {gpu.pci_address.rpartition(".")[0]: gpu.uuid for gpu in inventory.gpus}
        for xid in xids:
            if xid.slot in uuids:
                self._xid(uuids[xid.slot], xid.number, "kernel log", now)
        self._poll_at = now

    def _xid(self, uuid: str, number: int, teller: str, now: float) -> None:
        if not self._sightings.first(uuid, number, teller, now):
            return
        log.warning("XID reported", extra={"gpu": uuid, "xid": number, "by": teller})
        count, _ = self._xids.get((uuid, number), (0, 0.0))
        with self._changed:
            self._xids = {**self._xids, (uuid, number): (count + 1, time.time())}
        self._observe(uuid, Xid(number), now)
        if self._snapshot.driver_state is DriverState.READY:
            self._publish(DriverState.READY)

    def _inventoried(self, worker: _Worker, answer: dict[str, Any], now: float) -> None:
        worker.answered = True
        before = self._inventory
        self._inventory = translate.inventory(answer, before, self._platform)
        for gpu in self._inventory.excluded:
            if before is None or gpu not in before.excluded:
                log.info("a GPU is left alone", extra={"gpu": gpu.index, "uuid": gpu.uuid, "reason": gpu.by})
        self._see_faults("poll", answer["gpus"])
        self._observe_polls(self._polls(answer["gpus"], self._inventory), now)
        if self._failures:
            self._poll_at = now  # the last worker came this far too
        else:
            self._poll_at = now + self._options.poll_interval
            self._publish(DriverState.READY)

    def _polled(self, worker: _Worker, answer: dict[str, Any], now: float) -> None:
        assert self._inventory is not None
        self._failures = 0
        self._poll_at = now + self._options.poll_interval
        self._see_faults("poll", answer["gpus"])
        polls = self._polls(answer["gpus"], self._inventory)
        self._observe_polls(polls, now)
        self._publish(DriverState.READY)
        missing = self._inventory.unreadable or any(poll.lost for poll in polls.values())
        # One that cannot be ended hangs still.
        again = not self._dying and any(now >= self._hung[call].until for call in worker.avoids if call in self._hung)
        if answer["stale"] or again or (missing and now - worker.started >= self._options.renew_interval):
            self._spawn_at = now
            self._retire()

    def _refused(self, worker: _Worker, error: dict[str, Any], now: float) -> None:
        """Take in that NVML as a whole answered with an error."""
        if error["code"] == translate.DRIVER_NOT_LOADED:
            self._kernel_log.read()  # what came before it was unloaded
            self._observe_all(Reset(), now)
        self._interrupted(
            worker, DriverState.UNAVAILABLE, translate.unavailable(error, self._platform), Health.UNHEALTHY, now
        )

    def _interrupted(self, worker: _Worker, state: DriverState, detail: str, health: Health, now: float) -> None:
        """Replace a worker that had been fine at once: its successor knows better what is wrong, if anything."""
        if worker.answered and not self._failures:
            log.warning("NVML worker replaced", extra={"pid": worker.process.pid, "cause": detail})
            self._failures = 1
            self._spawn_at = now
            self._retire()
        else:
            self._failed(state, detail, health, now)

    def _polls(self, entries: list[dict[str, Any]], inventory: Inventory) -> dict[str, Poll]:
        """Return what a poll found of each GPU, by NVML and by the device files there are."""
        polls = translate.polls(entries, inventory)
        root = self._options.dev_root
        if root is None:
            return polls
        absent = [name for name in self._options.shared_nodes if not (root / name).exists()]
        for gpu in inventory.gpus:
            missing = [name for name in (f"nvidia{gpu.minor}",) if not (root / name).exists()] + absent
            if missing and not polls[gpu.uuid].complaint:
                polls[gpu.uuid] = replace(polls[gpu.uuid], complaint=translate.devices_missing(missing), answered=False)
        return polls

    def _expected(self) -> Mapping[str, Seen]:
        """Return the GPUs that answered lately, but for those that are left alone now."""
        excluded = {gpu.uuid for gpu in self._inventory.excluded} if self._inventory is not None else set()
        return {uuid: seen for uuid, seen in self._seen.items() if uuid not in excluded}

    def _see_faults(self, source: str, entries: Iterable[dict[str, Any]]) -> None:
        self._faults.see(source, entries, self._platform)
        if source != "poll" and self._snapshot.driver_state is DriverState.READY:
            self._publish(DriverState.READY)

    def _late(self, worker: _Worker, now: float) -> None:
        """Give up an overdue answer: the driver hangs, or it hangs for a GPU, whose call the next worker leaves out."""
        calling = worker.process.calling()
        longest = self._options.deadline if worker.answered or self._hung else self._options.call_deadline
        if not worker.answered:
            end = worker.started + self._options.start_deadline
            due = end if calling is None else min(end, calling.since + longest)
            if now < due:
                worker.deadline = due
                return
        # A young call is one of many slow ones.
        if calling is None or now - calling.since < longest / 2 or not self._few_hang(calling.gpu, now):
            self._hung.clear()
            self._wedged(worker, now)
            return
        call = (calling.gpu, calling.function)
        known = self._hung.get(call)
        pause = self._options.renew_interval if known is None else min(2 * known.pause, _LONGEST_PAUSE)
        self._hung[call] = _Hang(now + pause, pause)
        self._observe_all(Silence(), now)
        self._failures += 1
        self._spawn_at = now
        self._retire()
        detail = (
            f"NVML did not answer within {longest:g} s: {calling.function} hangs for GPU {calling.gpu}, and is not"
            f" called for it any more; {translate.HANGS}"
        )
        log.warning("NVML worker replaced", extra={"pid": worker.process.pid, "cause": detail})
        if known is None:
            self._publish(DriverState.WEDGED, detail, Health.UNKNOWN)

    def _few_hang(self, index: int, now: float) -> bool:
        """Return whether it is still to be believed that GPUs hang and not the driver, if this one does too."""
        most = max(1, len(self._inventory.gpus) // 2) if self._inventory is not None else 1
        return len({index, *(gpu for (gpu, _), hang in self._hung.items() if now < hang.until)}) <= most

    def _wedged(self, worker: _Worker, now: float) -> None:
        seconds = self._options.deadline if worker.answered else self._options.start_deadline
        self._observe_all(Silence(), now)
        detail = f"NVML did not answer within {seconds:g} s: the driver hangs; see `dmesg` for NVRM messages"
        self._failed(DriverState.WEDGED, detail, Health.UNKNOWN, now)

    def _failed(self, state: DriverState, detail: str, health: Health, now: float) -> None:
        self._failures += 1
        delay = self._options.retry_initial * 2.0 ** min(self._failures - 1, 16)
        self._spawn_at = now + min(delay, self._options.retry_max)
        self._retire()
        self._publish(state, detail, health)

    def _retire(self) -> None:
        if self._worker is not None:
            self._worker.process.kill()
            self._dying.append(self._worker.process)
            self._worker = None

    def _observe_polls(self, polls: dict[str, Poll], now: float) -> None:
        # One that was lost before this daemon began is known by what was remembered of it alone.
        absent = dict.fromkeys(self._conditions.keys() - polls.keys(), translate.NOT_ENUMERATED)
        for uuid, poll in (polls | absent).items():
            self._observe(uuid, poll, now)
        gpus = self._inventory.gpus if self._inventory is not None else ()
        answered = {uuid for uuid, poll in polls.items() if poll.answered}
        healthy = {uuid for uuid in polls if self._conditions[uuid].health.health is Health.HEALTHY}
        self._observed = True
        with self._changed:
            self._seen = follow(self._expected(), gpus, answered, healthy, time.time())

    def _observe_all(self, observation: Observation, now: float) -> None:
        for uuid in self._conditions:
            self._observe(uuid, observation, now)

    def _remember(self) -> None:
        if self._observed:
            self._observed = False
            self._store.save(Remembered(self._conditions, self._xids, self._seen))

    def _observe(self, uuid: str, observation: Observation, now: float) -> None:
        self._observed = True
        before = self._conditions.get(uuid, Condition())
        after = self._conditions[uuid] = observe(before, observation, now, self._rules)
        if after.health != before.health:
            health = after.health
            news = {"gpu": uuid, "health": health.health.value, "reason": health.reason, "advice": health.advice}
            log.warning("GPU health changed", extra=news)

    def _publish(self, state: DriverState, detail: str = "", otherwise: Health | None = None) -> None:
        """Publish a snapshot if a reader can see a difference.

        ``otherwise``: the health of GPUs not known to be bad.
        """
        self._remember()  # before anybody acts on it
        gpus = self._inventory.gpus if self._inventory is not None else ()
        known = {gpu.uuid: replace(self._conditions[gpu.uuid].health, faults=self._faults.of(gpu.uuid)) for gpu in gpus}
        if otherwise is not None:
            known = {
                uuid: replace(health, health=otherwise, reason=detail) if health.health is Health.HEALTHY else health
                for uuid, health in known.items()
            }
        old = self._snapshot
        if (state, detail, self._inventory, known) == (old.driver_state, old.detail, old.inventory, old.health):
            return
        if state is not old.driver_state:
            log.log(
                logging.INFO if state in (DriverState.READY, DriverState.QUIESCED) else logging.WARNING,
                "driver state changed",
                extra={"state": state.value, "detail": detail},
            )
        with self._changed:
            self._snapshot = Snapshot(old.version + 1, state, detail, self._inventory, MappingProxyType(known))
            self._changed.notify_all()
