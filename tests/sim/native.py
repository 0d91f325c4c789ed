# SPDX-License-Identifier: Apache-2.0
"""The interposer, built once per content of its sources."""

from __future__ import annotations

import functools
import hashlib
import shutil
import subprocess
import tempfile
from pathlib import Path

SOURCES = Path(__file__).parents[2] / "roles/gpu_plugins/files/kube_accel/native"
_CACHE = Path(__file__).with_name("__pycache__")


@functools.cache
def build() -> Path:
    """The directory with ``libcuda.so.1`` and ``libnvidia-ml.so.1``. Raises CalledProcessError when gcc refuses."""
    files = sorted(path for path in SOURCES.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    digest = hashlib.sha256(b"\0".join(path.read_bytes() for path in files)).hexdigest()[:16]
    target = _CACHE / f"native-{digest}"
    if not target.is_dir():
        _CACHE.mkdir(exist_ok=True)
        work = Path(tempfile.mkdtemp(dir=_CACHE))
        work.chmod(0o755)
        subprocess.run([SOURCES / "build.sh", work], check=True, stdout=subprocess.DEVNULL)
        try:
            work.rename(target)
        except OSError:
            shutil.rmtree(work)  # another process was faster
    return target
