# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The one file that a runtime is configured by: what it becomes, and what is remembered of it. No I/O."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Mapping

from ansible_collections.accel.kubernetes.plugins.module_utils.host.outcome import bytes_like, text_of
from ansible_collections.accel.kubernetes.plugins.module_utils.host.record import FileChange, Record

from . import config as runtime_config
from .config import Owned, Wanted
from .dialect import parse


@dataclass(frozen=True)
class ConfigFile:
    """The file as it is. ``kind`` is containerd, docker or crio."""

    kind: str
    path: str
    current: bytes | None

    def with_runtime(
        self, record: Record, text: str, wanted: Wanted, merged: Mapping[str, Any] | None
    ) -> FileChange | None:
        """Return the change that puts the runtime into it, None where it is there.

        ``text`` is the file's or, where there is none, what to begin it with; ``merged`` is as for ``plan_present``.
        """
        data = parse(self.kind, text, self.path)
        owned = Owned(**record.owned)
        known = bool(owned.name) and self.path in record.originals
        if known and not runtime_config.has_runtime(self.kind, data, owned.name, self.path):
            # Others took it out: what they left, without the rest of ours, is from here on what absent brings back.
            original = self._original(record, None)
            left = runtime_config.plan_absent(self.kind, text, owned.name, owned, original, self.path).text
            record.originals[self.path] = None if self.current is None else bytes_like(self.current, left)
            owned = Owned()
        elif not known:
            record.originals[self.path] = self.current
            owned = Owned()
        original = self._original(record, text)
        plan = runtime_config.plan_present(self.kind, text, wanted, owned, original, self.path, merged)
        record.owned = dict(vars(plan.owned))
        return FileChange(self.path, self.current, bytes_like(self.current, plan.text)) if plan.edits else None

    def without_runtime(self, record: Record) -> FileChange | None:
        """Return the change that takes out what is ours, None where nothing is known to be."""
        owned = Owned(**record.owned)
        if self.current is None or not owned.name or self.path not in record.originals:
            return None
        if record.untouched(self.path, self.current):
            after = record.originals[self.path]
        else:
            text, original = text_of(self.current, self.path), self._original(record, None)
            plan = runtime_config.plan_absent(self.kind, text, owned.name, owned, original, self.path)
            if not plan.edits:
                return None
            # A CRI-O drop-in that holds nothing more goes.
            after = bytes_like(self.current, plan.text) if self.kind != "crio" or plan.text.strip() else None
        record.originals.pop(self.path, None)
        record.owned = {}
        return FileChange(self.path, self.current, after)

    def _original(self, record: Record, base: str | None) -> str | None:
        """Return the text before our first change; ``base`` where there was no file, None where that is not known."""
        if self.path not in record.originals:
            return None
        original = record.originals[self.path]
        return base if original is None else text_of(original, self.path)
