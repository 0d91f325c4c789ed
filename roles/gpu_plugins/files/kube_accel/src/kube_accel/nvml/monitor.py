# SPDX-License-Identifier: Apache-2.0
"""What is known of a node's GPUs, kept current by one thread that no other waits for."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

from kube_accel.model import GpuUsage, Snapshot
from kube_accel.nvml import translate
from kube_accel.nvml.board import Board
from kube_accel.nvml.conditions import Conditions
from kube_accel.nvml.expected_gpus import Seen
from kube_accel.nvml.health import Rules
from kube_accel.nvml.health_store import HealthStore, Xids
from kube_accel.nvml.options import MonitorOptions
from kube_accel.nvml.process import WorkerProcess, worker_command
from kube_accel.nvml.watcher import MAX_DYING, STOP_SECONDS, Watcher


class QuiesceError(TimeoutError):
    """The driver was not let go of in time."""


class GpuMonitor:
    """The GPUs as a thread of its own watches them. ``spawn`` starts a worker; it is a parameter for tests."""

    def __init__(self, options: MonitorOptions, spawn: Callable[[], WorkerProcess] | None = None) -> None:
        self._options = options
        command = partial(worker_command, options.sysfs_root, options.proc_root, options.excluded)
        rules = Rules(options.recovery_polls, options.xid_recovery_seconds, options.switches)
        self._board = Board()
        self._conditions = Conditions(rules, HealthStore(options.memory))
        watcher = Watcher(options, self._board, self._conditions, spawn or (lambda: WorkerProcess(command())))
        self._thread = threading.Thread(target=watcher.run, name="gpu-monitor", daemon=True)

    def start(self) -> None:
        """Begin watching; returns at once."""
        self._thread.start()

    def stop(self) -> None:
        """End the worker and the thread. The last snapshot stays."""
        with self._board.changed:
            self._board.stopping = True
        self._board.wake()
        if self._thread.is_alive():
            self._thread.join((MAX_DYING + 2) * STOP_SECONDS)

    def snapshot(self) -> Snapshot:
        """Return the last thing known; never waits."""
        return self._board.snapshot

    def wait(self, after_version: int, timeout: float) -> Snapshot:
        """Return the first snapshot newer than ``after_version``, or the current one after ``timeout`` seconds."""
        with self._board.changed:
            self._board.changed.wait_for(lambda: self._board.snapshot.version > after_version, timeout)
            return self._board.snapshot

    def quiesce(self, seconds: float, holder: str = "admin") -> None:
        """Let go of NVML for so long, at least the deadline, or until ``resume``; returns when the worker has ended.

        Raises ``QuiesceError`` when it does not end within the deadline; it is let go of as soon as it does.
        """
        seconds = max(seconds, self._options.deadline)
        until = datetime.now(UTC) + timedelta(seconds=seconds)
        with self._board.changed:
            detail = f"NVML was released on request until {until:%Y-%m-%d %H:%M:%S} UTC"
            self._board.holds[holder] = (time.monotonic() + seconds, detail)
            self._board.released = False
            self._board.wake()
            if not self._board.changed.wait_for(lambda: self._board.released, self._options.deadline):
                raise QuiesceError(
                    f"the NVML worker did not end within {self._options.deadline:g} s: it hangs in the kernel driver;"
                    " if it does not end soon, reboot the node"
                )

    def resume(self, holder: str = "admin") -> None:
        """End the holder's ``quiesce`` early; without effect when it has none."""
        with self._board.changed:
            self._board.holds.pop(holder, None)
        self._board.wake()

    def usage(self, uuids: Iterable[str], timeout: float) -> Mapping[str, GpuUsage] | None:
        """Return what processes have of these GPUs now, by UUID; None without an answer within ``timeout`` seconds.

        A GPU that does not answer is left out. Time is what they had since the question before.
        """
        answer = self._board.ask("usage", {"uuids": list(uuids)}, timeout)
        return None if answer is None else translate.usage(answer)

    def samples(self, slow: bool, profile: bool, timeout: float) -> dict[str, Any] | None:
        """Return what every GPU does, as ``nvml.sampling`` has it, and ``nvml.profiling`` where that is asked for.

        None when NVML does not answer within ``timeout`` seconds.
        """
        return self._board.ask("samples", {"slow": slow, "profile": profile}, timeout)

    def xids(self) -> Xids:
        """Return the XIDs reported until now, before this process too. Never waits."""
        return self._conditions.xids

    def seen(self) -> Mapping[str, Seen]:
        """Return the GPUs that there should be, by UUID. Never waits."""
        return self._conditions.seen

    def limit_memory(self, uuid: str, cgroup: str, memory_bytes: int, timeout: float) -> str:
        """Have the kernel limit a cgroup's memory of a GPU; return why that failed, empty when it did not."""
        arguments = {"uuid": uuid, "cgroup": cgroup, "bytes": memory_bytes}
        answer = self._board.ask("limit", arguments, timeout)
        if answer is None:
            return f"NVML did not answer within {timeout:g} s"
        return str(answer["error"]["text"]) if "error" in answer else ""
