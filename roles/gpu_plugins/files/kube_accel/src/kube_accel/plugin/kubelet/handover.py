# SPDX-License-Identifier: Apache-2.0
"""A plugin leaves without kubelet noticing: its connections outlive it, held open by its successor.

When the stream of a plugin ends, kubelets up to 1.36 at least drop whichever plugin is registered for its resource and
refuse pods until it registers again. During an upgrade that would be the successor. So the one that leaves hands its
end of kubelet's connections to the successor (unix(7), SCM_RIGHTS), which does nothing with them but not close them.
Nothing is ever sent on them again: kubelet has made the successor its plugin and asks no other.
"""

from __future__ import annotations

import array
import contextlib
import os
import socket
import stat
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

SOCKET = "handover.sock"
_MOST = 64
"""Connections taken at once; kubelet has one for each resource and predecessor."""
_LONGEST = 1 << 14
"""Bytes of the names of all resources."""
_TAKEN = b"."
_SECONDS = 2.0


class Keeper:
    """Takes connections from predecessors and keeps them until kubelet ends them."""

    def __init__(self, state_dir: Path, registered: Callable[[str], bool]) -> None:
        """Listens at once, in the place of an earlier instance if there is one. Raises OSError.

        ``registered``: whether we are kubelet's plugin for a resource. Only then it does not ask the one before.
        """
        self._registered = registered
        self._path = state_dir / SOCKET
        candidate = state_dir / f".{SOCKET}.{os.urandom(3).hex()}"
        self._listener = socket.socket(socket.AF_UNIX)
        try:
            self._listener.bind(str(candidate))
            candidate.chmod(0o600)
            self._listener.listen(4)
            self._inode = candidate.stat().st_ino
            candidate.rename(self._path)
        except OSError:
            self._listener.close()
            candidate.unlink(missing_ok=True)
            raise
        self._kept: list[socket.socket] = []

    @property
    def kept(self) -> int:
        """Return how many connections are kept."""
        return len(self._kept)

    def run(self) -> None:
        """Take connections for ever."""
        while True:
            client, _ = self._listener.accept()
            with client, contextlib.suppress(OSError, ValueError):
                client.settimeout(_SECONDS)
                self._take(client)

    @property
    def has_successor(self) -> bool:
        """Return whether another process listens in our place by now. Raises OSError."""
        return self._path.stat().st_ino != self._inode

    def hand_over(self, served: Mapping[str, Path]) -> bool:
        """Give the successor our accepted and kept connections; return whether it took them. Raises OSError.

        ``served``: our socket for each resource. False without a successor that is kubelet's plugin for all of these.
        """
        if not self.has_successor:
            return False
        connections = [*_accepted({str(path) for path in served.values()}), *self._alive()]
        with socket.socket(socket.AF_UNIX) as successor:
            successor.settimeout(_SECONDS)
            successor.connect(str(self._path))
            numbers = array.array("i", [connection.fileno() for connection in connections[:_MOST]])
            rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, numbers)] if numbers else []
            successor.sendmsg(["\n".join(served).encode()], rights)
            return successor.recv(1) == _TAKEN

    def _take(self, client: socket.socket) -> None:
        numbers = array.array("i")
        text, rights, _, _ = client.recvmsg(_LONGEST, socket.CMSG_SPACE(_MOST * numbers.itemsize))
        for level, kind, data in rights:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                numbers.frombytes(data[: len(data) - len(data) % numbers.itemsize])
        connections = [socket.socket(fileno=number) for number in numbers]
        if text and all(map(self._registered, text.decode().split("\n"))):
            self._kept = [*self._alive(), *connections]
            client.sendall(_TAKEN)
        else:
            for connection in connections:
                connection.close()

    def _alive(self) -> list[socket.socket]:
        """Return the connections that kubelet has not ended, as it does when it restarts; close the others."""
        alive = []
        for connection in self._kept:
            with contextlib.suppress(OSError):
                connection.setblocking(False)
                try:
                    ended = connection.recv(1, socket.MSG_PEEK) == b""
                except BlockingIOError:
                    ended = False
                if not ended:
                    alive.append(connection)
                    continue
            connection.close()
        self._kept = alive
        return alive


def _accepted(paths: Collection[str]) -> list[socket.socket]:
    """Copy this process's ends of the connections to its own unix sockets at ``paths``."""
    found: list[socket.socket] = []
    # All at once, and those of our making left out: the copies are entries too.
    for number in [int(entry.name) for entry in Path("/proc/self/fd").iterdir()]:
        with contextlib.suppress(OSError):
            if any(number == copy.fileno() for copy in found) or not stat.S_ISSOCK(os.fstat(number).st_mode):
                continue
            connection = socket.socket(fileno=os.dup(number))
            listens = connection.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
            if connection.family == socket.AF_UNIX and not listens and connection.getsockname() in paths:
                found.append(connection)
            else:
                connection.close()
    return found
