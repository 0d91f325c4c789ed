# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import os
from pathlib import Path

import pytest

from kube_accel.files import replacing, write_whole


@pytest.mark.parametrize("mode", [0o444, 0o600, 0o666])
def test_file_has_the_given_mode_under_any_umask(tmp_path: Path, mode: int) -> None:
    before = os.umask(0o077)
    try:
        write_whole(tmp_path / "it", "text", mode)
    finally:
        os.umask(before)
    assert (tmp_path / "it").read_text() == "text"
    assert (tmp_path / "it").stat().st_mode & 0o7777 == mode


def test_who_reads_the_old_file_goes_on_reading_it(tmp_path: Path) -> None:
    write_whole(tmp_path / "it", "long ago")
    with (tmp_path / "it").open() as old:
        write_whole(tmp_path / "it", "new", sync=True)
        assert old.read() == "long ago"
    assert (tmp_path / "it").read_text() == "new"
    assert list(tmp_path.iterdir()) == [tmp_path / "it"]


def test_the_old_file_is_there_until_the_new_one_is_complete(tmp_path: Path) -> None:
    write_whole(tmp_path / "it.json", "old")
    with replacing(tmp_path / "it.json") as file:
        file.write(b"new")
        file.flush()
        assert (tmp_path / "it.json").read_text() == "old"
        assert list(tmp_path.glob("*.json")) == [tmp_path / "it.json"]
    assert (tmp_path / "it.json").read_text() == "new"


def test_what_fails_leaves_the_old_file_and_no_draft(tmp_path: Path) -> None:
    def fail() -> None:
        with replacing(tmp_path / "it") as file:
            file.write(b"half")
            raise OSError("disk full")

    write_whole(tmp_path / "it", "old")
    with pytest.raises(OSError, match="disk full"):
        fail()
    assert (tmp_path / "it").read_text() == "old"
    assert list(tmp_path.iterdir()) == [tmp_path / "it"]


def test_what_cannot_take_its_place_leaves_no_draft(tmp_path: Path) -> None:
    (tmp_path / "it").mkdir()
    with pytest.raises(IsADirectoryError):
        write_whole(tmp_path / "it", "text")
    assert list(tmp_path.iterdir()) == [tmp_path / "it"]
