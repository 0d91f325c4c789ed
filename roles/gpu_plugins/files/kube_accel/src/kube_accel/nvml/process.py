# SPDX-License-Identifier: Apache-2.0
"""The parent's end of a worker process: never waits for it."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_LAST_BREATH_SECONDS = 0.2


def worker_command(sysfs_root: Path, proc_root: Path = Path("/proc"), excluded: Path | None = None) -> Sequence[str]:
    """Return how to start the worker of this process. ``excluded``: the file that lists GPUs to leave alone."""
    places = str(sysfs_root), str(proc_root), "" if excluded is None else str(excluded)
    return (sys.executable, "-m", "kube_accel.nvml.worker", str(os.getpid()), *places)


@dataclass(frozen=True, slots=True)
class Calling:
    """A call that has not returned."""

    gpu: int
    """NVML's index."""
    function: str
    since: float
    """By the monotonic clock."""


class WorkerProcess:
    """A running worker. ``OSError`` from the constructor when it cannot be started."""

    def __init__(self, command: Sequence[str]) -> None:
        self._note = os.fdopen(os.memfd_create("nvml-call"), "rb", buffering=0)
        self.note = self._note.fileno()
        """A file for the worker to note in what it is calling; it has the same descriptor there."""
        try:
            # A process group of its own: Ctrl-C at a terminal is for the parent to act on.
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                bufsize=0,
                process_group=0,
                pass_fds=(self.note,),
            )
        except OSError:
            self._note.close()
            raise
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._stdin, self._stdout = self._process.stdin, self._process.stdout
        os.set_blocking(self._stdin.fileno(), False)
        os.set_blocking(self._stdout.fileno(), False)
        self._received = b""

    @property
    def pid(self) -> int:
        """Return the process id, for people."""
        return self._process.pid

    def fileno(self) -> int:
        """Return a descriptor that is readable when ``receive`` has something to return."""
        return self._stdout.fileno()

    def send(self, message: Mapping[str, Any]) -> None:
        """Queue a request, which always fits the pipe as long as there is one at a time.

        Raises ``OSError`` when the worker has gone.
        """
        self._stdin.write(json.dumps(message).encode() + b"\n")

    def receive(self) -> tuple[list[dict[str, Any]], bool]:
        """Return the messages that have arrived since the last call, and whether the worker can still send more."""
        open_ended = True
        while True:
            chunk = self._stdout.read(65536)
            if chunk is None:
                break
            if not chunk:
                open_ended = False
                break
            self._received += chunk
        *lines, self._received = self._received.split(b"\n")
        return [json.loads(line) for line in lines], open_ended

    def calling(self) -> Calling | None:
        """Return the call about one GPU that has not returned; None where there is none."""
        words = os.pread(self.note, 256, 0).partition(b"\n")[0].split()
        return Calling(int(words[0]), words[1].decode(), float(words[2])) if len(words) == 3 else None

    def kill(self) -> None:
        """End it; ``gone`` says when that has happened, which inside a hanging driver may be never."""
        self._process.kill()
        self._note.close()
        self._stdin.close()
        self._stdout.close()

    def gone(self) -> bool:
        """Return whether the process has ended and let go of everything it held."""
        return self._process.poll() is not None

    def wait(self, timeout: float) -> None:
        """Return when the process is gone, or after ``timeout`` seconds."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout)

    def obituary(self) -> str:
        """Return how it ended, for people. Asked when its output has ended, which is an instant before it has."""
        self.wait(_LAST_BREATH_SECONDS)
        status = self._process.poll()
        if status is None:
            return "closed its output"
        return f"was killed by signal {-status}" if status < 0 else f"exited with status {status}"
