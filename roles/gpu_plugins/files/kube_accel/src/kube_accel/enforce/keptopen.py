# SPDX-License-Identifier: Apache-2.0
"""Descriptors of files that are looked at every second: opening takes longer than reading."""

from __future__ import annotations

import os
from collections.abc import Iterable


class KeptOpen:
    """For one thread at a time. A file that another has replaced, or that was removed, is not looked at again."""

    def __init__(self, path: str, flags: int, most: int) -> None:
        """``path`` with ``{}`` where a file's name goes; ``flags`` for opening.

        ``most`` files are kept open, and the oldest closed for another.
        """
        self._path = path
        self._flags = flags | os.O_CLOEXEC | os.O_NOFOLLOW
        self._most = most
        self._files: dict[str, int] = {}

    def __del__(self) -> None:
        self.forget(tuple(self._files))

    def looked_at(self, name: str) -> tuple[int, os.stat_result]:
        """What has this name now: a descriptor, good until the next call, and its status. Raises OSError."""
        file = self._files.get(name)
        if file is not None:
            found = os.fstat(file)
            if found.st_nlink:
                return file, found
            self.forget((name,))
        file = self._open(name)
        return file, os.fstat(file)

    def descriptor(self, name: str) -> int:
        """The same, for a file that was looked at lately."""
        file = self._files.get(name)
        return self._open(name) if file is None else file

    def forget(self, names: Iterable[str]) -> None:
        """Close these."""
        for name in names:
            file = self._files.pop(name, None)
            if file is not None:
                os.close(file)

    def _open(self, name: str) -> int:
        if len(self._files) >= self._most:
            self.forget((next(iter(self._files)),))
        file = self._files[name] = os.open(self._path.format(name), self._flags)
        return file
