# SPDX-License-Identifier: Apache-2.0
"""A machine that has Ansible, the Python packages we ask for, and the collection as users get it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from bundle import artifact

REPOSITORY = Path(__file__).parents[2]
UV = Path(sys.executable).with_name("uv")
(PINNED,) = re.findall(r"^ansible-core==(\S+)", (REPOSITORY / "requirements-dev.txt").read_text(), re.MULTILINE)


@dataclass(frozen=True)
class Controller:
    """What was installed lies in its home."""

    home: Path

    def call(self, program: str, *words: str) -> subprocess.CompletedProcess[str]:
        """Run a program of its environment, in which no other collection is to be seen."""
        environment = {"HOME": str(self.home), "PATH": f"{self.home}/venv/bin:/usr/bin:/bin", "LC_ALL": "C.UTF-8"}
        environment |= {"ANSIBLE_PIPELINING": "1", "ANSIBLE_NOCOLOR": "1"}
        command = [f"{self.home}/venv/bin/{program}", *words]
        return subprocess.run(command, env=environment, cwd=self.home, capture_output=True, text=True, check=False)


def build(target: Path) -> list[Path]:
    """The archive of the collection and that of what it depends on."""
    return [artifact.build(REPOSITORY, target, 0), artifact.pack(artifact.KUBERNETES / "core", target, 0)]


def install(home: Path, tarballs: Sequence[Path], core: str = PINNED, python: str = sys.executable) -> Controller:
    """A controller with that ansible-core on that Python."""
    environment(home / "venv", python, "--requirement", str(REPOSITORY / "requirements.txt"), f"ansible-core=={core}")
    found = Controller(home)
    done = found.call("ansible-galaxy", "collection", "install", "--offline", *map(str, tarballs))
    assert done.returncode == 0, done.stderr
    return found


def environment(path: Path, python: str, *wanted: str) -> Path:
    """An environment of that Python with these packages; returns its interpreter."""
    subprocess.run([UV, "venv", "--quiet", "--python", python, path], check=True)
    interpreter = path / "bin/python"
    subprocess.run([UV, "pip", "install", "--quiet", "--python", interpreter, *wanted], check=True)
    return interpreter


def python(version: str) -> str | None:
    """An interpreter of that version, on PATH or where pyenv keeps its own."""
    return next((path for path in _candidates(version) if _answers(path, version)), None)


def _candidates(version: str) -> Iterator[str]:
    if found := shutil.which(f"python{version}"):
        yield found
    versions = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    yield from map(str, sorted(versions.glob(f"{version}.*/bin/python{version}")))


def _answers(path: str, version: str) -> bool:
    command = [path, "-c", "import sys, venv; print('%d.%d' % sys.version_info[:2])"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip() == version
