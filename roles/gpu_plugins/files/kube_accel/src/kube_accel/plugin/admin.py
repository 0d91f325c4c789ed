# SPDX-License-Identifier: Apache-2.0
"""What root on the node asks of a running daemon: one JSON object a line each way over a unix socket."""

from __future__ import annotations

import json
import logging
import os
import socket
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from kube_accel.shared.reading import read_object

_log = logging.getLogger(__name__)

SOCKET = "admin.sock"
_LINE_LIMIT = 4096
_CLIENT_TIMEOUT = 5.0

Command = Callable[[Mapping[str, Any]], dict[str, Any]]
"""Takes the request, returns the answer. Raises AdminError to refuse."""


class AdminError(Exception):
    """The daemon was not reached, or refused."""


class AdminServer:
    """Serves commands on ``<state-dir>/admin.sock``, one client at a time, root only."""

    def __init__(self, state_dir: Path, commands: Mapping[str, Command]) -> None:
        """Listens at once, in the place of an earlier instance if there is one. Raises OSError."""
        self._commands = commands
        path = state_dir / SOCKET
        candidate = state_dir / f".{SOCKET}.{os.urandom(3).hex()}"
        self._socket = socket.socket(socket.AF_UNIX)
        try:
            self._socket.bind(str(candidate))
            candidate.chmod(0o600)
            self._socket.listen(4)
            # Renamed when ready, and left behind at the end: whatever lies there is never another instance's loss.
            candidate.rename(path)
        except OSError:
            self._socket.close()
            candidate.unlink(missing_ok=True)
            raise

    def run(self) -> None:
        """Serve for ever."""
        while True:
            client, _ = self._socket.accept()
            with client:
                try:
                    line = _read_line(client, _CLIENT_TIMEOUT)
                    client.settimeout(_CLIENT_TIMEOUT)
                    client.sendall(json.dumps(self._answer(line)).encode() + b"\n")
                except OSError as error:
                    _log.debug("an admin client went away", extra={"reason": str(error)})

    def _answer(self, line: bytes) -> dict[str, Any]:
        try:
            request = read_object(line.decode(), _LINE_LIMIT)
            command = self._commands[request["command"]]
        except (ValueError, TypeError, KeyError):
            return {"error": f"unknown request; commands are {', '.join(sorted(self._commands))}"}
        try:
            return command(request)
        except AdminError as error:
            return {"error": str(error)}


def call(state_dir: Path, command: str, timeout: float, **arguments: object) -> dict[str, Any]:
    """Ask the daemon whose state lies in ``state_dir``; ``timeout`` in seconds. Raises AdminError."""
    path = state_dir / SOCKET
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(timeout)
        try:
            client.connect(str(path))
            client.sendall(json.dumps({"command": command, **arguments}).encode() + b"\n")
            answer = read_object(_read_line(client, timeout).decode(), _LINE_LIMIT)
        except (OSError, ValueError) as error:
            raise AdminError(f"no daemon answers on {path} ({error}); check --state-dir and that it runs") from error
    if "error" in answer:
        raise AdminError(str(answer["error"]))
    return answer


def _read_line(connection: socket.socket, seconds: float) -> bytes:
    """Read until a line ends, or nothing more can be part of one. Raises TimeoutError after so many seconds."""
    deadline, line = time.monotonic() + seconds, b""
    while not line.endswith(b"\n") and len(line) < _LINE_LIMIT:
        connection.settimeout(max(0.001, deadline - time.monotonic()))
        data = connection.recv(_LINE_LIMIT - len(line))
        if not data:
            break
        line += data
    return line
