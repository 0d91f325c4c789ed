# SPDX-License-Identifier: Apache-2.0
"""The driver is replaced while the device plugin is paused, and stays as it is when anybody else uses a GPU."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[3] / "roles/driver/files/reload.py"
# Keeps what is loaded in the tree's sysfs, as the kernel does, and refuses the modules that BUSY names.
MODPROBE = """\
#!/bin/sh
echo "modprobe $*" >>"$ROOT/calls"
case "$1" in -r) [ "$2" != "$BUSY" ] || { echo "Module $2 is in use."; exit 1; }; rmdir "$ROOT/sys/module/$2";;
  *) mkdir -p "$ROOT/sys/module/$1";; esac
"""
SYSTEMCTL = """\
#!/bin/sh
echo "systemctl $*" >>"$ROOT/calls"
case "$*" in list-units*nvidia-persistenced) echo "nvidia-persistenced.service loaded active running A daemon";;
  list-units*'kube-accel-mps@*') echo "kube-accel-mps@GPU-1.service loaded active running MPS";; esac
"""


class Node:
    """A node's tree, and a device plugin that says yes."""

    def __init__(self, root: Path) -> None:
        self.root = root
        for name in ("nvidia", "nvidia_uvm", "nvidia_drm"):
            (root / "sys/module" / name).mkdir(parents=True)
        (root / "proc/7/fd").mkdir(parents=True)
        (root / "proc/7/comm").write_text("train\n")
        (root / "bin").mkdir()
        for name, text in (("modprobe", MODPROBE), ("systemctl", SYSTEMCTL)):
            (root / "bin" / name).write_text(text)
            (root / "bin" / name).chmod(0o755)
        self.answer = {"driver": "quiesced"}
        self.server = socket.socket(socket.AF_UNIX)
        self.server.bind(str(root / "s"))
        self.server.listen()
        threading.Thread(target=self.serve, daemon=True).start()

    def serve(self) -> None:
        while True:
            try:
                client, _ = self.server.accept()
            except OSError:
                return
            with client, (self.root / "calls").open("a") as calls:
                calls.write(f"plugin {json.loads(client.makefile('rb').readline())['command']}\n")
                calls.flush()
                client.sendall(json.dumps(self.answer).encode() + b"\n")

    def end(self) -> None:
        """The plugin ends and leaves its socket behind."""
        # A close alone leaves the socket to the thread that waits for a client.
        self.server.shutdown(socket.SHUT_RDWR)
        self.server.close()

    def reload(self, busy: str = "") -> subprocess.CompletedProcess[str]:
        words = [str(self.root / name) for name in ("sys", "dev", "proc", "s")]
        path = f"{self.root / 'bin'}:{os.environ['PATH']}"
        environment = os.environ | {"PATH": path, "ROOT": str(self.root), "BUSY": busy}
        services = ["kube-accel-mps@*", "nvidia-fabricmanager", "nvidia-persistenced"]
        command = [sys.executable, str(SCRIPT), *words, *services]
        return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)

    @property
    def calls(self) -> list[str]:
        lines = (self.root / "calls").read_text().splitlines()
        return [line for line in lines if "list-units" not in line]

    @property
    def loaded(self) -> list[str]:
        return sorted(path.name for path in (self.root / "sys/module").iterdir())


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    made = Node(tmp_path)
    yield made
    if made.server.fileno() >= 0:
        made.end()


SERVICES = ["kube-accel-mps@GPU-1.service", "nvidia-persistenced.service"]
PAUSED = ["plugin quiesce", *(f"systemctl stop {name}" for name in SERVICES)]
AGAIN = [*(f"systemctl start {name}" for name in reversed(SERVICES)), "plugin resume"]


def test_modules_are_replaced_while_plugin_and_services_pause(node: Node) -> None:
    done = node.reload()
    assert (done.returncode, done.stderr) == (0, "")
    out = [f"modprobe -r {name}" for name in ("nvidia_drm", "nvidia_uvm", "nvidia")]
    back = [f"modprobe {name}" for name in ("nvidia", "nvidia_uvm", "nvidia_drm")]
    assert node.calls == [*PAUSED, *out, *back, *AGAIN]
    assert node.loaded == ["nvidia", "nvidia_drm", "nvidia_uvm"]


def test_whoever_uses_a_gpu_is_named_and_keeps_it(node: Node) -> None:
    (node.root / "proc/7/fd/3").symlink_to(node.root / "dev/nvidia0")
    done = node.reload()
    assert done.returncode == 1
    assert "7 train use a GPU; end them, or reboot the host" in done.stderr
    assert node.calls == [*PAUSED, *AGAIN]


def test_what_was_unloaded_is_back_when_the_rest_is_busy(node: Node) -> None:
    done = node.reload(busy="nvidia")
    assert "module nvidia cannot be unloaded (Module nvidia is in use.); reboot the host" in done.stderr
    assert node.loaded == ["nvidia", "nvidia_drm", "nvidia_uvm"]
    assert node.calls[-len(AGAIN) :] == AGAIN


def test_a_plugin_that_does_not_let_go_stops_it(node: Node) -> None:
    node.answer = {"error": "pods are starting"}
    done = node.reload()
    assert "does not quiesce: pods are starting" in done.stderr
    assert not [call for call in node.calls if call.startswith("modprobe")]


def test_without_a_plugin_nobody_is_asked(node: Node) -> None:
    node.end()
    assert node.reload().returncode == 0
    assert not [call for call in node.calls if call.startswith("plugin")]
