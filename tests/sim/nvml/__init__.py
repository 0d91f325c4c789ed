# SPDX-License-Identifier: Apache-2.0
"""Simulated NVML: ``build`` makes the library, ``topology`` the file it answers from, ``sysfs`` the kernel's side."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from sim import library

_SOURCE = Path(__file__).with_name("simnvml.c")
_CARD = Path(__file__).parents[1] / "cuda" / "card.h"
LIBRARY = "libnvidia-ml.so.1"
_COMMAND = (
    *("gcc", "-std=c11", "-O2", "-g", "-fPIC", "-shared", "-fvisibility=hidden", "-pthread"),
    *("-Wall", "-Wextra", f"-Wl,-soname,{LIBRARY}"),
)


def build(out_dir: Path, cflags: Sequence[str] = ()) -> Path:
    """Compiles the simulated NVML into ``<out_dir>/libnvidia-ml.so.1`` and returns that path, as library.build says."""
    return library.build(out_dir, LIBRARY, [*_COMMAND, f"-I{_CARD.parent}", *cflags], [_SOURCE], [_CARD])
