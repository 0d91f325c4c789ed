# SPDX-License-Identifier: Apache-2.0
"""A node is served by plugins of one mode, or by the DRA driver."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kube_accel.model import Mode
from kube_accel.plugin.mode_lock import DRA, ModeLock
from kube_accel.plugin.turns import take_turns

HOLD = """
import sys
from pathlib import Path
from kube_accel.plugin.mode_lock import ModeLock
print(ModeLock(Path(sys.argv[1]), sys.argv[2]).take(), flush=True)
sys.stdin.read()
"""


@contextmanager
def served(state_dir: Path, mode: str) -> Iterator[None]:
    """Another process serves the node in this mode."""
    command = [sys.executable, "-c", HOLD, str(state_dir), mode]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        assert process.stdout.readline() == "\n"
        yield
        process.communicate()


@pytest.mark.parametrize(("first", "second"), [(Mode.PGPU.value, DRA), (DRA, Mode.VGPU.value)])
def test_plugin_and_dra_driver_take_turns(tmp_path: Path, first: str, second: str) -> None:
    with served(tmp_path, first):
        assert f"a plugin of mode {first} runs on this node" in ModeLock(tmp_path, second).take()
    assert ModeLock(tmp_path, second).take() == ""


def test_two_instances_of_the_dra_driver_go_together(tmp_path: Path) -> None:
    with served(tmp_path, DRA):
        assert take_turns(("127.0.0.1", 0), ModeLock(tmp_path, DRA), threading.Event())


def test_stopped_driver_waits_no_longer(tmp_path: Path) -> None:
    stop = threading.Event()
    stop.set()
    with served(tmp_path, Mode.MPS.value):
        assert not take_turns(("127.0.0.1", 0), ModeLock(tmp_path, DRA), stop)
