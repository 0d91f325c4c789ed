# SPDX-License-Identifier: Apache-2.0
"""Files that every container gets read-only, held open so that no tenant has one for itself.

They are root's, and a tenant may be root: the kernel gives the owner of a file that nobody else has open a write lease
(fcntl(2)). The next to open that file, a neighbor's loader or this daemon, would wait for lease-break-time.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterable
from pathlib import Path

from kube_accel.files import open_regular

_log = logging.getLogger(__name__)


class HeldOpen:
    """Descriptors of the files that were named last; for any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._files: dict[Path, int] = {}
        self._wanted: frozenset[Path] = frozenset()
        self._awaited: set[Path] = set()
        """Files that a lease was found on; a thread waits for each."""

    def __del__(self) -> None:
        for file in self._files.values():
            os.close(file)

    def hold(self, paths: Iterable[Path]) -> None:
        """Hold these open, and no others; what was replaced is opened again. Never waits. Others are left out."""
        with self._lock:
            self._wanted = frozenset(paths)
            for path in self._files.keys() - self._wanted:
                os.close(self._files.pop(path))
            for path in self._wanted - self._awaited:
                self._look(path)

    def _look(self, path: Path) -> None:
        held = self._files.get(path)
        try:
            if held is not None and os.path.samestat(path.stat(), os.fstat(held)):
                return
            self._take(path, open_regular(path.resolve(), os.O_RDONLY))
        except BlockingIOError:
            _log.warning("a tenant keeps a file that containers share, by a file lease", extra={"path": str(path)})
            self._awaited.add(path)
            threading.Thread(target=self._wait, args=(path,), name="held-open", daemon=True).start()
        except OSError as error:
            _log.debug("a file that containers share is not held open", extra={"reason": str(error)})

    def _wait(self, path: Path) -> None:
        """Open a file as soon as the kernel has broken its lease.

        Who waits in open(2) counts as having it open: a tenant that is quick to lease the file again gets nothing.
        """
        file = -1
        try:
            file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            _log.debug("a leased file is not held open", extra={"reason": str(error)})
        with self._lock:
            self._awaited.discard(path)
            if file >= 0 and path in self._wanted:
                self._take(path, file)
            elif file >= 0:
                os.close(file)

    def _take(self, path: Path, file: int) -> None:
        if (before := self._files.pop(path, None)) is not None:
            os.close(before)
        self._files[path] = file
