# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Our device plugin and services of the host, which hold GPUs open without using them, release these for a while."""

from __future__ import annotations

import json
import os
import socket
import stat
from contextlib import contextmanager, suppress
from typing import Callable, Iterator, Sequence

_ANSWER_SECONDS = 60

Run = Callable[[Sequence[str]], int]
"""Runs a command and returns its exit status."""


class ReleaseError(Exception):
    """The device plugin or a service does not release the GPUs. The text says which one and why."""


@contextmanager
def release_gpus(plugin_socket: str, services: Sequence[str], seconds: float, run: Run) -> Iterator[None]:
    """Keep the device plugin behind the socket, if there is one, and the services that run from touching a GPU.

    When the context ends, both begin again; the plugin does so after ``seconds`` at the latest. Raises ReleaseError.
    """
    running = [name for name in services if run(["systemctl", "is-active", "--quiet", name]) == 0]
    stopped = []
    try:
        _ask(plugin_socket, "quiesce", seconds)
        for name in running:
            stopped.append(name)
            if run(["systemctl", "stop", name]) != 0:
                raise ReleaseError(f"{name} cannot be stopped; see 'systemctl status {name}'")
        yield
    finally:
        for name in reversed(stopped):
            run(["systemctl", "start", name])
        with suppress(ReleaseError):
            _ask(plugin_socket, "resume", seconds)


def _ask(path: str, command: str, seconds: float) -> None:
    """Ask the device plugin to quiesce or resume: one JSON line each way."""
    try:
        if not path or not stat.S_ISSOCK(os.stat(path).st_mode):
            return
        with socket.socket(socket.AF_UNIX) as client:
            client.settimeout(_ANSWER_SECONDS)
            client.connect(path)
            client.sendall(json.dumps({"command": command, "seconds": seconds}).encode() + b"\n")
            with client.makefile("rb") as answers:
                answer = json.loads(answers.readline() or b"{}")
    except (FileNotFoundError, ConnectionRefusedError):
        return  # no plugin, or a socket that one left behind when it ended
    except (OSError, ValueError) as error:
        raise ReleaseError(f"the device plugin on {path} does not {command}: {error}") from error
    if "error" in answer:
        raise ReleaseError(f"the device plugin on {path} does not {command}: {answer['error']}")
