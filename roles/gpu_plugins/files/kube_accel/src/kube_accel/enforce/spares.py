# SPDX-License-Identifier: Apache-2.0
"""Files for the next containers, made before they are needed, so that a start needs no room on a full file system.

Only this process opens them until they are renamed to where a container gets them. They lie in a directory that
the process locks (flock(2)) for as long as it lives; what a process that ended left is taken over, or removed.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from kube_accel.enforce import policy as layouts
from kube_accel.enforce import selinux
from kube_accel.files import make_private, open_regular, reserve

_PREFIX = ".spare-"
KEPT = 16
"""Ready at a time: a pod's container takes two."""
_CALM_SECONDS = 0.5
"""From a start to the making of new ones: kubelet's calls come first."""
_AGAIN_SECONDS = 1.0
"""From one try to the next while there is no room."""
_BUILD = 64
"""Bytes of a file that names a build."""
_FILES: Mapping[str, tuple[int, int]] = {
    "build": (0o600, _BUILD),
    # Any user of the container may be the one that runs CUDA programs.
    "policy": (0o644, layouts.policy_size(layouts.NEWEST)),
    "state": (0o666, layouts.state_size(layouts.NEWEST)),
}
"""Mode and size."""


@dataclass(frozen=True, slots=True)
class Spare:
    """A directory of files for one container, all of them open."""

    directory: Path
    files: dict[str, int]
    """Descriptors by name."""

    def write(self, name: str, data: bytes) -> None:
        """Write the beginning of a file. Raises OSError."""
        os.pwrite(self.files[name], data, 0)

    def give(self, name: str, directory: Path) -> int:
        """Move a file to ``directory``, in the place of whatever has its name, and return its descriptor.

        Raises OSError.
        """
        (self.directory / name).rename(directory / name)
        return self.files.pop(name)

    def discard(self) -> None:
        """Close and remove what is left."""
        for file in self.files.values():
            os.close(file)
        self.files.clear()
        shutil.rmtree(self.directory, ignore_errors=True)

    @property
    def usable(self) -> bool:
        """Return whether the files are where they were made: a file system may have been mounted over them."""
        try:
            return all(
                os.path.samestat((self.directory / name).lstat(), os.fstat(file)) for name, file in self.files.items()
            )
        except OSError:
            return False


class Spares:
    """The files for the next containers, below ``root``; for any thread."""

    def __init__(self, root: Path, label: bool) -> None:
        """``label`` says whether files need SELinux's label for containers."""
        self._root = root
        self._label = label
        self._lock = threading.Lock()
        self._making = threading.Lock()
        self._ready: list[Spare] = []
        self._pool: Path | None = None
        self._pool_lock = -1
        self._wanted = threading.Event()
        self._wanted.set()

    def take(self) -> Spare:
        """Return files that no container has used; they are the caller's. Raises OSError."""
        self._wanted.set()
        while (spare := self._pop()) is not None:
            if spare.usable:
                return spare
            spare.discard()
        return self._make()

    def fill(self) -> bool:
        """Make as many as are to be there, unless another thread does; return whether they are there."""
        if not self._making.acquire(blocking=False):
            return True
        try:
            while len(self._ready) < KEPT:
                spare = self._make()
                with self._lock:
                    self._ready.append(spare)
        except OSError:
            return False
        finally:
            self._making.release()
        return True

    def run(self, stop: threading.Event) -> None:
        """Make new ones whenever some were taken, until stopped."""
        while not stop.is_set():
            self._wanted.wait()
            stop.wait(_CALM_SECONDS)
            self._wanted.clear()
            while not self.fill() and not stop.wait(_AGAIN_SECONDS):
                pass

    def clean(self) -> None:
        """Remove what processes left that have ended."""
        for path in self._root.glob(f"{_PREFIX}*"):
            if path != self._pool and (lock := _locked(path)) >= 0:
                shutil.rmtree(path, ignore_errors=True)
                os.close(lock)

    def _pop(self) -> Spare | None:
        with self._lock:
            return self._ready.pop() if self._ready else None

    def _make(self) -> Spare:
        directory = self._place() / os.urandom(8).hex()
        directory.mkdir(0o700)
        spare = Spare(directory, {})
        try:
            for name, (mode, size) in _FILES.items():
                flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
                file = spare.files[name] = os.open(directory / name, flags, 0o600)
                reserve(file, size)
                os.fchmod(file, mode)
                selinux.share(directory / name, self._label and name != "build")
        except BaseException:
            spare.discard()
            raise
        return spare

    def _place(self) -> Path:
        """Return the directory of this process. It is made, or taken over from one that ended, if there is none."""
        with self._lock:
            if self._pool is not None and self._pool.is_dir():
                return self._pool
            if self._pool_lock >= 0:
                os.close(self._pool_lock)
                self._pool, self._pool_lock = None, -1
            make_private(self._root)
            for path in self._root.glob(f"{_PREFIX}*"):
                if (lock := _locked(path)) >= 0:
                    self._pool, self._pool_lock = path, lock
                    self._ready = [spare for entry in path.iterdir() if (spare := _taken_over(entry)) is not None]
                    return path
            while self._pool is None:
                path = self._root / f"{_PREFIX}{os.urandom(4).hex()}"
                path.mkdir(0o700)
                if (lock := _locked(path)) >= 0:
                    self._pool, self._pool_lock = path, lock
            return self._pool


def _locked(path: Path) -> int:
    """Return a descriptor that keeps a directory for this process; below 0 while another has it."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return -1
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(file)
        return -1
    return file


def _taken_over(directory: Path) -> Spare | None:
    """Take over what another process made and no container has used; remove it where it is not whole."""
    spare = Spare(directory, {})
    try:
        for name, (mode, size) in _FILES.items():
            file = spare.files[name] = open_regular(directory / name, os.O_RDWR)
            reserve(file, size)
            os.fchmod(file, mode)
    except OSError:
        spare.discard()
        return None
    return spare
