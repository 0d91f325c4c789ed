# SPDX-License-Identifier: Apache-2.0
"""Why the loader does not load a library that is there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from ansible_collections.accel.kubernetes.plugins.module_utils.shared import nvml_library

import sim.nvml
from kube_accel.nvml.process import WorkerProcess, worker_command
from kube_accel.nvml.translate import unavailable
from waiting import wait

MACHINE = slice(18, 20)
"""e_machine of an ELF header."""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return sim.nvml.build(tmp_path_factory.mktemp("lib"))


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[bytes], Path]:
    """Puts a library where the loader looks first."""

    def install(content: bytes) -> Path:
        path = tmp_path / nvml_library.LIBRARY
        path.write_bytes(content)
        monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
        return path

    return install


def other_machine(library: bytes) -> bytes:
    return library[: MACHINE.start] + (183 if library[18] == 62 else 62).to_bytes(2, "little") + library[MACHINE.stop :]


def other_class(library: bytes) -> bytes:
    return library[:4] + b"\x01" + library[5:]


def undefined_symbol(tmp_path: Path) -> bytes:
    source = tmp_path / "odd.c"
    source.write_text("extern int made_up(void); int nvmlInit_v2(void) { return made_up(); }\n")
    made = tmp_path / "odd.so"
    subprocess.run(["gcc", "-shared", "-fPIC", "-Wl,-z,now", "-o", made, source], check=True)
    return made.read_bytes()


def said(path: Path) -> str:
    """What a fresh process says, which has nothing loaded."""
    code = "import sys\nfrom kube_accel.shared.nvml_library import unloadable\nprint(unloadable())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=os.environ)
    assert str(path) in done.stdout
    return done.stdout


def from_worker(tmp_path: Path) -> str:
    worker = WorkerProcess(worker_command(tmp_path, tmp_path))
    try:
        worker.send({"id": 1, "op": "inventory"})
        answers: list[dict[str, object]] = []
        wait(lambda: answers.extend(worker.receive()[0]) or answers)
        return unavailable(json.loads(json.dumps(answers[0]["error"])))
    finally:
        worker.kill()
        worker.wait(10)


def test_a_library_that_is_nowhere_is_not_called_unloadable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    assert nvml_library.unloadable("libnowhere-at-all.so.1") == ""
    assert nvml_library.unloadable(str(tmp_path / "libnowhere.so")) == ""


def test_another_machines_library_is_named(installed: Callable[[bytes], Path], built: Path, tmp_path: Path) -> None:
    path = installed(other_machine(built.read_bytes()))
    assert "it is a library for 64-bit" in said(path)
    assert "and this machine runs 64-bit" in from_worker(tmp_path)


def test_a_library_of_the_other_class_is_named(installed: Callable[[bytes], Path], built: Path) -> None:
    assert "it is a library for 32-bit" in said(installed(other_class(built.read_bytes())))


def test_what_is_no_library_is_named(installed: Callable[[bytes], Path], tmp_path: Path) -> None:
    path = installed(b"version https://git-lfs.github.com/spec/v1\n")
    assert "no ELF file" in said(path)
    assert f"libnvidia-ml.so.1 is there and cannot be loaded: {path}: no ELF file" in from_worker(tmp_path)


def test_an_undefined_symbol_is_named(installed: Callable[[bytes], Path], tmp_path: Path) -> None:
    assert "undefined symbol: made_up" in said(installed(undefined_symbol(tmp_path)))
    assert "undefined symbol: made_up" in from_worker(tmp_path)


def test_a_link_to_nothing_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / nvml_library.LIBRARY
    path.symlink_to(tmp_path / "gone.so")
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    assert "No such file" in said(path)


def test_a_library_that_may_not_be_read_is_named(
    installed: Callable[[bytes], Path], built: Path, tmp_path: Path
) -> None:
    path = installed(built.read_bytes())
    path.chmod(0)
    code = (
        "import os\nfrom kube_accel.shared.nvml_library import unloadable\n"
        "os.geteuid() or os.setuid(65534)\nprint(unloadable())"
    )
    for directory in (tmp_path, *tmp_path.parents[:3]):
        directory.chmod(directory.stat().st_mode | 0o111)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, env=os.environ)
    assert "Permission denied" in done.stdout, done.stderr
    assert str(path) in done.stdout
