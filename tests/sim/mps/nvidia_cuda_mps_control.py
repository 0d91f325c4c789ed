# SPDX-License-Identifier: Apache-2.0
"""The MPS control program without a GPU: the same options, commands, messages and exit codes.

Compared with the real one of driver 535, which starts without a GPU; ``get_server_status`` is of later drivers, and so
is that settings are changed by ``control_privileged`` alone (seen: 550 and 555; 535 takes them from anybody). Servers
are those it was told to start, processes ``nvidia-cuda-mps-server`` found in ``PATH``, and since no GPU brings clients
the lines ``<pid> <uid> <status> <client>...`` of the file ``simulated-servers`` in the pipe directory.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import select
import socket
import struct
import subprocess
import sys
from pathlib import Path

SERVERS = "simulated-servers"
NO_DAEMON = "Cannot find MPS control daemon process"
PRIVILEGED, PUBLIC = "control_privileged", "control"
NOT_QUIT = "Not enough privilege to execute quit command\n"
NOT_SET = (
    "Insufficient privileges for UID {}. Control deamon settings can only be modified by the user started it or by the "
    "root user.\n"
)
RUNNING = "An instance of this daemon is already running"
USAGE = (
    "CUDA MPS Control for Linux/Unix.\n\n  This program allows multiple CUDA processes to share a single GPU context.\n"
)


class Control:
    """A control daemon's answers to its commands."""

    def __init__(self, pipe: Path, log: Path | None) -> None:
        self.pipe, self.log = pipe, log
        self.percentage = 100.0
        self.limits: dict[str, str] = {}
        self.priority = "0"
        self.ended = False
        self.started: dict[str, subprocess.Popen[bytes]] = {}

    def answer(self, line: str, privileged: bool, uid: int) -> str:
        """What is printed for a command line; ``privileged`` by the socket it came by, whoever sent it."""
        name, *words = line.split() or [""]
        command = getattr(self, f"do_{name}", None) if name else None
        if name == "quit" and not privileged:
            said = NOT_QUIT
        elif name.startswith("set_default_") and not privileged:
            said = NOT_SET.format(uid)
        else:
            said = command(*words) if command else f'Unknown command "{name}"\n'
        if self.log is not None:
            with self.log.open("a") as log:
                log.write(f"Cmd:{line}\n")
        return said

    def servers(self) -> dict[str, list[str]]:
        """Uid, status and clients, by process id."""
        self.started = {pid: server for pid, server in self.started.items() if server.poll() is None}
        found = {pid: ["0", "ACTIVE"] for pid in self.started}
        with contextlib.suppress(FileNotFoundError):
            rows = [line.split() for line in (self.pipe / SERVERS).read_text().splitlines() if line.strip()]
            found |= {pid: rest for pid, *rest in rows}
        return found

    def do_get_server_list(self, *words: str) -> str:
        return "".join(f"{pid}\n" for pid in self.servers())

    def do_get_server_status(self, pid: str = "", *words: str) -> str:
        return f"{self.servers()[pid][1]}\n" if pid in self.servers() else f"Server {pid} not found\n"

    def do_get_client_list(self, pid: str = "", *words: str) -> str:
        if pid not in self.servers():
            return f"Server {pid} not found\n"
        return "".join(f"{client}\n" for client in self.servers()[pid][2:])

    def do_get_device_client_list(self, *words: str) -> str:
        return ""

    def do_ps(self, *words: str) -> str:
        rows = [(client, pid) for pid, row in self.servers().items() for client in row[2:]]
        if not rows:
            return "Server not found\n"
        return "PID ID SERVER DEVICE NAMESPACE COMMAND\n" + "".join(f"{c} 0 {p} - - -\n" for c, p in rows)

    def do_get_default_active_thread_percentage(self, *words: str) -> str:
        return f"{self.percentage}\n"

    def do_set_default_active_thread_percentage(self, value: str = "", *words: str) -> str:
        if re.fullmatch(r"\d+(\.\d+)?", value) and 0 < float(value) <= 100:
            self.percentage = float(value)
        return f"{self.percentage}\n"

    def do_get_active_thread_percentage(self, pid: str = "", *words: str) -> str:
        return f"{self.percentage}\n" if pid in self.servers() else f"Server {pid} not found\n"

    def do_set_default_device_pinned_mem_limit(self, device: str = "", value: str = "", *words: str) -> str:
        if device.isdecimal() and re.fullmatch(r"\d+[GM]", value):
            self.limits[device] = value
        return ""

    def do_get_default_device_pinned_mem_limit(self, device: str = "", *words: str) -> str:
        return f"{self.limits[device]}\n" if device in self.limits else ""

    def do_get_default_client_priority(self, *words: str) -> str:
        return f"{self.priority}\n"

    def do_set_default_client_priority(self, value: str = "", *words: str) -> str:
        self.priority = value if value in ("0", "1") else self.priority
        return ""

    def do_start_server(self, *words: str) -> str:
        server = subprocess.Popen(["nvidia-cuda-mps-server"], stdin=subprocess.PIPE)
        self.started[str(server.pid)] = server
        return ""

    def do_shutdown_server(self, pid: str = "", *words: str) -> str:
        return "" if pid in self.servers() else f"Server {pid} not found\n"

    def do_quit(self, *words: str) -> str:
        self.ended = True
        return ""


