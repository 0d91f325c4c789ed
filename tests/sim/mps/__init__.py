# SPDX-License-Identifier: Apache-2.0
"""A stand-in for ``nvidia-cuda-mps-control``, for machines without a GPU."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sim.mps import nvidia_cuda_mps_control as control


def real() -> Path | None:
    """NVIDIA's program, which starts without a GPU: Debian's package ``nvidia-cuda-mps`` has it."""
    found = os.environ.get("NVIDIA_CUDA_MPS_CONTROL") or shutil.which("nvidia-cuda-mps-control")
    return Path(found) if found else None


def install(directory: Path) -> Path:
    """``<directory>/nvidia-cuda-mps-control``, to be run like the real one."""
    directory.mkdir(parents=True, exist_ok=True)
    program = directory / "nvidia-cuda-mps-control"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -SE {control.__file__} "$@"\n')
    program.chmod(0o755)
    return program


@contextmanager
def daemon(program: Path, pipe: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A control daemon of this pipe directory; it may or may not listen yet."""
    pipe.mkdir(parents=True, exist_ok=True)
    environment = os.environ | {"CUDA_MPS_PIPE_DIRECTORY": str(pipe), "CUDA_MPS_LOG_DIRECTORY": str(pipe)}
    with subprocess.Popen([program, "-f"], env=environment, stdout=subprocess.DEVNULL) as process:
        try:
            yield process
        finally:
            process.kill()


def set_servers(pipe: Path, *servers: tuple[int, int, str, tuple[int, ...]]) -> None:
    """What the control daemon of this pipe directory tells from now on: process id, user, status and clients each."""
    lines = [" ".join(map(str, (pid, uid, status, *clients))) for pid, uid, status, clients in servers]
    candidate = pipe / f".{control.SERVERS}"
    candidate.write_text("\n".join(lines))
    candidate.replace(pipe / control.SERVERS)
