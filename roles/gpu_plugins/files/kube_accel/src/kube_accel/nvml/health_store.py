# SPDX-License-Identifier: Apache-2.0
"""What a restart of the daemon must not forget of GPUs: what has to age, what is counted, and which there should be."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kube_accel.files import write_whole
from kube_accel.nvml.expected_gpus import Seen
from kube_accel.nvml.health import Condition

log = logging.getLogger(__name__)

_VERSION = 1
_SLACK_SECONDS = 10.0
"""By which the end of a wait may move without being written: a GPU that answers badly moves it at every poll."""
_SEEN_SLACK_SECONDS = 3600.0
"""By which the time of an answer may."""
_ODD = (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError)
"""What comes of reading a file that is not of ours."""

Xids = Mapping[tuple[str, int], tuple[int, float]]
"""How often XIDs were reported and when last (seconds since 1970), by GPU and number."""

_Kept = dict[str, tuple[tuple[str, ...], float, int | None]]


@dataclass(frozen=True, slots=True)
class Remembered:
    """What is kept."""

    conditions: Mapping[str, Condition] = field(default_factory=dict)
    """By UUID, as all of it. Times of the monotonic clock, which starts over when the machine does, as the GPUs do."""
    xids: Xids = field(default_factory=dict)
    seen: Mapping[str, Seen] = field(default_factory=dict)


class HealthStore:
    """A file. ``path`` None remembers nothing. Where the file cannot be used the daemon goes on without it."""

    def __init__(self, path: Path | None, boot_id: Path = Path("/proc/sys/kernel/random/boot_id")) -> None:
        self._path = path
        self._boot_id = boot_id
        self._written = Remembered()
        self._said = False

    def load(self) -> Remembered:
        """Return what was kept; of conditions, since the machine started."""
        if self._path is None:
            return Remembered()
        try:
            found = self._read(self._path)
        except FileNotFoundError:
            return Remembered()
        except _ODD as error:
            log.warning("what was known of the GPUs is lost", extra={"path": str(self._path), "reason": repr(error)})
            return Remembered()
        self._written = found
        return found

    def save(self, now: Remembered) -> None:
        """Write what differs from what was written last; quick, and mostly nothing."""
        if self._path is None or _close(now, self._written):
            return
        document = {
            "version": _VERSION,
            "boot": self._boot(),
            "gpus": {
                uuid: {"incidents": entry[0], "until": entry[1], "ecc": entry[2]}
                for uuid, entry in _kept(now.conditions).items()
            },
            "xids": [[*key, *found] for key, found in sorted(self._counted(self._path, now).items())],
            "seen": {uuid: [seen.slot, seen.at, seen.healthy_at] for uuid, seen in sorted(now.seen.items())},
        }
        try:
            write_whole(self._path, json.dumps(document))
        except OSError as error:
            if not self._said:
                log.warning("a restart will forget the GPUs' health", extra={"reason": str(error)})
            self._said = True
            return
        self._written = now

    def _counted(self, path: Path, now: Remembered) -> Xids:
        """Return counts that never decrease: both daemons of an upgrade write what they saw."""
        try:
            written = self._read(path).xids
        except _ODD:
            written = {}
        return {
            key: max(now.xids.get(key, (0, 0.0)), written.get(key, (0, 0.0)))
            for key in now.xids.keys() | written.keys()
            if key[0] in now.seen
        }

    def _read(self, path: Path) -> Remembered:
        document = json.loads(path.read_text())
        if document["version"] != _VERSION:
            return Remembered()
        same = document["boot"] == self._boot()
        return Remembered(
            {uuid: _condition(entry) for uuid, entry in document["gpus"].items()} if same else {},
            {(str(uuid), int(xid)): (int(count), float(at)) for uuid, xid, count, at in document.get("xids", ())},
            {uuid: _seen(*entry) for uuid, entry in document.get("seen", {}).items()},
        )

    def _boot(self) -> str:
        return self._boot_id.read_text().strip()


def _condition(entry: Mapping[str, Any]) -> Condition:
    ecc = entry["ecc"]
    return Condition(
        incidents=tuple(str(incident) for incident in entry["incidents"]),
        incident_until=float(entry["until"]),
        ecc=None if ecc is None else int(ecc),
    )


def _seen(slot: object, at: float, healthy_at: float | None) -> Seen:
    return Seen(str(slot), float(at), None if healthy_at is None else float(healthy_at))


def _kept(conditions: Mapping[str, Condition]) -> _Kept:
    return {
        uuid: (condition.incidents, condition.incident_until, condition.ecc)
        for uuid, condition in sorted(conditions.items())
        if condition.incidents or condition.ecc
    }


def _close(now: Remembered, written: Remembered) -> bool:
    conditions, before = _kept(now.conditions), _kept(written.conditions)
    return (
        now.xids == written.xids
        and conditions.keys() == before.keys()
        and now.seen.keys() == written.seen.keys()
        and all(_near(entry, before[uuid]) for uuid, entry in conditions.items())
        and all(_alike(seen, written.seen[uuid]) for uuid, seen in now.seen.items())
    )


def _near(entry: tuple[tuple[str, ...], float, int | None], before: tuple[tuple[str, ...], float, int | None]) -> bool:
    return (
        (entry[0], entry[2]) == (before[0], before[2])
        and abs(entry[1] - before[1]) <= _SLACK_SECONDS
        and bool(entry[1]) == bool(before[1])
    )


def _alike(seen: Seen, before: Seen) -> bool:
    """Return whether only time has passed, and not much."""
    healthy, was_healthy = seen.healthy_at == seen.at, before.healthy_at == before.at
    return (
        seen.slot == before.slot
        and healthy == was_healthy
        and (healthy or seen.healthy_at == before.healthy_at)
        and abs(seen.at - before.at) < _SEEN_SLACK_SECONDS
    )
