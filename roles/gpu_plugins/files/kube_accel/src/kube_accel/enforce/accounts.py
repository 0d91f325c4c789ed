# SPDX-License-Identifier: Apache-2.0
"""What tenants do to the files of their accounts, and how that is put right without waiting for any of them."""

from __future__ import annotations

import errno
import logging
import os
import stat
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from enum import StrEnum
from pathlib import Path

from kube_accel.enforce.fd_cache import FdCache
from kube_accel.files import open_regular, reserve

_log = logging.getLogger(__name__)

MODE = 0o666
_SLACK = 1 << 17
"""Bytes that a file system may take for a file beyond its size: pages and clusters of 64 KiB."""
_WAIT_SECONDS = 0.1
"""How long a look waits for what it had put right; the kernel may hold up a call on a tenant's file for as long as the
tenant likes."""


class Wrong(StrEnum):
    """What a tenant did to the file of its account; the interposer does none of it."""

    GROWN = "grown"
    SHORT = "cut short"
    MODE = "its mode changed"
    OWNER = "its owner changed"
    ATTRIBUTES = "given extended attributes"
    HELD = "kept from the plugin"


_UNOPENED = (errno.EACCES, errno.EPERM, errno.ETXTBSY)
"""A mode keeps its owner out of an account, or a tenant runs it as a program, which cannot be written."""

Status = tuple[int, int, int]
"""Inode, user, mode: what says that nothing has changed since it could not be put right."""


def found(status: os.stat_result, attributes: Iterable[str], size: int) -> frozenset[Wrong]:
    """Return what is wrong with an account of this size in bytes. Pure, but for the user of this process."""
    wrong = set()
    if status.st_size < size:
        wrong.add(Wrong.SHORT)
    elif status.st_size > size or status.st_blocks * 512 > size + _SLACK:
        wrong.add(Wrong.GROWN)
    if stat.S_IMODE(status.st_mode) != MODE:
        wrong.add(Wrong.MODE)
    if status.st_uid != os.geteuid():
        wrong.add(Wrong.OWNER)
    if any(map(_foreign, attributes)):
        wrong.add(Wrong.ATTRIBUTES)
    return frozenset(wrong)


def _foreign(attribute: str) -> bool:
    """Return whether an extended attribute takes room and is none of those that SELinux and the like set."""
    return not attribute.startswith("security.") or attribute == "security.capability"


def mend(file: int, size: int) -> None:
    """Give an account the size, mode and owner that it was made with, as far as that can be. May wait."""
    with suppress(OSError):
        # Cuts off too what is allocated beyond the end.
        os.ftruncate(file, size)
        reserve(file, size)
    for attribute in filter(_foreign, _attributes(file)):
        with suppress(OSError):
            os.removexattr(file, attribute)
    with suppress(OSError):
        if os.fstat(file).st_uid != os.geteuid():
            os.fchown(file, os.geteuid(), -1)
    with suppress(OSError):
        os.fchmod(file, MODE)


def _attributes(file: int) -> list[str]:
    try:
        return os.listxattr(file)
    except OSError:
        return []


class Mender:
    """Looks at accounts, and has each that was changed put right by a thread of its own."""

    def __init__(self, states: FdCache, path: Callable[[str], Path], mended: Callable[[], object]) -> None:
        """``path`` says where an account is; ``mended`` is called when one was put right, on another thread."""
        self._states = states
        self._path = path
        self._mended = mended
        self._lock = threading.Lock()
        self._at_work: dict[str, threading.Thread] = {}
        self._left: dict[str, Status] = {}
        """Accounts whose owner or mode could not be put right, which is reported once."""

    def look(self, sizes: Mapping[str, int]) -> dict[str, frozenset[Wrong]]:
        """Look at accounts, by key, that are to have these sizes, and return what was wrong with the changed ones.

        No other thread may use the open files meanwhile.
        """
        told = {}
        for key, size in sizes.items():
            try:
                wrong = self._look(key, size)
            except BlockingIOError:
                wrong = frozenset({Wrong.HELD})
            except OSError:
                continue
            if wrong:
                told[key] = wrong
        return told

    def wait(self, keys: Iterable[str]) -> None:
        """Give what was found wrong with these a moment to be put right."""
        deadline = time.monotonic() + _WAIT_SECONDS
        for key in keys:
            if (thread := self._at_work.get(key)) is not None:
                thread.join(max(0.0, deadline - time.monotonic()))

    def forget(self, keys: Iterable[str]) -> None:
        """Forget these keys: their containers have other accounts from now on, or none."""
        for key in keys:
            self._left.pop(key, None)

    def _look(self, key: str, size: int) -> frozenset[Wrong]:
        file, held = -1, frozenset[Wrong]()
        try:
            file, status = self._states.looked_at(key)
        except OSError as error:
            if error.errno not in _UNOPENED:
                raise
            status = self._path(key).lstat()
            held = frozenset({Wrong.HELD} if error.errno == errno.ETXTBSY else ())
        wrong = held | found(status, _attributes(file) if file >= 0 else (), size)
        if not wrong:
            return wrong
        with self._lock:
            if key not in self._at_work:
                # A copy: the descriptor may be closed, and its number used for another file, before this is done.
                copy = os.dup(file) if file >= 0 else -1
                thread = threading.Thread(target=self._put_right, args=(key, copy, size), name="mender", daemon=True)
                thread.start()
                self._at_work[key] = thread
        return wrong - {Wrong.OWNER, Wrong.MODE} if self._left.get(key) == _status(status) else wrong

    def _put_right(self, key: str, file: int, size: int) -> None:
        try:
            if file < 0:
                file = _opened(self._path(key))
            mend(file, size)
            status = os.fstat(file)
            if found(status, (), size) & {Wrong.OWNER, Wrong.MODE}:
                self._left[key] = _status(status)
        except OSError as error:
            _log.debug("an account is not put right", extra={"key": key, "reason": str(error)})
            with suppress(OSError):
                self._left[key] = _status(self._path(key).lstat())
        finally:
            if file >= 0:
                os.close(file)
            with self._lock:
                self._at_work.pop(key, None)
        self._mended()


def _opened(path: Path) -> int:
    """Open a file whose mode keeps even its owner out, which takes a capability that passes over modes."""
    place = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        # By the descriptor: a link in its place would not be followed.
        Path(f"/proc/self/fd/{place}").chmod(MODE)
    finally:
        os.close(place)
    return open_regular(path, os.O_RDWR)


def _status(status: os.stat_result) -> Status:
    return status.st_ino, status.st_uid, status.st_mode
