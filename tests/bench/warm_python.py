# SPDX-License-Identifier: Apache-2.0
"""A python3 for simulated hosts that has Ansible's module_utils loaded: each module runs in a fork of one process.

Real hosts load and run modules at their own cost and at the same time; hundreds of simulated ones share this machine,
and what they need hides what the controller needs. As a program this is the client, whose standard streams, directory
and environment the module gets.
"""

from __future__ import annotations

import os
import socket
import sys

_MODULES = ("command", "copy", "file", "find", "setup", "slurp", "stat", "systemd_service", "wait_for")
"""Whose imports are loaded."""


def serve(path: str) -> None:
    """Fork for each client, for ever."""
    import importlib

    for name in _MODULES:
        importlib.import_module(f"ansible.modules.{name}")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(path)
        server.listen(1024)
        while True:
            client, _ = server.accept()
            if os.fork() == 0:
                server.close()
                _run(client)
            client.close()
            while True:
                try:
                    ended, _ = os.waitpid(-1, os.WNOHANG)
                except ChildProcessError:
                    break
                if not ended:
                    break


def _run(client: socket.socket) -> None:
    """Be the process that the client stands for, and tell it how that ended."""
    import runpy
    import traceback
    import types

    head, streams, _, _ = socket.recv_fds(client, 1 << 20, 3)
    size = int(head[:8], 16)
    text = head[8:]
    while len(text) < size:
        text += client.recv(1 << 20)
    directory, arguments, environment = (part.split(b"\0") for part in text.split(b"\0\0"))
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    os.chdir(directory[0])
    os.environb.clear()
    os.environb.update(entry.split(b"=", 1) for entry in environment)
    sys.argv = [os.fsdecode(argument) for argument in arguments if argument]
    code = 0
    try:
        if sys.argv:
            runpy.run_path(sys.argv[0], run_name="__main__")
        else:  # Ansible pipelines the module
            module = sys.modules["__main__"] = types.ModuleType("__main__")
            sys.argv = [""]
            exec(compile(sys.stdin.buffer.read(), "<stdin>", "exec"), module.__dict__)
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:  # as the interpreter does
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    client.sendall(b"%d" % code)
    os._exit(code)


def ask(path: str, arguments: list[str]) -> int:
    """Have a module run; its exit code. What is no module is run by a python3 of its own."""
    name = os.path.basename(arguments[0]) if arguments else "AnsiballZ_"  # noqa: PTH119 - quick to start
    if not name.startswith("AnsiballZ_"):
        os.execv(sys.executable, [sys.executable, *arguments])
    environment = (key + b"=" + value for key, value in os.environb.items())
    parts = (os.fsencode(os.getcwd()), b"\0".join(map(os.fsencode, arguments)), b"\0".join(environment))  # noqa: PTH109
    text = b"\0\0".join(parts)
    with socket.socket(socket.AF_UNIX) as server:
        server.connect(path)
        socket.send_fds(server, [b"%08x" % len(text) + text[:4096]], [0, 1, 2])
        server.sendall(text[4096:])
        return int(server.recv(16) or b"1")


if __name__ == "__main__":
    sys.exit(ask(sys.argv[1], sys.argv[2:]) if sys.argv[1] != "serve" else serve(sys.argv[2]))
