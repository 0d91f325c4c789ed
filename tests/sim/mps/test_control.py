# SPDX-License-Identifier: Apache-2.0
"""The stand-in against what the real control program of driver 535.261.03 says, and against that one when it is there.

``NVIDIA_CUDA_MPS_CONTROL`` names a real one; this driver's starts without a GPU.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from sim.mps import install, real

SAID = (
    ("get_server_list", ""),
    ("get_default_active_thread_percentage", "100.0\n"),
    ("set_default_active_thread_percentage 50", "50.0\n"),
    ("set_default_active_thread_percentage 150", "50.0\n"),
    ("set_default_active_thread_percentage", "50.0\n"),
    ("set_default_active_thread_percentage abc", "50.0\n"),
    ("get_default_active_thread_percentage", "50.0\n"),
    ("get_default_device_pinned_mem_limit 0", ""),
    ("set_default_device_pinned_mem_limit 0 2G", ""),
    ("get_default_device_pinned_mem_limit 0", "2G\n"),
    ("set_default_device_pinned_mem_limit 0 x", ""),
    ("set_default_device_pinned_mem_limit 0 512M", ""),
    ("get_default_device_pinned_mem_limit 0", "512M\n"),
    ("get_default_device_pinned_mem_limit 1", ""),
    ("ps", "Server not found\n"),
    ("get_client_list 1", "Server 1 not found\n"),
    ("get_active_thread_percentage 1", "Server 1 not found\n"),
    ("get_device_client_list", ""),
    ("get_default_client_priority", "0\n"),
    ("shutdown_server 1", "Server 1 not found\n"),
    ("bogus", 'Unknown command "bogus"\n'),
    ("", 'Unknown command ""\n'),
)
"""Commands and what is printed for them, exit code 0 each."""


class Program:
    def __init__(self, path: Path, root: Path) -> None:
        self.path = path
        self.pipe = root / "pipe"
        self.log = root / "log"
        self.log.mkdir()
        self.pipe.mkdir()
        own = {"CUDA_MPS_PIPE_DIRECTORY": str(self.pipe), "CUDA_MPS_LOG_DIRECTORY": str(self.log)}
        self.environment = os.environ | own

    def run(self, *arguments: str, commands: str = "") -> tuple[int, str, str]:
        """Exit code, standard output, standard error."""
        done = subprocess.run(
            [self.path, *arguments], input=commands, env=self.environment, capture_output=True, text=True, timeout=30
        )
        return done.returncode, done.stdout, done.stderr


@pytest.fixture(params=["stand-in", "real"])
def program(request: pytest.FixtureRequest) -> Iterator[Program]:
    with tempfile.TemporaryDirectory(dir="/tmp") as directory:
        root = Path(directory)
        if request.param == "stand-in":
            path = install(root / "bin")
        elif found := real():
            path = found
        else:
            pytest.skip("no nvidia-cuda-mps-control (Debian: nvidia-cuda-mps); name one by NVIDIA_CUDA_MPS_CONTROL")
        program = Program(path, root)
        yield program
        program.run(commands="quit\n")


def test_a_server_that_is_killed_is_not_listed_any_more(program: Program) -> None:
    """The daemon's server is a program that does nothing: without a GPU the real one ends at once."""
    servers = program.pipe.parent / "servers"
    servers.mkdir()
    (servers / "nvidia-cuda-mps-server").write_text("#!/bin/sh\nexec sleep 600\n")
    (servers / "nvidia-cuda-mps-server").chmod(0o755)
    program.environment["PATH"] = f"{servers}:{program.environment['PATH']}"
    assert program.run("-d")[0] == 0
    assert program.run(commands="start_server -uid 0\n") == (0, "", "")
    code, listed, _ = program.run(commands="get_server_list\n")
    assert code == 0
    assert program.run(commands=f"get_client_list {int(listed)}\n") == (0, "", "")
    os.kill(int(listed), signal.SIGKILL)
    while program.run(commands="get_server_list\n")[1]:
        """It learns of it."""
    gone = f"Server {int(listed)} not found\n"
    assert program.run(commands=f"get_server_list\nget_client_list {int(listed)}\n") == (0, gone, "")


def test_processes_of_any_user_may_connect(program: Program) -> None:
    assert program.run("-d")[0] == 0
    assert (program.pipe / "control").stat().st_mode & 0o777 == 0o666


def test_by_the_socket_for_clients_alone_nobody_ends_it(program: Program) -> None:
    assert program.run("-d")[0] == 0
    client = program.pipe.parent / "client"
    client.mkdir()
    (client / "control").hardlink_to(program.pipe / "control")
    program.environment["CUDA_MPS_PIPE_DIRECTORY"] = str(client)
    assert program.run(commands="quit\n") == (0, "Not enough privilege to execute quit command\n", "")
    assert program.run(commands="get_default_active_thread_percentage\n") == (0, "100.0\n", "")
    program.environment["CUDA_MPS_PIPE_DIRECTORY"] = str(program.pipe)


def test_without_a_daemon_it_says_so(program: Program) -> None:
    for command in ("get_server_list", "get_default_active_thread_percentage", "quit", "bogus", ""):
        assert program.run(commands=command + "\n") == (1, "", "Cannot find MPS control daemon process\n")


def test_help_tells_what_it_is(program: Program) -> None:
    code, out, _ = program.run("-h")
    assert code == 0
    assert out.startswith("CUDA MPS Control for Linux/Unix.\n")


def test_a_daemon_answers_until_it_is_told_to_quit(program: Program) -> None:
    assert program.run("-d")[0] == 0
    for command, said in SAID:
        assert program.run(commands=command + "\n") == (0, said, ""), command
    commands = "get_default_active_thread_percentage\nget_server_list\n"
    assert program.run(commands=commands) == (0, "50.0\n", "")
    assert "Cmd:set_default_active_thread_percentage 150\n" in (program.log / "control.log").read_text()
    code, out, err = program.run("-d")
    assert (code, (out + err).strip()) == (1, "An instance of this daemon is already running")
    assert program.run(commands="quit\n") == (0, "", "")
    while program.run(commands="get_server_list\n")[0] == 0:
        """It takes its leave."""
    assert (program.pipe / "control").is_socket(), "left behind"


def test_a_client_that_is_killed_takes_nothing_with_it(tmp_path: Path) -> None:
    """The protocol on the socket is the stand-in's own."""
    program = Program(install(tmp_path / "bin"), tmp_path)
    assert program.run("-d")[0] == 0
    for _ in range(20):
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(program.pipe / "control"))
            client.sendall(b"get_server_list\n" * 3)
    assert program.run(commands="get_default_active_thread_percentage\nquit\n") == (0, "100.0\n", "")
