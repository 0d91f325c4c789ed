# SPDX-License-Identifier: Apache-2.0
"""Shared libraries of the simulators, compiled once per content."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path


def build(
    out_dir: Path,
    library: str,
    command: Sequence[str],
    sources: Sequence[Path],
    read: Iterable[Path] = (),
    generated: Mapping[str, str] | None = None,
) -> Path:
    """Compiles ``sources`` and what ``generated`` holds of C files into ``<out_dir>/<library>`` and returns that path.

    ``read``: what else the result depends on. Compiles once per content, kept beside the first source, and never
    changes a library a process has loaded.
    Raises subprocess.CalledProcessError when gcc refuses, FileNotFoundError without gcc.
    """
    generated = generated or {}
    parts = [path.read_bytes() for path in [*sources, *read]]
    parts += [text.encode() for text in [*command, *generated.values()]]
    digest = hashlib.sha256(b"\0".join(parts)).hexdigest()[:16]
    cached = sources[0].parent / "__pycache__" / f"{library.partition('.')[0]}-{digest}.so"
    out_dir.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out_dir) as work:
        fresh = Path(work) / library
        if not cached.exists():
            for name, text in generated.items():
                Path(work, name).write_text(text)
            subprocess.run([*command, "-o", fresh, *sources, *(Path(work, name) for name in generated)], check=True)
            cached.parent.mkdir(exist_ok=True)
            _publish(fresh, cached)
        shutil.copyfile(cached, fresh)
        fresh.chmod(0o755)
        fresh.replace(out_dir / library)
    return out_dir / library


def _publish(source: Path, target: Path) -> None:
    handle, temporary = tempfile.mkstemp(dir=target.parent)
    os.close(handle)
    shutil.copyfile(source, temporary)
    Path(temporary).replace(target)
