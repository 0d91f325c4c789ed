# SPDX-License-Identifier: Apache-2.0
"""The thread that watches GPUs through a worker process, and replaces the worker."""

from __future__ import annotations

import contextlib
import logging
import os
import select
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from kube_accel.model import DriverState, Health, Inventory
from kube_accel.nvml import machine, translate
from kube_accel.nvml.board import Board, Question
from kube_accel.nvml.conditions import Conditions
from kube_accel.nvml.faults import KnownFaults
from kube_accel.nvml.health import Poll, Reset, Silence
from kube_accel.nvml.hung_calls import Call, HungCalls
from kube_accel.nvml.kernel_log import KernelLog
from kube_accel.nvml.options import MonitorOptions
from kube_accel.nvml.process import WorkerProcess

_log = logging.getLogger(__name__)

_DYING_CHECK_SECONDS = 0.05
MAX_DYING = 1
STOP_SECONDS = 1.0


@dataclass(slots=True)
class _Worker:
    """The worker in use, and the request it owes an answer to."""

    process: WorkerProcess
    started: float
    request: int
    deadline: float | None
    answered: bool = False
    """It has given its inventory."""
    question: Question | None = None
    """The question that its answer is for, while a thread waits for that."""
    avoids: tuple[Call, ...] = ()
    """What it does not call."""


