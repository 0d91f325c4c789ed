# SPDX-License-Identifier: Apache-2.0
"""What the role gpu_plugins reads of the MPS control daemons of a host."""

from __future__ import annotations

import subprocess
from pathlib import Path

from .conftest import ROLES

SCRIPT = ROLES / "gpu_plugins/files/mps_look.sh"
SUM = "0123456789abcdef" * 4


def look(root: Path) -> list[str]:
    """What is printed, without the root."""
    command = ["sh", "-s", SUM, str(root / "state"), str(root / "wants"), str(root / "system")]
    with SCRIPT.open() as script:
        done = subprocess.run(command, stdin=script, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    return [str(Path(line).relative_to(root)) for line in done.stdout.splitlines()]


def test_a_host_without_control_daemons(tmp_path: Path) -> None:
    assert look(tmp_path) == []


def test_units_and_records_of_this_command_are_printed(tmp_path: Path) -> None:
    for name in ("state", "wants", "system"):
        (tmp_path / name).mkdir()
    (tmp_path / "system/kube-accel-mps@.service").touch()
    (tmp_path / "system/other.service").touch()
    (tmp_path / "wants/kube-accel-mps@GPU-1.service").symlink_to("gone")
    (tmp_path / "state/GPU-1.command").write_text(f"{SUM}  -\n")
    (tmp_path / "state/GPU-2.command").write_text(f"{SUM[::-1]}  -\n")
    (tmp_path / "state/GPU-3.compute-mode").write_text(f"{SUM}  -\n")
    units = ["wants/kube-accel-mps@GPU-1.service", "system/kube-accel-mps@.service"]
    assert look(tmp_path) == [*units, "state/GPU-1.command"]
