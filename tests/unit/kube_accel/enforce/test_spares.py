# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import os
import stat
from pathlib import Path

from kube_accel.enforce.spares import Spares


def _pools(root: Path) -> list[Path]:
    return sorted(root.glob(".spare-*"))


def test_each_container_gets_files_of_its_own(tmp_path: Path) -> None:
    spares = Spares(tmp_path / "containers", label=False)
    assert spares.fill()
    taken = [spares.take() for _ in range(40)]
    inodes = {os.fstat(file).st_ino for spare in taken for file in spare.files.values()}
    assert len(inodes) == 3 * len(taken)


def test_the_directory_is_for_its_owner_alone(tmp_path: Path) -> None:
    root = tmp_path / "containers"
    root.mkdir(mode=0o755)
    Spares(root, label=False).fill()
    assert stat.S_IMODE(root.stat().st_mode) == 0o700


def test_a_file_that_was_given_away_stays_and_the_others_go(tmp_path: Path) -> None:
    spares = Spares(tmp_path / "containers", label=False)
    spare = spares.take()
    os.close(spare.give("state", tmp_path))
    spare.discard()
    assert (tmp_path / "state").stat().st_size > 0
    assert not spare.directory.exists()


def test_what_a_process_that_lives_has_ready_is_left_to_it(tmp_path: Path) -> None:
    root = tmp_path / "containers"
    first, second = Spares(root, label=False), Spares(root, label=False)
    assert first.fill()
    assert second.fill()
    second.clean()
    assert len(_pools(root)) == 2


def test_files_that_something_was_mounted_over_are_not_given(tmp_path: Path) -> None:
    root = tmp_path / "containers"
    spares = Spares(root, label=False)
    assert spares.fill()
    root.rename(tmp_path / "hidden")
    spare = spares.take()
    assert spare.directory.is_relative_to(root)
    assert all((spare.directory / name).exists() for name in spare.files)
