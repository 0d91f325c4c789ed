# SPDX-License-Identifier: Apache-2.0
"""What the thread that watches GPUs and its callers exchange."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from kube_accel.model import DriverState, GpuHealth, Inventory, Snapshot


@dataclass(slots=True, eq=False)
class Question:
    """Something that a thread wants to know of NVML, or have done."""

    operation: str
    arguments: Mapping[str, object]
    answer: dict[str, Any] | None = None


class Board:
    """The last snapshot, and what the thread is asked for. ``changed`` guards all of it."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.snapshot = Snapshot(0, DriverState.STARTING, "NVML has not answered yet", None, MappingProxyType({}))
        self.stopping = False
        self.holds: dict[str, tuple[float, str]] = {}
        """When each holder's pause of NVML ends, and the text that says so."""
        self.released = False
        self.questions: deque[Question] = deque()
        self.wakeup = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        """Readable when the thread has something to do before its time."""
        self._ended = False

    def wake(self) -> None:
        """Have the thread look at the board at once."""
        with self.changed:
            if not self._ended:
                os.eventfd_write(self.wakeup, 1)

    def close(self) -> None:
        """Note that the thread has ended."""
        with self.changed:
            self._ended = True
            os.close(self.wakeup)

    def publish(
        self, state: DriverState, detail: str, inventory: Inventory | None, health: Mapping[str, GpuHealth]
    ) -> None:
        """Replace the snapshot if a reader can see a difference."""
        with self.changed:
            old = self.snapshot
            if (state, detail, inventory, health) == (old.driver_state, old.detail, old.inventory, old.health):
                return
            self.snapshot = Snapshot(old.version + 1, state, detail, inventory, MappingProxyType(dict(health)))
            self.changed.notify_all()

    def answer(self, question: Question, answer: dict[str, Any]) -> None:
        """Give the thread that asked its answer."""
        with self.changed:
            question.answer = answer
            self.changed.notify_all()

    def ask(self, operation: str, arguments: Mapping[str, object], timeout: float) -> dict[str, Any] | None:
        """Return NVML's answer; None without one within ``timeout`` seconds."""
        question = Question(operation, arguments)
        with self.changed:
            self.questions.append(question)
            self.wake()
            self.changed.wait_for(lambda: question.answer is not None, timeout)
            if question in self.questions:
                self.questions.remove(question)
            return question.answer
