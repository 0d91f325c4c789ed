# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the configuration of NVIDIA's container toolkit has to become. No I/O."""

from __future__ import annotations

import posixpath
from dataclasses import dataclass
from typing import Callable, Dict, Sequence, Tuple

from ansible_collections.accel.kubernetes.plugins.module_utils.documents.nested import Path
from ansible_collections.accel.kubernetes.plugins.module_utils.host.outcome import bytes_like, text_of
from ansible_collections.accel.kubernetes.plugins.module_utils.host.record import FileChange, Record

from . import config as runtime_config

_RUNTIMES = ("nvidia-container-runtime", "runtimes")
_RUNTIMES_BY_DEFAULT = ["runc", "crun"]
_VISIBLE_DEVICES = {
    ("accept-nvidia-visible-devices-envvar-when-unprivileged",): False,
    ("accept-nvidia-visible-devices-as-volume-mounts",): True,
}
_Values = Dict[Path, object]


@dataclass(frozen=True)
class Ours:
    """What in the file is our doing."""

    settings: bool = False
    """Its settings of visible devices."""
    low_level: str = ""
    """The program that was added to the runtimes it tries."""

    @classmethod
    def taken_from(cls, record: Record) -> Ours:
        """Take what is remembered of it out of the record."""
        return cls(bool(record.owned.pop("toolkit", False)), str(record.owned.pop("low_level", "")))


@dataclass(frozen=True)
class Toolkit:
    """The file as it is, and what it is to say."""

    path: str
    current: bytes | None
    present: bool
    """Whether the runtime is to be configured."""
    ignore_visible_devices: bool
    programs: Sequence[str]
    """The runtimes of CRI-O, whose packages keep them off PATH; the toolkit has to find one of them."""
    is_on_path: Callable[[str], bool]

    def change(self, record: Record, ours: Ours) -> FileChange | None:
        """Return the change of the file, None where there is none, and note in the record what is ours by then.

        Raises ConfigError where the file cannot be read or edited.
        """
        text = "" if self.current is None else text_of(self.current, self.path)
        before = self.current if ours == Ours() else record.originals.pop(self.path, None)
        original = "" if before is None else text_of(before, self.path)
        devices, settings = self._visible_devices(text, original, ours.settings)
        runtimes, low_level = self._low_level(text, original, ours.low_level)
        kept = settings or bool(low_level)
        if kept:
            record.originals[self.path] = before
            record.owned.update({"toolkit": settings, "low_level": low_level})
        if not devices and not runtimes:
            return None
        if not kept and record.untouched(self.path, self.current):
            return FileChange(self.path, self.current, before, restart=False)
        plan = runtime_config.plan_values(text, {**devices, **runtimes}, self.path)
        if not plan.edits:
            return None
        return FileChange(self.path, self.current, bytes_like(self.current, plan.text), restart=False)

    def _visible_devices(self, text: str, original: str, ours: bool) -> Tuple[_Values, bool]:
        """Return the values to set for visible devices, and whether they are ours then."""
        if self.present and self.ignore_visible_devices:
            edits = runtime_config.plan_values(text, _VISIBLE_DEVICES, self.path).edits
            return dict(_VISIBLE_DEVICES), ours or bool(edits)
        if ours:
            return {place: runtime_config.value_at(original, place, self.path) for place in _VISIBLE_DEVICES}, False
        return {}, False

    def _low_level(self, text: str, original: str, ours: str) -> Tuple[_Values, str]:
        """Return the runtimes to have it try, and which of them is ours then."""
        tried = list(runtime_config.value_at(text, _RUNTIMES, self.path) or _RUNTIMES_BY_DEFAULT)
        if self.programs and not any(self._is_found(program, tried) for program in self.programs):
            return {_RUNTIMES: [self.programs[0], *tried]}, self.programs[0]
        if ours and not self.present:
            rest = [program for program in tried if program != ours]
            given = runtime_config.value_at(original, _RUNTIMES, self.path) is not None
            return {_RUNTIMES: rest if given or rest != _RUNTIMES_BY_DEFAULT else None}, ""
        return {}, ours

    def _is_found(self, program: str, tried: Sequence[str]) -> bool:
        name = posixpath.basename(program)
        return program in tried or (name in tried and self.is_on_path(name))
