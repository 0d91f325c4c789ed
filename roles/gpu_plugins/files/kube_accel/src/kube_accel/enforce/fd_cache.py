# SPDX-License-Identifier: Apache-2.0
"""Descriptors of files that are looked at every second: opening takes longer than reading.

One that is open for writing can get no file lease (fcntl(2)), which would hold up the next process that opens it.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Iterable

from kube_accel.files import open_regular

_OTHERS = 256
"""Descriptors that the rest of the daemon is left."""
_MOST = 1 << 16
"""Descriptors that are asked for: more than a node's containers and connections ever need."""


def raise_limit() -> None:
    """Let this process have as many descriptors as it may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MOST if hard == resource.RLIM_INFINITY else min(hard, _MOST)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def most_open(kinds: int) -> int:
    """Return how many files of each of so many kinds may be kept open."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return (max(2 * _OTHERS, _MOST if soft == resource.RLIM_INFINITY else soft) - _OTHERS) // kinds


class FdCache:
    """For one thread at a time. A file that another has replaced, or that was removed, is not looked at again."""

    def __init__(self, path: str, flags: int, most: int) -> None:
        """``path`` has ``{}`` where a file's name goes; ``flags`` are those of open(2).

        ``most`` files are kept open, and the oldest closed for another.
        """
        self._path = path
        self._flags = flags
        self._most = most
        self._files: dict[str, int] = {}

    def __del__(self) -> None:
        self.forget(tuple(self._files))

    def looked_at(self, name: str) -> tuple[int, os.stat_result]:
        """Return what has this name now: a descriptor, good until the next call, and its status.

        Raises BlockingIOError while a file lease keeps it from being opened, and OSError.
        """
        file = self._files.get(name)
        if file is not None:
            found = os.fstat(file)
            if found.st_nlink:
                return file, found
            self.forget((name,))
        file = self._open(name)
        return file, os.fstat(file)

    def descriptor(self, name: str) -> int:
        """Return the descriptor of a file that was looked at lately."""
        file = self._files.get(name)
        return self._open(name) if file is None else file

    def keep(self, name: str, file: int) -> None:
        """Take over a descriptor of the file that has this name from now on."""
        self.forget((name,))
        if len(self._files) >= self._most:
            self.forget((next(iter(self._files)),))
        self._files[name] = file

    def forget(self, names: Iterable[str]) -> None:
        """Close the descriptors of these names."""
        for name in names:
            file = self._files.pop(name, None)
            if file is not None:
                os.close(file)

    def _open(self, name: str) -> int:
        file = open_regular(self._path.format(name), self._flags)
        self.keep(name, file)
        return file
