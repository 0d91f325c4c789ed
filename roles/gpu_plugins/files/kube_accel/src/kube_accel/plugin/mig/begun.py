# SPDX-License-Identifier: Apache-2.0
"""What outlives a daemon that is killed while it cuts GPUs."""

from __future__ import annotations

import json
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from kube_accel.files import write_whole
from kube_accel.mig.lock import alone


@dataclass(frozen=True, slots=True)
class Begun:
    """A configuration that GPUs are being cut by, on disk for the daemon that goes on after a kill."""

    config: str = ""
    text: str = ""
    """Checksum of the configurations."""
    before: tuple[dict[str, Any], ...] = field(default=())
    """The geometry to put back."""
    boot: str = ""
    """The boot in which it was found to need another."""


class BegunStore:
    """The file of what was begun, and the lock of the one plugin that goes on with it."""

    def __init__(self, state_dir: Path) -> None:
        self._state_dir = state_dir
        self._file = state_dir / "mig.json"

    def exists(self) -> bool:
        """Return whether something was begun."""
        return self._file.exists()

    def alone(self) -> AbstractContextManager[bool]:
        """Yield whether the other plugin of an upgrade is not at it."""
        return alone(self._state_dir)

    def read(self) -> Begun | None:
        """Return what was begun; None for nothing, or for what cannot be read."""
        try:
            found = json.loads(self._file.read_text())
            return Begun(found["config"], found.get("text", ""), tuple(found["before"]), found["boot"])
        except (OSError, ValueError, LookupError, TypeError, RecursionError):
            return None

    def write(self, begun: Begun) -> None:
        """Keep this, synced to disk. Raises OSError."""
        write_whole(self._file, json.dumps(asdict(begun)), sync=True)

    def remove(self) -> None:
        """Forget it."""
        self._file.unlink(missing_ok=True)
