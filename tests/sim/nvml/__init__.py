# SPDX-License-Identifier: Apache-2.0
"""Simulated NVML: ``build`` makes the library, ``topology`` the file it answers from, ``sysfs`` the kernel's side."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

_SOURCE = Path(__file__).with_name("simnvml.c")
_CACHE = Path(__file__).with_name("__pycache__")
_COMMAND = (
    *("gcc", "-std=c11", "-O2", "-g", "-fPIC", "-shared", "-fvisibility=hidden", "-pthread"),
    *("-Wall", "-Wextra", "-Wl,-soname,libnvidia-ml.so.1"),
)
LIBRARY = "libnvidia-ml.so.1"


def build(out_dir: Path, cflags: Sequence[str] = ()) -> Path:
    """Compiles the simulated NVML into ``<out_dir>/libnvidia-ml.so.1`` and returns that path.

    Compiles once per content of source and flags, and never changes a library a process has loaded.
    Raises subprocess.CalledProcessError when gcc refuses, FileNotFoundError without gcc.
    """
    command = [*_COMMAND, *cflags]
    digest = hashlib.sha256(b"\0".join([_SOURCE.read_bytes(), *(word.encode() for word in command)])).hexdigest()[:16]
    cached = _CACHE / f"simnvml-{digest}.so"
    out_dir.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out_dir) as work:
        fresh = Path(work) / LIBRARY
        if not cached.exists():
            subprocess.run([*command, "-o", fresh, _SOURCE], check=True)
            _CACHE.mkdir(exist_ok=True)
            _publish(fresh, cached)
        shutil.copyfile(cached, fresh)
        fresh.chmod(0o755)
        fresh.replace(out_dir / LIBRARY)
    return out_dir / LIBRARY


def _publish(source: Path, target: Path) -> None:
    handle, temporary = tempfile.mkstemp(dir=target.parent)
    os.close(handle)
    shutil.copyfile(source, temporary)
    Path(temporary).replace(target)
