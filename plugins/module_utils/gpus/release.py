# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Has those who hold GPUs open without using them let go for a while: our device plugin and services of the host."""

from __future__ import annotations

import json
import os
import socket
import stat
from contextlib import contextmanager, suppress
from typing import Callable, Iterator, Sequence

_ANSWER_SECONDS = 60

Run = Callable[[Sequence[str]], int]
"""Runs a command; its exit status."""


class QuietError(Exception):
    """Somebody does not let go. Says who and why."""


@contextmanager
def quiet(plugin_socket: str, services: Sequence[str], seconds: float, run: Run) -> Iterator[None]:
    """Meanwhile the device plugin behind the socket, if one is there, and those services that run do not touch a GPU.

    The plugin takes the GPUs up again after so many seconds even if nobody tells it to. Raises QuietError.
    """
    running = [name for name in services if run(["systemctl", "is-active", "--quiet", name]) == 0]
    stopped = []
    try:
        _tell(plugin_socket, "quiesce", seconds)
        for name in running:
            stopped.append(name)
            if run(["systemctl", "stop", name]) != 0:
                raise QuietError(f"{name} cannot be stopped; see 'systemctl status {name}'")
        yield
    finally:
        for name in reversed(stopped):
            run(["systemctl", "start", name])
        with suppress(QuietError):
            _tell(plugin_socket, "resume", seconds)


def _tell(path: str, command: str, seconds: float) -> None:
    """Say quiesce or resume to the device plugin: one JSON line each way."""
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
        return  # none, or what one that ended left behind
    except (OSError, ValueError) as error:
        raise QuietError(f"the device plugin on {path} does not {command}: {error}") from error
    if "error" in answer:
        raise QuietError(f"the device plugin on {path} does not {command}: {answer['error']}")