def serve(pipe: Path, ready: int | None = None) -> None:
    """Be the control daemon until ``quit``; ``ready`` is closed once it listens."""
    umask = os.umask(0o022)
    if not (pipe / "log").exists():
        os.mkfifo(pipe / "log")
        (pipe / "log").chmod(0o777)
    listeners = {name: _listener(pipe / name) for name in (PRIVILEGED, PUBLIC)}
    (pipe / PUBLIC).chmod(0o666)
    os.umask(umask)
    if ready is not None:
        os.close(ready)
    logs = os.environ.get("CUDA_MPS_LOG_DIRECTORY")
    control = Control(pipe, Path(logs, "control.log") if logs else None)
    while not control.ended:
        waiting, _, _ = select.select(list(listeners.values()), [], [])
        client, _ = waiting[0].accept()
        privileged = waiting[0] is listeners[PRIVILEGED]
        _, uid, _ = struct.unpack("3i", client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        # A client that is killed ends its own connection and no more.
        with contextlib.suppress(ConnectionError), client, client.makefile("rw") as stream:
            for line in stream:
                stream.write(control.answer(line.strip(), privileged, uid) + "\0")
                stream.flush()
                if control.ended:
                    break


def _listener(path: Path) -> socket.socket:
    path.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    listener.listen(8)
    return listener


def front_end(pipe: Path) -> int:
    """Send the commands of standard input to the daemon and print its answers."""
    connection = socket.socket(socket.AF_UNIX)
    try:
        try:
            connection.connect(str(pipe / PRIVILEGED))
        except OSError:
            connection.connect(str(pipe / PUBLIC))
    except OSError:
        print(NO_DAEMON, file=sys.stderr)
        return 1
    with connection, connection.makefile("rw") as stream:
        for line in sys.stdin:
            stream.write(line.rstrip("\n") + "\n")
            stream.flush()
            answer = ""
            while not answer.endswith("\0"):
                got = stream.read(1)
                if not got:
                    return 1
                answer += got
            print(answer[:-1], end="", flush=True)
    return 0


def main(arguments: list[str]) -> int:
    pipe = Path(os.environ.get("CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps"))
    if "-h" in arguments:
        print(USAGE)
        return 0
    if "-d" not in arguments and "-f" not in arguments:
        return front_end(pipe)
    pipe.mkdir(parents=True, exist_ok=True)
    # Held until this process ends.
    lock = os.open(pipe / "control_lock", os.O_RDWR | os.O_CREAT, 0o666)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        print(RUNNING)
        return 1
    if "-f" in arguments:
        serve(pipe)
        return 0
    ready, done = os.pipe()
    if os.fork():
        os.close(done)
        os.read(ready, 1)
        return 0
    os.setsid()
    os.close(ready)
    nowhere = os.open(os.devnull, os.O_RDWR)
    for descriptor in range(3):
        os.dup2(nowhere, descriptor)
    serve(pipe, done)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
