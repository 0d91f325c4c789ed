# SPDX-License-Identifier: Apache-2.0
"""The containerd and Docker that this machine has, and those that tests/tools/runtimes.sh unpacked."""

from __future__ import annotations

import functools
import re
import shutil
import subprocess
from pathlib import Path

import pytest

_UNPACKED = Path(__file__).parents[1] / ".cache/runtimes"


@functools.cache
def _found(program: str) -> dict[str, Path]:
    """Programs by their version, such as 1.7."""
    candidates = [shutil.which(program), *sorted(_UNPACKED.glob(f"*/{program}"))]
    found: dict[str, Path] = {}
    for path in map(Path, filter(None, candidates)):
        said = subprocess.run([path, "--version"], capture_output=True, text=True)
        version = re.search(r" (\d+\.\d+)\.\d", said.stdout)
        if version:
            found.setdefault(version.group(1), path)
    return found


def containerds() -> list[object]:
    """Parameters of a test that asks each containerd."""
    return _parameters("containerd")


def dockerds() -> list[object]:
    """Parameters of a test that asks each dockerd that can check a file, from 23 on."""
    return [found for found in _parameters("dockerd") if not str(getattr(found, "id", "")).startswith("20.")]


def _parameters(program: str) -> list[object]:
    found = [pytest.param(path, id=version) for version, path in _found(program).items()]
    none = pytest.mark.skip(reason=f"no {program} on PATH, and none could be unpacked")
    return [*found] or [pytest.param(None, id="none", marks=none)]
