# SPDX-License-Identifier: Apache-2.0
"""What NVML does not report about single GPUs, as the worker met it: logged when it begins and ends."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Any

from kube_accel.nvml.translate import Fault, fault

log = logging.getLogger(__name__)

Key = str | int
"""A GPU's UUID, or its index where it does not report one."""


class KnownFaults:
    """Faults by the question that met them, since no question asks for everything. For one thread."""

    def __init__(self) -> None:
        self._met: dict[str, dict[Key, tuple[Fault, ...]]] = {}
        self._errors: dict[Key, Fault] = {}

    def see(self, source: str, entries: Iterable[Mapping[str, Any]], platform: str = "") -> None:
        """Take the faults of these GPUs as they are now. ``platform`` as for ``translate.fault``.

        A GPU that errs as a whole keeps what is known of its values.
        """
        for entry in entries:
            key: Key = entry.get("uuid") or entry["index"]
            before = self._all(key)
            if "error" in entry:
                error = entry["error"]
                if source == "poll" and "function" in error:
                    self._errors[key] = fault(error, platform)
            else:
                self._errors.pop(key, None)
                self._met.setdefault(source, {})[key] = tuple(fault(raw, platform) for raw in entry.get("faults", ()))
            _log(key, before, self._all(key))

    def of(self, uuid: str) -> tuple[str, ...]:
        """Return what cannot be read of a GPU that answers."""
        return tuple(dict.fromkeys(str(one) for met in self._met.values() for one in met.get(uuid, ())))

    def _all(self, key: Key) -> tuple[Fault, ...]:
        error = self._errors.get(key)
        met = [one for source in self._met.values() for one in source.get(key, ())]
        return tuple(dict.fromkeys([*met, error] if error is not None else met))


def _log(key: Key, before: Iterable[Fault], now: Iterable[Fault]) -> None:
    before, now = tuple(before), tuple(now)
    for one in now:
        if one not in before:
            extra = {"gpu": key, "function": one.function, "cause": one.cause, "remedy": one.remedy}
            log.warning("NVML fails for one GPU", extra=extra)
    for one in before:
        if one.function not in {other.function for other in now}:
            log.info("NVML answers for the GPU again", extra={"gpu": key, "function": one.function})
