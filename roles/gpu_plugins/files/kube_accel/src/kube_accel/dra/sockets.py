# SPDX-License-Identifier: Apache-2.0
"""The two sockets of an instance: kubelet finds the one in its registry, and is told of the other there.

Two instances of a rolling update live side by side, so each has names of its own.
"""

from __future__ import annotations

import fcntl
import logging
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from kube_accel.dra.service import DriverService, RegistrationService
from kube_accel.dra.slices import DRIVER
from kube_accel.kube import dra
from kube_accel.rpc.server import Server

_log = logging.getLogger(__name__)

_ANSWERS: Final = 20.0
"""Seconds that an instance which ends goes on answering what it was asked before."""


@dataclass(frozen=True, slots=True)
class SocketPaths:
    """Where an instance's sockets are."""

    service: Path
    registration: Path


def paths(plugins: Path, registry: Path, instance: str) -> SocketPaths:
    """Return the paths of an instance, which is empty where there is never another.

    A pod's UID is cut: the path of a socket has at most 107 bytes.
    """
    ending = f"-{instance[:8]}" if instance else ""
    return SocketPaths(plugins / DRIVER / f"dra{ending}.sock", registry / f"{DRIVER}{ending}-reg.sock")


class Sockets:
    """Both servers of an instance."""

    def __init__(self, where: SocketPaths, state_dir: Path, service: DriverService) -> None:
        self._where = where
        self._lock = state_dir / "sockets.lock"
        self._service = service
        self.registration = RegistrationService(where.service)
        self._servers: list[Server] = []

    def open(self) -> None:
        """Serve, the driver first: kubelet calls it as soon as it knows of it. Raises OSError."""
        where = self._where
        where.service.parent.mkdir(0o750, parents=True, exist_ok=True)
        with self._binding():
            for leftover in _dead(where):
                _log.info("a socket without a server is removed", extra={"socket": str(leftover)})
                leftover.unlink(missing_ok=True)
            self._servers.append(Server(where.service, dra.driver_methods(self._service)))
            self._servers.append(Server(where.registration, dra.registration_methods(self.registration)))

    def close(self) -> None:
        """Have kubelet know that the driver goes, and then end it."""
        for server in reversed(self._servers):
            server.stop(_ANSWERS)
        self._servers.clear()

    @contextmanager
    def _binding(self) -> Iterator[None]:
        """Keep other instances from binding sockets: one that is bound and does not listen yet looks dead."""
        file = os.open(self._lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield
        finally:
            os.close(file)


def _dead(where: SocketPaths) -> Iterator[Path]:
    """Yield the driver's sockets that nobody listens on any more, of whichever instance."""
    patterns = {where.service.parent: "dra*.sock", where.registration.parent: f"{DRIVER}*-reg.sock"}
    for directory, pattern in patterns.items():
        for path in sorted(directory.glob(pattern)):
            with suppress(OSError), socket.socket(socket.AF_UNIX) as asking:
                try:
                    asking.settimeout(1)
                    asking.connect(str(path))
                except ConnectionRefusedError:
                    yield path
