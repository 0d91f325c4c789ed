# SPDX-License-Identifier: Apache-2.0
"""Cgroups of simulated pods, for processes that see the host's: preload what ``build`` makes."""

from __future__ import annotations

from pathlib import Path

from sim import library

POD = "SIMPOD_UID"
"""The variable by which a process is known to be of a pod. Its container is the session of its first process."""

_SOURCE = Path(__file__).with_name("simcgroups.c")
_COMMAND = ("gcc", "-std=gnu11", "-O2", "-g", "-fPIC", "-shared", "-fvisibility=hidden", "-Wall", "-Wextra")


def build(out_dir: Path) -> Path:
    """Compiles the library into ``<out_dir>/libsimcgroups.so`` and returns that path, as library.build says."""
    return library.build(out_dir, "libsimcgroups.so", _COMMAND, [_SOURCE])


def container_id(process: int) -> str:
    """The 64 hexadecimal digits that cgroups have for the container whose first process this is."""
    return f"{process:064x}"
