# SPDX-License-Identifier: Apache-2.0
"""Waiting for a directory's entries to change (inotify(7)), or for another thread to say so."""

from __future__ import annotations

import ctypes
import logging
import os
import select
import threading
from pathlib import Path

_log = logging.getLogger(__name__)

# sys/inotify.h: entries moved from, moved to, created in, deleted from the directory; the directory itself gone.
_MASK = 0x40 | 0x80 | 0x100 | 0x200 | 0x400 | 0x800
_BLIND_TIMEOUT = 0.15


class DirectoryWatch:
    """Watches one directory. Where the kernel cannot (its limit of watches is used up), waiting is short instead."""

    def __init__(self, directory: Path) -> None:
        self._lock = threading.Lock()
        self._closed = False
        self._wakeup = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._poll = select.poll()
        self._poll.register(self._wakeup, select.POLLIN)
        self._inotify: int | None = None
        libc = ctypes.CDLL(None, use_errno=True)
        descriptor = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if descriptor >= 0 and libc.inotify_add_watch(descriptor, os.fsencode(directory), _MASK) >= 0:
            self._inotify = descriptor
            self._poll.register(descriptor, select.POLLIN)
        else:
            reason = os.strerror(ctypes.get_errno())
            _log.warning("no inotify, looking often instead", extra={"path": str(directory), "reason": reason})
            if descriptor >= 0:
                os.close(descriptor)

    def wake(self) -> None:
        """End ``wait`` now, or the next one. From any thread, after ``close`` too."""
        with self._lock:
            if not self._closed:
                os.eventfd_write(self._wakeup, 1)

    def close(self) -> None:
        """Return the kernel's scarce watch; there is no ``wait`` afterwards."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            os.close(self._wakeup)
            if self._inotify is not None:
                os.close(self._inotify)

    def wait(self, timeout: float) -> None:
        """Wait until something may have changed, or for ``timeout`` seconds."""
        seconds = timeout if self._inotify is not None else min(timeout, _BLIND_TIMEOUT)
        for descriptor, _ in self._poll.poll(seconds * 1000):
            # Which events these are does not matter: the caller looks at the directory anyway.
            os.read(descriptor, 8 if descriptor == self._wakeup else 65536)
