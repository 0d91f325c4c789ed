# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What is remembered of managed files from one run to the next, and whether two paths name one file."""

from __future__ import annotations

import base64
import hashlib
import os
from dataclasses import asdict, dataclass, field
from typing import Any, Dict, Mapping


@dataclass(frozen=True)
class FileChange:
    """New content of one file; None stands for no file. ``mode`` is for a file that does not exist yet."""

    path: str
    before: bytes | None
    after: bytes | None
    mode: int = 0o644
    restart: bool = True
    """False where the service reads the file whenever it needs it."""


@dataclass
class Record:
    """What is remembered of managed files from one run to the next."""

    originals: Dict[str, bytes | None] = field(default_factory=dict)
    """By path: content before our first change, None when there was no file."""
    written: Dict[str, str] = field(default_factory=dict)
    """By path: digest of what we wrote last."""
    targets: Dict[str, str] = field(default_factory=dict)
    """By path: the file that it led to when we wrote it last."""
    owned: Dict[str, Any] = field(default_factory=dict)
    """What in the files is ours, in the words of the module."""
    directories: list[str] = field(default_factory=list)
    """Directories we created, outermost first."""

    def untouched(self, path: str, current: bytes | None) -> bool:
        """Return whether the file is byte for byte what we wrote last."""
        return path in self.written and self.written[path] == digest(current)

    def name(self, path: str) -> None:
        """Have what is remembered of a file under another name of it be known by this one."""
        _rename(self.originals, path)
        _rename(self.written, path)
        _rename(self.targets, path)

    def to_json(self) -> Dict[str, Any]:
        """Return the record as it is stored."""
        originals = {
            path: None if data is None else base64.b64encode(data).decode() for path, data in self.originals.items()
        }
        return dict(asdict(self), originals=originals)

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> Record:
        """Return the record that ``to_json`` made this of."""
        originals = {
            path: None if data is None else base64.b64decode(data) for path, data in stored["originals"].items()
        }
        targets = dict(stored.get("targets", {}))
        return cls(originals, dict(stored["written"]), targets, dict(stored["owned"]), list(stored["directories"]))


def _rename(known: Dict[str, Any], path: str) -> None:
    others = [] if path in known else [other for other in known if same_file(other, path)]
    if others:
        known[path] = known.pop(others[0])


def same_file(one: str, other: str) -> bool:
    """Return whether two paths name one file, as they are spelled or by where their links lead."""
    return any(resolved(one) == resolved(other) for resolved in (os.path.abspath, settled, os.path.realpath))


def settled(path: str) -> str:
    """Return an absolute path without links in its directories; the file itself may be one."""
    directory, name = os.path.split(path.rstrip("/"))
    return os.path.join(os.path.realpath(directory), name)


def digest(data: bytes | None) -> str:
    """SHA-256 in hexadecimal, empty for no file."""
    return "" if data is None else hashlib.sha256(data).hexdigest()
