# SPDX-License-Identifier: Apache-2.0
"""Waiting for what a test has to see."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

Answer = TypeVar("Answer")

_LOOK_SECONDS = 0.01


def wait(predicate: Callable[[], Answer], what: str = "the condition", seconds: float = 300) -> Answer:
    """The first true answer; an AssertionError that says ``what`` did not come true after so many seconds."""
    deadline = time.monotonic() + seconds
    while not (answer := predicate()):
        assert time.monotonic() < deadline, f"{what} did not come true within {seconds:g} s"
        time.sleep(_LOOK_SECONDS)
    return answer
