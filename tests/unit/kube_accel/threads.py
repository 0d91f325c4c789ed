# SPDX-License-Identifier: Apache-2.0
"""Threads of another process."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

_TGKILL = {"x86_64": 234, "aarch64": 131}


def threads(pid: int) -> list[int]:
    """Return the threads of a process, the main one first."""
    return sorted(int(task.name) for task in Path(f"/proc/{pid}/task").iterdir())


def signal_thread(pid: int, thread: int, number: int) -> None:
    """Have one thread take a signal, which is the kernel's choice where it is sent to the process; tgkill(2)."""
    if ctypes.CDLL(None, use_errno=True).syscall(_TGKILL[os.uname().machine], pid, thread, number):
        raise OSError(ctypes.get_errno(), f"thread {thread} cannot be signalled")
