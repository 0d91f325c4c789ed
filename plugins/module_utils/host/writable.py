# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether files can be written, and what to do where they cannot."""

from __future__ import annotations

import errno
import os
from typing import Sequence

from ansible_collections.accel.kubernetes.plugins.module_utils.host.machine import Host

from .record import FileChange

_SLACK = 256 * 1024
"""Bytes for the journal, the record and the blocks that files are rounded up to."""


class TransactionError(Exception):
    """The change was not made. Says why, and in what state the host is now."""


REMEDIES = {
    errno.ENOSPC: "make room there (see 'df {path}'), then run again",
    errno.EDQUOT: "make room there (see 'df {path}'), then run again",
    errno.EROFS: "make its file system writable (see 'findmnt -T {path}'), then run again",
    errno.EACCES: "let root write there (see 'lsattr -d {path}' and the audit log), then run again",
    errno.EPERM: "let root write there (see 'lsattr -d {path}' and the audit log), then run again",
}


def explained(error: BaseException) -> str:
    """Return an error's words, with the remedy where a file or its disk is to blame."""
    words = str(error) or "interrupted"
    if not isinstance(error, OSError) or error.errno not in REMEDIES:
        return words
    return f"{words}; {REMEDIES[error.errno].format(path=os.path.dirname(str(error.filename or '/')))}"


def check_writable(host: Host, changes: Sequence[FileChange], journal: str) -> None:
    """Raise TransactionError where the files, or what is remembered of them, could not be written."""
    for change in changes:
        wrong = _unwritable(host, os.path.realpath(change.path))
        if wrong:
            raise TransactionError(f"{wrong}, then run again; nothing was changed")
    needed = _SLACK + sum(2 * len(change.before or b"") + len(change.after or b"") for change in changes)
    written = [change.path for change in changes if change.after is not None]
    for path in [journal, *written]:
        try:
            room = host.room(path)
        except OSError as error:
            raise TransactionError(f"{explained(error)}; nothing was changed") from error
        if room < needed:
            directory = os.path.dirname(path)
            raise TransactionError(
                f"{directory} has {room // 1024} KiB left and {needed // 1024} KiB are needed; make room there "
                f"(see 'df {directory}'), then run again; nothing was changed"
            )


def _unwritable(host: Host, path: str) -> str:
    """Return why no other file can take this one's place, and what to do; empty where one can."""
    if host.is_mounted(path):
        return (
            f"{path} is a mount of its own, so no file can take its place; unmount it, or name the file behind it "
            f"(see 'findmnt {path}')"
        )
    for place in (path, os.path.dirname(path)):
        if host.is_immutable(place):
            return f"{place} is immutable or append-only, even to root; run 'chattr -i -a {place}'"
    if host.names(path) > 1:
        return (
            f"{path} is known by other names too, as hard links, which would keep the old content. "
            f"Make it a file of its own: 'cp -p {path} {path}.own && mv {path}.own {path}'"
        )
    return ""
