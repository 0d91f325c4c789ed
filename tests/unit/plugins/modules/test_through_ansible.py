# SPDX-License-Identifier: Apache-2.0
"""The modules as `ansible` ships them to a target: packed, with only their own module_utils."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from programs import program

ROOT = Path(__file__).parents[4]
FIXTURES = Path(__file__).parents[1] / "fixtures"


def ansible(tmp_path: Path, module: str, *, check: bool = False, **options: Any) -> dict[str, Any]:
    command = [program("ansible"), "localhost", "-m", f"accel.kubernetes.{module}"]
    done = subprocess.run(
        [*command, "-a", json.dumps(options), *(["--check"] if check else [])],
        env={
            **os.environ,
            "ANSIBLE_COLLECTIONS_PATH": str(ROOT / ".build" / "link"),
            "ANSIBLE_HOME": str(tmp_path / "ansible"),
            "ANSIBLE_LOAD_CALLBACK_PLUGINS": "1",
            "ANSIBLE_STDOUT_CALLBACK": "ansible.builtin.minimal",
            "ANSIBLE_NOCOLOR": "1",
            "ANSIBLE_PYTHON_INTERPRETER": sys.executable,
        },
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert "=> {" in done.stdout, done.stdout + done.stderr
    result: dict[str, Any] = json.loads("{" + done.stdout.split("=> {", 1)[1])
    return result


@pytest.mark.ci
def test_nvml_facts(tmp_path: Path) -> None:
    result = ansible(tmp_path, "nvml_facts", library="libno-such-thing.so.1")

    assert result["ansible_facts"]["accel_nvml"]["available"] is False


@pytest.mark.ci
@pytest.mark.parametrize(
    ("module", "fixture", "options"),
    [
        ("nvidia_runtime", "containerd-2.1.toml", {"runtime": "containerd", "service": "", "validate": []}),
        ("scheduler_extender", "kube-scheduler.yaml", {"binpack_resources": [{"name": "a/b"}], "health_url": ""}),
    ],
)
def test_the_writers(tmp_path: Path, module: str, fixture: str, options: dict[str, Any]) -> None:
    target = tmp_path / fixture
    shutil.copy(FIXTURES / fixture, target)
    if module == "nvidia_runtime":
        options = {**options, "config_path": str(target)}
    else:
        options = {**options, "host_root": str(tmp_path), "manifest_path": f"/{fixture}"}
    options["backup_dir"] = str(tmp_path / "backups")

    assert ansible(tmp_path, module, **options)["changed"]
    assert target.read_bytes() != (FIXTURES / fixture).read_bytes()
    assert not ansible(tmp_path, module, check=True, **options)["changed"]
