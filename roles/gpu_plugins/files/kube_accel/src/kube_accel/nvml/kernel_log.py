# SPDX-License-Identifier: Apache-2.0
"""XIDs from the kernel's log, for those that NVML does not report, and each XID once though both report it.

The log is ``/dev/kmsg`` or a file that a syslog daemon writes; the first of the given ones that can be read is followed
from its end. Lines of anybody but the kernel do not count: ``/dev/kmsg`` marks them with another facility (kernel
documentation, ABI/testing/dev-kmsg), syslog with another tag.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import stat
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

log = logging.getLogger(__name__)

_CHUNK = 1 << 16
_MOST = 1 << 20
"""Bytes looked at in one go; the rest waits for the next."""
_LONGEST_LINE = 1 << 14
_TOGETHER_SECONDS = 30.0
"""Two tellers of one XID are at most so far apart: the log is read at every poll, and syslog may write late."""

# Driver: "NVRM: Xid (PCI:0000:3b:00): 79, ..."; before 2014 without "PCI:", with MIG "(PCI:0000:3b:00 GPU-I:05)".
_SLOT = rb"([0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2})"
_XID = rb"NVRM: Xid \((?:PCI:)?" + _SLOT + rb"(?:\.[0-9A-Fa-f])?(?: [^)]*)?\): (\d{1,5})\b"
# syslog's date, the node's name, and the tag right after them: what follows is anybody's text.
_HEAD = rb"(?:[A-Z][a-z]{2} [ 0-9][0-9] [0-9:]{8}|[0-9T:.+Z-]+) \S+ kernel: (?:\[ *[0-9.]+\] )?"
_LINE = re.compile(rb"(?:([0-9]+),[0-9]+,[0-9]+,[^;]*;|" + _HEAD + rb")" + _XID)
_FACILITY = 8
"""Facilities in the priority of a kmsg record: 0 to 7 are the kernel's."""


@dataclass(frozen=True, slots=True)
class KernelXid:
    """An XID as the kernel logged it."""

    slot: str
    """PCI address without the function: ``0000:3b:00``."""
    number: int


def parse(line: bytes) -> KernelXid | None:
    """Return the XID of a line, if it is the kernel's and has one."""
    found = _LINE.match(line)
    if found is None or int(found[1] or 0) >= _FACILITY:
        return None
    domain, _, rest = found[2].decode().lower().partition(":")
    return KernelXid(f"{int(domain, 16):04x}:{rest}", int(found[3]))


class KernelLog:
    """Follows the first of ``paths`` that can be read. One thread."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self._paths = paths
        self._path: Path | None = None
        self._descriptor = -1
        self._device = False
        self._rest = b""
        self._said = False

    def open(self) -> bool:
        """Begin at the end of the log, and return whether there is one. Says why there is none, once."""
        reasons: list[str] = []
        for path in self._paths:
            try:
                self._open(path, os.SEEK_END)
            except OSError as error:
                reasons.append(str(error))
                continue
            log.info("following the kernel log", extra={"path": str(path)})
            return True
        if reasons and not self._said:
            log.warning("no kernel log to follow: XIDs that NVML does not report go unseen", extra={"reason": reasons})
        self._said = True
        return False

    def read(self) -> list[KernelXid]:
        """Return what was logged since the last call."""
        if self._descriptor < 0 and not self.open():
            return []
        if not self._device and self._replaced():
            found = self._lines()  # what was written before it was replaced
            assert self._path is not None
            with contextlib.suppress(OSError):  # not there yet: the next call finds it
                self._open(self._path, os.SEEK_SET)
            return found + self._lines()
        return self._lines()

    def close(self) -> None:
        """Let go of the log."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _open(self, path: Path, whence: int) -> None:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            device = stat.S_ISCHR(os.fstat(descriptor).st_mode)
            os.lseek(descriptor, 0, whence)
        except OSError:
            os.close(descriptor)
            raise
        self.close()
        self._descriptor, self._path, self._device, self._rest = descriptor, path, device, b""

    def _replaced(self) -> bool:
        """Return whether a log rotation put another file in place, or emptied this one."""
        assert self._path is not None
        ours = os.fstat(self._descriptor)
        try:
            current = self._path.stat()
        except OSError:
            return False
        same = (current.st_dev, current.st_ino) == (ours.st_dev, ours.st_ino)
        return not same or ours.st_size < os.lseek(self._descriptor, 0, os.SEEK_CUR)

    def _lines(self) -> list[KernelXid]:
        found: list[KernelXid] = []
        taken = 0
        while taken < _MOST:
            try:
                chunk = os.read(self._descriptor, _CHUNK)
            except BrokenPipeError:  # kmsg: records were overwritten before we read them
                continue
            except OSError:
                break
            if not chunk:
                break
            taken += len(chunk)
            *lines, self._rest = (self._rest + chunk).split(b"\n")
            self._rest = self._rest[-_LONGEST_LINE:]
            found += [xid for xid in map(parse, lines) if xid is not None]
        return found


@dataclass(slots=True)
class Sightings:
    """Pairs what NVML and the kernel log report about one XID. Pure but for what it remembers."""

    _alone: dict[tuple[str, int], list[tuple[float, str]]] = field(default_factory=dict)
    """When each XID of a GPU was reported by one of both and not yet by the other, and by which."""

    def first(self, gpu: str, xid: int, teller: str, now: float) -> bool:
        """Return whether this is new: not what the other source reported moments ago."""
        key = (gpu, xid)
        waiting = [told for told in self._alone.pop(key, ()) if now - told[0] <= _TOGETHER_SECONDS]
        other = next((told for told in waiting if told[1] != teller), None)
        if other is None:
            waiting.append((now, teller))
        else:
            waiting.remove(other)
        if waiting:
            self._alone[key] = waiting
        return other is None
