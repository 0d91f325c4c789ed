# SPDX-License-Identifier: Apache-2.0
"""Runs what Ansible sends to this machine in forks of a process that has imported the client of Kubernetes.

That import takes two thirds of what a module costs that asks the cluster, and a site has seventy of them. What runs is
what was sent, in a process of its own, with the streams, environment, directory and umask of the one that asked.

``with forks(directory):`` has all that Ansible starts meanwhile make use of it, by way of ``sitecustomize``;
``python -m sim.forks COMMAND [WORD...]`` is that for a command. A process that sees another machine starts as ever:
other libraries, such as the driver of a simulated host, another root or namespace, or other rights. So do all when
there is nobody to ask.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

VARIABLE = "ACCEL_FORKS"
_AT_START = ("LD_", "PYTHON", "MALLOC_")
"""Variables, by how they begin, that a process heeds only when it is started."""


def _kind() -> list[object]:
    """What a process that asks and the one that is forked must have in common. Raises OSError."""
    heeded = {name: value for name, value in os.environ.items() if name.startswith(_AT_START)}
    places = [os.readlink(f"/proc/self/ns/{name}") for name in sorted(os.listdir("/proc/self/ns"))]  # noqa: PTH115, PTH208
    root = os.stat("/")  # noqa: PTH116
    status = Path("/proc/self/status").read_text().splitlines()
    rights = [line for line in status if line.startswith(("Uid:", "Gid:", "Groups:", "Cap", "NoNewPrivs:"))]
    return [sys.executable, sys.version, sorted(heeded.items()), places, root.st_dev, root.st_ino, rights]


def be_forked(address: str) -> None:
    """Have a fork run the program on standard input, and end as it ends. Return when there is none to be had."""
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.connect(address)
        umask = os.umask(0o77)
        os.umask(umask)
        request = {"kind": _kind(), "environment": dict(os.environ), "directory": os.getcwd(), "umask": umask}  # noqa: PTH109
        socket.send_fds(connection, [b"\n"], [0, 1, 2])
        connection.sendall(json.dumps(request).encode() + b"\n")
        answer = connection.recv(16)
    except OSError:
        return
    if answer == b"no":
        return
    os._exit(int(answer) if answer else 1)


class _Server:
    """Forks for whoever connects; ``None`` is the end of standard input, when it ends too."""

    def __init__(self, address: str) -> None:
        import selectors

        self._kind = json.loads(json.dumps(_kind()))
        self._selector = selectors.DefaultSelector()
        self._read = selectors.EVENT_READ
        self._listening = socket.socket(socket.AF_UNIX)
        self._listening.bind(address)
        self._listening.listen(128)
        self._selector.register(self._listening, self._read, None)
        self._selector.register(0, self._read, None)

    def serve(self) -> None:
        running: dict[int, int] = {}
        """Processes by the descriptor of the connection that asked for each."""
        while True:
            for key, _ in self._selector.select():
                if key.fileobj == 0:
                    for pid in running.values():
                        _kill(pid)
                    return
                if key.fileobj is self._listening:
                    self._accept(running)
                elif key.data[0] == "ended":
                    _, pid, connection = key.data
                    self._selector.unregister(key.fileobj)
                    os.close(int(key.fd))
                    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
                    running.pop(connection.fileno(), None)
                    with contextlib.suppress(KeyError, ValueError):
                        self._selector.unregister(connection)
                    with contextlib.suppress(OSError):
                        connection.sendall(str(status if status >= 0 else 128 - status).encode())
                    connection.close()
                else:  # Who asked is gone.
                    self._selector.unregister(key.fileobj)
                    _kill(key.data[1])

    def _accept(self, running: dict[int, int]) -> None:
        connection, _ = self._listening.accept()
        descriptors: list[int] = []
        try:
            connection.settimeout(10)
            _, descriptors, _, _ = socket.recv_fds(connection, 1, 3)
            text = b""
            while not text.endswith(b"\n"):
                if not (part := connection.recv(1 << 16)):
                    raise EOFError
                text += part
            request = json.loads(text)
            if request["kind"] != self._kind:
                connection.sendall(b"no")
                connection.close()
                return
            if not (pid := os.fork()):
                _become(request, descriptors)
        except (OSError, EOFError, ValueError):
            connection.close()
            return
        finally:
            for descriptor in descriptors:
                os.close(descriptor)
        running[connection.fileno()] = pid
        self._selector.register(connection, self._read, ("gone", pid))
        self._selector.register(os.pidfd_open(pid), self._read, ("ended", pid, connection))


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)


def _become(request: dict[str, object], descriptors: list[int]) -> None:
    """Run the program on standard input in this process, and end with it."""
    import atexit
    import tempfile
    import threading
    import traceback
    import types

    code = 1
    try:
        os.setsid()
        for number, descriptor in enumerate(descriptors):
            os.dup2(descriptor, number)
        os.closerange(3, 256)
        sys.stdin, sys.stdout, sys.stderr = open(0), open(1, "w"), open(2, "w", buffering=1)  # noqa: SIM115
        os.environ.clear()
        os.environ.update(request["environment"])  # type: ignore[call-overload]
        os.chdir(str(request["directory"]))
        os.umask(int(str(request["umask"])))
        signal.signal(signal.SIGINT, signal.default_int_handler)
        tempfile.tempdir = None
        sys.argv = [""]
        main = sys.modules["__main__"] = types.ModuleType("__main__")
        exec(compile(sys.stdin.buffer.read(), "<stdin>", "exec"), main.__dict__)
        code = 0
    except SystemExit as ending:
        code = ending.code if isinstance(ending.code, int) else int(ending.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(BaseException):
            threading._shutdown()  # type: ignore[attr-defined]
            atexit._run_exitfuncs()
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code & 0xFF)


@contextlib.contextmanager
def forks(directory: Path) -> Iterator[None]:
    """Have what Ansible starts here run in forks until this ends. ``directory`` is new, and short."""
    address = directory / "forks"
    command = [sys.executable, "-c", f"from sim import forks; forks.serve({str(address)!r})"]
    server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)
    assert server.stdin is not None
    assert server.stdout is not None
    try:
        server.stdout.readline()
        os.environ[VARIABLE] = str(address)
        yield
    finally:
        os.environ.pop(VARIABLE, None)
        server.stdin.close()
        server.wait(20)
        server.stdout.close()
        address.unlink(missing_ok=True)


def serve(address: str) -> None:
    """Import what modules import from here, and serve until standard input is closed."""
    import gc
    import importlib

    for name in ("kubernetes", "kubernetes.dynamic", "yaml", "jsonschema"):
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    server = _Server(address)
    gc.collect()
    gc.freeze()
    print("ready", flush=True)
    server.serve()


def main() -> int:
    """Run a command whose Ansible makes use of forks; its exit status."""
    import tempfile

    with tempfile.TemporaryDirectory(prefix="accel-") as directory, forks(Path(directory)):
        return subprocess.run(sys.argv[1:]).returncode


if __name__ == "__main__":
    sys.exit(main())
