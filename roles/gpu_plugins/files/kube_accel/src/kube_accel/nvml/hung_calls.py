# SPDX-License-Identifier: Apache-2.0
"""The functions of NVML that hang for a GPU, and how long workers leave each of them out."""

from __future__ import annotations

from dataclasses import dataclass

_LONGEST_PAUSE = 1800.0

Call = tuple[int, str]
"""A GPU's index, and the name of a function that is called for it."""


@dataclass(frozen=True, slots=True)
class _Hang:
    """A call that hangs, and when it may be tried again."""

    until: float
    """When the function may be called again."""
    pause: float
    """Seconds without a call until then; doubles each time."""


class HungCalls:
    """The calls that did not return. ``pause`` is how many seconds the first of them is left out."""

    def __init__(self, pause: float) -> None:
        self._pause = pause
        self._hangs: dict[Call, _Hang] = {}

    def __bool__(self) -> bool:
        return bool(self._hangs)

    def add(self, call: Call, now: float) -> bool:
        """Leave a call out from now on; return whether it had not hung lately."""
        known = self._hangs.get(call)
        pause = self._pause if known is None else min(2 * known.pause, _LONGEST_PAUSE)
        self._hangs[call] = _Hang(now + pause, pause)
        return known is None

    def clear(self) -> None:
        """Forget all of them: the driver hangs, and not a GPU."""
        self._hangs.clear()

    def avoided(self, now: float) -> tuple[Call, ...]:
        """Return the calls that a worker started now has to leave out, and forget those that hung long ago."""
        self._hangs = {call: hang for call, hang in self._hangs.items() if now < hang.until + hang.pause}
        return tuple(call for call, hang in self._hangs.items() if now < hang.until)

    def any_due(self, avoided: tuple[Call, ...], now: float) -> bool:
        """Return whether one of the calls that a worker leaves out is to be tried again."""
        return any(now >= self._hangs[call].until for call in avoided if call in self._hangs)

    def few_with(self, index: int, gpus: int, now: float) -> bool:
        """Return whether GPUs hang, and not the driver, if this GPU of so many hangs too: at most half of them do."""
        hanging = {gpu for (gpu, _), hang in self._hangs.items() if now < hang.until}
        return len(hanging | {index}) <= max(1, gpus // 2)
