# SPDX-License-Identifier: Apache-2.0
"""What a controller asks of Python, resolved and fetched for a Python and a machine that need not be this one."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

# Of glibc, oldest last: 2.28 is that of the oldest distribution whose Python runs ansible-core.
_GLIBC = ("manylinux_2_28", "manylinux_2_24", "manylinux2014", "manylinux2010", "manylinux1")


def resolve(requirements: Iterable[str], python: str, machine: str) -> str:
    """Every package that is needed for these, with its version and the SHA-256 of its files, as pip reads them.

    ``python`` is a version as 3.12, ``machine`` an architecture as the kernel names it.
    Raises LookupError where there is no answer.
    """
    # Sources would be built, by their own code, to know what they need.
    command = ["uv", "pip", "compile", "--quiet", "--only-binary", ":all:"]
    command += ["--no-header", "--no-annotate", "--generate-hashes"]
    command += ["--python-version", python, "--python-platform", f"{machine}-manylinux_2_28", "-"]
    return _run(command, "\n".join(requirements))


def fetch(resolved: str, python: str, machine: str, target: Path) -> None:
    """Puts the wheels into the directory ``target``. Raises LookupError where one cannot be had, or is another file."""
    digits = python.replace(".", "")
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    command += ["--dest", str(target), "--only-binary", ":all:", "--python-version", python, "--implementation", "cp"]
    command += [word for abi in (f"cp{digits}", "abi3", "none") for word in ("--abi", abi)]
    command += [word for glibc in _GLIBC for word in ("--platform", f"{glibc}_{machine}")]
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        file.write(resolved)
        file.flush()
        _run([*command, "--require-hashes", "--requirement", file.name])


def _run(command: list[str], given: str = "") -> str:
    done = subprocess.run(command, input=given, capture_output=True, text=True, check=False)
    if done.returncode:
        raise LookupError("\n".join(line for line in done.stderr.splitlines() if not line.startswith("WARNING")))
    return done.stdout
