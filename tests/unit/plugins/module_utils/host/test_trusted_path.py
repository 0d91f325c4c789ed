# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from pathlib import Path

import pytest
from ansible_collections.accel.kubernetes.plugins.module_utils.host import trusted_path
from ansible_collections.accel.kubernetes.plugins.module_utils.host.trusted_path import UntrustedError


def test_missing_directories_are_made_private_and_listed(tmp_path: Path) -> None:
    target = tmp_path / "a/b"
    made = [str(tmp_path / "a"), str(target)]
    assert trusted_path.make_directory(str(target), check=True) == made
    assert not (tmp_path / "a").exists()
    assert trusted_path.make_directory(str(target)) == made
    assert [path.stat().st_mode & 0o7777 for path in (tmp_path / "a", target)] == [0o700, 0o700]
    assert trusted_path.make_directory(str(target), 0o755) == []
    assert target.stat().st_mode & 0o7777 == 0o700


@pytest.mark.parametrize(
    ("mode", "remedy"), [(0o722, "chmod go-w"), (0o707, "chmod go-w"), (0o1777, "use a directory below it")]
)
def test_directory_others_may_write_is_refused_with_a_remedy(tmp_path: Path, mode: int, remedy: str) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a").chmod(mode)
    with pytest.raises(UntrustedError, match=rf"a can be written by others \(mode {mode:04o}\); .*{remedy}"):
        trusted_path.make_directory(str(tmp_path / "a"))


def test_the_user_s_own_group_may_write(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a").chmod(0o775)
    assert trusted_path.make_directory(str(tmp_path / "a/b")) == [str(tmp_path / "a/b")]


def test_a_directory_above_that_others_may_write_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a/b").mkdir(parents=True)
    (tmp_path / "a").chmod(0o777)
    with pytest.raises(UntrustedError, match=r"a, on the way to .*a/b, can be written by others"):
        trusted_path.make_directory(str(tmp_path / "a/b"))


def test_links_of_the_user_are_followed_and_circles_end(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    assert trusted_path.make_directory(str(tmp_path / "link/x")) == [str(tmp_path / "link/x")]
    assert (tmp_path / "real/x").is_dir()
    (tmp_path / "one").symlink_to("two")
    (tmp_path / "two").symlink_to("one")
    with pytest.raises(OSError, match="symbolic links"):
        trusted_path.make_directory(str(tmp_path / "one"))


def test_file_is_read_by_descriptor_and_a_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x")
    with trusted_path.regular_file(str(tmp_path / "file")) as file:
        (tmp_path / "file").rename(tmp_path / "other")
        assert file.read() == b"x"
    with pytest.raises(UntrustedError, match="not a regular file"), trusted_path.regular_file(str(tmp_path)):
        pass
    with pytest.raises(FileNotFoundError), trusted_path.regular_file(str(tmp_path / "none")):
        pass


def test_only_files_links_and_empty_directories_are_removed(tmp_path: Path) -> None:
    (tmp_path / "full/x").mkdir(parents=True)
    (tmp_path / "link").symlink_to("full")
    assert trusted_path.remove(str(tmp_path / "full/x"), check=True)
    assert not trusted_path.remove(str(tmp_path / "full"))
    assert trusted_path.remove(str(tmp_path / "link"))
    assert trusted_path.remove(str(tmp_path / "full/x"))
    assert trusted_path.remove(str(tmp_path / "full"))
    assert not trusted_path.remove(str(tmp_path / "full"))
    assert list(tmp_path.iterdir()) == []
