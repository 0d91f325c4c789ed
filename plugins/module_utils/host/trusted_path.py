# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Files and directories that no other user of the machine can have made, replaced or filled."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from typing import BinaryIO, Iterator, List

_MAX_LINKS = 40
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class UntrustedError(Exception):
    """Another user has, or may get, a hand in a path. Says who, where, and what to do."""


@contextlib.contextmanager
def directory(path: str) -> Iterator[int]:
    """Open a directory that only root and this process's user can change, down from the root directory.

    Yields its descriptor. Raises UntrustedError, and OSError where there is no such directory.
    """
    descriptor = _open(path)
    try:
        _check(os.fstat(descriptor), path, path, sticky=False)
        yield descriptor
    finally:
        os.close(descriptor)


def make_directory(path: str, mode: int = 0o700, check: bool = False) -> List[str]:
    """Create a directory with its parents, each below one that only root and this process's user can change.

    Returns those created, outermost first, or with ``check`` those that would be. What exists keeps its mode.
    Raises UntrustedError and OSError.
    """
    existing = os.path.abspath(path)
    names: List[str] = []
    while not os.path.lexists(existing):
        existing, name = os.path.split(existing)
        names.insert(0, name)
    missing = [os.path.join(existing, *names[: count + 1]) for count in range(len(names))]
    descriptor = _open(existing)
    try:
        _check(os.fstat(descriptor), existing, path, sticky=bool(names))
        for name in [] if check else names:
            os.mkdir(name, 0o700, dir_fd=descriptor)
            inner = os.open(name, _DIRECTORY, dir_fd=descriptor)
            os.close(descriptor)
            descriptor = inner
            os.fchmod(descriptor, mode)
    finally:
        os.close(descriptor)
    return missing


def remove(path: str, check: bool = False) -> bool:
    """Remove a file, a link or an empty directory from a directory that only root and this process's user can change.

    Returns whether it was there and went, or with ``check`` would go. Raises UntrustedError and OSError.
    """
    parent, name = os.path.split(os.path.abspath(path))
    try:
        with directory(parent) as descriptor:
            status = os.stat(name, dir_fd=descriptor, follow_symlinks=False)
            is_directory = stat.S_ISDIR(status.st_mode)
            if is_directory and _listed(name, descriptor):
                return False
            if not check:
                (os.rmdir if is_directory else os.unlink)(name, dir_fd=descriptor)
    except FileNotFoundError:
        return False
    return True


def _listed(name: str, parent: int) -> List[str]:
    descriptor = os.open(name, _DIRECTORY, dir_fd=parent)
    try:
        return os.listdir(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def regular_file(path: str) -> Iterator[BinaryIO]:
    """Open a file for reading that only root and this process's user can change, in a directory of the same kind.

    Raises UntrustedError, also for a link or a device, and OSError where there is no such file.
    """
    parent, name = os.path.split(os.path.abspath(path))
    with directory(parent) as descriptor:
        try:
            # Non-blocking: a FIFO would keep us here.
            handle = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=descriptor)
        except OSError as error:
            if error.errno == errno.ELOOP:
                raise UntrustedError(f"{path} is a symbolic link; name the file itself") from error
            error.filename = path
            raise
    try:
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode):
            raise UntrustedError(f"{path} is not a regular file; remove it and run again")
        _check(status, path, path, sticky=False)
        with os.fdopen(handle, "rb", closefd=False) as file:
            yield file
    finally:
        os.close(handle)


def _open(path: str) -> int:
    """Descriptor of a directory; no other user can lead the way there elsewhere."""
    todo = [part for part in os.path.abspath(path).split("/") if part]
    descriptor, links = os.open("/", _DIRECTORY), 0
    where = "/"
    try:
        while todo:
            _check(os.fstat(descriptor), where, path, sticky=True)
            name = todo.pop(0)
            where = os.path.join(where, name)
            status = os.stat(name, dir_fd=descriptor, follow_symlinks=False)
            if stat.S_ISLNK(status.st_mode):
                links += 1
                if links > _MAX_LINKS:
                    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
                _check(status, where, path, sticky=True)
                target = os.path.join(os.path.dirname(where), os.readlink(name, dir_fd=descriptor))
                todo = [part for part in target.split("/") if part] + todo
                name, where = "/", "/"
            inner = os.open(name, _DIRECTORY, dir_fd=descriptor)
            os.close(descriptor)
            descriptor = inner
    except OSError as error:
        os.close(descriptor)
        error.filename = where
        raise
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _check(status: os.stat_result, where: str, path: str, sticky: bool) -> None:
    """Raises UntrustedError where another user has a hand in it. ``sticky``: names that others made stay theirs."""
    # In a user namespace the owner of the root directory, who can do anything here, may have another number.
    trusted = (0, os.geteuid(), os.stat("/").st_uid)
    place = where if where == path else f"{where}, on the way to {path},"
    if status.st_uid not in trusted:
        raise UntrustedError(
            f"{place} belongs to the user {status.st_uid}, who can put anything there; look at what it is, "
            f"remove it, and run again, or name another path"
        )
    if stat.S_ISLNK(status.st_mode):
        return
    # A user's own group, which Debian and Fedora make for each, is that user. Who is in root's group is root, or the
    # only user in a container.
    own_group = status.st_gid == 0 or (status.st_gid == os.getegid() and status.st_uid == os.geteuid())
    writers = status.st_mode & (stat.S_IWOTH if own_group else stat.S_IWOTH | stat.S_IWGRP)
    if writers and not (sticky and status.st_mode & stat.S_ISVTX):
        mode, shared = f"{stat.S_IMODE(status.st_mode):04o}", status.st_mode & stat.S_ISVTX
        remedy = "use a directory below it" if shared else f"take that right from them with 'chmod go-w {where}'"
        raise UntrustedError(f"{place} can be written by others (mode {mode}); {remedy}, or name another path")
