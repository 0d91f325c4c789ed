# SPDX-License-Identifier: Apache-2.0
"""Files that others read while they are written, or that others may have changed."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO


@contextmanager
def replacing(path: Path, mode: int = 0o600) -> Iterator[BinaryIO]:
    """Yield a new file that replaces whatever is at ``path`` when it is complete, and leaves it if that fails.

    Raises OSError.
    """
    # Both daemons of an upgrade may write at a time; container runtimes pass over what does not end in .json or .yaml.
    draft = path.with_name(f".{path.name}.{os.urandom(4).hex()}")
    try:
        with draft.open("xb") as file:
            os.fchmod(file.fileno(), mode)
            yield file
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


def write_whole(path: Path, text: str, mode: int = 0o600, sync: bool = False) -> None:
    """Have a file at ``path`` with this text and nothing else, on disk when ``sync`` is set. Raises OSError."""
    with replacing(path, mode) as file:
        file.write(text.encode())
        if sync:
            file.flush()
            os.fsync(file.fileno())


def open_regular(path: Path | str, flags: int) -> int:
    """Open a file that others may have changed, and return its descriptor; never wait, never follow a link.

    Raises BlockingIOError while a file lease keeps it, and OSError for what is no regular file.
    """
    file = os.open(path, flags | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return file


def make_private(directory: Path) -> None:
    """Create a directory that its owner alone may enter, or close an existing one to others.

    Raises PermissionError for one that belongs to another user, and OSError.
    """
    directory.mkdir(0o700, parents=True, exist_ok=True)
    file = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        found = os.fstat(file)
        if found.st_uid != os.geteuid():
            raise PermissionError(errno.EPERM, f"it belongs to user {found.st_uid}, not {os.geteuid()}", str(directory))
        if stat.S_IMODE(found.st_mode) != 0o700:
            os.fchmod(file, 0o700)
    finally:
        os.close(file)


def reserve(file: int, size: int) -> None:
    """Give a file this size in bytes, with room for all of it where its file system can do that. Raises OSError."""
    found = os.fstat(file)
    if found.st_size != size:
        os.ftruncate(file, size)
    if found.st_blocks * 512 < size:
        try:
            os.posix_fallocate(file, 0, size)
        except OSError as error:
            if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL):
                raise
