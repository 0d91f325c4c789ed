# SPDX-License-Identifier: Apache-2.0
"""Simulated control daemons of MPS, one for each GPU, as the units of a host run them."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from sim import mps


class MpsDaemons:
    """The control daemons of a node."""

    def __init__(self, root: Path, uuids: Sequence[str], stack: ExitStack) -> None:
        self.root, self.uuids = root / "mps", uuids
        self.program = mps.install(root / "bin")
        self.arguments = ["--mps-root", str(self.root), "--mps-control-command", str(self.program)]
        """Flags of the plugin and of validate."""
        for gpu in range(len(uuids)):
            for made in ("shm", "client"):
                (self.root / uuids[gpu] / made).mkdir(parents=True)
            self.start(gpu)
            stack.callback(self.stop, gpu)

    def pipe(self, gpu: int) -> Path:
        return self.root / self.uuids[gpu] / "pipe"

    def run(self, gpu: int, *arguments: str, commands: str = "") -> None:
        pipe = str(self.pipe(gpu))
        environment = os.environ | {"CUDA_MPS_PIPE_DIRECTORY": pipe, "CUDA_MPS_LOG_DIRECTORY": pipe}
        subprocess.run([self.program, *arguments], input=commands, text=True, env=environment, capture_output=True)

    def client(self, gpu: int) -> Path:
        return self.root / self.uuids[gpu] / "client"

    def start(self, gpu: int) -> None:
        self.run(gpu, "-d")
        (self.client(gpu) / "control").unlink(missing_ok=True)
        (self.client(gpu) / "control").hardlink_to(self.pipe(gpu) / "control")

    def asked(self, gpu: int, command: str) -> bool:
        """Whether the control daemon has been asked this, and has made up its answer."""
        return f"Cmd:{command}\n" in (self.pipe(gpu) / "control.log").read_text()

    def stop(self, gpu: int) -> None:
        self.run(gpu, commands="quit\n")
