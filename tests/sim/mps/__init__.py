# SPDX-License-Identifier: Apache-2.0
"""A stand-in for ``nvidia-cuda-mps-control``, for machines without a GPU."""

from __future__ import annotations

import sys
from pathlib import Path

from sim.mps import nvidia_cuda_mps_control as control


def install(directory: Path) -> Path:
    """``<directory>/nvidia-cuda-mps-control``, to be run like the real one."""
    directory.mkdir(parents=True, exist_ok=True)
    program = directory / "nvidia-cuda-mps-control"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -SE {control.__file__} "$@"\n')
    program.chmod(0o755)
    return program


def set_servers(pipe: Path, *servers: tuple[int, int, str, tuple[int, ...]]) -> None:
    """What the control daemon of this pipe directory tells from now on: process id, user, status and clients each."""
    lines = [" ".join(map(str, (pid, uid, status, *clients))) for pid, uid, status, clients in servers]
    candidate = pipe / f".{control.SERVERS}"
    candidate.write_text("\n".join(lines))
    candidate.replace(pipe / control.SERVERS)