class Watcher:
    """Watches the GPUs through a worker process, and replaces the worker when it hangs, dies or is out of date.

    At most two worker processes exist: the one in use and one that was killed and cannot die because the kernel
    driver holds it.
    """

    def __init__(
        self, options: MonitorOptions, board: Board, conditions: Conditions, spawn: Callable[[], WorkerProcess]
    ) -> None:
        self._options = options
        self._board = board
        self._conditions = conditions
        self._spawn = spawn
        self._worker: _Worker | None = None
        self._dying: list[WorkerProcess] = []
        self._requests = 0
        self._failures = 0
        self._spawn_at = 0.0
        self._poll_at = 0.0
        self._inventory: Inventory | None = None
        self._kernel_log = KernelLog(options.kernel_logs)
        self._log_at = 0.0
        self._platform = machine.unsupported_platform(options.sysfs_root, options.proc_root)
        self._faults = KnownFaults()
        self._hung = HungCalls(options.renew_interval)

    def run(self) -> None:
        """Watch until the board says to stop."""
        self._conditions.load()
        self._kernel_log.open()
        try:
            while not self._board.stopping:
                try:
                    self._step()
                    self._conditions.save()
                except Exception as error:  # a fault of ours must show as one, not as GPUs that stay healthy for ever
                    _log.exception("the GPU monitor failed")
                    detail = f"the GPU monitor failed: {error!r}"
                    self._failed(DriverState.UNAVAILABLE, detail, Health.UNKNOWN, time.monotonic())
        finally:
            self._retire()
            for process in self._dying:
                process.wait(STOP_SECONDS)
            self._kernel_log.close()
            self._board.close()

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
        elif worker.deadline is None and self._board.questions:
            self._pass_on(worker, now)

    def _sleep(self, now: float) -> None:
        """Wait until there is something to do."""
        events = select.poll()
        events.register(self._board.wakeup, select.POLLIN)
        worker, times = self._worker, []
        if worker is not None:
            events.register(worker.process.fileno(), select.POLLIN)
            times.append(self._poll_at if worker.deadline is None else worker.deadline)
        elif not self._board.holds and len(self._dying) <= MAX_DYING:
            times.append(self._spawn_at)
        if self._dying:
            times.append(now + _DYING_CHECK_SECONDS)
        with self._board.changed:
            times += [until for until, _ in self._board.holds.values()]
        events.poll(max(0.0, min(times) - now) * 1000 + 1 if times else None)
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._board.wakeup)

    def _holding(self, now: float) -> bool:
        with self._board.changed:
            self._board.holds = {holder: hold for holder, hold in self._board.holds.items() if now < hold[0]}
            return bool(self._board.holds)

    def _let_go(self, now: float) -> None:
        self._retire()
        if self._dying:
            return
        self._spawn_at, self._failures = now, 0
        self._conditions.observe_all(Reset(), now)
        with self._board.changed:
            _, detail = max(self._board.holds.values(), default=(now, self._board.snapshot.detail))
            self._publish(DriverState.QUIESCED, detail, Health.UNHEALTHY)
            self._board.released = True
            self._board.changed.notify_all()

    def _replace(self, now: float) -> None:
        if len(self._dying) > MAX_DYING:
            pids = ", ".join(str(process.pid) for process in self._dying)
            detail = f"NVML hangs, and its workers cannot be ended (pids {pids}): reboot the node"
            self._publish(DriverState.WEDGED, detail, Health.UNKNOWN)
            return
        if self._board.snapshot.driver_state is DriverState.QUIESCED:
            self._kernel_log.read()  # an administrator caused what it reports until now
        try:
            process = self._spawn()
        except OSError as error:
            self._failed(DriverState.UNAVAILABLE, f"the NVML worker cannot be started: {error}", Health.UNKNOWN, now)
            return
        self._worker = _Worker(process, started=now, request=0, deadline=None)
        self._worker.avoids = self._hung.avoided(now)
        self._request("inventory", now + min(self._options.start_deadline, self._options.call_deadline))

    def _request(self, operation: str, deadline: float, question: Question | None = None) -> None:
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
        with self._board.changed:
            # The thread that asked may have given up meanwhile.
            question = self._board.questions.popleft() if self._board.questions else None
        if question is not None:
            self._request(question.operation, now + self._options.deadline, question)

    def _answered(self, question: Question, answer: dict[str, Any]) -> None:
        if "gpus" in answer:
            source = f"{question.operation} {question.arguments.get('slow')}"
            self._see_faults(source, answer["gpus"])
        self._board.answer(question, answer)

    def _receive(self, worker: _Worker, now: float) -> None:
        messages, more = worker.process.receive()
        for message in messages:
            self._handle(worker, message, now)
        if not more and worker is self._worker:
            self._conditions.observe_all(Silence(), now)
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
        if message["event"] == "xid" and uuid in self._conditions.by_uuid:
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

    def _xid(self, uuid: str, number: int, source: str, now: float) -> None:
        if (
            self._conditions.observe_xid(uuid, number, source, now)
            and self._board.snapshot.driver_state is DriverState.READY
        ):
            self._publish(DriverState.READY)

    def _inventoried(self, worker: _Worker, answer: dict[str, Any], now: float) -> None:
        worker.answered = True
        before = self._inventory
        self._inventory = translate.inventory(answer, before, self._platform)
        for gpu in self._inventory.excluded:
            if before is None or gpu not in before.excluded:
                _log.info("a GPU is left alone", extra={"gpu": gpu.index, "uuid": gpu.uuid, "reason": gpu.by})
        self._see_faults("poll", answer["gpus"])
        self._conditions.observe_polls(_polls(answer["gpus"], self._inventory, self._options), self._inventory, now)
        if self._failures:
            self._poll_at = now  # the last worker gave its inventory too, and failed then
        else:
            self._poll_at = now + self._options.poll_interval
            self._publish(DriverState.READY)

    def _polled(self, worker: _Worker, answer: dict[str, Any], now: float) -> None:
        assert self._inventory is not None
        self._failures = 0
        self._poll_at = now + self._options.poll_interval
        self._see_faults("poll", answer["gpus"])
        polls = _polls(answer["gpus"], self._inventory, self._options)
        self._conditions.observe_polls(polls, self._inventory, now)
        self._publish(DriverState.READY)
        missing = self._inventory.unreadable or any(poll.lost for poll in polls.values())
        # A worker that cannot be ended still hangs in its call.
        again = not self._dying and self._hung.any_due(worker.avoids, now)
        if answer["stale"] or again or (missing and now - worker.started >= self._options.renew_interval):
            self._spawn_at = now
            self._retire()

    def _refused(self, worker: _Worker, error: dict[str, Any], now: float) -> None:
        """Take in that NVML as a whole answered with an error."""
        if error["code"] == translate.DRIVER_NOT_LOADED:
            self._kernel_log.read()  # what came before it was unloaded
            self._conditions.observe_all(Reset(), now)
        self._interrupted(
            worker, DriverState.UNAVAILABLE, translate.unavailable(error, self._platform), Health.UNHEALTHY, now
        )

    def _interrupted(self, worker: _Worker, state: DriverState, detail: str, health: Health, now: float) -> None:
        """Replace a worker that had been fine at once: its successor knows better what is wrong, if anything."""
        if worker.answered and not self._failures:
            _log.warning("NVML worker replaced", extra={"pid": worker.process.pid, "cause": detail})
            self._failures = 1
            self._spawn_at = now
            self._retire()
        else:
            self._failed(state, detail, health, now)

    def _see_faults(self, source: str, entries: Iterable[dict[str, Any]]) -> None:
        self._faults.see(source, entries, self._platform)
        if source != "poll" and self._board.snapshot.driver_state is DriverState.READY:
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
        gpus = len(self._inventory.gpus) if self._inventory is not None else 1
        # A young call is one of many slow ones.
        if calling is None or now - calling.since < longest / 2 or not self._hung.few_with(calling.gpu, gpus, now):
            self._hung.clear()
            self._wedged(worker, now)
            return
        first = self._hung.add((calling.gpu, calling.function), now)
        self._conditions.observe_all(Silence(), now)
        self._failures += 1
        self._spawn_at = now
        self._retire()
        detail = (
            f"NVML did not answer within {longest:g} s: {calling.function} hangs for GPU {calling.gpu}, and is no"
            f" longer called for it; {translate.HANGS}"
        )
        _log.warning("NVML worker replaced", extra={"pid": worker.process.pid, "cause": detail})
        if first:
            self._publish(DriverState.WEDGED, detail, Health.UNKNOWN)

    def _wedged(self, worker: _Worker, now: float) -> None:
        seconds = self._options.deadline if worker.answered else self._options.start_deadline
        self._conditions.observe_all(Silence(), now)
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

    def _publish(self, state: DriverState, detail: str = "", otherwise: Health | None = None) -> None:
        """Publish what is known. ``otherwise`` is the health of GPUs that are not known to be bad."""
        self._conditions.save()  # before a reader of the snapshot acts on it
        gpus = self._inventory.gpus if self._inventory is not None else ()
        known = {
            gpu.uuid: replace(self._conditions.by_uuid[gpu.uuid].health, faults=self._faults.of(gpu.uuid))
            for gpu in gpus
        }
        if otherwise is not None:
            known = {
                uuid: replace(health, health=otherwise, reason=detail) if health.health is Health.HEALTHY else health
                for uuid, health in known.items()
            }
        if state is not self._board.snapshot.driver_state:
            _log.log(
                logging.INFO if state in (DriverState.READY, DriverState.QUIESCED) else logging.WARNING,
                "driver state changed",
                extra={"state": state.value, "detail": detail},
            )
        self._board.publish(state, detail, self._inventory, known)


def _polls(entries: list[dict[str, Any]], inventory: Inventory, options: MonitorOptions) -> dict[str, Poll]:
    """Return what a poll found of each GPU, by NVML and by the device files there are."""
    polls = translate.polls(entries, inventory)
    root = options.dev_root
    if root is None:
        return polls
    absent = [name for name in options.shared_nodes if not (root / name).exists()]
    for gpu in inventory.gpus:
        missing = [name for name in (f"nvidia{gpu.minor}",) if not (root / name).exists()] + absent
        if missing and not polls[gpu.uuid].complaint:
            polls[gpu.uuid] = replace(polls[gpu.uuid], complaint=translate.devices_missing(missing), answered=False)
    return polls
