# SPDX-License-Identifier: Apache-2.0
"""Runs modules in forks of a process that has imported them: what they do, without the half second of starting Python.

Each run is a process of its own, with its own standard streams, environment, directory, limit of files and session, as
one that was started. The process that is forked has no threads, so that no lock of another thread is held in a fork.

``python -m unit.plugins.forked DESCRIPTOR COLLECTIONS`` serves requests on that socket, until its other end is closed.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import json
import os
import pkgutil
import resource
import runpy
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MODULES = "ansible_collections.accel.kubernetes.plugins.modules"
AT_START = ("LD_", "PYTHON", "MALLOC_", "GCONV_PATH")
"""Variables, by how they begin, that a process heeds only when it is started."""


def heeded_at_start(environment: Mapping[str, str]) -> dict[str, str]:
    """Those of the variables that a fork would not heed."""
    return {name: value for name, value in environment.items() if name.startswith(AT_START)}


@dataclass(frozen=True)
class Ended:
    """What a module said."""

    out: str
    err: str


class Forks:
    """The process that is forked, for a session of tests."""

    def __init__(self, collections: Path) -> None:
        self._socket, theirs = socket.socketpair()
        self._socket.settimeout(60)
        self._lock = threading.Lock()
        self._heeded = heeded_at_start(os.environ)
        command = [sys.executable, "-m", "unit.plugins.forked", str(theirs.fileno()), str(collections)]
        self._process = subprocess.Popen(command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL)
        theirs.close()

    def close(self) -> None:
        """End it, and wait for its end."""
        self._socket.close()
        self._process.wait(60)

    def can(self, environment: Mapping[str, str]) -> bool:
        """Whether a fork does what a process would that is started with this environment."""
        return heeded_at_start(environment) == self._heeded

    def run(self, name: str, wire: str, environment: Mapping[str, str], seconds: float = 60) -> Ended:
        """Run a module to its end. Raises TimeoutError, and then it is killed."""
        request = {
            "name": name,
            "environment": dict(environment),
            "directory": str(Path.cwd()),
            "file_size": resource.getrlimit(resource.RLIMIT_FSIZE),
        }
        (ours_in, ours_out, ours_err), theirs = _pipes()
        with self._lock:
            socket.send_fds(self._socket, [len(body := json.dumps(request).encode()).to_bytes(4, "big")], theirs)
            self._socket.sendall(body)
            for descriptor in theirs:
                os.close(descriptor)
            pid = int.from_bytes(_exactly(self._socket, 4), "big")
        try:
            with contextlib.suppress(BrokenPipeError), os.fdopen(ours_in, "w") as stream:
                stream.write(wire)
            return Ended(*_read((ours_out, ours_err), time.monotonic() + seconds))
        except BaseException:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)
            raise
        finally:
            os.close(ours_out)
            os.close(ours_err)


def _pipes() -> tuple[tuple[int, int, int], list[int]]:
    """Ends of pipes: ours and theirs of standard input, output and errors."""
    (their_in, our_in), (our_out, their_out), (our_err, their_err) = os.pipe(), os.pipe(), os.pipe()
    return (our_in, our_out, our_err), [their_in, their_out, their_err]


def _read(descriptors: tuple[int, int], deadline: float) -> list[str]:
    """All that comes of each until its other ends are closed. Raises TimeoutError at the deadline."""
    found: dict[int, bytes] = dict.fromkeys(descriptors, b"")
    with selectors.DefaultSelector() as selector:
        for descriptor in descriptors:
            selector.register(descriptor, selectors.EVENT_READ)
        while selector.get_map():
            if not (ready := selector.select(max(0.0, deadline - time.monotonic()))):
                raise TimeoutError(f"the module still runs; so far it said {found}")
            for key, _ in ready:
                data = os.read(key.fd, 1 << 16)
                found[key.fd] += data
                if not data:
                    selector.unregister(key.fd)
    return [found[descriptor].decode() for descriptor in descriptors]


def _exactly(connection: socket.socket, count: int) -> bytes:
    found = b""
    while len(found) < count:
        if not (part := connection.recv(count - len(found))):
            raise EOFError("the other end has closed the connection")
        found += part
    return found


def serve(connection: socket.socket, collections: str) -> None:
    """Fork for each request, until the other end is closed."""
    _load(collections)
    while True:
        head, descriptors, _, _ = socket.recv_fds(connection, 4, 3)
        if not head:
            break
        head += _exactly(connection, 4 - len(head))
        request = json.loads(_exactly(connection, int.from_bytes(head, "big")))
        if not (pid := os.fork()):
            connection.close()
            _become(request, descriptors)
        for descriptor in descriptors:
            os.close(descriptor)
        connection.sendall(pid.to_bytes(4, "big"))
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
    with contextlib.suppress(ChildProcessError):
        while True:
            os.wait()


def _load(collections: str) -> None:
    """Import what modules import. One that cannot be imported says so when it is run."""
    from ansible.module_utils import basic
    from ansible.utils.collection_loader._collection_finder import _AnsibleCollectionFinder

    _AnsibleCollectionFinder(paths=[collections])._install()
    basic._ANSIBLE_PROFILE = "legacy"
    for module in pkgutil.iter_modules(importlib.import_module(MODULES).__path__):
        with contextlib.suppress(Exception):
            importlib.import_module(f"{MODULES}.{module.name}")
        sys.modules.pop(f"{MODULES}.{module.name}", None)
    for name in ("kubernetes", "yaml", "jmespath"):
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    _look_often()
    gc.collect()
    gc.freeze()


def _look_often() -> None:
    """Wait a tenth of the time from one look at a service to the next: the looks are as many, the limits as long."""
    machine = importlib.import_module("ansible_collections.accel.kubernetes.plugins.module_utils.host.machine")
    machine.Host.sleep = lambda _host, seconds: time.sleep(seconds / 10)


def _become(request: Mapping[str, Any], descriptors: list[int]) -> None:
    """Run the module in this process, and end with it."""
    code = 1
    try:
        os.setsid()
        for number, descriptor in enumerate(descriptors):
            os.dup2(descriptor, number)
        for descriptor in descriptors:
            if descriptor > 2:
                os.close(descriptor)
        sys.stdin, sys.stdout, sys.stderr = open(0), open(1, "w"), open(2, "w", buffering=1)  # noqa: SIM115
        os.environ.clear()
        os.environ.update(request["environment"])
        os.chdir(request["directory"])
        resource.setrlimit(resource.RLIMIT_FSIZE, request["file_size"])
        tempfile.tempdir = None
        sys.argv = [request["name"]]
        runpy.run_module(f"{MODULES}.{request['name']}", run_name="__main__")
        code = 0
    except SystemExit as ending:
        code = ending.code if isinstance(ending.code, int) else int(ending.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])), sys.argv[2])
