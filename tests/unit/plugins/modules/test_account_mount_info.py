# SPDX-License-Identifier: Apache-2.0
"""Module account_mount_info against a tree of files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from unit.plugins.module_utils.host.test_account_mount import LISTED, MOUNTED, PATH

Look = Callable[..., dict[str, Any]]
KEY = "0123456789abcdef" * 2


@pytest.fixture
def look(run_module: Callable[..., dict[str, Any]], tmp_path: Path) -> Look:
    """Runs the module on a host with these mounts."""
    (tmp_path / "run/systemd/system").mkdir(parents=True)
    (tmp_path / "proc/self").mkdir(parents=True)

    def run(mounts: str = LISTED, **options: Any) -> dict[str, Any]:
        here = mounts.replace(PATH, f"{tmp_path}{PATH}")
        (tmp_path / "proc/self/mountinfo").write_text(here)
        words = {"path": f"{tmp_path}{PATH}", "root": str(tmp_path)}
        return run_module("account_mount_info", words | options)

    return run


def test_spare_files_are_no_account(look: Look, tmp_path: Path) -> None:
    root = Path(f"{tmp_path}{PATH}")
    for name in (".spare-0a1b2c3d/0a1b/state", ".lock", f".spare-0a1b2c3d/{KEY}/state"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("x")
    found = look()
    assert (found["action"], found["unit_state"], found["changed"]) == ("start", "enabled", False)
    (root / KEY).mkdir()
    assert (look()["action"], look()["waits"]) == ("none", True)


def test_files_count_by_the_room_they_take(look: Look, tmp_path: Path) -> None:
    state = Path(f"{tmp_path}{PATH}", KEY, "state")
    state.parent.mkdir(parents=True)
    with state.open("wb") as file:
        file.truncate(1 << 30)
    assert look(LISTED + MOUNTED, size_mib=32)["action"] == "reload"
    state.write_bytes(b"x" * (33 << 20))
    assert look(LISTED + MOUNTED, size_mib=32)["action"] == "none"


def test_a_unit_is_named_by_the_path_without_links(look: Look, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "var/lib").mkdir(parents=True)
    (tmp_path / "var/lib/kube-accel").symlink_to(tmp_path / "data")
    found = look()
    assert found["where"] == f"{tmp_path}/data/containers"
    assert found["unit"].endswith("-data-containers.mount")


def test_a_unit_is_written_once_its_file_is_there(look: Look, tmp_path: Path) -> None:
    found = look()
    assert not found["unit_written"]
    unit = tmp_path / "etc/systemd/system" / found["unit"]
    unit.parent.mkdir(parents=True)
    unit.touch()
    assert look()["unit_written"]


def test_bad_input_is_refused(look: Look, tmp_path: Path) -> None:
    assert "set it to 0" in look(size_mib=-1)["msg"]
    assert str(tmp_path / "none/proc/self/mountinfo") in look(root=str(tmp_path / "none"))["msg"]
