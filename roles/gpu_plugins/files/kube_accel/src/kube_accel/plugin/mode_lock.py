# SPDX-License-Identifier: Apache-2.0
"""A node serves one mode: plugins of different modes take turns, those of one mode (an upgrade) go together.

The DRA driver is one more mode here. Each mode has a file in the state directory that its plugins lock for as long as
they live (flock(2), shared). A plugin looks at the other modes' files first; one more file, locked for that instant,
keeps two from looking at once. The kernel drops the locks of a process that ends, however it ends.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kube_accel.model import Mode
from kube_accel.plugin.configuration.options import NodeError

DRA = "dra"
_TAKERS = (*(mode.value for mode in Mode), DRA)


class ModeLock:
    """The locks below ``state_dir``, for a plugin of one mode, or for the DRA driver."""

    def __init__(self, state_dir: Path, mode: str) -> None:
        self._state_dir = state_dir
        self._mode = mode

    def take(self) -> str:
        """Take this mode's lock and keep it until the process ends, or say why that cannot be yet. Raises NodeError."""
        try:
            return self._take()
        except OSError as error:
            raise NodeError(f"--state-dir {self._state_dir} cannot hold a lock: {error}; choose another") from error

    def _take(self) -> str:
        with self._locked("modes.lock", fcntl.LOCK_EX):
            for mode in _TAKERS:
                if mode != self._mode and self._is_held(mode):
                    return (
                        f"a plugin of mode {mode} runs on this node, which can serve one mode: waiting until"
                        f" it ends. If it should stay, a wrong label brought this plugin ({self._mode}) here:"
                        " see the node's labels nvidia-device-enable and cgpu"
                    )
            # Never closed.
            fcntl.flock(self._open(_file(self._mode)), fcntl.LOCK_SH)
        return ""

    def _is_held(self, mode: str) -> bool:
        try:
            with self._locked(_file(mode), fcntl.LOCK_EX | fcntl.LOCK_NB):
                return False
        except BlockingIOError:
            return True

    @contextmanager
    def _locked(self, name: str, how: int) -> Iterator[None]:
        descriptor = self._open(name)
        try:
            fcntl.flock(descriptor, how)
            yield
        finally:
            os.close(descriptor)

    def _open(self, name: str) -> int:
        return os.open(self._state_dir / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


def _file(mode: str) -> str:
    return f"mode-{mode}.lock"
