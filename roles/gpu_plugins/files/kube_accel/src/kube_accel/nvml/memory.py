# SPDX-License-Identifier: Apache-2.0
"""What a restart of the daemon must not forget of a GPU: incidents that have to age, memory errors counted so far."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kube_accel.files import write_whole
from kube_accel.nvml.health import Condition

log = logging.getLogger(__name__)

_VERSION = 1
_SLACK_SECONDS = 10.0
"""By which the end of a wait may move without being written: a GPU that answers badly moves it at every poll."""

Kept = dict[str, tuple[tuple[str, ...], float, int | None]]


class Memory:
    """A file that holds the conditions worth keeping, in times of the monotonic clock, which all processes share.

    A reboot starts that clock over and resets the GPUs: what was written before it does not count. ``path`` None
    remembers nothing. Where the file cannot be used the daemon goes on without it.
    """

    def __init__(self, path: Path | None, boot_id: Path = Path("/proc/sys/kernel/random/boot_id")) -> None:
        self._path = path
        self._boot_id = boot_id
        self._written: Kept = {}
        self._said = False

    def load(self) -> dict[str, Condition]:
        """The conditions that were kept, by UUID."""
        if self._path is None:
            return {}
        try:
            document = json.loads(self._path.read_text())
            if document["version"] != _VERSION or document["boot"] != self._boot():
                return {}
            conditions = {uuid: _condition(entry) for uuid, entry in document["gpus"].items()}
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            log.warning("what was known of the GPUs is lost", extra={"path": str(self._path), "reason": repr(error)})
            return {}
        self._written = _kept(conditions)
        return conditions

    def save(self, conditions: Mapping[str, Condition]) -> None:
        """Write what differs from what was written last; quick, and mostly nothing."""
        kept = _kept(conditions)
        if self._path is None or _close(kept, self._written):
            return
        gpus = {uuid: {"incidents": entry[0], "until": entry[1], "ecc": entry[2]} for uuid, entry in kept.items()}
        try:
            write_whole(self._path, json.dumps({"version": _VERSION, "boot": self._boot(), "gpus": gpus}))
        except OSError as error:
            if not self._said:
                log.warning("a restart will forget the GPUs' health", extra={"reason": str(error)})
            self._said = True
            return
        self._written = kept

    def _boot(self) -> str:
        return self._boot_id.read_text().strip()


def _condition(entry: Mapping[str, Any]) -> Condition:
    ecc = entry["ecc"]
    return Condition(
        incidents=tuple(str(incident) for incident in entry["incidents"]),
        incident_until=float(entry["until"]),
        ecc=None if ecc is None else int(ecc),
    )


def _kept(conditions: Mapping[str, Condition]) -> Kept:
    return {
        uuid: (condition.incidents, condition.incident_until, condition.ecc)
        for uuid, condition in sorted(conditions.items())
        if condition.incidents or condition.ecc
    }


def _close(kept: Kept, written: Kept) -> bool:
    return kept.keys() == written.keys() and all(
        (entry[0], entry[2]) == (written[uuid][0], written[uuid][2])
        and abs(entry[1] - written[uuid][1]) <= _SLACK_SECONDS
        and bool(entry[1]) == bool(written[uuid][1])
        for uuid, entry in kept.items()
    )
